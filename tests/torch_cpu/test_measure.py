"""Measuring a small GPT in two ranks: what is priced, what a price says, what happens to the ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lynx_plan import files
from lynx_plan.cost.collectives import collective_ns
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import CostGraph, ModelSpec, Role
from lynx_plan.model.machine import Link
from lynx_plan.torch_rt import measure_ranks
from lynx_plan.torch_rt.capture import Captured
from lynx_plan.torch_rt.measure import measure, this_machine
from lynx_plan.torch_rt.measure_items import op_items
from lynx_plan.torch_rt.measure_ranks import measure_on_ranks
from tests.torch_cpu.gpt_case import EXAMPLE, SMALL, capture_gpt

LINK = Link(bytes_per_s=50_000_000, latency_ns=10_000, text="50MB/s:10us")
BROKEN = """
def build_model(mesh): ...
def example_inputs(): ...
def build_optimizer(params):
    raise RuntimeError("no optimizer today")
"""


def children() -> list[str]:
    """Processes that this one started and that still run."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.append(status.parent.name)
    return found


@pytest.fixture(scope="module")
def captured() -> Captured:
    return capture_gpt(2, layers=2)


@pytest.fixture(scope="module")
def seen() -> list[tuple[str, int, int]]:
    return []


@pytest.fixture(scope="module")
def measured(captured: Captured, seen: list[tuple[str, int, int]]) -> CostGraph:
    before = children()
    graph = measure(captured, ranks=2, threads=1, link=LINK, progress=lambda *step: seen.append(step))
    assert children() == before
    return graph


def test_every_op_has_a_price_and_its_source(measured: CostGraph) -> None:
    for op in measured.ops:
        if op.role in (Role.VIEW, Role.WAIT):
            assert (op.time_ns, op.comm_ns, op.cost_source) == (0, 0, "free")
        else:
            assert op.time_ns > 0
            assert op.spread_ns >= 0
            assert op.cost_source.startswith("measured")
    assert measured.optimizer_ns > 0
    assert (measured.link, measured.threads) == (LINK, 1)


def test_equal_ops_are_measured_once_and_cost_the_same(captured: Captured, measured: CostGraph) -> None:
    items, indices = op_items(captured)
    priced = [index for index in indices if index >= 0]
    assert len(items) < len(priced)
    price_of: dict[int, tuple[int, int]] = {}
    for op, index in zip(measured.ops, indices, strict=True):
        if index >= 0:
            assert price_of.setdefault(index, (op.time_ns, op.spread_ns)) == (op.time_ns, op.spread_ns)
    assert f"measured {len(items)} distinct ops in 2 concurrent rank(s)" in " ".join(measured.notes)


def test_collectives_take_the_links_time(measured: CostGraph) -> None:
    collectives = [op for op in measured.ops if op.role is Role.COLLECTIVE]
    assert collectives
    for op in collectives:
        assert op.comm_ns == collective_ns(op.kind, 2, op.comm_bytes, LINK)
        assert 0 <= op.steal_ns <= op.comm_ns
        assert op.cost_source == "measured launch, alpha-beta:50MB/s:10us"


def test_only_prices_change(captured: Captured, measured: CostGraph) -> None:
    bare = tuple(replace(op, time_ns=0, spread_ns=0, comm_ns=0, steal_ns=0, cost_source="") for op in measured.ops)
    assert bare == captured.graph.ops
    assert (measured.tensors, measured.storages) == (captured.graph.tensors, captured.graph.storages)


def test_progress_counts_up_to_the_end(measured: CostGraph, seen: list[tuple[str, int, int]]) -> None:
    done = [step[1] for step in seen]
    assert {step[0] for step in seen} == {"measuring"}
    assert done == sorted(done)
    assert seen[-1][1] == seen[-1][2]


def test_without_a_link_the_transfer_itself_is_measured() -> None:
    captured = capture_gpt(2, layers=1)
    graph = measure(captured, ranks=2, threads=1, link=None, progress=None)
    collectives = [op for op in graph.ops if op.role is Role.COLLECTIVE]
    assert all(op.comm_ns > 0 and op.cost_source == "measured" for op in collectives)
    assert graph.link is None


def test_a_failing_rank_ends_all_and_gives_its_cause(captured: Captured, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(BROKEN)
    graph = replace(captured.graph, model=ModelSpec(path=str(broken)))
    before = children()
    with pytest.raises(LynxError, match="no optimizer today"):
        measure(replace(captured, graph=graph), ranks=2, threads=1, link=LINK, progress=None)
    assert children() == before


def test_a_rank_that_dies_ends_all_and_gives_its_last_words(captured: Captured) -> None:
    work = [{"what": "op", "call": {"target": "aten.nothing.default", "args": [], "kwargs": {}}}]
    before = children()
    with pytest.raises(LynxError, match=r"rank \d, which measures ops, failed: AttributeError: .*nothing"):
        measure_on_ranks(work, ranks=2, threads=1, group_sizes=[], emulated=False, progress=lambda _: None)
    assert children() == before


def test_a_group_larger_than_the_ranks_is_refused() -> None:
    with pytest.raises(LynxError, match="4 ranks cannot be measured among 2") as caught:
        measure(capture_gpt(4, layers=1), ranks=2, threads=1, link=LINK, progress=None)
    assert "--machine" in caught.value.hint


def test_this_machine_is_shared_out_among_the_ranks() -> None:
    one, two = this_machine(1), this_machine(2)
    assert one.memory_bytes // 2 == two.memory_bytes
    assert 0 < two.margin_bytes < two.memory_bytes
    assert (two.name, two.device, two.attention_backend) == ("this-cpu", "cpu", "cpu")


@pytest.mark.parametrize("link", [(), ("--link", "1GB/s:10us")], ids=["measured", "emulated"])
def test_under_torchrun_the_ranks_that_are_there_measure_and_rank_0_writes(
    tmp_path: Path, link: tuple[str, ...]
) -> None:
    model = [str(EXAMPLE), "--tp", "2"]
    sizes = [word for key, value in SMALL.items() for word in ("--arg", f"{key}={value}")]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "lynx_plan"]
    command = [*launcher, "profile", *model, *sizes, *link, "-o", "profile.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("static memory") == 1
    graph = files.load(tmp_path / "profile.json", CostGraph)
    collectives = [op for op in graph.ops if op.role is Role.COLLECTIVE]
    assert all(op.comm_ns > 0 and op.cost_source.startswith("measured") for op in collectives)
    assert (graph.link is None) == (not link)
    assert [path.name for path in tmp_path.iterdir()] == ["profile.json"]


def test_under_torchrun_no_other_ranks_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """`_start` would start more ranks; `_as_rank` makes this process one of those that are there."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(measure_ranks, "_start", lambda *_: pytest.fail("a rank was started"))
    monkeypatch.setattr(measure_ranks, "_as_rank", lambda job, _: [[{"items": job["items"]}]])
    found = measure_on_ranks([], ranks=1, threads=1, group_sizes=[], emulated=False, progress=lambda _: None)
    assert found == [[{"items": []}]]
