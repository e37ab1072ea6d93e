"""`lynx plan --gap`, `--time-limit` and `--window`, algorithms with settings, and the status line of a search."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lynx_plan import files
from lynx_plan.check import check_plan
from lynx_plan.cli import options, search
from lynx_plan.cli.session import Session
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.plan import GivenWindow, Plan
from lynx_plan.report.progress import progress_text
from lynx_plan.solve import opt
from lynx_plan.solve.base import Problem, Progress, Solution
from tests.cli.conftest import Lynx, assert_answer


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.01", 0.01), ("0", 0.0), ("0%", 0.0), (" 2.5 % ", 0.025)])
def test_gaps(text: str, share: float) -> None:
    assert search.gap(text) == share


@pytest.mark.parametrize("text", ["", "%", "x", "1", "100%", "-1%", "nan", "inf", "1%%", "1e400"])
def test_gaps_that_are_none(text: str) -> None:
    with pytest.raises(LynxError) as caught:
        search.gap(text)
    assert caught.value.where == "--gap"
    assert "1%" in caught.value.hint


@pytest.mark.parametrize(("text", "value"), [("60s", 60.0), ("60", 60.0), ("0.5", 0.5), ("500ms", 0.5), ("1.5s", 1.5)])
def test_time_limits(text: str, value: float) -> None:
    assert search.seconds(text) == value


@pytest.mark.parametrize("text", ["", "s", "0", "0s", "-1s", "1h", "inf", "1.2.3"])
def test_time_limits_that_are_none(text: str) -> None:
    with pytest.raises(LynxError) as caught:
        search.seconds(text)
    assert caught.value.where == "--time-limit"
    assert "60s" in caught.value.hint


@pytest.mark.parametrize("text", ["", "20ms", "bubble", "bubble:", "bubble:20", "bubble:0ms", "hole:20ms"])
def test_windows_that_are_none(lynx: Lynx, graph: CostGraph, folder: Path, text: str) -> None:
    assert_answer(lynx("plan", "--window", text), 2, "--window", "bubble:20ms")
    assert not (folder / "plan.json").exists()


def test_windows_are_given_kept_and_shown(lynx: Lynx, graph: CostGraph) -> None:
    command = ("plan", "--budget", "60%", "--window", "bubble:20ms", "--window", "forward:0.5ms")
    result = lynx(*command)
    assert result.code == 0, result.err
    plan = files.load("plan.json", Plan)
    assert plan.windows == (
        GivenWindow(kind="bubble", room_ns=20_000_000), GivenWindow(kind="forward", room_ns=500_000),
    )  # fmt: skip
    check_plan(plan, graph)
    assert "bubble, 20.00 ms; forward, 0.50 ms" in result.out
    assert "bubble, 20.00 ms; forward, 0.50 ms" in lynx("inspect").out
    document = json.loads(lynx(*command, "--json").out)
    assert document["windows"] == [{"kind": "bubble", "room_ns": 20_000_000}, {"kind": "forward", "room_ns": 500_000}]


@pytest.mark.parametrize("text", ['"bubble:20ms"', '["bubble:20ms"]'])
def test_windows_of_the_settings_file(lynx: Lynx, graph: CostGraph, folder: Path, text: str) -> None:
    (folder / "lynx.toml").write_text(f"[plan]\ngap = 0.02\ntime-limit = 5\nwindow = {text}\n")
    result = lynx("plan", "--budget", "60%")
    assert result.code == 0, result.err
    assert files.load("plan.json", Plan).windows == (GivenWindow(kind="bubble", room_ns=20_000_000),)
    assert "changed nothing" not in result.err, "nobody typed --gap for this plan"


def test_windows_of_the_environment(lynx: Lynx, graph: CostGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LYNX_PLAN_WINDOW", "bubble:20ms forward:1ms")
    assert lynx("plan", "--budget", "60%").code == 0
    assert [window.kind for window in files.load("plan.json", Plan).windows] == ["bubble", "forward"]


def test_opt_states_its_proof(lynx: Lynx, graph: CostGraph, folder: Path) -> None:
    result = lynx("plan", "--algo", "opt", "--budget", "60%", "--gap", "5%")
    assert result.code == 0, result.err
    facts = dict(files.load("plan.json", Plan).options)
    assert {"bound_ns", "gap", "nodes", "look-ahead"} <= set(facts)
    for shown in (result.out, lynx("inspect").out):
        assert f"at best {int(facts['bound_ns']) / 1e6:.2f} ms" in shown
        assert f"{facts['nodes']} nodes" in shown
    first = (folder / "plan.json").read_bytes()
    document = json.loads(lynx("plan", "--algo", "opt", "--budget", "60%", "--gap", "5%", "--json").out)
    assert document["options"] == facts
    assert (folder / "plan.json").read_bytes() == first


def watched(monkeypatch: pytest.MonkeyPatch, seen: list[Problem]) -> None:
    """Let opt tell of a step, and keep what it was asked."""
    from lynx_plan.solve import registry

    def solve(problem: Problem) -> Solution:
        seen.append(problem)
        if problem.effort.report is not None:
            problem.effort.report(Progress(incumbent_ns=2_000_000, bound_ns=1_500_000, gap=0.25, nodes=7))
        return opt.solve(problem)

    monkeypatch.setitem(registry.SOLVERS, "opt", solve)


def test_gap_and_time_limit_reach_the_solver(lynx: Lynx, graph: CostGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Problem] = []
    watched(monkeypatch, seen)
    assert lynx("plan", "--algo", "opt", "--gap", "3%", "--time-limit", "9s").code == 0
    assert (seen[0].effort.gap, seen[0].effort.time_limit_s) == (0.03, 9.0)
    assert seen[0].effort.report is None, "standard error is no terminal here"


@pytest.mark.parametrize("quiet", [False, True])
def test_a_terminal_sees_where_the_search_stands(
    lynx: Lynx, graph: CostGraph, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    seen: list[Problem] = []
    watched(monkeypatch, seen)
    terminal: Callable[[], bool] = lambda: True  # noqa: E731
    monkeypatch.setattr(sys.stderr, "isatty", terminal)
    monkeypatch.setenv("COLUMNS", "100")
    with search.progress(Session(quiet=quiet)) as report:
        assert (report is None) is quiet
    result = lynx(*(["-q"] if quiet else []), "plan", "--algo", "opt", "--json")
    assert json.loads(result.out)["algo"] == "opt"
    assert (seen[0].effort.report is None) is quiet


def test_options_that_change_nothing_are_named(lynx: Lynx, graph: CostGraph) -> None:
    result = lynx("plan", "--algo", "heu", "--gap", "3%", "--time-limit", "9s")
    assert "heu does not search to a gap: --gap and --time-limit changed nothing" in result.err
    assert "changed nothing" not in lynx("plan", "--algo", "heu").err
    assert "changed nothing" not in lynx("plan", "--algo", "opt", "--gap", "3%").err


def test_help_names_every_algorithm() -> None:
    from lynx_plan.solve.registry import SOLVERS

    assert ", ".join(SOLVERS) == options.KNOWN


def test_where_a_search_stands_in_words() -> None:
    now = Progress(incumbent_ns=2_000_000, bound_ns=1_500_000, gap=0.25, nodes=7)
    assert progress_text(now) == "planning: 2.00 ms, at best 1.50 ms, gap 25.00%, 7 nodes"
    nothing = Progress(incumbent_ns=2_000_000, bound_ns=0, gap=float("inf"), nodes=0)
    assert progress_text(nothing) == "planning: 2.00 ms, no bound yet, 0 nodes"


def test_settings_after_a_colon() -> None:
    assert options.algorithm("uniform:2") == "uniform:2"
    assert options.algorithm("selective:core_attn,layernorm") == "selective:core_attn,layernorm"
    expected = ("selective:core_attn,layernorm", "heu", "uniform:2")
    assert options.algorithms("selective:core_attn,layernorm, heu,uniform:2,heu") == expected
    for text in ("heu:2", "uniform:", "best:2", ""):
        with pytest.raises(LynxError) as caught:
            options.algorithms(text)
        assert caught.value.where == "--algo"
