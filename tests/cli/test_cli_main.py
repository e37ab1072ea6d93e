"""Global behaviour: errors, exit codes, streams, colours, settings."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from lynx_plan.cli import main as main_module
from lynx_plan.cli.main import lynx as group
from lynx_plan.model.graph import CostGraph
from tests.cli.conftest import Lynx, assert_answer


def test_version_names_what_matters(lynx: Lynx) -> None:
    result = lynx("--version")
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()] == ["lynx-plan", "torch", "highspy"]


def test_without_a_verb_the_help_is_shown(lynx: Lynx) -> None:
    result = lynx()
    assert result.code == 2
    assert "Commands:" in result.err


def test_usage_errors_have_exit_code_2(lynx: Lynx) -> None:
    assert_answer(lynx("plam"), 2, "No such command 'plam'", "Did you mean 'plan'?", "lynx --help")
    assert_answer(lynx("plan", "--bugdet", "1GiB"), 2, "--bugdet", "--budget", "lynx plan --help")
    assert_answer(lynx("run", "--steps", "0"), 2, "--steps")
    assert_answer(lynx("plan", "-o", "-", "--json"), 2, "standard output")


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make `lynx plan` raise."""

    def command() -> None:
        raise error

    monkeypatch.setattr(type(group), "get_command", lambda *_: click.Command("plan", callback=command))


def test_a_bug_is_one_line(lynx: Lynx, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, KeyError("op\n7"))
    result = lynx("plan")
    assert result.code == 2
    assert result.out == ""
    assert "internal error: KeyError" in result.err
    assert "this is a bug; --debug shows the traceback" in result.err
    assert len(result.err.splitlines()) == 1


def test_debug_shows_the_traceback(lynx: Lynx, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, KeyError("op"))
    result = lynx("--debug", "plan")
    assert result.code == 2
    assert "Traceback" in result.err


def test_interrupted(lynx: Lynx, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    result = lynx("plan")
    assert result.code == 130
    assert "interrupted" in result.err


def test_a_full_disk_is_not_a_bug(lynx: Lynx, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, OSError(28, "No space left on device", "plan.json"))
    result = lynx("plan")
    assert result.code == 2
    assert "plan.json: No space left on device" in result.err
    assert "bug" not in result.err


def test_main_ends_the_process_with_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_module, "call", lambda argv: len(argv))
    with pytest.raises(SystemExit) as caught:
        main_module.main(["a", "b"])
    assert caught.value.code == 2


def test_colours(lynx: Lynx, graph: CostGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" not in lynx("inspect", "profile.json").out
    assert "\x1b[" in lynx("--color", "always", "inspect", "profile.json").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" in lynx("inspect", "profile.json").out
    assert "\x1b[" not in lynx("--color", "never", "inspect", "profile.json").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in lynx("inspect", "profile.json").out


def test_quiet_prints_the_result_only(lynx: Lynx, graph: CostGraph) -> None:
    loud, quiet = lynx("plan", "--algo", "full"), lynx("-q", "plan", "--algo", "full")
    assert "wrote plan.json" in loud.err
    assert "next: lynx inspect plan.json" in loud.err
    assert quiet.err == ""
    assert quiet.out


def test_verbose_says_more(lynx: Lynx, graph: CostGraph) -> None:
    assert "read profile.json: 182 ops in 6 layers" in lynx("-v", "plan", "--algo", "full").err
    assert "read profile.json" not in lynx("plan", "--algo", "full").err
    assert "the plan's profile is profile.json" in lynx("-v", "inspect", "plan.json").err


def planned_budget(lynx: Lynx, *argv: str) -> str:
    result = lynx("plan", "--algo", "full", "--json", *argv)
    assert result.code == 0, result.err
    budget: str = json.loads(result.out)["budget"]
    return budget


def test_flags_over_environment_over_file(
    lynx: Lynx, graph: CostGraph, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert planned_budget(lynx) == "auto"
    (folder / "pyproject.toml").write_text('[tool.lynx.plan]\nbudget = "91%"\n')
    assert planned_budget(lynx) == "91%"
    (folder / "lynx.toml").write_text('[plan]\nbudget = "92%"\nmicro-batches = 2\n')
    assert planned_budget(lynx) == "92%"
    monkeypatch.setenv("LYNX_PLAN_BUDGET", "93%")
    assert planned_budget(lynx) == "93%"
    assert planned_budget(lynx, "--budget", "94%") == "94%"


def test_global_options_from_the_file(lynx: Lynx, graph: CostGraph, folder: Path) -> None:
    (folder / "lynx.toml").write_text('quiet = true\ncolor = "always"\n')
    result = lynx("inspect", "profile.json")
    assert "\x1b[" in result.out
    assert result.err == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[plan]\nbugdet = 1\n", "unknown key 'bugdet'"),
        ("[plam]\nbudget = 1\n", "unknown key 'plam'"),
        ("colour = 1\n", "unknown key 'colour'"),
        ("[plan\n", "is not TOML"),
    ],
)
def test_mistakes_in_the_file(lynx: Lynx, graph: CostGraph, folder: Path, text: str, message: str) -> None:
    (folder / "lynx.toml").write_text(text)
    assert_answer(lynx("plan"), 2, "lynx.toml", message)
    assert lynx("plan", "--help").code == 0


def test_a_wrong_value_names_where_it_came_from(lynx: Lynx, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "lynx.toml").write_text('[run]\nsteps = "many"\n')
    assert_answer(lynx("run"), 2, "settings file", "--steps")
    monkeypatch.setenv("LYNX_RUN_STEPS", "few")
    assert_answer(lynx("run"), 2, "environment", "--steps")
