"""Cut layers that are too large for one MILP into pieces, so that planning time stays near-linear in ops.

A recurrent network, or a model without numbered blocks, is one layer of hundreds of candidates. Its pieces are layers
to the solver only: what crosses from one piece to the next is kept, as at any layer's end. Orders and plans
name ops, so they know nothing of pieces.
"""

from __future__ import annotations

from dataclasses import replace

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.model.graph import CostGraph, Layer, Phase
from lynx_plan.solve.candidates import Candidates

MOST = 40  # candidates of a layer that stays whole
PIECE = 20  # candidates of a piece, about
SEARCH = 5  # a cut may move by as many candidates to where fewest bytes cross


def with_pieces(index: GraphIndex, facts: Candidates | None = None) -> GraphIndex:
    """The same graph with large layers cut; the same index if there are none. `facts`: of the index."""
    facts = facts or Candidates(index)
    layers: list[Layer] = []
    for layer in index.graph.layers:
        weights = [op for op in layer.ops if facts.droppable(op)]
        cuts = _cuts(index, layer, weights) if len(weights) > MOST else []
        for number, ops in enumerate(_split(index.graph, layer, cuts)):
            layers.append(Layer(id=len(layers), name=f"{layer.name}/{number}" if cuts else layer.name, ops=ops))
    if len(layers) == len(index.graph.layers):
        return index
    return GraphIndex(replace(index.graph, layers=tuple(layers)))


def _cuts(index: GraphIndex, layer: Layer, candidates: list[int]) -> list[int]:
    """Op ids that begin a piece: near every `PIECE`th candidate, where what crosses is smallest."""
    crossing = _crossing_bytes(index, layer)
    pieces = -(-len(candidates) // PIECE)
    cuts = []
    for number in range(1, pieces):
        middle = number * len(candidates) // pieces
        near = candidates[max(0, middle - SEARCH) : middle + SEARCH]
        cuts.append(min(near, key=lambda op: (crossing[op], op)))
    return sorted(set(cuts))


def _crossing_bytes(index: GraphIndex, layer: Layer) -> dict[int, int]:
    """Per forward op of the layer: bytes made before it in the layer that forward ops from it on read."""
    graph = index.graph
    forward = [op for op in layer.ops if graph.ops[op].phase is Phase.FORWARD]
    place = {op: i for i, op in enumerate(forward)}
    change = [0] * (len(forward) + 1)
    for storage, maker in enumerate(index.storage_op):
        if maker not in place:
            continue
        readers = (place.get(r, -1) for t in index.storage_tensors[storage] for r in index.consumers[t])
        last = max(readers, default=-1)
        if last > place[maker]:
            change[place[maker] + 1] += graph.storages[storage].bytes
            change[last + 1] -= graph.storages[storage].bytes
    found, total = {}, 0
    for i, op in enumerate(forward):
        total += change[i]
        found[op] = total
    return found


def _split(graph: CostGraph, layer: Layer, cuts: list[int]) -> list[tuple[int, ...]]:
    """The layer's ops by piece; a backward op goes with the latest forward value that it reads, else with its input."""
    if not cuts:
        return [layer.ops]
    piece: dict[int, int] = {}
    for op in layer.ops:
        record = graph.ops[op]
        if record.phase is Phase.FORWARD:
            piece[op] = sum(op >= cut for cut in cuts)
            continue
        makers = [graph.tensors[t].producer for t in record.inputs]
        inside = [maker for maker in makers if maker in piece]
        forward = [piece[maker] for maker in inside if graph.ops[maker].phase is Phase.FORWARD]
        others = [piece[maker] for maker in inside]
        piece[op] = max(forward) if forward else min(others, default=len(cuts))
    return [tuple(op for op in layer.ops if piece[op] == number) for number in range(len(cuts) + 1)]
