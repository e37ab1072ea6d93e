"""House rules that a machine can check: size, structure, forbidden constructs, the frozen public surface."""

from __future__ import annotations

import ast
import copy
from pathlib import Path

import click
import pytest

import lynx_plan
from lynx_plan.cli.main import VERBS, lynx
from tests.unit.source_tree import ROOT, SHIPPED, parse, python_files

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "shelve", "marshal"}
FORBIDDEN_CALLS = {"eval", "exec", "breakpoint"}
MARKERS = ("TO" + "DO", "FIX" + "ME", "XX" + "X")
PUBLIC_NAMES = {"Step", "__version__"}
SURFACE = {
    "lynx --color", "lynx --debug", "lynx --help", "lynx --quiet", "lynx --verbose", "lynx --version",
    "profile --arg", "profile --costs", "profile --cp", "profile --dp", "profile --dtype", "profile --ep",
    "profile --force", "profile --fusion", "profile --help", "profile --hf", "profile --link", "profile --machine",
    "profile --micro-batch", "profile --moe-bytes", "profile --moe-load", "profile --output", "profile --recipe",
    "profile --seq", "profile --shard", "profile --shard-within", "profile --show", "profile --strict",
    "profile --tp",
    "plan --algo", "plan --algos", "plan --budget", "plan --force", "plan --frontier",
    "plan --gap", "plan --help", "plan --interleave", "plan --json", "plan --micro-batches",
    "plan --output", "plan --plot", "plan --time-limit", "plan --window",
    "inspect --ascii", "inspect --help", "inspect --json", "inspect --layer", "inspect --profile", "inspect --why",
    "validate --help", "validate --json", "validate --profile",
    "run --force", "run --help", "run --json", "run --link", "run --model", "run --plan", "run --steps",
    "run --timeline", "run --verify",
    "compare --algo", "compare --budget", "compare --help", "compare --interleave", "compare --json",
    "compare --micro-batches", "compare --run", "compare --steps",
    "machine --help", "machine list --help", "machine list --json", "machine measure --force", "machine measure --help",
    "machine measure --name", "machine measure --output", "machine measure --quick", "machine measure --ranks",
    "machine measure --threads", "machine show --help", "machine show --json",
}  # fmt: skip
ALL = python_files()
LIBRARY = python_files(SHIPPED)


@pytest.mark.parametrize("path", ALL, ids=str)
def test_a_file_holds_one_idea(path: Path) -> None:
    lines = (ROOT / path).read_text(encoding="utf-8").count("\n")
    assert lines <= MAX_FILE_LINES, f"{path} has {lines} lines: split it by idea"


@pytest.mark.parametrize("path", LIBRARY, ids=str)
def test_functions_are_short(path: Path) -> None:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{path}:{node.lineno}: {node.name} has {length} lines"


@pytest.mark.parametrize("path", ALL, ids=str)
def test_every_module_says_what_it_owns(path: Path) -> None:
    if (ROOT / path).stat().st_size:
        assert ast.get_docstring(parse(path)), f"{path} has no docstring"


@pytest.mark.parametrize("path", ALL, ids=str)
def test_forbidden_constructs(path: Path) -> None:
    for node in ast.walk(parse(path)):
        place = f"{path}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"{place}: bare except"
            silent = len(node.body) == 1 and isinstance(node.body[0], ast.Pass)
            broad = "Exception" in ast.unparse(node.type).replace("(", " ").replace(",", " ").split()
            assert not (silent and broad), f"{place}: swallows every exception"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in FORBIDDEN_CALLS, f"{place}: {node.func.id}()"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            assert FORBIDDEN_IMPORTS.isdisjoint(names), f"{place}: imports {names}"
            assert all(alias.name != "*" for alias in node.names), f"{place}: wildcard import"


@pytest.mark.parametrize("path", ALL, ids=str)
def test_nothing_is_left_to_do(path: Path) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert not [marker for marker in MARKERS if marker in text]


@pytest.mark.parametrize("path", [p for p in LIBRARY if p.parts[:2] == ("lynx_plan", "model")], ids=str)
def test_records_are_frozen_and_slotted(path: Path) -> None:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ClassDef):
            for decorator in (d for d in node.decorator_list if "dataclass" in ast.unparse(d)):
                text = ast.unparse(decorator)
                assert "frozen=True" in text, f"{path}:{node.lineno}: {node.name}"
                assert "slots=True" in text, f"{path}:{node.lineno}: {node.name}"


def test_frozen_command_surface() -> None:
    context = click.Context(lynx, info_name="lynx")
    commands = {"lynx": lynx, **{verb: lynx.get_command(context, verb) for verb in VERBS}}
    found = set()
    for verb, command in list(commands.items()):
        if isinstance(command, click.Group) and verb != "lynx":
            commands |= {f"{verb} {name}": below for name, below in command.commands.items()}
    for verb, command in commands.items():
        assert command is not None
        alone = copy.copy(command)  # click keeps the help option of the first context it sees
        for parameter in alone.get_params(click.Context(alone, info_name=verb)):
            if isinstance(parameter, click.Option):
                long = [spelling for spelling in parameter.opts if spelling.startswith("--")]
                found.add(f"{verb} {long[-1]}")
    assert found == SURFACE


def test_frozen_public_names() -> None:
    assert set(lynx_plan.__all__) == PUBLIC_NAMES
