"""`lynx plan` and `lynx compare`: files, documents, tables, and the answer no."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lynx_plan import files
from lynx_plan.check import check_plan
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.plan import Plan
from tests.cli.conftest import Lynx, assert_answer

PREDICTED = {
    "step_ns", "peak_bytes", "peak_activation_bytes", "recompute_hidden_ns", "recompute_exposed_ns", "comm_exposed_ns",
}  # fmt: skip


def test_plan_writes_a_legal_plan(lynx: Lynx, graph: CostGraph) -> None:
    result = lynx("plan", "--budget", "60%")
    assert result.code == 0, result.err
    plan = files.load("plan.json", Plan)
    check_plan(plan, graph)
    assert plan.algo == "heu"
    assert "heu" in result.out
    assert "wrote plan.json" in result.err
    assert "next: lynx inspect plan.json" in result.err


def test_plan_document(lynx: Lynx, graph: CostGraph) -> None:
    result = lynx("plan", "--budget", "60%", "--micro-batches", "3", "--json")
    document = json.loads(result.out)
    assert {"algo", "status", "search_ns", "budget_bytes", "predicted", "plan"} <= set(document)
    assert set(document["predicted"]) == PREDICTED
    assert document["plan"] == "plan.json"
    assert document["micro_batches"] == 3
    assert document["predicted"]["peak_bytes"] <= document["budget_bytes"]
    assert all(isinstance(value, int) for value in document["predicted"].values())


def test_the_same_inputs_give_the_same_file(lynx: Lynx, graph: CostGraph, folder: Path) -> None:
    assert lynx("plan", "--budget", "60%").code == 0
    first = (folder / "plan.json").read_bytes()
    assert lynx("plan", "--budget", "60%").code == 0
    assert (folder / "plan.json").read_bytes() == first


def test_plan_says_when_nothing_needs_recomputing(lynx: Lynx, graph: CostGraph) -> None:
    result = lynx("plan")
    assert result.code == 0
    assert "nothing needs recomputing" in result.out
    assert json.loads(lynx("plan", "--json").out)["status"] == "not-needed"


def test_plan_to_standard_output(lynx: Lynx, graph: CostGraph, folder: Path) -> None:
    result = lynx("plan", "--algo", "full", "-o", "-")
    assert result.code == 0
    plan = files.from_json_object(json.loads(result.out), "stdout")
    assert isinstance(plan, Plan)
    assert "full" in result.err
    assert not (folder / "plan.json").exists()


def test_infeasible_is_an_answer(lynx: Lynx, graph: CostGraph, folder: Path) -> None:
    result = lynx("plan", "--budget", "15MiB")
    assert_answer(result, 1, "--budget", "MiB")
    assert not (folder / "plan.json").exists()
    document = json.loads(lynx("plan", "--budget", "15MiB", "--json").out)
    assert document["status"] == "infeasible"
    assert document["plan"] is None
    assert document["budget_bytes"] == 15 << 20
    minimum = document["minimum_budget_bytes"]
    assert minimum > 15 << 20
    assert str(minimum) in result.err
    assert lynx("plan", "--budget", f"{minimum}B").code == 0


def test_overwriting(lynx: Lynx, graph: CostGraph, folder: Path) -> None:
    assert lynx("plan", "--algo", "full").code == 0
    assert lynx("plan", "--algo", "full").code == 0, "the default name may be overwritten"
    (folder / "mine.json").write_text("mine")
    assert_answer(lynx("plan", "--algo", "full", "-o", "mine.json"), 2, "mine.json", "exists", "--force")
    assert (folder / "mine.json").read_text() == "mine"
    assert lynx("plan", "--algo", "full", "-o", "mine.json", "--force").code == 0


@pytest.mark.parametrize(
    "budget", ["abc", "-3GiB", "60", "between:full", "between:full,none,x", "between:a,none,0.5", "between:full,none,2"]
)
def test_a_budget_that_is_none(lynx: Lynx, graph: CostGraph, folder: Path, budget: str) -> None:
    assert_answer(lynx("plan", f"--budget={budget}"), 2)
    assert not (folder / "plan.json").exists()


def test_an_unknown_algorithm_lists_the_known_ones(lynx: Lynx, graph: CostGraph) -> None:
    assert_answer(lynx("plan", "--algo", "best"), 2, "best", "heu", "selective")
    assert_answer(lynx("compare", "--algo", "heu,best"), 2, "best", "heu", "selective")
    assert_answer(lynx("plan", "--algo", "heu,full"), 2, "lynx compare")


def test_profiles_that_cannot_be_read(lynx: Lynx, folder: Path) -> None:
    assert_answer(lynx("plan"), 2, "profile.json", "lynx profile")
    assert_answer(lynx("plan", "gone.json"), 2, "gone.json", "cannot be read")
    (folder / "broken.json").write_text('{"kind": "lynx.profile",')
    assert_answer(lynx("plan", "broken.json"), 2, "broken.json:1:", "is not JSON")
    (folder / "new.json").write_text('{"kind": "lynx.profile", "schema_version": "2.0"}')
    assert_answer(lynx("plan", "new.json"), 2, "schema version 2.0", "1.x")
    assert sorted(path.name for path in folder.iterdir()) == ["broken.json", "new.json"]


def test_compare_table(lynx: Lynx, graph: CostGraph, folder: Path) -> None:
    result = lynx("compare", "profile.json", "--budget", "60%")
    assert result.code == 0, result.err
    lines = [line.split()[0] for line in result.out.splitlines() if line.strip()]
    assert [name for name in lines if name in ("none", "full", "selective", "ondemand", "heu")] == [
        "none", "full", "selective", "ondemand", "heu",
    ]  # fmt: skip
    assert "over budget" in next(line for line in result.out.splitlines() if line.startswith("none"))
    assert "the fastest of full, selective, ondemand here that fits" in result.out
    assert sorted(path.name for path in folder.iterdir()) == ["profile.json"]


def test_compare_document(lynx: Lynx, graph: CostGraph) -> None:
    document = json.loads(lynx("compare", "--budget", "60%", "--algo", "none,full,ondemand,heu", "--json").out)
    rows = {row["name"]: row for row in document["rows"]}
    assert list(rows) == ["none", "full", "ondemand", "heu"]
    for name, row in rows.items():
        assert row["algo"] == name
        assert set(row["predicted"]) == PREDICTED
    assert rows["none"]["fits_budget"] is False
    assert rows["heu"]["fits_budget"] is True
    steps = {name: rows[name]["predicted"]["step_ns"] for name in ("full", "ondemand") if rows[name]["fits_budget"]}
    assert document["reference"] == min(steps, key=lambda name: steps[name])


def test_compare_where_a_plan_does_not_exist(lynx: Lynx, graph: CostGraph) -> None:
    result = lynx("compare", "--budget", "15MiB")
    assert_answer(result, 1, "no plan fits the budget")
    assert "infeasible" in result.out
    assert "no on-demand plan" in result.out
    document = json.loads(lynx("compare", "--budget", "15MiB", "--json").out)
    row = next(row for row in document["rows"] if row["name"] == "heu")
    assert row["status"] == "infeasible"
    assert row["minimum_budget_bytes"] > 15 << 20
    assert document["reference"] is None
