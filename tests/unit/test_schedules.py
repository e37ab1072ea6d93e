"""Schedules: what their orders hold, how many microbatches are in flight, and what is refused. No torch."""

from __future__ import annotations

import pytest

from lynx_plan.analyze.schedules import check_counts, own_schedule
from lynx_plan.errors import AnswerNo, LynxError
from lynx_plan.model.schedule import Act, Action, Schedule
from lynx_plan.simulate.pipeline import StageCost, in_flight, simulate_pipeline
from lynx_plan.simulate.pipeline_memory import in_flight_levels, rank_chunks

F, B, I, W = Act.FORWARD, Act.BACKWARD, Act.BACKWARD_INPUT, Act.BACKWARD_WEIGHT  # noqa: E741
COST = StageCost(forward_ns=1, backward_ns=2, input_ns=1, weight_ns=1)


def schedule_of(*orders: str, home: tuple[int, ...] = (), micro_batches: int = 1) -> Schedule:
    """From the text of each rank's actions."""
    return Schedule(
        name="test",
        micro_batches=micro_batches,
        rank_of_stage=home or tuple(range(len(orders))),
        orders=tuple(tuple(map(Action.parse, order.split())) for order in orders),
    )


def texts(schedule: Schedule) -> list[str]:
    return [" ".join(map(str, order)) for order in schedule.orders]


@pytest.mark.parametrize("text", ["2F0", "0B17", "11I3", "4W12"])
def test_an_actions_text_parses_back(text):
    assert str(Action.parse(text)) == text


@pytest.mark.parametrize("text", ["", "F0", "2F", "2G0", "-1F0", "2F0 ", "2F0B1"])
def test_other_texts_are_no_action(text):
    with pytest.raises(ValueError, match="is not an action"):
        Action.parse(text)


def test_orders_written_out():
    assert texts(own_schedule("gpipe", 2, 2)) == ["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"]
    assert texts(own_schedule("1f1b", 2, 3)) == ["0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"]
    assert texts(own_schedule("interleaved-1f1b", 2, 2, 2)) == [
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1",
        "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1",
    ]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved-1f1b"])
@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 1), (1, 5), (2, 4), (4, 3), (4, 8), (7, 14)])
def test_every_microbatch_passes_every_stage_once(name, ranks, micro_batches):
    per_rank = 3 if name == "interleaved-1f1b" else 1
    schedule = own_schedule(name, ranks, micro_batches, per_rank)
    wanted = {Action(s, act, m) for s in range(ranks * per_rank) for act in (F, B) for m in range(micro_batches)}
    actions = [action for order in schedule.orders for action in order]
    assert len(actions) == len(wanted)
    assert set(actions) == wanted
    assert all(schedule.rank_of_stage[a.stage] == rank for rank, order in enumerate(schedule.orders) for a in order)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 3), (2, 1), (4, 2), (4, 4), (4, 16), (64, 512)])
def test_in_flight_is_the_known_count(ranks, micro_batches):
    plain = own_schedule("1f1b", ranks, micro_batches)
    assert in_flight(plain) == tuple(min(micro_batches, ranks - stage) for stage in range(ranks))
    assert in_flight(own_schedule("gpipe", ranks, micro_batches)) == (micro_batches,) * ranks


@pytest.mark.parametrize(("ranks", "per_rank", "rounds"), [(2, 2, 4), (4, 2, 2), (4, 3, 4), (8, 3, 8), (1, 2, 6)])
def test_interleaved_holds_its_warm_up_and_one(ranks, per_rank, rounds):
    """Megatron-LM (arXiv 2104.04473): rank r runs (v - 1) p + 2 (p - 1 - r) chunks ahead, then alternates."""
    schedule = own_schedule("interleaved-1f1b", ranks, rounds * ranks, per_rank)
    total = rounds * ranks * per_rank
    wanted = [min(total, (per_rank - 1) * ranks + 2 * (ranks - 1 - rank) + 1) for rank in range(ranks)]
    assert rank_chunks(schedule) == tuple(wanted)
    # its first rank holds 1 + (p - 1) / (p v) times what 1F1B's does (arXiv 2205.05198, section 4.2.3)
    if total > wanted[0]:
        assert wanted[0] == per_rank * ranks + ranks - 1


def test_split_backward_holds_its_microbatch_until_w():
    schedule = schedule_of("0F0 0F1 0I0 0I1 0W0 0F2 0W1 0I2 0W2", micro_batches=3)
    assert in_flight_levels(schedule) == ((1, 2, 2, 2, 1, 2, 1, 1, 0),)
    assert in_flight(schedule) == (2,)


def test_in_flight_counts_each_stage_of_a_rank_by_itself():
    schedule = schedule_of("0F0 0F1 1F0 1B0 0B0 1F1 1B1 0B1", home=(0, 0), micro_batches=2)
    assert in_flight(schedule) == (2, 1)
    assert rank_chunks(schedule) == (3,)


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("2f2b", (2, 2, 1), "no schedule '2f2b'"),
        ("1f1b", (0, 2, 1), "at least one rank"),
        ("1f1b", (2, 0, 1), "at least one rank"),
        ("1f1b", (2, 2, 2), "has one stage per rank"),
        ("zbv", (2, 4, 3), "has two stages per rank"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(name, numbers, message):
    with pytest.raises(LynxError, match=message):
        check_counts(name, *numbers)


def test_microbatches_that_make_no_equal_rounds_are_refused():
    assert own_schedule("interleaved-1f1b", 4, 10, 2).micro_batches == 10  # two rounds of five
    with pytest.raises(LynxError, match="2 rounds, which 9 are not a multiple of"):
        own_schedule("interleaved-1f1b", 4, 9, 2)


@pytest.mark.parametrize(
    ("orders", "where"),
    [
        (("0F0 0B0", "1F0"), "rank 1 runs 1F0 for microbatch 0 of stage 1"),
        (("0F0 0F0 0B0", "1F0 1B0"), "rank 0 runs 0F0 0F0 0B0"),
        (("0B0 0F0", "1F0 1B0"), "rank 0 runs 0B0 0F0"),
        (("0F0 0B0 1F0", "1B0"), "rank 0 runs 1F0"),
        (("0F0 0I0", "1F0 1B0"), "rank 0 runs 0F0 0I0"),
        (("0F0 0W0 0I0", "1F0 1B0"), "rank 0 runs 0F0 0W0 0I0"),
        (("0F0 0B0", ""), "rank 1 runs nothing for microbatch 0 of stage 1"),
    ],
)
def test_orders_that_are_no_schedule_are_named(orders, where):
    with pytest.raises(LynxError, match=where):
        simulate_pipeline(schedule_of(*orders), [COST] * 2)


def test_a_deadlock_names_the_actions_that_wait():
    # stage 0 wants its gradient of 0 before it sends 1; stage 1 wants 1 first
    schedule = schedule_of("0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0", micro_batches=2)
    for slowdown in (0.0, 0.5):
        with pytest.raises(AnswerNo, match="0B0, 1F1 wait for each other"):
            simulate_pipeline(schedule, [COST] * 2, slowdown=slowdown)
