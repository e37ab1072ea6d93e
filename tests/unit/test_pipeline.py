"""Pipelines over time against closed forms and values worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lynx_plan.analyze.schedules import own_schedule
from lynx_plan.simulate.pipeline import PipelineRun, StageCost, simulate_pipeline

FORWARD, BACKWARD = 5, 11
UNIFORM = StageCost(forward_ns=FORWARD, backward_ns=BACKWARD)
SHAPES = [(1, 1), (1, 4), (2, 1), (4, 4), (4, 9), (8, 3), (8, 64), (64, 512)]


def uniform(name: str, ranks: int, micro_batches: int, per_rank: int = 1) -> PipelineRun:
    schedule = own_schedule(name, ranks, micro_batches, per_rank)
    return simulate_pipeline(schedule, [UNIFORM] * schedule.stages)


def ends(run: PipelineRun) -> dict[str, int]:
    return {str(ran.action): ran.end_ns for order in run.ran for ran in order}


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("ranks", "micro_batches"), SHAPES)
def test_uniform_stages_take_the_closed_form(name, ranks, micro_batches):
    run = uniform(name, ranks, micro_batches)
    assert run.end_ns == (ranks - 1 + micro_batches) * (FORWARD + BACKWARD)
    assert run.bubble_ns == ((ranks - 1) * (FORWARD + BACKWARD),) * ranks
    assert run.bubble_share == pytest.approx((ranks - 1) / (ranks - 1 + micro_batches))


@pytest.mark.parametrize(("ranks", "rounds"), [(1, 3), (2, 1), (2, 4), (4, 2), (8, 8)])
@pytest.mark.parametrize("per_rank", [1, 2, 3])
def test_interleaving_divides_the_bubble_by_the_stages_per_rank(ranks, rounds, per_rank):
    run = uniform("interleaved-1f1b", ranks, rounds * ranks, per_rank)
    work = rounds * ranks * per_rank * (FORWARD + BACKWARD)
    plain = (ranks - 1) * per_rank * (FORWARD + BACKWARD)  # of one stage per rank that is as long as all of them
    assert (run.end_ns - work) * per_rank == plain


def test_the_slowest_stage_sets_the_pace():
    schedule = own_schedule("1f1b", 3, 10)
    costs = [replace(UNIFORM, forward_ns=f, backward_ns=2 * f) for f in (2, 7, 3)]
    run = simulate_pipeline(schedule, costs)
    # the middle stage waits for the first one's F, then, while it runs its second F, for the last one's F and B; from
    # there on it never stops, and the first one's last B follows
    stop = (3 + 6) - 7
    assert run.end_ns == 2 + 10 * 21 + stop + 4
    assert run.bubble_ns[1] == 2 + stop + 4


def test_windows_of_1f1b_are_those_before_the_first_backward_passes():
    ranks, micro_batches = 4, 8
    windows = uniform("1f1b", ranks, micro_batches).windows()
    for stage in range(ranks):
        found = [windows[stage, number] for number in range(micro_batches)]
        ahead = ranks - 1 - stage
        # before its first backward pass a stage waits for those behind it to run F and B, less its own warm-up
        assert found[0] == ahead * (FORWARD + BACKWARD) - ahead * FORWARD
        steady = micro_batches - ahead  # the last ones of those wait for no forward pass of their own any more
        assert found[1:steady] == [0] * (steady - 1)
        assert found[steady:] == [FORWARD] * ahead


@pytest.mark.parametrize("early", [0, 1, 5, 6, 11, 12, 20])
def test_early_work_hides_in_the_bubble(early):
    """Two stages and microbatches, of which the first stage recomputes: its windows are b, then f."""
    costs = [replace(UNIFORM, early_ns=early), UNIFORM]
    run = simulate_pipeline(own_schedule("1f1b", 2, 2), costs)
    first = max(FORWARD * 2 + BACKWARD, FORWARD * 2 + early) + BACKWARD
    second = max(2 * (FORWARD + BACKWARD) + FORWARD, first + early) + BACKWARD
    assert run.end_ns == second
    assert ends(run)["0B0"] == first
    assert run.windows()[0, 0] == max(BACKWARD, early)
    assert run.busy_ns[0] == 2 * (FORWARD + BACKWARD + early)
