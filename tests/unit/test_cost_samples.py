"""The committed sample profiles: all there, all readable, and what pricing makes of their structure."""

from __future__ import annotations

from pathlib import Path

import pytest

from lynx_plan import files
from lynx_plan.cost.roofline import price
from lynx_plan.model.graph import CostGraph, Role
from tests.unit.source_tree import ROOT

FOLDER = ROOT / "sample_profiles"
NAMES = tuple(
    f"gpt-{size}-tp{tp}-a100-80g-{link}"
    for size in ("1.3b", "2.7b", "6.7b", "13b", "20b")
    for tp in (2, 4, 8)
    for link in ("nvlink", "pcie")
)
OTHERS = ("gpt-1t-tp8", "gpt2-xl", "llama-3-8b", "llama-3-70b-tp8", "mixtral-8x7b")
MOST_BYTES = 1_000_000


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.profile.json.gz"


def test_exactly_these_are_committed() -> None:
    others = tuple(f"{name}-a100-80g-nvlink" for name in OTHERS)
    assert {path.name for path in FOLDER.glob("*.gz")} == {path_of(name).name for name in (*NAMES, *others)}


@pytest.mark.parametrize("name", OTHERS)
def test_large_and_foreign_samples(name: str) -> None:
    path = path_of(f"{name}-a100-80g-nvlink")
    assert path.stat().st_size < MOST_BYTES
    graph = files.load(path, CostGraph)
    assert len([layer for layer in graph.layers if layer.name.rpartition(".")[2].isdigit()]) >= 32
    assert all(op.time_ns > 0 for op in graph.ops if op.role not in (Role.VIEW, Role.WAIT))
    assert ("tp8" in name) == any(op.role is Role.COLLECTIVE for op in graph.ops)


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_is_small_and_is_what_its_name_says(name: str) -> None:
    assert path_of(name).stat().st_size < MOST_BYTES
    graph = files.load(path_of(name), CostGraph)
    _, _, tp, machine = name.split("-", 3)
    assert graph.mesh == (("tp", int(tp.removeprefix("tp"))),)
    assert graph.machine.name == machine
    assert graph.model.path == "examples/gpt.py"
    assert not any(op.source.startswith("/") for op in graph.ops)
    assert all(op.time_ns > 0 for op in graph.ops if op.role not in (Role.VIEW, Role.WAIT))
    assert all(op.comm_ns > 0 for op in graph.ops if op.role is Role.COLLECTIVE)


@pytest.mark.parametrize("name", ["gpt-1.3b-tp2-a100-80g-nvlink", "gpt-1.3b-tp2-a100-80g-pcie"])
def test_pricing_again_gives_the_same_digest(name: str) -> None:
    graph = files.load(path_of(name), CostGraph)
    machine = files.load_machine(graph.machine.name)
    assert files.digest(price(graph, machine, None)) == files.digest(graph)
    other = files.load_machine("h100-80g-nvlink")
    assert files.digest(price(graph, other, None)) != files.digest(graph)
