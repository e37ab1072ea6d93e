"""The shipped machine files: complete, plausible, every number with its source."""

from __future__ import annotations

import pytest

from lynx_plan import files
from lynx_plan.cost.efficiency import share_at
from lynx_plan.cost.roofline import price
from tests.unit.builders import megatron_graph

NAMES = (
    "a100-80g-nvlink",
    "a100-80g-pcie",
    "b200-180g-nvlink",
    "cpu-demo",
    "h100-80g-nvlink",
    "h200-141g-nvlink",
    "l40s-48g-pcie",
    "v100-32g-nvlink",
)
NUMBERS = (
    "memory_bytes", "margin_bytes", "memory_bytes_per_s", "launch_ns", "matmul_efficiency", "memory_efficiency",
    "attention_share", "link.bytes_per_s", "link.latency_ns", "compute_slowdown",
)  # fmt: skip


def test_exactly_these_are_shipped() -> None:
    assert files.shipped_machines() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_number_has_a_source(name: str) -> None:
    machine = files.load_machine(name)
    assert machine.name == name
    for number in NUMBERS:
        texts = [text for text in machine.sources if text.startswith(f"{number}: ")]
        assert len(texts) == 1, f"{name}: {number} has {len(texts)} sources"
    assert all(peak.source for peak in machine.peaks)
    assert all(kernel.source and 0 < kernel.share <= 1 for kernel in machine.kernels)
    for number in ("matmul_tile", "processors") if machine.processors else ():
        assert sum(text.startswith(f"{number}: ") for text in machine.sources) == 1


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_plausible(name: str) -> None:
    machine = files.load_machine(name)
    assert 0 < machine.margin_bytes < machine.memory_bytes
    assert 0 <= machine.compute_slowdown < 1
    assert 0 < machine.attention_share <= 1.5
    half = "float16" if name.startswith("v100") else "bfloat16"  # Volta has no bfloat16
    assert {"float32", half} <= {peak.dtype for peak in machine.peaks}
    for curve in (machine.matmul_efficiency, machine.memory_efficiency):
        assert curve
        assert 0 < share_at(curve, 10**6) <= 1


@pytest.mark.parametrize("name", NAMES)
def test_they_price_a_graph(name: str) -> None:
    graph = price(megatron_graph(), files.load_machine(name), None)
    assert all(op.time_ns > 0 for op in graph.ops if op.role not in ("view", "wait"))


def test_nvlink_is_faster_than_pcie_and_an_h100_than_an_a100() -> None:
    nvlink, pcie, h100 = (files.load_machine(f"{n}") for n in ("a100-80g-nvlink", "a100-80g-pcie", "h100-80g-nvlink"))
    assert h100.link.bytes_per_s > nvlink.link.bytes_per_s > pcie.link.bytes_per_s
    assert h100.memory_bytes_per_s > nvlink.memory_bytes_per_s > pcie.memory_bytes_per_s
