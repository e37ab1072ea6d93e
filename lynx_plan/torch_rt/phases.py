"""Which backward ops make weight gradients only, so that nothing but the optimizer waits for them."""

from __future__ import annotations

from collections.abc import Sequence

from lynx_plan.model.graph import Op, Phase, Role

_MANY = "*"


def phases(ops: Sequence[Op], producer: Sequence[int], backward: Sequence[bool]) -> tuple[Phase, ...]:
    """Each op's phase: a backward op that reaches no collective and at most one accumulation is a weight gradient's.

    `producer` maps a tensor to the op that makes it (-1: none); `backward` says which ops autograd made.
    """
    needed_for: list[str] = ["" if op.role is not Role.COLLECTIVE else _MANY for op in ops]
    for op in reversed(ops):
        reached = op.parameter if op.role is Role.ACCUMULATE else needed_for[op.id]
        needed_for[op.id] = reached
        for tensor in op.inputs:
            maker = producer[tensor]
            if maker >= 0:
                known = needed_for[maker]
                needed_for[maker] = reached if known in ("", reached) else _MANY
    return tuple(
        Phase.FORWARD
        if not backward[op.id]
        else Phase.BACKWARD
        if needed_for[op.id] == _MANY
        else Phase.WEIGHT_GRADIENT
        for op in ops
    )
