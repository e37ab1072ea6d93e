"""The schedules that need no PyTorch: GPipe, 1F1B and interleaved 1F1B, in the order of `torch.distributed.pipelining`.

The others come from PyTorch's own classes (`torch_rt/pipeline_orders.py`). Sources: GPipe (arXiv 1811.06965), 1F1B
(PipeDream-Flush, arXiv 2006.09503), interleaved 1F1B (Megatron-LM, arXiv 2104.04473).
"""

from __future__ import annotations

from collections.abc import Callable

from lynx_plan.errors import LynxError
from lynx_plan.model.schedule import Act, Action, Schedule

WHERE = "--schedule"


def gpipe(ranks: int, micro_batches: int) -> Schedule:
    """All forward passes, then all backward passes."""
    orders = tuple(
        (
            *(Action(rank, Act.FORWARD, number) for number in range(micro_batches)),
            *(Action(rank, Act.BACKWARD, number) for number in range(micro_batches)),
        )
        for rank in range(ranks)
    )
    return _single("gpipe", ranks, micro_batches, orders)


def one_f_one_b(ranks: int, micro_batches: int) -> Schedule:
    """Stage s begins with ranks - s forward passes, then alternates backward and forward."""
    orders = []
    for rank in range(ranks):
        ahead = min(micro_batches, ranks - rank)
        order = [Action(rank, Act.FORWARD, number) for number in range(ahead)]
        for number in range(micro_batches):
            order.append(Action(rank, Act.BACKWARD, number))
            if number + ahead < micro_batches:
                order.append(Action(rank, Act.FORWARD, number + ahead))
        orders.append(tuple(order))
    return _single("1f1b", ranks, micro_batches, tuple(orders))


def interleaved(ranks: int, micro_batches: int, per_rank: int) -> Schedule:
    """Rank r holds stages r, r + ranks, ...; microbatches go through them in rounds."""
    rounds = max(1, micro_batches // ranks)
    if micro_batches % rounds:
        raise LynxError(
            f"interleaved 1F1B runs microbatches in {rounds} rounds, which {micro_batches} are not a multiple of",
            where="--micro-batches",
            hint=f"give a multiple of the {ranks} pipeline ranks",
        )
    turn = micro_batches // rounds
    orders = tuple(_interleaved_order(rank, ranks, micro_batches, per_rank, turn) for rank in range(ranks))
    return Schedule(
        name="interleaved-1f1b",
        micro_batches=micro_batches,
        rank_of_stage=tuple(stage % ranks for stage in range(ranks * per_rank)),
        orders=orders,
    )


def _interleaved_order(rank: int, ranks: int, micro_batches: int, per_rank: int, turn: int) -> tuple[Action, ...]:
    """One rank: forward passes of a warm-up, pairs of forward and backward, the rest of the backward passes."""
    total = micro_batches * per_rank
    ahead = min(total, (per_rank - 1) * turn + 2 * (ranks - 1 - rank))
    counts: dict[tuple[int, Act], int] = {}
    order: list[Action] = []

    def add(act: Act, chunk: int) -> None:
        stage = chunk * ranks + rank
        number = counts.get((stage, act), 0)
        counts[stage, act] = number + 1
        order.append(Action(stage, act, number))

    for step in range(total + ahead):
        if step < total:
            add(Act.FORWARD, step // turn % per_rank)
        if step >= ahead:
            add(Act.BACKWARD, per_rank - 1 - (step - ahead) // turn % per_rank)
    return tuple(order)


def _single(name: str, ranks: int, micro_batches: int, orders: tuple[tuple[Action, ...], ...]) -> Schedule:
    return Schedule(name=name, micro_batches=micro_batches, rank_of_stage=tuple(range(ranks)), orders=orders)


OWN: dict[str, Callable[[int, int, int], Schedule]] = {
    "gpipe": lambda ranks, micro_batches, _: gpipe(ranks, micro_batches),
    "1f1b": lambda ranks, micro_batches, _: one_f_one_b(ranks, micro_batches),
    "interleaved-1f1b": interleaved,
}
SINGLE = ("gpipe", "1f1b")  # schedules of one stage per rank
OTHERS = ("zero-bubble", "zbv", "dualpipe-v")  # made by PyTorch
TWO = ("zbv", "dualpipe-v")  # schedules of exactly two stages per rank
NAMES = (*OWN, *OTHERS)


def check_counts(name: str, ranks: int, micro_batches: int, per_rank: int) -> None:
    """Raises LynxError where a schedule does not exist for these numbers."""
    if name not in NAMES:
        raise LynxError(f"no schedule '{name}'", where=WHERE, hint=f"one of {', '.join(NAMES)}")
    if ranks < 1 or micro_batches < 1 or per_rank < 1:
        raise LynxError("a pipeline needs at least one rank, stage and microbatch", where=WHERE, hint="give 1 or more")
    if name in SINGLE and per_rank != 1:
        raise LynxError(f"'{name}' has one stage per rank", where=WHERE, hint="use interleaved-1f1b for several")
    if name in TWO and per_rank != 2:
        raise LynxError(f"'{name}' has two stages per rank", where=WHERE, hint="give 2 stages per rank")


def own_schedule(name: str, ranks: int, micro_batches: int, per_rank: int = 1) -> Schedule:
    """The schedule of one of the names in `OWN`. Raises LynxError where there is none for these numbers."""
    check_counts(name, ranks, micro_batches, per_rank)
    return OWN[name](ranks, micro_batches, per_rank)
