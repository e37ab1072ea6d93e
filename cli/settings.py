"""Defaults from `lynx.toml` or `[tool.lynx]` of `pyproject.toml` in the working folder. May import click, tomllib.

Top-level keys are global options, a table is a verb's options: `color = "never"`, `[plan]`, `budget = "60%"`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from lynx_plan.cli.lazy import LazyGroup
from lynx_plan.errors import LynxError


def load_defaults(group: LazyGroup, folder: Path) -> dict[str, Any]:
    """click's default map from the settings file of `folder`; {} where there is none. Unknown keys are errors."""
    name, table = _read(folder)
    if not table:
        return {}
    ctx = click.Context(group, info_name="lynx")
    own = {key: value for key, value in table.items() if not isinstance(value, dict)}
    defaults: dict[str, Any] = _known(own, group, name)
    for verb, options in table.items():
        if not isinstance(options, dict):
            continue
        command = group.get_command(ctx, verb)
        if command is None:
            raise _unknown(verb, group.list_commands(ctx), name)
        defaults[verb] = _known(options, command, f"{name} [{verb}]")
    return defaults


def _read(folder: Path) -> tuple[str, dict[str, Any]]:
    """The settings table and the name of its file; `lynx.toml` wins over `pyproject.toml`."""
    own, project = folder / "lynx.toml", folder / "pyproject.toml"
    if own.is_file():
        return own.name, _parse(own)
    if project.is_file() and "[tool.lynx" in project.read_text(encoding="utf-8", errors="replace"):
        table: dict[str, Any] = _parse(project).get("tool", {}).get("lynx", {})
        return f"{project.name} [tool.lynx]", table
    return "", {}


def _parse(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LynxError(f"is not TOML: {error}", where=path.name, hint="correct the file, or remove it") from None


def _keys(command: click.Command) -> dict[str, str]:
    """Every spelling of an option that a file may use, and click's name for it."""
    names: dict[str, str] = {}
    for option in command.params:
        if isinstance(option, click.Option) and option.name and option.name not in ("version", "json_"):
            for spelling in (*option.opts, *option.secondary_opts):
                if spelling.startswith("--"):
                    names[spelling[2:]] = option.name
                    names[spelling[2:].replace("-", "_")] = option.name
    return names


def _known(options: dict[str, Any], command: click.Command, where: str) -> dict[str, Any]:
    """Values by click's names; one text for an option that may be repeated stands for a list of it."""
    names = _keys(command)
    many = {option.name for option in command.params if isinstance(option, click.Option) and option.multiple}
    found: dict[str, Any] = {}
    for key, value in options.items():
        if key not in names:
            raise _unknown(key, names, where)
        found[names[key]] = [value] if names[key] in many and isinstance(value, str) else value
    return found


def _unknown(key: str, known: Iterable[str], where: str) -> LynxError:
    near = difflib.get_close_matches(key, list(known), n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(dict.fromkeys(known))}"
    return LynxError(f"unknown key '{key}'", where=where, hint=hint)
