"""What HEU chooses from: the frontier of policies of every layer of a stage, made once per graph."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from lynx_plan.model.graph import Phase
from lynx_plan.solve.analysis import Analysis
from lynx_plan.solve.mix import Mix, Options
from lynx_plan.solve.order import Placement
from lynx_plan.solve.policies import Policy, frontier
from lynx_plan.solve.stage_model import LayerModel, StageModel

FEW = 4  # layers of a stage whose frontiers are made thoroughly
NEGLIGIBLE = 0.001  # layers that save less than this share of the peak keep everything


@dataclass(frozen=True, slots=True)
class Variant:
    """Layers of one class whose next layer is of one class too: a frontier, and the layer it was read from."""

    model: LayerModel
    policies: tuple[Policy, ...]


class Stage:
    """The frontiers of a stage's layers, made once per graph: what a mix chooses from."""

    def __init__(self, analysis: Analysis, *, windows_open: bool) -> None:
        self.analysis = analysis
        self.model = StageModel(analysis.candidates, analysis.none, windows_open=windows_open)
        self.graph = analysis.index.graph
        self.level = self._levels()
        self.variants = self._variants()
        self.options = tuple(self._options(layer) for layer in range(len(self.graph.layers)))

    def _levels(self) -> list[int]:
        """Bytes alive of `none` as each layer's backward begins (else at its first op): tells members apart."""
        position, curve = self.model.reader.position, self.analysis.none.memory.bytes
        ops = self.graph.ops
        levels = []
        for layer in self.graph.layers:
            backward = [position[op] for op in layer.ops if ops[op].phase is not Phase.FORWARD]
            start = min(backward or [position[op] for op in layer.ops], default=0)
            levels.append(curve[start] if curve else 0)
        return levels

    def _variants(self) -> tuple[Variant | None, ...]:
        """Per layer its variant; None where a layer has nothing worth dropping."""
        kinds = self.analysis.class_of_layer
        groups: dict[tuple[int, int], list[int]] = {}
        for layer, kind in enumerate(kinds):
            groups.setdefault((kind, kinds[layer + 1] if layer + 1 < len(kinds) else -1), []).append(layer)
        found: list[Variant | None] = [None] * len(kinds)
        for (kind, above), layers in groups.items():
            variant = self._variant(layers[len(layers) // 2], same_above=kind == above)
            for layer in layers:
                found[layer] = variant
        return tuple(found)

    def _variant(self, layer: int, *, same_above: bool) -> Variant | None:
        model = self.model.layer(layer)
        if model.facts.saved_bytes < NEGLIGIBLE * self.analysis.none.peak_bytes:
            return None
        above = self.model.layer(layer + 1) if same_above else None
        thorough = len(self.graph.layers) <= FEW
        return Variant(model=model, policies=frontier(self.model, model, above, thorough=thorough))

    def _options(self, layer: int) -> Options:
        variant = self.variants[layer]
        if variant is None:
            return Options(cost=np.zeros(1), freed=np.zeros(1), peak=np.array([self._peak(layer)]))
        shift = self.level[layer] - self.level[variant.model.layer]
        return Options(
            cost=np.array([policy.cost_ns for policy in variant.policies]),
            freed=np.array([policy.freed_bytes for policy in variant.policies]),
            peak=np.array([policy.peak_bytes + shift for policy in variant.policies]),
        )

    def _peak(self, layer: int) -> float:
        curve, position = self.analysis.none.memory.bytes, self.model.reader.position
        return float(max((curve[position[op]] for op in self.graph.layers[layer].ops), default=0))

    def placements(self, mix: Mix) -> list[Placement]:
        """The mix as decisions about ops of every layer."""
        found = []
        for layer, number in enumerate(mix.chosen):
            variant = self.variants[layer]
            if variant is None:
                continue
            home = variant.model.layer
            policy = variant.policies[number]
            for candidate, place in zip(variant.model.facts.candidates, policy.places, strict=True):
                if place is not None:
                    op = self._counterpart(candidate.ops[0], home, layer)
                    found.append(Placement(op=op, window=self._window(place.window, home, layer)))
        return found

    def _window(self, number: int, home: int, layer: int) -> int:
        if number < 0:
            return -1
        window = self.model.windows[number]
        return self._counterpart(window.launch, window.layer, layer + window.layer - home)

    def _counterpart(self, op: int, home: int, layer: int) -> int:
        """The op of `layer` that is what `op` is in `home`, a layer of the same class."""
        return self.graph.layers[layer].ops[self.analysis.index.op_slot[op]]


_STAGES: WeakKeyDictionary[Analysis, dict[bool, Stage]] = WeakKeyDictionary()


def stage_of(analysis: Analysis, *, windows_open: bool) -> Stage:
    """The frontiers of a graph, made at most once."""
    known = _STAGES.setdefault(analysis, {})
    if windows_open not in known:
        known[windows_open] = Stage(analysis, windows_open=windows_open)
    return known[windows_open]
