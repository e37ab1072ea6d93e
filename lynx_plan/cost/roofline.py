"""Price a cost graph by a machine file: roofline for ops, alpha-beta for collectives.

Per op: max(flops / (peak x matmul efficiency), bytes / (memory rate x memory efficiency), launch time)
(Williams, Waterman, Patterson, "Roofline", 2009, with the ceilings made functions of the op's size).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lynx_plan.cost.collectives import collective_ns
from lynx_plan.cost.efficiency import share_at
from lynx_plan.cost.link import link_text
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import CostGraph, Op, Role
from lynx_plan.model.machine import Link, Machine

_NS = 10**9


def price(graph: CostGraph, machine: Machine, link: Link | None) -> CostGraph:
    """The graph with times (ns) for `machine`; collectives on `link`, or on the machine's own if None.

    Raises LynxError for a dtype without a peak, or a machine file without a memory rate.
    """
    if machine.memory_bytes_per_s < 1:
        raise LynxError(
            f"machine '{machine.name}' states no memory_bytes_per_s, which pricing needs",
            where="--machine",
            hint="add it to the machine file, or name a shipped machine",
        )
    pricer = _Pricer(graph, machine, link)
    ops = tuple(pricer.op(op) for op in graph.ops)
    return replace(graph, machine=machine, link=link, ops=ops, optimizer_ns=pricer.optimizer_ns())


@dataclass(frozen=True, slots=True)
class _Pricer:
    graph: CostGraph
    machine: Machine
    link: Link | None

    def op(self, op: Op) -> Op:
        source = f"roofline:{self.machine.name}"
        match op.role:
            case Role.VIEW | Role.WAIT:
                return replace(op, time_ns=0, comm_ns=0, steal_ns=0, spread_ns=0, cost_source="free")
            case Role.COLLECTIVE:
                return self._collective(op)
            case Role.ACCUMULATE:
                # reads the new and the main gradient, writes the main gradient
                time_ns = self.traffic_ns(op.bytes or 3 * self._input_bytes(op))
            case _:
                time_ns = max(self._flops_ns(op), self.traffic_ns(op.bytes))
        return replace(op, time_ns=time_ns, comm_ns=0, steal_ns=0, spread_ns=0, cost_source=source)

    def _collective(self, op: Op) -> Op:
        link = self.link or self.machine.link
        comm_ns = collective_ns(op.kind, op.group_size, op.comm_bytes, link)
        name = link_text(self.link) if self.link else self.machine.name
        return replace(
            op,
            # a functional collective copies its input, then returns at launch
            time_ns=self.machine.launch_ns + self.traffic_ns(2 * self._input_bytes(op)),
            comm_ns=comm_ns,
            steal_ns=round(comm_ns * self.machine.compute_slowdown),
            spread_ns=0,
            cost_source=f"alpha-beta:{name}",
        )

    def _flops_ns(self, op: Op) -> int:
        if op.flops <= op.bytes:  # at most one flop per byte: bound by memory on every machine
            return 0
        attention = op.kind.startswith("attention")
        # op.flops counts the full score matrix; causal attention kernels skip the half that is masked
        flops = op.flops // 2 if attention and "is_causal=True" in op.attributes else op.flops
        rate = self._peak(op) * share_at(self.machine.matmul_efficiency, flops)
        return round(flops * _NS / (rate * self.machine.attention_share if attention else rate))

    def traffic_ns(self, count: int) -> int:
        """Time to move `count` bytes through device memory, at least one launch."""
        rate = self.machine.memory_bytes_per_s * share_at(self.machine.memory_efficiency, count)
        return max(self.machine.launch_ns, round(count * _NS / rate))

    def optimizer_ns(self) -> int:
        """Parameters and optimizer state read and written, gradients read, once per step."""
        static = self.graph.static
        moved = 2 * (static.parameters_bytes + static.optimizer_bytes) + static.gradients_bytes
        return self.traffic_ns(moved) if moved else 0

    def _peak(self, op: Op) -> int:
        # ops without tensor inputs (factories) have no flops, so an input exists
        dtype = self.graph.tensors[(op.inputs or op.outputs)[0]].dtype.removeprefix("torch.")
        for peak in self.machine.peaks:
            if peak.dtype == dtype:
                return peak.flops_per_s
        known = ", ".join(peak.dtype for peak in self.machine.peaks) or "none"
        raise LynxError(
            f"machine '{self.machine.name}' states no peak for dtype {dtype}, which op '{op.name}' ({op.kind}) needs",
            where="--machine",
            hint=f"add the dtype to the machine file's peaks (it has {known}), or change the model's dtype",
        )

    def _input_bytes(self, op: Op) -> int:
        return sum(self.graph.storages[self.graph.tensors[tensor].storage].bytes for tensor in op.inputs)
