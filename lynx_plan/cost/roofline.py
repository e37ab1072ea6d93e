"""Price a cost graph by a machine file: roofline for ops, alpha-beta for collectives.

Per op: max(flops / (peak x matmul efficiency), bytes / (memory rate x memory efficiency), launch time)
(Williams, Waterman, Patterson, "Roofline", 2009, with the ceilings made functions of the op's size). Where the
machine states its processors, matmuls run in waves of tiles (matmul.py); where it names fusion groups, the ops of a
group cost what their kernel moves outside (fusion.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lynx_plan.cost.collectives import Collective, canonical, collective_ns
from lynx_plan.cost.data_parallel import final_average
from lynx_plan.cost.efficiency import share_at
from lynx_plan.cost.fusion import Fused, fused_ops, outer_bytes, storage_readers
from lynx_plan.cost.levels import best_ns
from lynx_plan.cost.link import link_text
from lynx_plan.cost.matmul import Shape, multiply_ns, shape_of
from lynx_plan.cost.static import optimizer_bytes_moved, trained_parameters
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import HOST_KIND, CostGraph, Op, Role
from lynx_plan.model.machine import Link, Machine

_NS = 10**9
_AVERAGE = "all_reduce"
FUSED = "priced as a backend with fused kernels runs it; lynx run runs every op as a kernel of its own"


def price(graph: CostGraph, machine: Machine, link: Link | None) -> CostGraph:
    """The graph with times (ns) for `machine`; collectives on `link`, or on the machine's own levels if None.

    Raises LynxError for a dtype without a peak, or a machine file without a memory rate.
    """
    if machine.memory_bytes_per_s < 1:
        raise LynxError(
            f"machine '{machine.name}' states no memory_bytes_per_s, which pricing needs",
            where="--machine",
            hint="add it to the machine file, or name a shipped machine",
        )
    pricer = _Pricer(graph, machine, link)
    ops = [pricer.op(op) for op in graph.ops]
    if machine.fusion:
        readers = storage_readers(graph)
        for fused in fused_ops(graph, machine.fusion):
            pricer.spread(fused, outer_bytes(graph, fused, readers), ops)
    notes = tuple(note for note in graph.notes if note != FUSED) + ((FUSED,) if machine.fusion else ())
    return replace(graph, machine=machine, link=link, ops=tuple(ops), optimizer_ns=pricer.end_ns(), notes=notes)


@dataclass(frozen=True, slots=True)
class _Pricer:
    graph: CostGraph
    machine: Machine
    link: Link | None

    def op(self, op: Op) -> Op:
        source = f"roofline:{self.machine.name}"
        match op.role:
            case _ if op.role in (Role.VIEW, Role.WAIT) or op.kind.startswith(HOST_KIND):
                return replace(op, time_ns=0, comm_ns=0, steal_ns=0, spread_ns=0, cost_source="free")
            case Role.COLLECTIVE:
                return self._collective(op)
            case Role.ACCUMULATE:
                # reads the new and the main gradient, writes the main gradient
                time_ns = self.traffic_ns(op.bytes or 3 * self._input_bytes(op))
            case _:
                time_ns = self._compute_ns(op)
        return replace(op, time_ns=time_ns, comm_ns=0, steal_ns=0, spread_ns=0, cost_source=source)

    def _collective(self, op: Op) -> Op:
        if self.link:
            comm_ns, source = collective_ns(op.kind, op.group_size, op.comm_bytes, self.link), link_text(self.link)
        else:
            comm_ns, how = best_ns(op.kind, op.group_size, op.group_stride, op.comm_bytes, self.machine)
            source = f"{self.machine.name}:{how}" if self.machine.levels else self.machine.name
        return replace(
            op,
            time_ns=self.machine.launch_ns + self._copy_ns(op),
            comm_ns=comm_ns,
            steal_ns=round(comm_ns * self.machine.compute_slowdown),
            spread_ns=0,
            cost_source=f"alpha-beta:{source}",
        )

    def _copy_ns(self, op: Op) -> int:
        """A functional all-reduce or broadcast works in place on a copy of its input; others have a result apart."""
        in_place = any(op.kind in group.kinds for group in self.machine.fusion)
        if in_place or canonical(op.kind) not in (Collective.ALL_REDUCE, Collective.BROADCAST):
            return 0
        return self.traffic_ns(2 * self._input_bytes(op))

    def _compute_ns(self, op: Op) -> int:
        shape = shape_of(op, self.graph) if self.machine.processors else None
        if shape is None:
            return max(self._flops_ns(op), self.traffic_ns(op.bytes, (op.kind,)))
        written = self.graph.storages[self.graph.tensors[op.outputs[0]].storage].bytes
        return self._matmul_ns(op, shape, op.bytes - written, written)

    def _matmul_ns(self, op: Op, shape: Shape, read: int, written: int) -> int:
        multiply = multiply_ns(op, shape, self.machine, self._peak(op))
        return max(self.machine.launch_ns, round(max(multiply, self._moved_ns(read)) + self._moved_ns(written)))

    def spread(self, fused: Fused, traffic: tuple[int, int], ops: list[Op]) -> None:
        """Price a fused kernel by what it moves outside, and share that among its ops by what each took alone.

        A copy of some of its ops, in recomputation, costs their share: the kernel that makes them again does that much.
        """
        read, written = traffic
        alone = [ops[op].time_ns for op in fused.ops]
        shapes = [(ops[op], shape) for op in fused.ops if (shape := shape_of(ops[op], self.graph))]
        if shapes and self.machine.processors:
            whole = sum(self._matmul_ns(op, shape, read, written) for op, shape in shapes)
        else:
            flops_ns = sum(self._flops_ns(ops[op]) for op in fused.ops)
            whole = max(flops_ns, self.traffic_ns(read + written, tuple(ops[op].kind for op in fused.ops)))
        for op, start, end in zip(fused.ops, _marks(alone, whole), _marks(alone, whole)[1:], strict=False):
            source = f"roofline:{self.machine.name}:fused:{fused.group.name}"
            ops[op] = replace(ops[op], time_ns=end - start, cost_source=source)

    def _flops_ns(self, op: Op) -> int:
        if op.flops <= op.bytes:  # at most one flop per byte: bound by memory on every machine
            return 0
        attention = op.kind.startswith("attention")
        # op.flops counts the full score matrix; causal attention kernels skip the half that is masked
        flops = op.flops // 2 if attention and "is_causal=True" in op.attributes else op.flops
        rate = self._peak(op) * share_at(self.machine.matmul_efficiency, flops)
        return round(flops * _NS / (rate * self.machine.attention_share if attention else rate))

    def traffic_ns(self, count: int, kinds: tuple[str, ...] = ()) -> int:
        """Time of a kernel, of ops of these kinds, that moves `count` bytes; at least one launch."""
        return max(self.machine.launch_ns, round(self._moved_ns(count, kinds)))

    def _moved_ns(self, count: int, kinds: tuple[str, ...] = ()) -> float:
        most = min((kernel.share for kernel in self.machine.kernels if kernel.kind in kinds), default=1.0)
        share = min(most, share_at(self.machine.memory_efficiency, max(1, count)))
        return count * _NS / (self.machine.memory_bytes_per_s * share)

    def end_ns(self) -> int:
        """What follows the microbatches: the average of gradients over data-parallel ranks, and the optimizer."""
        average = final_average(self.graph)
        sizes = [count for _, count in average.bytes]
        if self.link:
            average_ns = sum(collective_ns(_AVERAGE, average.ranks, count, self.link) for count in sizes)
        else:
            average_ns = sum(best_ns(_AVERAGE, average.ranks, average.stride, n, self.machine)[0] for n in sizes)
        return average_ns + sum(self.traffic_ns(2 * count) for count in sizes) + self.optimizer_ns()

    def optimizer_ns(self) -> int:
        """The optimizer's passes over what it owns, once per step; parameters and state read and written, gradients
        read, if the machine names none."""
        static = self.graph.static
        if not self.machine.optimizer_passes:
            moved = optimizer_bytes_moved(static)
            return self.traffic_ns(moved) if moved else 0
        owned = trained_parameters(self.graph) // static.shards
        passes = (owned * part.bytes_per_parameter for part in self.machine.optimizer_passes)
        return sum(self.traffic_ns(count) for count in passes) if owned else 0

    def _peak(self, op: Op) -> int:
        dtypes = [self.graph.tensors[tensor].dtype for tensor in (*op.inputs, *op.outputs)]
        dtype = next((dtype for dtype in dtypes if "float" in dtype), dtypes[0])
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


def _marks(weights: list[int], whole: int) -> list[int]:
    """Where shares of `whole` in proportion to `weights` begin and end; whole numbers."""
    total = sum(weights)
    marks, reached = [0], 0
    for weight in weights:
        reached += weight
        marks.append(whole * reached // total)
    return marks
