"""Price a cost graph by measuring each distinct op on this machine, in concurrent ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lynx_plan.cost.collectives import collective_ns
from lynx_plan.cost.data_parallel import Average, final_average
from lynx_plan.cost.link import link_text
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import CostGraph, Op, Role
from lynx_plan.model.machine import Link, Machine
from lynx_plan.torch_rt.conditions import conditions
from lynx_plan.torch_rt.cost_cache import Setting, measured_or_kept
from lynx_plan.torch_rt.kept_block import FORWARD, KINDS
from lynx_plan.torch_rt.measure_items import average_items, op_items, optimizer_item
from lynx_plan.torch_rt.measure_ranks import measure_on_ranks, started_outside

if TYPE_CHECKING:
    from lynx_plan.torch_rt.capture import Captured

OPTIMIZER_SHARE = 8  # at most this part of a rank's memory is allocated to time the optimizer
Progress = Callable[[str, int, int], None]


def measure(
    captured: Captured,
    *,
    ranks: int,
    threads: int,
    link: Link | None,
    progress: Progress | None,
    costs: str | None = None,
) -> CostGraph:
    """The captured graph with measured times (ns), each distinct op once, `threads` compute threads per rank.

    Collectives take the link's time if one is given, else what they take between the ranks here. `costs` names
    a cost cache file: what it holds is not measured again. Raises LynxError if an op cannot be measured, a group
    does not fit in `ranks`, or a rank fails.
    """
    graph = captured.graph
    items, indices = op_items(captured)
    average = final_average(graph)
    sizes = sorted({op.group_size for op in graph.ops if op.role is Role.COLLECTIVE} | {average.ranks} - {1})
    _check_groups(sizes, ranks)
    last = average_items(average)
    work = [*items, *last, optimizer_item(graph, this_machine(ranks).memory_bytes // OPTIMIZER_SHARE)]
    if costs is not None and started_outside():
        raise LynxError("costs are kept for ranks of its own only", where="--costs", hint="leave it out under torchrun")

    def slowest(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        # ranks wait for each other at the next collective, so the slowest one's time is the step's
        results = measure_on_ranks(
            items,
            ranks=ranks,
            threads=threads,
            group_sizes=sizes,
            emulated=link is not None,
            progress=lambda done: progress("measuring", done, len(items)) if progress else None,
        )
        return [max(same, key=lambda result: result["median_ns"]) for same in zip(*results, strict=True)]

    setting = Setting(ranks=ranks, threads=threads, emulated=link is not None)
    results = measured_or_kept(work, setting, costs, slowest)
    ops = tuple(
        _kept(op, captured) or _priced(op, results[index] if index >= 0 else None, link)
        for op, index in zip(graph.ops, indices, strict=True)
    )
    return replace(
        graph,
        ops=ops,
        link=link,
        threads=threads,
        optimizer_ns=results[-1]["median_ns"] + _average_ns(average, results[len(items) : -1], link),
        notes=(*graph.notes, *_notes(results[: len(items)], ranks, threads)),
    )


def _average_ns(average: Average, results: list[dict[str, Any]], link: Link | None) -> int:
    """The all-reduces of gradients at the end of a step, one after the other."""
    total = 0
    for (_, size), result in zip(average.bytes, results, strict=True):
        comm_ns = collective_ns("all_reduce", average.ranks, size, link) if link else result["comm_ns"]
        total += result["median_ns"] + comm_ns
    return total


def this_machine(ranks: int) -> Machine:
    """This machine's CPU as the target of its ranks: physical memory in equal parts, a tenth of it left free.

    `ranks`: how many, where no torchrun says how many are on this machine.
    """
    neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", ranks)) if started_outside() else ranks
    share = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // neighbours
    return Machine(
        name="this-cpu",
        device="cpu",
        memory_bytes=share,
        margin_bytes=share // 10,
        attention_backend="cpu",
        link=Link(bytes_per_s=0, latency_ns=0, text="measured"),
        sources=(
            f"memory_bytes: physical memory of this machine over {neighbours} rank(s)",
            "margin_bytes: assumption: a tenth for the interpreter, libraries and allocator slack",
            "times and link: measured, op by op",
            *conditions(),
        ),
    )


def _check_groups(sizes: list[int], ranks: int) -> None:
    for size in sizes:
        if ranks % size:
            raise LynxError(
                f"a collective of {size} ranks cannot be measured among {ranks}",
                hint="price by a machine file instead: lynx profile --machine NAME",
            )


def _kept(op: Op, captured: Captured) -> Op | None:
    """A block that is kept whole was timed when it was captured, in one process."""
    if op.kind not in KINDS:
        return None
    node = captured.nodes[op.id]
    assert node is not None, op
    facts = captured.kept[node.args[0]]
    time_ns = facts.forward_ns if node.target is FORWARD else facts.backward_ns
    return replace(op, time_ns=time_ns, cost_source="measured at capture")


def _priced(op: Op, result: dict[str, Any] | None, link: Link | None) -> Op:
    if result is None:
        return replace(op, time_ns=0, spread_ns=0, comm_ns=0, steal_ns=0, steal_span_ns=0, cost_source="free")
    timed = replace(op, time_ns=max(1, result["median_ns"]), spread_ns=result["spread_ns"], cost_source="measured")
    if op.role is not Role.COLLECTIVE:
        return replace(timed, comm_ns=0, steal_ns=0, steal_span_ns=0)
    steal_ns = result["steal_ns"]
    if link is None:
        comm_ns, span_ns, source = max(1, result["comm_ns"]), 0, "measured"
    else:  # Gloo does its work at once, at half a core beside the compute thread; the link's time goes on
        comm_ns = collective_ns(op.kind, op.group_size, op.comm_bytes, link)
        span_ns = 2 * steal_ns if 2 * steal_ns < comm_ns else 0
        source = f"measured launch, alpha-beta:{link_text(link)}"
    steal_ns = min(steal_ns, comm_ns)
    return replace(timed, comm_ns=comm_ns, steal_ns=steal_ns, steal_span_ns=span_ns, cost_source=source)


def _notes(results: list[dict[str, Any]], ranks: int, threads: int) -> tuple[str, ...]:
    notes = [f"measured {len(results)} distinct ops in {ranks} concurrent rank(s) of {threads} thread(s)"]
    accumulates = [result for result in results if "add_ns" in result]
    if accumulates:
        copy_ns = sum(result["median_ns"] for result in accumulates)
        ratio = sum(result["add_ns"] for result in accumulates) / max(copy_ns, 1)
        notes.append(
            "gradient accumulations are priced as the first microbatch's copy; "
            f"a later microbatch's addition takes {ratio:.2f} times as long"
        )
    return tuple(notes)
