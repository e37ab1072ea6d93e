"""Lynx's own source files, for the tests that hold the project to its rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHIPPED = ("lynx_plan", "cli")
FOLDERS = (*SHIPPED, "tests", "schemas", "bench", "examples", "sample_profiles")


def python_files(folders: tuple[str, ...] = FOLDERS) -> list[Path]:
    """Every Python file of these folders, as paths relative to the root."""
    return sorted(path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*.py"))


def parse(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=str(path))


def module_name(path: Path) -> str:
    """The name that a file has once installed: `cli/plan.py` is `lynx_plan.cli.plan`."""
    parts = ("lynx_plan", *path.parts) if path.parts[0] == "cli" else path.parts
    return ".".join(parts).removesuffix(".py").removesuffix(".__init__")


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names of the modules imported anywhere below `tree`, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def top_level_imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Imports that run when the module is imported: not those inside functions, nor for type checkers only."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield from imports(node)
