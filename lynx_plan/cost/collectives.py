"""What a collective costs on a link: ring algorithms, alpha-beta.

The planner prices with it and the runtime's emulated link holds completions by it, so it takes plain
values only. Formulas: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication
Operations in MPICH" (2005), ring variants; n ranks, S bytes of the full tensor, latency a, rate b:

    all_reduce                       2(n-1) a + 2 (n-1)/n S/b
    all_gather, reduce_scatter         (n-1) a +   (n-1)/n S/b
    all_to_all (pairwise)              (n-1) a +   (n-1)/n S/b
    broadcast (scatter, all_gather)  2(n-1) a + 2 (n-1)/n S/b
    send, recv                             a +           S/b
"""

from __future__ import annotations

from enum import StrEnum

from lynx_plan.errors import LynxError
from lynx_plan.model.machine import Link


class Collective(StrEnum):
    """The canonical collectives that have a formula."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    SEND = "send"
    RECV = "recv"


# (steps over the ring, shares of the payload per rank) in units of n - 1
_RING = {
    Collective.ALL_REDUCE: 2,
    Collective.ALL_GATHER: 1,
    Collective.REDUCE_SCATTER: 1,
    Collective.ALL_TO_ALL: 1,
    Collective.BROADCAST: 2,
}
# last part of an op kind such as `_c10d_functional.all_reduce_` (c10d and functional names alike)
_NAMES = {
    "all_reduce": Collective.ALL_REDUCE,
    "allreduce": Collective.ALL_REDUCE,
    "all_reduce_coalesced": Collective.ALL_REDUCE,
    "all_gather": Collective.ALL_GATHER,
    "allgather": Collective.ALL_GATHER,
    "all_gather_into_tensor": Collective.ALL_GATHER,
    "all_gather_into_tensor_out": Collective.ALL_GATHER,
    "all_gather_into_tensor_coalesced": Collective.ALL_GATHER,
    "_allgather_base": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "reduce_scatter_tensor": Collective.REDUCE_SCATTER,
    "reduce_scatter_tensor_coalesced": Collective.REDUCE_SCATTER,
    "_reduce_scatter_base": Collective.REDUCE_SCATTER,
    "all_to_all": Collective.ALL_TO_ALL,
    "alltoall": Collective.ALL_TO_ALL,
    "alltoall_base": Collective.ALL_TO_ALL,
    "all_to_all_single": Collective.ALL_TO_ALL,
    "broadcast": Collective.BROADCAST,
    "send": Collective.SEND,
    "isend": Collective.SEND,
    "recv": Collective.RECV,
    "irecv": Collective.RECV,
}


def canonical(kind: str) -> Collective:
    """The collective that an op kind is, such as `_c10d_functional.reduce_scatter_tensor`; LynxError if none."""
    parts = kind.split(".")
    for name in (parts[-1], *parts[-2:-1]):  # an overload such as `.default` may be the last part
        bare = name if name in _NAMES else name.removesuffix("_")
        if bare in _NAMES:
            return _NAMES[bare]
    known = ", ".join(c.value for c in Collective)
    raise LynxError(f"no cost formula for the collective '{kind}'", hint=f"known collectives: {known}")


def collective_ns(kind: str, size: int, payload_bytes: int, link: Link) -> int:
    """Nanoseconds of a collective of `size` ranks on `link` (module docstring); 0 for a group of one.

    `payload_bytes` are the bytes of the full, unsharded tensor. Rounded half up, so that every rank
    and every run computes the same integer. Raises LynxError for an unknown kind.
    """
    collective = canonical(kind)
    if size < 1 or payload_bytes < 0:
        raise LynxError(f"a collective of {size} ranks and {payload_bytes} bytes has no cost", where=kind)
    if link.bytes_per_s < 1:
        raise LynxError("the link has no rate to price by", where=kind, hint="give one: --link 500MB/s:100us")
    if collective in (Collective.SEND, Collective.RECV):
        return link.latency_ns + _divide(payload_bytes * 10**9, link.bytes_per_s)
    steps = _RING[collective] * (size - 1)
    return steps * link.latency_ns + _divide(steps * payload_bytes * 10**9, size * link.bytes_per_s)


def _divide(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)
