"""What it takes to run a random op again: the generator's state, held from the original to the last copy.

The original saves the state before it draws; a copy draws from that state and puts the stream's own back, so that
nobody else's numbers change. The state counts as activation memory while it is held; the stream's own state during
a copy is scratch inside that item. Random ops that never run again save nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from lynx_plan.model.graph import CostGraph
from lynx_plan.model.program import Item

STATE_BYTES = {"cpu": 5056, "cuda": 16}  # torch.get_rng_state(), torch.cuda.get_rng_state() of torch 2.13
# Median of 2000 calls on a 2.5 GHz Xeon core; on a GPU it is work of the host alone.
SAVE_NS = {"cpu": 1000, "cuda": 0}
REPLAY_NS = {"cpu": 1500, "cuda": 0}


def state_bytes(graph: CostGraph) -> int:
    """Bytes of one saved generator state on the graph's device."""
    return STATE_BYTES.get(graph.machine.device, STATE_BYTES["cuda"])


def save_ns(graph: CostGraph) -> int:
    """Time that a replayed op's original takes longer."""
    return SAVE_NS.get(graph.machine.device, 0)


def replay_ns(graph: CostGraph) -> int:
    """Time that a copy takes longer than its original."""
    return REPLAY_NS.get(graph.machine.device, 0)


def replayed(graph: CostGraph, items: Sequence[Item]) -> frozenset[tuple[int, int]]:
    """(op, microbatch) of the random ops that the order runs again."""
    return frozenset((item.op, item.microbatch) for item in items if item.replica and graph.ops[item.op].rng)
