"""How cold an op's operands are when it runs: bytes that the step touches between one use of a storage and the next."""

from __future__ import annotations

from lynx_plan.model.graph import CostGraph, Role

HOT_BYTES = 4 * 2**20  # an operand used again within so much traffic is still in a core's own caches
COLD_BYTES = 2**40


def reuse_distances(graph: CostGraph) -> tuple[tuple[int, ...], ...]:
    """Per op and input: bytes touched since the op that last touched it began, in graph order, rounded up.

    The step repeats, so what was last used at the end of one counts for the start of the next.
    """
    clock, touched = 0, dict[int, int]()
    distances: list[tuple[int, ...]] = []
    for _ in range(2):
        distances = []
        for op in graph.ops:
            storages = [graph.tensors[tensor].storage for tensor in (*op.inputs, *op.outputs)]
            distances.append(
                tuple(rounded(clock - touched.get(storage, -COLD_BYTES)) for storage in storages[: len(op.inputs)])
            )
            if op.role in (Role.VIEW, Role.WAIT):
                # while a core waits, the collective's threads and other processes use its caches
                clock += 2 * HOT_BYTES if op.role is Role.WAIT else 0
                continue
            touched.update(dict.fromkeys(storages, clock))
            clock += op.bytes
    return tuple(distances)


def rounded(distance_bytes: int) -> int:
    """`HOT_BYTES` or `COLD_BYTES`: equal ops in equal surroundings are measured once."""
    return HOT_BYTES if distance_bytes <= HOT_BYTES else COLD_BYTES
