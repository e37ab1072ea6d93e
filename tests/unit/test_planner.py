"""Plans: complete, checked, byte-identical; errors that say what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lynx_plan import files
from lynx_plan.analyze.classes import structure_digest
from lynx_plan.analyze.programs import expand
from lynx_plan.check import check_plan
from lynx_plan.errors import AnswerNo, Infeasible, LynxError
from lynx_plan.model.plan import OVER_BUDGET
from lynx_plan.simulate.outcome import predict
from lynx_plan.solve.planner import make_plan
from lynx_plan.solve.registry import SOLVERS
from tests.unit.builders import Sizes, megatron_graph

GRAPH = megatron_graph(4, Sizes(comm_ns=6_000_000, tp=4, optimizer_ns=77))
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("algo", list(SOLVERS))
def test_a_plan_is_complete_and_passes_the_checker(algo: str) -> None:
    planned = make_plan(GRAPH, algo=algo, budget="60%", micro_batches=3, enforce_budget=False)
    plan = planned.plan
    check_plan(plan, GRAPH)
    assert (plan.algo, plan.budget_text, plan.micro_batches) == (algo, "60%", 3)
    assert (plan.profile_digest, plan.structure_digest) == (files.digest(GRAPH), structure_digest(GRAPH))
    items = expand(plan.stages[0].program, GRAPH.layers)
    assert plan.predicted == predict(GRAPH, items, micro_batches=3)
    assert planned.baseline.recompute_hidden_ns == planned.baseline.recompute_exposed_ns == 0
    assert planned.search_ns > 0
    fits = plan.predicted.peak_bytes <= plan.budget_bytes
    assert fits == (algo not in ("none", "selective"))
    assert (plan.status == OVER_BUDGET) == (not fits)


def test_a_plan_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    plan = make_plan(GRAPH, algo="heu", budget="50%").plan
    files.write(plan, tmp_path / "plan.json", overwrite=False)
    read = files.load(tmp_path / "plan.json", type(plan))
    assert read == plan
    check_plan(read, GRAPH)


def test_repeated_layers_share_templates() -> None:
    small, large = (
        make_plan(megatron_graph(n, Sizes(comm_ns=6_000_000)), algo="heu", budget="50%").plan for n in (6, 24)
    )
    # Layers may differ in policy, so a deeper model may need a few more; never one per layer.
    assert len(large.stages[0].program.templates) <= len(small.stages[0].program.templates) + 4
    assert [c.name for c in large.stages[0].classes] == ["embedding", "layers.0-23", "head"]


def test_where_nothing_needs_recomputing_the_plan_says_so() -> None:
    planned = make_plan(GRAPH, algo="heu")
    assert planned.plan.status == "not-needed"
    assert planned.plan.budget_text == "auto"
    assert planned.plan.predicted == planned.baseline


@pytest.mark.parametrize("algo", list(SOLVERS))
def test_infeasible_tells_the_smallest_budget_and_it_works(algo: str) -> None:
    with pytest.raises(Infeasible) as caught:
        make_plan(GRAPH, algo=algo, budget="10%")
    error = caught.value
    assert error.exit_code == 1
    assert "activations" in error.message
    assert f"--budget {error.minimum_budget_bytes}B" in error.hint
    plan = make_plan(GRAPH, algo=algo, budget=f"{error.minimum_budget_bytes}B").plan
    assert plan.predicted.peak_bytes <= error.minimum_budget_bytes
    check_plan(plan, GRAPH)


def test_a_budget_below_static_memory_is_infeasible_too() -> None:
    with pytest.raises(Infeasible) as caught:
        make_plan(GRAPH, algo="heu", budget="1KiB")
    assert caught.value.minimum_budget_bytes > GRAPH.static.total_bytes


def test_an_over_budget_plan_is_refused_if_it_claims_to_fit() -> None:
    from dataclasses import replace

    plan = make_plan(GRAPH, algo="none", budget="50%", enforce_budget=False).plan
    check_plan(plan, GRAPH)
    with pytest.raises(AnswerNo, match="budget"):
        check_plan(replace(plan, status="optimal"), GRAPH)


def test_unknown_algorithms_and_no_microbatches() -> None:
    with pytest.raises(LynxError, match="no algorithm 'best'") as caught:
        make_plan(GRAPH, algo="best")
    assert caught.value.hint == f"known: {', '.join(SOLVERS)}"
    with pytest.raises(LynxError, match="0 microbatches"):
        make_plan(GRAPH, algo="none", micro_batches=0)


def test_the_same_inputs_give_the_same_bytes_in_any_process() -> None:
    code = (
        "import sys, hashlib; from lynx_plan import files; from lynx_plan.solve.planner import make_plan;"
        "from tests.unit.builders import *;"
        "g = megatron_graph(4, Sizes(comm_ns=6_000_000, tp=4, dropout=True));"
        "plans = [make_plan(g, algo=a, budget=b).plan for a in ('heu', 'ondemand') for b in ('70%', '50%')];"
        "print([hashlib.sha256(files.to_bytes(p)).hexdigest() for p in plans])"
    )
    outputs = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        result = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        outputs.add(result.stdout)
    assert len(outputs) == 1


def test_planning_needs_no_torch() -> None:
    code = "import sys, lynx_plan.solve.planner; print(sorted({'torch', 'highspy'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
