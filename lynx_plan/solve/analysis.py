"""What every search needs to know of a graph before it decides anything: made once per graph index, then shared."""

from __future__ import annotations

from functools import cached_property
from weakref import WeakKeyDictionary

from lynx_plan.analyze.classes import LayerClass, layer_classes
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.solve.candidates import Candidates
from lynx_plan.solve.order import Decisions, build_order
from lynx_plan.solve.pieces import with_pieces
from lynx_plan.solve.score import Scored, score
from lynx_plan.solve.skeleton import Skeleton

_KNOWN: WeakKeyDictionary[GraphIndex, Analysis] = WeakKeyDictionary()


class Analysis:
    """Facts of a graph whose large layers are cut into pieces; each is worked out when it is first asked for.

    `whole`: the candidates of the graph as it is, for baselines that go by layers.
    """

    def __init__(self, index: GraphIndex) -> None:
        self.whole = Candidates(index)
        self.index = with_pieces(index, self.whole)
        self.candidates = self.whole if self.index is index else Candidates(self.index)
        self.skeleton = Skeleton(self.index)

    def warm(self) -> None:
        """Work out what every search asks for."""
        for _ in (self.none, self.classes):
            pass

    @cached_property
    def whole_skeleton(self) -> Skeleton:
        """Of the graph with its layers as they are."""
        return self.skeleton if self.index is self.whole.index else Skeleton(self.whole.index)

    @cached_property
    def none(self) -> Scored:
        """The order in which nothing is recomputed."""
        return score(self.index.graph, build_order(self.index, Decisions(), skeleton=self.skeleton))

    @cached_property
    def classes(self) -> tuple[LayerClass, ...]:
        """Priced layer classes."""
        return layer_classes(self.index, priced=True)

    @cached_property
    def class_of_layer(self) -> tuple[int, ...]:
        """Layer id -> number of its class."""
        found = [0] * len(self.index.graph.layers)
        for number, group in enumerate(self.classes):
            for layer in group.layers:
                found[layer] = number
        return tuple(found)


def analysis_of(index: GraphIndex) -> Analysis:
    """The facts of this index, made at most once."""
    known = _KNOWN.get(index)
    if known is None:
        known = _KNOWN[index] = Analysis(index)
    return known
