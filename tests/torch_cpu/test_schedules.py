"""Our schedules are PyTorch's, action by action; those that are PyTorch's only come as data from a child process."""

from __future__ import annotations

import pytest

from lynx_plan.analyze.schedules import own_schedule
from lynx_plan.errors import LynxError
from lynx_plan.model.schedule import Schedule
from lynx_plan.simulate.pipeline import StageCost, simulate_pipeline
from lynx_plan.simulate.pipeline_memory import rank_chunks
from lynx_plan.solve import schedules
from lynx_plan.solve.schedules import pipeline_schedule
from lynx_plan.torch_rt import compat
from lynx_plan.torch_rt.pipeline_orders import schedule_of_rank, torch_schedule

RANKS, MICRO_BATCHES = (1, 2, 3, 4, 5, 8), (1, 2, 3, 4, 6, 7, 8, 12, 16)
ZERO_BUBBLE = (
    ("zero-bubble", 2, 4, 1),
    ("zero-bubble", 4, 8, 1),
    ("zero-bubble", 4, 8, 2),
    ("zero-bubble", 4, 2, 2),
    ("zero-bubble", 3, 9, 3),
    ("zbv", 2, 4, 2),
    ("zbv", 4, 8, 2),
    ("zbv", 4, 3, 2),
    ("zbv", 5, 11, 2),
    ("dualpipe-v", 2, 4, 2),
    ("dualpipe-v", 4, 8, 2),
    ("dualpipe-v", 4, 13, 2),
)


def torch_or_none(name: str, *numbers: int) -> Schedule | None:
    try:
        return torch_schedule(name, *numbers)
    except ValueError:
        return None


def own_or_none(name: str, *numbers: int) -> Schedule | None:
    try:
        return own_schedule(name, *numbers)
    except LynxError:
        return None


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_one_stage_per_rank_as_pytorch_runs_it(name, ranks):
    for micro_batches in MICRO_BATCHES:
        theirs = torch_or_none(name, ranks, micro_batches)
        if theirs is None:  # PyTorch's 1F1B wants a microbatch for each stage; ours goes on below that
            assert (name, micro_batches < ranks) == ("1f1b", True)
        else:
            assert own_schedule(name, ranks, micro_batches) == theirs


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("per_rank", [1, 2, 3, 4])
def test_interleaved_1f1b_is_pytorchs_and_refuses_what_it_refuses(ranks, per_rank):
    made = 0
    for micro_batches in MICRO_BATCHES:
        theirs = torch_or_none("interleaved-1f1b", ranks, micro_batches, per_rank)
        assert own_or_none("interleaved-1f1b", ranks, micro_batches, per_rank) == theirs
        made += theirs is not None
    assert made >= 5


@pytest.mark.parametrize("numbers", ZERO_BUBBLE, ids=str)
def test_simulation_runs_what_pytorchs_own_dry_run_runs_in_its_order(numbers):
    name, ranks, micro_batches, per_rank = numbers
    theirs = compat.simulated_order(schedule_of_rank(name, 0, ranks, micro_batches, per_rank))
    schedule = torch_schedule(name, ranks, micro_batches, per_rank)
    cost = StageCost(forward_ns=10, backward_ns=20, input_ns=10, weight_ns=10, send_ns=3, send_back_ns=3)
    run = simulate_pipeline(schedule, [cost] * schedule.stages)
    for rank, order in theirs.items():
        computed = [str(each) for each in order if each and each.is_compute_op]
        ours = sorted(run.ran[rank], key=lambda ran: (ran.begin_ns, ran.end_ns))
        assert [str(ran.action) for ran in ours] == computed


@pytest.mark.parametrize("numbers", ZERO_BUBBLE, ids=str)
def test_transfers_leave_in_the_order_of_pytorchs_runtime(numbers):
    name, ranks, micro_batches, per_rank = numbers
    theirs = compat.pipeline_order_with_transfers(schedule_of_rank(name, 0, ranks, micro_batches, per_rank))
    schedule = torch_schedule(name, ranks, micro_batches, per_rank)
    cost = StageCost(forward_ns=10, backward_ns=20, input_ns=10, weight_ns=10, send_ns=3, send_back_ns=3)
    run = simulate_pipeline(schedule, [cost] * schedule.stages)
    for rank, order in theirs.items():
        wanted = [
            (each.stage_index, each.computation_type.value == "SEND_B", each.microbatch_index)
            for each in order
            if each.computation_type.value.startswith("SEND")
        ]
        for peer in range(ranks):
            there = [each for each in run.sent if (each.sender, each.receiver) == (rank, peer)]
            ours = [(each.stage + (1 if each.backward else -1), each.backward, each.microbatch) for each in there]
            to = {each: schedule.rank_of_stage[each[0] - 1 if each[1] else each[0] + 1] for each in wanted}
            assert ours == [each for each in wanted if to[each] == peer]
        assert wanted


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 8), (3, 12), (4, 16), (5, 20)])
def test_activations_that_the_papers_count(ranks, micro_batches):
    def most(name: str, per_rank: int) -> tuple[int, ...]:
        return rank_chunks(torch_schedule(name, ranks, micro_batches, per_rank))

    # Held until W. Zero Bubble (arXiv 2401.10241): ZB-H1 needs on every rank what 1F1B's first one does.
    for per_rank in (1, 2, 3):
        assert most("zero-bubble", per_rank) == (per_rank * ranks,) * ranks
    # Controllable memory (arXiv 2405.15362): ZB-V as 1F1B's first rank, so 2 p of its half stages.
    assert most("zbv", 2) == (2 * ranks,) * ranks
    # github.com/deepseek-ai/DualPipe: DualPipeV holds PP + 1 activations, PP = 2 p stages.
    assert most("dualpipe-v", 2) == (2 * ranks + 1,) * ranks


def test_zbv_has_no_bubble_but_the_first_forward_passes_where_f_i_and_w_take_the_same():
    ranks, micro_batches = 4, 16
    schedule = torch_schedule("zbv", ranks, micro_batches, 2)
    run = simulate_pipeline(schedule, [StageCost(forward_ns=7, backward_ns=14, input_ns=7, weight_ns=7)] * 8)
    assert run.end_ns == (6 * micro_batches + ranks - 1) * 7
    assert run.bubble_ns == ((ranks - 1) * 7,) * ranks


@pytest.mark.parametrize("numbers", [("zbv", 3, 6, 2), ("dualpipe-v", 2, 5, 2), ("zero-bubble", 4, 8, 1)], ids=str)
def test_a_planner_without_torch_gets_the_same_from_a_child_process(numbers):
    assert pipeline_schedule(*numbers) == torch_schedule(*numbers)


def test_what_pytorch_refuses_is_said_with_its_words():
    with pytest.raises(LynxError, match="at least as many microbatches as stages") as caught:
        pipeline_schedule("dualpipe-v", 4, 2)
    assert caught.value.where == "--schedule"


def test_a_python_without_torch_says_which_schedules_need_none(monkeypatch, tmp_path):
    worker = tmp_path / "no_torch_here.py"
    worker.write_text("import no_such_torch\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(schedules, "WORKER", "no_torch_here")
    with pytest.raises(LynxError, match="No module named 'no_such_torch'") as caught:
        pipeline_schedule("zbv", 2, 3)
    assert "1f1b" in caught.value.hint
