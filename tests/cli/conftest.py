"""How tests call `lynx`: in this process, in an empty folder, with what it printed and its exit code."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lynx_plan import files
from lynx_plan.cli.main import call
from lynx_plan.model.graph import CostGraph
from tests.unit.builders import megatron_graph


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one call printed, and its exit code."""

    code: int
    out: str
    err: str


Lynx = Callable[..., Result]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, without the caller's LYNX_* variables."""
    for name in [name for name in os.environ if name.startswith("LYNX_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lynx(capsys: pytest.CaptureFixture[str]) -> Lynx:
    """Call the command line."""

    def run(*argv: str) -> Result:
        capsys.readouterr()
        code = call(list(argv))
        captured = capsys.readouterr()
        return Result(code=code, out=captured.out, err=captured.err)

    return run


@pytest.fixture
def graph(folder: Path) -> CostGraph:
    """A four-layer profile, written to profile.json."""
    graph = megatron_graph(4)
    files.write(graph, folder / "profile.json", overwrite=False)
    return graph


def assert_answer(result: Result, code: int, *messages: str) -> None:
    """One error with a hint, no traceback, and this exit code."""
    assert result.code == code, result.err
    assert "Traceback" not in result.err
    assert "internal error" not in result.err
    assert result.err.count("error: ") == 1, result.err
    assert "hint: " in result.err, result.err
    for message in messages:
        assert message in result.err
