"""Solving in a child process: no answer is lost, whatever ends the child, and none outlives its use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lynx_plan.errors import LynxError
from lynx_plan.solve import apart
from lynx_plan.solve.apart import BY_HAND, Limits, solve_apart
from lynx_plan.solve.milp import Milp, MilpProgress, MilpStatus
from tests.unit.milps import hard_knapsack, knapsack

LIMITS = Limits(gap=0.0, time_limit_s=60.0, node_limit=50)
LONG = Limits(gap=0.0, time_limit_s=600.0, node_limit=10**9)
Children = list[subprocess.Popen[bytes]]


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Children:
    """The child processes that a test starts; their folders are below `tmp_path`."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    started: Children = []
    popen = subprocess.Popen

    def recorded(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(apart.subprocess, "Popen", recorded)
    return started


def assert_nothing_is_left(children: Children, folder: Path) -> None:
    assert len(children) == 1
    assert children[0].returncode is not None, "the child is still running"
    assert not list(folder.glob("lynx-solve-*"))


def worker_that(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Let a script do the child's work; it gets the folder as its last argument."""
    popen = subprocess.Popen

    def other(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return popen([sys.executable, "-c", body, command[-1]], **options)

    monkeypatch.setattr(apart.subprocess, "Popen", other)


def empty_start(milp: Milp) -> NDArray[np.float64]:
    """The knapsack with nothing in it."""
    return np.zeros(len(milp.columns))


def test_the_answer_is_that_of_this_process(children: Children, tmp_path: Path) -> None:
    milp = hard_knapsack()
    here = milp.solve(gap=0.0, node_limit=50)
    there = [solve_apart(milp, LIMITS) for _ in range(2)]
    for result in there:
        assert result.values.tolist() == here.values.tolist()
        assert (result.status, result.objective, result.bound) == (here.status, here.objective, here.bound)
        assert (result.nodes, result.note) == (here.nodes, "")
    assert all(child.returncode == 0 for child in children)
    assert not list(tmp_path.glob("lynx-solve-*"))


def test_infeasible_is_an_answer(children: Children) -> None:
    milp = knapsack([1], [1], 1)
    milp.row("no", [(0, 1.0)], lower=2.0)
    result = solve_apart(milp, LIMITS)
    assert (result.status, result.note, len(result.values)) == (MilpStatus.INFEASIBLE, "", 0)


def test_progress_is_told_and_never_gets_worse(children: Children) -> None:
    told: list[MilpProgress] = []
    result = solve_apart(hard_knapsack(), LIMITS, report=told.append)
    assert told
    objectives = [progress.objective for progress in told]
    assert objectives == sorted(objectives, reverse=True)
    assert objectives[-1] == pytest.approx(result.objective)
    assert all(progress.bound <= progress.objective + 1e-6 for progress in told)


def test_interrupted_while_it_reports(children: Children, tmp_path: Path) -> None:
    told: list[float] = []

    def report(progress: MilpProgress) -> None:
        told.append(progress.objective)
        raise KeyboardInterrupt

    milp = hard_knapsack()
    result = solve_apart(milp, LONG, report=report)
    assert (result.status, result.note) == (MilpStatus.FEASIBLE, BY_HAND)
    assert milp.satisfied(result.values)
    assert result.objective <= told[0] + 1e-6, "the answer that was told is lost"
    assert_nothing_is_left(children, tmp_path)


def test_a_stopped_search_keeps_the_newest_bound(children: Children) -> None:
    told: list[MilpProgress] = []

    def report(progress: MilpProgress) -> None:
        told.append(progress)
        if progress.nodes:
            raise KeyboardInterrupt

    result = solve_apart(hard_knapsack(), LONG, report=report)
    assert (result.bound, result.nodes, result.note) == (told[-1].bound, told[-1].nodes, BY_HAND)
    assert result.nodes > 0


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """A shell that starts tests in the background has them ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_interrupts")
def test_interrupted_by_a_signal(children: Children, tmp_path: Path) -> None:
    milp = hard_knapsack()
    result = solve_apart(milp, LONG, report=lambda _progress: os.kill(os.getpid(), signal.SIGINT))
    assert (result.status, result.note) == (MilpStatus.FEASIBLE, BY_HAND)
    assert milp.satisfied(result.values)
    assert_nothing_is_left(children, tmp_path)


@pytest.mark.parametrize("with_start", [True, False])
def test_interrupted_before_any_answer(monkeypatch: pytest.MonkeyPatch, with_start: bool) -> None:
    worker_that(monkeypatch, "import time; time.sleep(600)")

    def interrupted(*_arguments: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(apart._Search, "_follow", interrupted)
    milp = hard_knapsack()
    result = solve_apart(milp, LONG, start=empty_start(milp) if with_start else None)
    assert result.note == BY_HAND
    assert result.status is (MilpStatus.FEASIBLE if with_start else MilpStatus.UNKNOWN)
    assert result.values.tolist() == [0.0] * (len(milp.columns) if with_start else 0)


def test_a_killed_child_leaves_its_best_answer(children: Children, tmp_path: Path) -> None:
    told: list[float] = []

    def report(progress: MilpProgress) -> None:
        told.append(progress.objective)
        children[0].kill()

    milp = hard_knapsack()
    result = solve_apart(milp, LONG, report=report)
    assert result.status is MilpStatus.FEASIBLE
    assert "SIGKILL" in result.note
    assert milp.satisfied(result.values)
    assert result.objective <= min(told) + 1e-6
    assert_nothing_is_left(children, tmp_path)


@pytest.mark.parametrize(
    ("body", "said"),
    [("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"), ("raise SystemExit(3)", "exit code 3")],
)
@pytest.mark.parametrize("with_start", [True, False])
def test_a_child_that_breaks_at_once(monkeypatch: pytest.MonkeyPatch, body: str, said: str, with_start: bool) -> None:
    worker_that(monkeypatch, body)
    milp = hard_knapsack()
    result = solve_apart(milp, LIMITS, start=empty_start(milp) if with_start else None)
    assert said in result.note
    assert result.status is (MilpStatus.FEASIBLE if with_start else MilpStatus.UNKNOWN)
    assert result.objective == (0.0 if with_start else float("inf"))


def test_a_child_that_does_not_stop_is_ended_at_the_time_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(apart, "GRACE_S", 0.0)
    worker_that(monkeypatch, "import time; time.sleep(600)")
    milp = hard_knapsack()
    result = solve_apart(milp, Limits(gap=0.0, time_limit_s=0.01), start=empty_start(milp))
    assert result.status is MilpStatus.FEASIBLE
    assert "time limit of 0.01 s" in result.note
    assert result.values.tolist() == empty_start(milp).tolist()
    assert not list(tmp_path.glob("lynx-solve-*"))


def test_the_time_limit_without_any_answer_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "GRACE_S", 0.0)
    worker_that(monkeypatch, "import time; time.sleep(600)")
    result = solve_apart(hard_knapsack(), Limits(gap=0.0, time_limit_s=0.01))
    assert (result.status, result.objective, len(result.values)) == (MilpStatus.UNKNOWN, float("inf"), 0)
    assert "time limit of 0.01 s" in result.note


def test_a_start_is_never_lost(children: Children) -> None:
    milp = hard_knapsack()
    best = milp.solve(gap=0.0, node_limit=50).values
    result = solve_apart(milp, Limits(gap=0.0, time_limit_s=60.0, node_limit=1), start=best)
    assert result.objective <= float(milp.arrays()["costs"] @ best) + 1e-6


def test_a_start_that_breaks_a_row_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    worker_that(monkeypatch, "raise SystemExit(3)")
    milp = hard_knapsack()
    result = solve_apart(milp, LIMITS, start=np.ones(len(milp.columns)))
    assert result.status is MilpStatus.UNKNOWN


def test_without_highspy_the_child_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, children: Children
) -> None:
    (tmp_path / "highspy.py").write_text("raise ImportError('broken on purpose')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(LynxError, match="HiGHS cannot be imported: broken on purpose") as caught:
        solve_apart(knapsack([1], [1], 1), LIMITS)
    assert "pip install highspy" in caught.value.hint
    assert_nothing_is_left(children, tmp_path)


def test_files_of_the_working_folder_are_not_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    assert solve_apart(knapsack([6, 10, 12], [1, 2, 3], 5), LIMITS).values.tolist() == [0, 1, 1]


def test_the_child_ends_with_its_input(tmp_path: Path) -> None:
    """Its parent may be killed without a chance to end it."""
    search = apart._Search(hard_knapsack(), LONG, None, tmp_path)
    search._write()
    command = [sys.executable, "-m", "lynx_plan.solve.apart_worker", str(tmp_path)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline(), "it searches"
        child.stdin.close()
        assert child.wait(timeout=60) == 1
    finally:
        child.kill()
        child.stdout.close()
        child.wait()
