"""Interleaved microbatches: the backward pass of each merged with the forward pass of the next, where that is faster.

Merged, both passes hide each other's communication, so that windows no longer matter for what to keep: recomputation
costs its own time. So the mix of policies is the one with every window closed, under a budget that is corrected by
what the merged order needs; the list scheduler of `merge.py` orders it for several shares of memory that the forward
pass leaves to the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from lynx_plan.analyze.effects import updated_buffers
from lynx_plan.analyze.steps import StepOrder
from lynx_plan.model.program import Item
from lynx_plan.simulate.outcome import predict, predict_step
from lynx_plan.solve.analysis import analysis_of
from lynx_plan.solve.base import FEASIBLE, NOT_NEEDED, Problem, Solution
from lynx_plan.solve.heu_stage import stage_of
from lynx_plan.solve.merge import Memory, Merged, merge
from lynx_plan.solve.merge_facts import MergeFacts
from lynx_plan.solve.mix import best_mix
from lynx_plan.solve.order import Decisions, build_order
from lynx_plan.solve.score import Scored, score

RESERVES = (0.0, 0.02, 0.05)  # shares of the budget that the forward pass leaves free
ROUNDS = 6  # budgets tried for the mix
SLACK = 0.01  # share of the budget that is not worth another mix
STEP = 0.005  # share of the budget by which it is lowered at least
NEAR = 0.02  # share of the budget: a merged part that needs this much more than it is written again
RETRIES = 2
EXACT = 3  # orders that are simulated exactly, the fastest first


def faster(problem: Problem, plain: Solution) -> Solution:
    """The plain solution, or one that interleaves microbatches, if it fits the budget and its step is faster."""
    if plain.minimum_budget_bytes is not None or not may_interleave(problem):
        return plain
    best = predict(problem.graph, plain.items, micro_batches=problem.micro_batches).step_ns
    for candidate in sorted(_candidates(problem), key=lambda c: (c.end_ns, c.peak_bytes))[:EXACT]:
        order = candidate.order
        predicted = predict_step(problem.graph, order, micro_batches=problem.micro_batches)
        if predicted.peak_bytes <= problem.budget_bytes and predicted.step_ns < best:
            return replace(
                plain,
                items=order.alone,
                step=order,
                status=FEASIBLE if any(item.replica for item in order.alone) else NOT_NEEDED,
                facts=(*plain.facts, ("interleaved", "yes")),
            )
    return plain


def may_interleave(problem: Problem) -> bool:
    """Whether there is anything to overlap, and nothing that forbids it."""
    if problem.micro_batches < 2 or not problem.interleave or problem.windows:
        return False
    return not updated_buffers(problem.graph)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """An interleaved order that fits by the scheduler's own account."""

    alone: Scored
    forward: int  # how many items of `alone` are the forward pass
    merged: Merged
    end_ns: int

    @property
    def peak_bytes(self) -> int:
        return max(self.alone.peak_bytes, self.merged.peak_bytes)

    @property
    def order(self) -> StepOrder:
        items = self.alone.items
        return StepOrder(prologue=items[: self.forward], steady=self.merged.items, epilogue=items[self.forward :])


def _candidates(problem: Problem) -> list[_Candidate]:
    """Orders that fit, of mixes under corrected budgets: lower until one fits, then up once."""
    analysis = analysis_of(problem.index)
    stage = stage_of(analysis, windows_open=False)
    budget = problem.activation_budget_bytes
    inner, found, tried = float(budget), list[_Candidate](), set[tuple[int, ...]]()
    for _ in range(ROUNDS):
        mix = best_mix(stage.options, inner)
        if mix is None or mix.chosen in tried:
            break
        tried.add(mix.chosen)
        orders = _orders(problem, _alone(problem, Decisions(placements=tuple(stage.placements(mix)))))
        fitting = [order for order in orders if order.peak_bytes <= budget]
        slack = budget - min(order.peak_bytes for order in orders)
        again = bool(found)
        found += fitting
        if not fitting or _nearly(orders, found, budget):
            inner = min(inner, mix.peak) - max(-slack, STEP * budget)
        elif again or slack <= SLACK * budget or not any(item.replica for item in orders[0].alone.items):
            break
        else:
            inner = max(inner, mix.peak + slack)
    return found


def _nearly(orders: list[_Candidate], found: list[_Candidate], budget: int) -> bool:
    """Whether an order that needs a little too much is so much faster that a lower budget for its mix may pay."""
    near = [order.end_ns for order in orders if budget < order.peak_bytes <= (1 + NEAR) * budget]
    return bool(near) and min(near) < (1 - NEAR) * min(order.end_ns for order in found)


def _alone(problem: Problem, decisions: Decisions) -> Scored:
    """One microbatch by itself; where it needs too much, with weight gradients that make room."""
    analysis = analysis_of(problem.index)
    scored = score(problem.graph, build_order(analysis.index, decisions, skeleton=analysis.skeleton))
    budget = problem.activation_budget_bytes
    if scored.peak_bytes > budget:
        roomy = build_order(analysis.index, replace(decisions, limit_bytes=budget), skeleton=analysis.skeleton)
        scored = min(scored, score(problem.graph, roomy), key=lambda s: s.peak_bytes)
    return scored


def _orders(problem: Problem, alone: Scored) -> list[_Candidate]:
    """The merged orders of one decision, for each rule of memory and each reserve."""
    facts = MergeFacts(analysis_of(problem.index).index, alone)
    budget, count = problem.activation_budget_bytes, problem.micro_batches
    forward = len(alone.items) - facts.backward
    found, seen = [], set[tuple[Item, ...]]()
    for memory, reserve in product(Memory, RESERVES):
        merged = _merged(facts, memory, budget, reserve)
        if merged.items not in seen:
            seen.add(merged.items)
            end_ns = alone.end_ns + (count - 1) * merged.end_ns
            found.append(_Candidate(alone=alone, forward=forward, merged=merged, end_ns=end_ns))
    return found


def _merged(facts: MergeFacts, memory: Memory, budget: int, reserve: float) -> Merged:
    """The merged part; where it needs a little too much, again under a limit that is as much lower."""
    limit, best = budget, None
    for _ in range(1 + RETRIES):
        merged = merge(facts, memory, limit_bytes=limit, forward_limit_bytes=int(limit * (1 - reserve)))
        over = merged.peak_bytes - budget
        if best is None or (max(0, over), merged.end_ns) < (max(0, best.peak_bytes - budget), best.end_ns):
            best = merged
        if not 0 < over <= NEAR * budget:
            break
        limit -= over
    assert best is not None
    return best
