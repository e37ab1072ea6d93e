"""`heu-uniform`, the paper's heuristic: one MILP per layer class, its policy for all members, judged exactly."""

from __future__ import annotations

from lynx_plan.analyze.classes import layer_classes
from lynx_plan.solve.base import FEASIBLE, NOT_NEEDED, OPTIMAL, Problem, Solution
from lynx_plan.solve.candidates import Candidates
from lynx_plan.solve.class_facts import ClassFacts, FactReader
from lynx_plan.solve.class_milp import ClassAnswer, ClassMilp
from lynx_plan.solve.full import full_decisions
from lynx_plan.solve.milp import MilpStatus
from lynx_plan.solve.order import Decisions, Placement, build_order
from lynx_plan.solve.pieces import with_pieces
from lynx_plan.solve.places import Windows
from lynx_plan.solve.score import Scored, score
from lynx_plan.solve.skeleton import Skeleton

ROUNDS = 4  # solves per class: the first, and again under a budget corrected by what the exact simulator found
MANY = 16  # layers of a class; with more, what the last one cannot hide is too little to search again for
STEP = 1e-5  # share of the budget: less is within the tolerances of the MILP, and would change nothing
SLACK = 0.005  # share of the budget below which the MILP's error is not worth another solve


def solve(problem: Problem) -> Solution:
    """The best plan with recomputation in windows or on demand."""
    return Search(problem).run()


class Search:
    """One planning problem: what was tried, and the best that fits."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.budget = problem.activation_budget_bytes
        self.index = with_pieces(problem.index)
        self.skeleton = Skeleton(self.index)
        self.candidates = Candidates(self.index)
        self.none = self._score([])
        self.best: Scored | None = None
        self.least: Scored = self.none  # the smallest peak
        self.status = OPTIMAL

    def run(self) -> Solution:
        if self.none.peak_bytes <= self.budget:
            return Solution(items=self.none.items, status=NOT_NEEDED)
        classes = [c.layers for c in layer_classes(self.index, priced=True)]
        reader = FactReader(self.candidates, self.none)
        facts = sorted((reader.read(layers) for layers in classes), key=lambda f: (-f.saved_bytes, f.members))
        facts = [f for f in facts if f.saved_bytes]
        for windows in self._modes(facts):
            if self.best is None or self.best.end_ns > self.none.end_ns:
                self._pass(facts, windows)
        if self.best is None:
            self._last_resort()
        return self._solution()

    def _modes(self, facts: list[ClassFacts]) -> list[Windows]:
        """Open windows, then borrowed ones too, then none; only what can make a difference."""
        room = any(window.room_ns > 0 for f in facts for window in f.windows)
        lent = any(window for f in facts if len(f.members) <= MANY for window in f.borrowed)
        return [*([Windows.OPEN] if room else []), *([Windows.BORROWED] if room and lent else []), Windows.CLOSED]

    def _last_resort(self) -> None:
        """Full recomputation, in its blocks and on demand."""
        blocks = list(full_decisions(self.index, self.candidates).placements)
        self._try(blocks)
        self._try([Placement(op=placement.op) for placement in blocks])

    def _solution(self) -> Solution:
        if self.best is not None:
            return Solution(items=self.best.items, status=self.status)
        minimum = self.problem.graph.static.total_bytes + self.least.peak_bytes
        return Solution(items=self.least.items, status=FEASIBLE, minimum_budget_bytes=minimum)

    def _pass(self, classes: list[ClassFacts], windows: Windows) -> None:
        """Decide class after class, the largest first, until the step fits; later ones are given what is left."""
        placements: list[Placement] = []
        current = self.none
        for facts in classes:
            if placements:
                facts = FactReader(self.candidates, current).read(facts.members)
            milp = ClassMilp(self.index.graph, facts, current, windows)
            if self._fit(milp, placements, self.budget):
                return
            answer = milp.solve(0, least_peak=True)
            if answer is None:
                continue
            smallest = self._try(placements + milp.placements(answer))
            if smallest.peak_bytes <= self.budget:
                self._fit(milp, placements, self.budget + answer.peak_bytes - smallest.peak_bytes)
                return
            placements, current = placements + milp.placements(answer), smallest

    def _fit(self, milp: ClassMilp, before: list[Placement], inner: int) -> bool:
        """Solve under the budget `inner`, corrected by the exact peak of each answer; True if one fits the budget."""
        fits = False
        for _ in range(ROUNDS):
            answer = milp.solve(inner)
            if answer is None:
                return fits
            scored = self._try(before + milp.placements(answer))
            self._note(answer)
            over = scored.peak_bytes - self.budget
            if over <= 0:
                gain = answer.peak_bytes - scored.peak_bytes
                binding = answer.peak_bytes > inner - SLACK * self.budget
                if fits or not binding or gain <= SLACK * self.budget or scored.end_ns <= self.none.end_ns:
                    return True
                fits = True
                inner += gain
            elif fits:
                return True
            else:
                inner = min(inner, answer.peak_bytes) - max(over, int(STEP * self.budget))
        return fits

    def _note(self, answer: ClassAnswer) -> None:
        if answer.result.status is not MilpStatus.OPTIMAL:
            self.status = FEASIBLE

    def _try(self, placements: list[Placement]) -> Scored:
        """Order and simulate; remember it if it is the best that fits, or the smallest."""
        scored = self._score(placements)
        if scored.peak_bytes < self.least.peak_bytes:
            self.least = scored
        if scored.peak_bytes <= self.budget and (self.best is None or scored.rank < self.best.rank):
            self.best = scored
        return scored

    def _score(self, placements: list[Placement]) -> Scored:
        decisions = Decisions(placements=tuple(placements))
        return score(self.problem.graph, build_order(self.index, decisions, skeleton=self.skeleton))
