"""A machine file for people: its numbers, its levels, and where each comes from."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from lynx_plan.model.machine import Efficiency, Link, Machine
from lynx_plan.report.style import facts, make_table
from lynx_plan.units import format_bytes


def machines_table(machines: Sequence[Machine]) -> RenderableType:
    """One line per machine."""
    table = make_table()
    table.add_column("machine", no_wrap=True)
    for heading in ("device", "memory", "bf16 TFLOP/s", "memory GB/s", "link"):
        table.add_column(heading, justify="right", no_wrap=True)
    for machine in machines:
        peaks = {peak.dtype: peak.flops_per_s for peak in machine.peaks}
        half = peaks.get("bfloat16") or peaks.get("float16")
        cells = (machine.device, format_bytes(machine.memory_bytes), f"{half / 1e12:.1f}" if half else "-")
        table.add_row(machine.name, *cells, f"{machine.memory_bytes_per_s / 1e9:.0f}", link_text(machine.link))
    return table


def machine_view(machine: Machine) -> RenderableType:
    """All numbers of one machine, then its sources."""
    rows = [
        ("machine", f"{machine.name} ({machine.device})"),
        ("memory", f"{format_bytes(machine.memory_bytes)}, {format_bytes(machine.margin_bytes)} left free by auto"),
        *((f"peak {peak.dtype}", f"{peak.flops_per_s / 1e12:.2f} TFLOP/s") for peak in machine.peaks),
        ("matmul", shares(machine.matmul_efficiency, "flops")),
        ("memory rate", f"{machine.memory_bytes_per_s / 1e9:.1f} GB/s"),
        ("traffic", shares(machine.memory_efficiency, "bytes")),
        ("launch", f"{machine.launch_ns / 1000:.1f} us"),
        ("attention", f"{machine.attention_backend}, {machine.attention_share:.0%} of a matmul's rate"),
        ("link", f"{link_text(machine.link)}{f' among {machine.devices} devices' if machine.devices else ''}"),
        *((f"level {level.name}", link_text(level.link)) for level in machine.levels),
        ("contention", f"compute loses {machine.compute_slowdown:.0%}, a collective {machine.comm_slowdown:.0%}"),
    ]
    sources = [f"peak {peak.dtype}: {peak.source}" for peak in machine.peaks] + list(machine.sources)
    return Group(facts(rows), Text(""), Text("sources", style="title"), *(Text(f"- {source}") for source in sources))


def shares(curve: Sequence[Efficiency], unit: str) -> str:
    """`30 % at 2.1e+09, 75 % at 1.4e+11 flops`."""
    points = ", ".join(f"{100 * point.share:.0f} % at {point.size:.1e}" for point in curve)
    return f"{points} {unit}" if points else "the peak at any size"


def link_text(link: Link) -> str:
    """`208.0 GB/s, 2.0 us`."""
    return f"{link.bytes_per_s / 1e9:.2f} GB/s, {link.latency_ns / 1000:.1f} us"
