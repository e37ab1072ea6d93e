"""`lynx run` and `lynx compare --run` up to the runtime, which is replaced here: options, documents, refusals."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lynx_plan import files
from lynx_plan.cost.link import parse_link
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.plan import Plan
from lynx_plan.model.run import RunRow
from tests.cli.conftest import Lynx, assert_answer
from tests.golden.samples import plan_of, recomputing_order

MEASURED = {
    "step_ns", "peak_activation_bytes", "recompute_hidden_ns", "recompute_exposed_ns", "comm_exposed_ns",
}  # fmt: skip


@pytest.fixture
def plan(graph: CostGraph, folder: Path) -> Plan:
    """A plan for an emulated link, written to plan.json."""
    plan = replace(plan_of(graph, recomputing_order(graph), algo="heu"), link=parse_link("500MB/s:100us"))
    files.write(plan, folder / "plan.json", overwrite=False)
    return plan


@dataclass
class Runtime:
    """A stand-in for the runtime: remembers its options, answers what it is told to."""

    equal: bool | None = None
    ranks_other_than_0: bool = False
    options: Any = None

    def run(self, options: Any) -> tuple[RunRow, ...]:
        self.options = options
        if self.ranks_other_than_0:
            return ()
        rows = [self.row(name, plan) for name, plan in options.plans]
        if options.eager:
            rows.append(RunRow(name="eager", measured=options.plans[0][1].predicted, steps=options.steps))
        return tuple(rows)

    def row(self, name: str, plan: Plan) -> RunRow:
        difference = "layers.0.w_up" if self.equal is False else ""
        return RunRow(
            name=name, plan_digest=files.digest(plan), predicted=plan.predicted, measured=plan.predicted,
            steps=self.options.steps, gradients_equal=self.equal, first_difference=difference,
        )  # fmt: skip


@dataclass(kw_only=True)
class Options:
    """The runtime's options, as the command line fills them."""

    plans: tuple[tuple[str, Plan], ...]
    steps: int = 5
    verify: bool = False
    eager: bool = False
    timeline: Path | None = None
    model: str | None = None
    folder: str | None = None


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """Installed in place of `lynx_plan.torch_rt.launch`, so that no test here needs torch."""
    runtime = Runtime()
    module = ModuleType("lynx_plan.torch_rt.launch")
    module.__dict__.update(run=runtime.run, RunOptions=Options)
    monkeypatch.setitem(sys.modules, "lynx_plan.torch_rt.launch", module)
    return runtime


def test_run_prints_predicted_beside_measured(lynx: Lynx, plan: Plan, runtime: Runtime) -> None:
    result = lynx("run", "--plan", "plan.json", "--steps", "3")
    assert result.code == 0, result.err
    assert "3 steps" in result.out
    assert "1.000" in result.out
    assert "not verified" in result.out
    assert runtime.options.steps == 3
    assert runtime.options.verify is False


def test_run_document(lynx: Lynx, plan: Plan, runtime: Runtime) -> None:
    runtime.equal = True
    result = lynx("run", "--verify", "--json", "--model", "elsewhere.py", "--link", "500MB/s:100us")
    document = json.loads(result.out)
    assert set(document["measured"]) >= MEASURED
    assert set(document["predicted"]) >= MEASURED
    assert document["gradients_equal"] is True
    assert document["plan_digest"] == files.digest(plan)
    assert runtime.options.verify is True
    assert runtime.options.model == "elsewhere.py"


def test_different_gradients_are_an_answer(lynx: Lynx, plan: Plan, runtime: Runtime) -> None:
    runtime.equal = False
    result = lynx("run", "--verify")
    assert_answer(result, 1, "layers.0.w_up", "differs")
    assert "DIFFER" in result.out
    assert json.loads(lynx("run", "--verify", "--json").out)["first_difference"] == "layers.0.w_up"


def test_only_rank_0_prints(lynx: Lynx, graph: CostGraph, plan: Plan, runtime: Runtime) -> None:
    runtime.ranks_other_than_0 = True
    for argv in (["run"], ["run", "--json"], ["compare", "--run", "--algo", "full"]):
        result = lynx(*argv)
        assert (result.code, result.out) == (0, ""), argv


def test_another_link_is_refused(lynx: Lynx, plan: Plan, runtime: Runtime, folder: Path) -> None:
    assert_answer(lynx("run", "--link", "1GB/s:100us"), 1, "500MB/s:100us", "1GB/s:100us")
    assert_answer(lynx("run", "--link", "fast"), 2, "fast", "500MB/s")
    files.write(replace(plan, link=None), folder / "plan.json", overwrite=True)
    assert_answer(lynx("run", "--link", "1GB/s:100us"), 1, "machine's own link")
    assert runtime.options is None


def test_run_reads_its_plan_first(lynx: Lynx, plan: Plan, runtime: Runtime, folder: Path) -> None:
    assert_answer(lynx("run", "--plan", "gone.json"), 2, "gone.json")
    assert_answer(lynx("run", "--plan", "profile.json"), 2, "is a profile, not a plan", "lynx plan")
    (folder / "t.json").write_text("mine")
    assert_answer(lynx("run", "--timeline", "t.json"), 2, "t.json", "exists", "--force")
    assert (folder / "t.json").read_text() == "mine"
    assert runtime.options is None


def test_compare_run_measures_each_and_eager(lynx: Lynx, graph: CostGraph, runtime: Runtime) -> None:
    runtime.equal = True
    argv = ("compare", "--run", "--budget", "60%", "--algo", "none,full,heu", "--steps", "2")
    result = lynx(*argv)
    assert result.code == 0, result.err
    names = [line.split()[0] for line in result.out.splitlines() if line]
    assert [name for name in names if name in ("none", "full", "heu", "eager")] == ["none", "full", "heu", "eager"]
    assert runtime.options.eager is True
    assert runtime.options.verify is True
    assert runtime.options.steps == 2
    document = json.loads(lynx(*argv, "--json").out)
    for row in document["rows"]:
        assert set(row["measured"]) >= MEASURED
    assert [row["gradients_equal"] for row in document["rows"]] == [True, True, True, None]


def test_compare_run_fails_where_gradients_differ(lynx: Lynx, graph: CostGraph, runtime: Runtime) -> None:
    runtime.equal = False
    result = lynx("compare", "--run", "--algo", "full")
    assert result.code == 1
    assert "layers.0.w_up" in result.err
    assert "DIFFER" in result.out
