"""`lynx inspect` and `lynx validate`: pictures, documents, and files that are not legal."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lynx_plan import files
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.plan import Plan
from tests.cli.conftest import Lynx, assert_answer
from tests.golden.samples import plan_of, recomputing_order
from tests.unit.builders import megatron_graph


@pytest.fixture
def plan(graph: CostGraph, folder: Path) -> Plan:
    """A hand-made plan of the profile, written to plan.json."""
    plan = plan_of(graph, recomputing_order(graph), algo="heu")
    files.write(plan, folder / "plan.json", overwrite=False)
    return plan


def test_inspect_plan(lynx: Lynx, plan: Plan) -> None:
    result = lynx("inspect", "plan.json")
    assert result.code == 0, result.err
    for part in ("budget", "policies", "windows of layers.2", "backward of layers.2", "activations over the backward"):
        assert part in result.out
    assert "D: gelu" in result.out
    assert "R bw.a: native_layer_norm" in result.out
    assert result.err == ""


def test_inspect_another_layer_in_ascii(lynx: Lynx, plan: Plan) -> None:
    result = lynx("inspect", "plan.json", "--layer", "layers.0", "--ascii")
    assert "windows of layers.0" in result.out
    assert lynx("inspect", "plan.json", "--layer", "1").out.count("windows of layers.0") == 1
    assert "█" not in result.out
    assert_answer(lynx("inspect", "--layer", "layers.9"), 2, "layers.9", "layers.0")


def test_inspect_document(lynx: Lynx, plan: Plan) -> None:
    document = json.loads(lynx("inspect", "plan.json", "--json").out)
    policy = next(policy for policy in document["policies"] if "layers.1" in policy["layers"])
    assert policy["layers"] == ["layers.0", "layers.1", "layers.2", "layers.3"]
    assert [(entry["op"], entry["where"]) for entry in policy["recomputed"]] == [
        ("gelu", "on demand"), ("native_layer_norm", "bw.a"),
    ]  # fmt: skip
    assert len(document["windows"]) == 17
    assert document["memory"]["peak_activation_bytes"] == plan.predicted.peak_activation_bytes


def test_inspect_a_plan_without_stages(lynx: Lynx, plan: Plan, folder: Path) -> None:
    files.write(replace(plan, stages=()), folder / "none.json", overwrite=False)
    assert_answer(lynx("inspect", "none.json"), 2, "has 0 stages", "plan again")


def test_inspect_a_plan_without_its_profile(lynx: Lynx, plan: Plan, folder: Path) -> None:
    (folder / "profile.json").rename(folder / "other.json")
    result = lynx("inspect", "plan.json")
    assert result.code == 0
    assert "budget" in result.out
    assert "windows of" not in result.out
    assert "--profile FILE" in result.err
    assert "windows of" in lynx("inspect", "plan.json", "--profile", "other.json").out


def test_inspect_does_not_mix_a_plan_with_another_profile(lynx: Lynx, plan: Plan, folder: Path) -> None:
    files.write(megatron_graph(3), folder / "profile.json", overwrite=True)
    result = lynx("inspect", "plan.json")
    assert result.code == 0
    assert "windows of" not in result.out
    assert_answer(lynx("inspect", "plan.json", "--profile", "profile.json"), 1, "not the profile", "lynx plan")


def test_inspect_profile(lynx: Lynx, graph: CostGraph) -> None:
    result = lynx("inspect", "profile.json")
    assert result.code == 0, result.err
    for part in ("layer classes", "layers.0-3 (4)", "largest tensors", "2 all_reduce 1.00 MiB (tp, forward)"):
        assert part in result.out
    document = json.loads(lynx("inspect", "profile.json", "--json").out)
    assert document["none"]["recompute_exposed_ns"] == 0
    assert document["classes"][1]["collectives"] == [
        "2 all_reduce 1.00 MiB (tp, forward)", "2 all_reduce 1.00 MiB (tp, backward)",
    ]  # fmt: skip


def test_piped_output_is_never_cut(lynx: Lynx, graph: CostGraph, folder: Path) -> None:
    name = "a_very_long_model_name_" * 8
    long = replace(graph, layers=tuple(replace(layer, name=f"{name}{layer.id}") for layer in graph.layers))
    files.write(long, folder / "profile.json", overwrite=True)
    text = lynx("inspect", "profile.json").out
    assert f"{name}0" in text
    assert "…" not in text


def test_inspect_refuses_what_is_neither(lynx: Lynx, folder: Path) -> None:
    files.write(files.load_machine("a100-80g-nvlink"), folder / "m.json", overwrite=False)
    assert_answer(lynx("inspect", "m.json"), 2, "machine")
    assert_answer(lynx("inspect", "gone.json"), 2, "gone.json")
    assert_answer(lynx("inspect"), 2, "no plan here", "lynx plan")
    assert_answer(lynx("run"), 2, "no plan here", "lynx plan")


def test_validate(lynx: Lynx, plan: Plan, folder: Path) -> None:
    files.write(files.load_machine("a100-80g-nvlink"), folder / "m.json", overwrite=False)
    result = lynx("validate", "profile.json", "plan.json", "m.json")
    assert result.code == 0, result.err
    assert result.out.splitlines() == [
        "profile.json: valid profile", "plan.json: valid plan, legal for profile.json", "m.json: valid machine",
    ]  # fmt: skip
    document = json.loads(lynx("validate", "plan.json", "--json").out)
    assert document["files"][0]["valid"] is True


def change_plan(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit plan.json as a person would."""
    data = json.loads((folder / "plan.json").read_text())
    change(data)
    (folder / "plan.json").write_text(json.dumps(data))


def test_validate_finds_a_plan_that_is_not_legal(lynx: Lynx, plan: Plan, folder: Path) -> None:
    def promise_more(data: dict[str, Any]) -> None:
        data["predicted"]["step_ns"] -= 1

    change_plan(folder, promise_more)
    assert_answer(lynx("validate", "plan.json"), 1, "plan.json")
    document = json.loads(lynx("validate", "plan.json", "--json").out)
    assert document["files"][0]["valid"] is False
    assert document["files"][0]["message"]


def test_validate_lists_what_changed(lynx: Lynx, plan: Plan, folder: Path) -> None:
    files.write(megatron_graph(3), folder / "profile.json", overwrite=True)
    assert_answer(lynx("validate", "plan.json"), 1, "plan.json", "lynx plan")


def test_validate_what_cannot_be_read(lynx: Lynx, plan: Plan, folder: Path) -> None:
    (folder / "broken.json").write_text("{")
    result = lynx("validate", "broken.json", "profile.json")
    assert_answer(result, 2, "broken.json:1:2")
    assert "profile.json: valid profile" in result.out
    (folder / "profile.json").unlink()
    assert_answer(lynx("validate", "plan.json"), 2, "not beside it", "--profile")
    assert_answer(lynx("validate"), 2, "FILE...")
