"""What a range of layers costs as a pipeline stage if nothing is recomputed: time and bytes, from the whole graph.

All are differences of prefix sums, so a range costs next to nothing to ask for. Times come from `none`'s simulated
order: a layer takes what passes on the compute stream from its first op to the next layer's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.layer_static import LayerStatic
from lynx_plan.model.graph import Phase, StorageKind
from lynx_plan.solve.analysis import Analysis, analysis_of

_NUMBERED = re.compile(r"\d+$")


class LayerCosts:
    """Costs of the layers of one graph, built once. Ranges are `first` to `last - 1`."""

    def __init__(self, index: GraphIndex) -> None:
        self.index = index
        self.layers = len(index.graph.layers)
        self.analysis: Analysis = analysis_of(index)
        self.static = LayerStatic(index)
        self.forward_ns, self.backward_ns = self._times()
        self._until = [0, *accumulate(f + b for f, b in zip(self.forward_ns, self.backward_ns, strict=True))]
        self._saved, self._foreign = self._bytes()

    def plain_ns(self, first: int, last: int) -> int:
        """Forward and backward of one microbatch."""
        return self._until[last] - self._until[first]

    def saved_bytes(self, first: int, last: int) -> int:
        """Bytes that backward ops of the range read at the end of its forward, received ones included."""
        return self._saved.touched(first, last)

    def foreign_bytes(self, first: int, last: int) -> int:
        """Bytes of other layers alive while the backward of the range runs in the whole graph."""
        return self._foreign.beside(first, last)

    def static_bytes(self, first: int, last: int) -> int:
        """Parameters, gradients, optimizer states, buffers, inputs of the range."""
        return self.static.of(first, last).total_bytes

    @cached_property
    def ends(self) -> tuple[int, int]:
        """How many layers before the first numbered block and after the last: embedding, head."""
        numbered = [n for n, layer in enumerate(self.index.graph.layers) if _NUMBERED.search(layer.name)]
        return (numbered[0], self.layers - 1 - numbered[-1]) if numbered else (0, 0)

    def _times(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Per layer: forward and backward time; together they are the whole order's."""
        none, layer_of, ops = self.analysis.none, self.index.op_layer, self.index.graph.ops
        clocks, layers = none.clocks, range(self.layers)
        forward: list[int | None] = [None] * self.layers
        backward: list[int | None] = [None] * self.layers
        turn = clocks.end_ns
        for item, (start, _) in zip(none.items, clocks.compute, strict=True):
            layer = layer_of[item.op]
            if ops[item.op].phase is Phase.FORWARD:
                forward[layer] = start if forward[layer] is None else forward[layer]
            elif backward[layer] is None:
                backward[layer] = start
                turn = min(turn, start)
        begins = _rising([forward[layer] for layer in layers], 0, turn)
        returns = _rising([backward[layer] for layer in reversed(layers)], turn, clocks.end_ns)
        return tuple(b - a for a, b in pairwise(begins)), tuple(reversed([b - a for a, b in pairwise(returns)]))

    def _bytes(self) -> tuple[_Touches, _Touches]:
        """Storages by the layers whose backward passes hold them: forward ones, and all that may outlive others'."""
        index, graph, layer_of = self.index, self.index.graph, self.index.op_layer
        saved, foreign = _Touches(self.layers), _Touches(self.layers)
        for storage in graph.storages:
            if storage.kind is not StorageKind.ACTIVATION:
                continue
            readers = [graph.ops[op] for t in index.storage_tensors[storage.id] for op in index.consumers[t]]
            late = sorted({layer_of[op.id] for op in readers if op.phase is not Phase.FORWARD})
            maker = index.storage_op[storage.id]
            made_forward = maker < 0 or graph.ops[maker].phase is Phase.FORWARD
            if not late:
                continue
            if made_forward:  # earlier layers are sent it by the backward pass: the layer that makes it keeps it
                least = layer_of[maker] if maker >= 0 else 0
                saved.add(sorted({max(least, layer) for layer in late}), storage.bytes)
            touched = late if made_forward else sorted({*late, layer_of[maker]})
            foreign.add(touched, storage.bytes, behind=made_forward)
        return saved, foreign


class _Touches:
    """Sums of bytes of storages by the layers that touch them: `touched` in a range, or alive `beside` it."""

    def __init__(self, layers: int) -> None:
        self.single = [0] * layers  # at every layer that touches
        self.near = [0] * layers  # touched by this layer and the next
        self.far: dict[tuple[int, int], int] = {}  # touched by these two and none between
        self.behind = [0] * layers  # alive for as long as later layers run: at the last layer that touches

    def add(self, layers: Sequence[int], size: int, *, behind: bool = False) -> None:
        """`layers` ascend; `behind`: it is there before the backward pass of later layers, and still after it."""
        if behind:
            self.behind[layers[-1]] += size
        for layer in layers:
            self.single[layer] += size
        for pair in pairwise(layers):
            if pair[1] - pair[0] == 1:
                self.near[pair[0]] += size
                continue
            self.far[pair] = self.far.get(pair, 0) + size

    @cached_property
    def _sums(self) -> tuple[list[int], list[int], list[int]]:
        return _prefix(self.single), _prefix(self.near), _prefix(self.behind)

    def touched(self, first: int, last: int) -> int:
        """Bytes of storages that some layer of the range touches: each once, as those layers follow one another."""
        single, near, _ = self._sums
        twice = near[last - 1] - near[first] + sum(size for (a, b), size in self.far.items() if first <= a and b < last)
        return single[last] - single[first] - twice

    def beside(self, first: int, last: int) -> int:
        """Bytes of storages that no layer of the range touches and that are alive while it runs backward."""
        return self._sums[2][first] + sum(size for (a, b), size in self.far.items() if a < first and last <= b)


def _prefix(values: Iterable[int]) -> list[int]:
    return [0, *accumulate(values)]


def _rising(starts: Sequence[int | None], low: int, high: int) -> list[int]:
    """The starts and `high`, from `low` on and never falling; one that is not known is that of the next."""
    found, following = [high], high
    for start in reversed(starts):
        following = following if start is None else max(low, min(following, start))
        found.append(following)
    found[-1] = low
    return found[::-1]
