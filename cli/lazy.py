"""A click group that imports a verb's module only when that verb is used. May import click."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """Verbs by name with their one-line help; `lynx --help` lists them without importing any.

    The verb `plan` is the command object `command` of the module `lynx_plan.cli.plan`.
    """

    def __init__(self, *args: Any, verbs: dict[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.verbs = verbs or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.verbs:
            return None
        command: click.Command = import_module(f"lynx_plan.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.verbs and not name.startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, self.verbs)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise click.UsageError(f"No such command '{name}'.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.verbs.items()))
