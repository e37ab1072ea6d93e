"""The import law: which part may import which, checked in the source and in running processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.source_tree import SHIPPED, imports, module_name, parse, python_files, top_level_imports

BELOW: dict[str, set[str]] = {
    "errors": set(),
    "units": {"errors"},
    "model": {"errors", "units"},
    "files": {"errors", "units", "model"},
    "analyze": {"errors", "units", "model"},
    "cost": {"errors", "units", "model"},
}
BELOW["simulate"] = BELOW["files"] | {"files", "analyze", "cost"}
BELOW["check"] = BELOW["simulate"] | {"simulate"}
BELOW["solve"] = BELOW["check"] | {"check"}
BELOW["report"] = BELOW["solve"] | {"solve"}
BELOW["torch_rt"] = BELOW["check"] | {"check"}
BELOW["cli"] = BELOW["report"] | {"report", "torch_rt"}
LIBRARIES = {
    "torch": {"torch_rt"},
    "highspy": {"solve"},
    "networkx": {"analyze", "solve"},
    "pydantic": {"files"},
    "rich": {"report", "cli"},
    "click": {"cli"},
    "matplotlib": {"report"},
    "transformers": {"torch_rt"},
}
ROOT_MODULES = ("lynx_plan", "lynx_plan.__main__")
FILES = [path for path in python_files(SHIPPED) if module_name(path) not in ROOT_MODULES]


def part_of(module: str) -> str:
    """`solve` for `lynx_plan.solve.heu`; "" for what is not Lynx's."""
    parts = module.split(".")
    return parts[1] if parts[0] == "lynx_plan" and len(parts) > 1 else ""


@pytest.mark.parametrize("path", FILES, ids=str)
def test_parts_import_only_what_lies_below(path: Path) -> None:
    own = part_of(module_name(path))
    for name, line in imports(parse(path)):
        library = name.partition(".")[0]
        assert library != "cli", f"{path}:{line} imports cli by its folder; it is lynx_plan.cli"
        if library == "lynx_plan":
            target = part_of(name)
            assert target == own or target in BELOW[own], f"{path}:{line}: {own} must not import {target}"
        elif library in LIBRARIES:
            assert own in LIBRARIES[library], f"{path}:{line}: {own} must not import {library}"


@pytest.mark.parametrize("path", [path for path in FILES if path.parts[0] == "cli"], ids=str)
def test_the_command_line_imports_lazily(path: Path) -> None:
    for name, line in top_level_imports(parse(path)):
        part = part_of(name)
        assert part in ("", "cli", "errors"), f"{path}:{line}: import {name} inside the function that needs it"
        assert name.partition(".")[0] not in ("rich", "torch", "tomllib"), f"{path}:{line}: import {name} lazily"


def loaded_by(code: str, folder: Path) -> set[str]:
    """Top-level names of the modules that a fresh interpreter has loaded after `code`."""
    script = f"import sys\n{code}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    return set(done.stderr.splitlines()[-1].split())


def test_help_loads_no_heavy_library(tmp_path: Path) -> None:
    code = "from lynx_plan.cli.main import call\nassert call(['--help']) == 0"
    assert loaded_by(code, tmp_path).isdisjoint({"torch", "highspy", "networkx", "numpy", "pydantic", "rich"})


def test_help_of_a_verb_loads_no_heavy_library(tmp_path: Path) -> None:
    for verb in ("profile", "plan", "inspect", "validate", "run", "compare"):
        code = f"from lynx_plan.cli.main import call\nassert call(['{verb}', '--help']) == 0"
        assert loaded_by(code, tmp_path).isdisjoint({"torch", "highspy", "networkx", "numpy", "pydantic"}), verb


def test_planning_inspecting_and_validating_load_no_torch(tmp_path: Path) -> None:
    code = """
from lynx_plan.cli.main import call
from lynx_plan import files
from tests.unit.builders import megatron_graph
files.write(megatron_graph(2), 'profile.json', overwrite=False)
for argv in (['plan', '--budget', '70%'], ['inspect', 'plan.json'], ['validate', 'plan.json'],
             ['compare', '--budget', '70%']):
    assert call(argv) == 0, argv
"""
    root = Path(__file__).parents[2]
    loaded = loaded_by(f"sys.path.insert(0, {str(root)!r})\n{code}", tmp_path)
    assert "torch" not in loaded
    assert "pydantic" in loaded


def test_lynx_plan_itself_loads_nothing(tmp_path: Path) -> None:
    assert loaded_by("import lynx_plan", tmp_path).isdisjoint(
        {"torch", "highspy", "networkx", "pydantic", "rich", "click"}
    )
