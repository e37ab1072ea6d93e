"""What the global options decide for one run of `lynx`: streams, colour, verbosity. May import report.style lazily."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from lynx_plan.errors import LynxError


@dataclass(slots=True)
class Session:
    """Filled by the `lynx` group before a verb runs; `main` reads it to print errors."""

    quiet: bool = False
    verbose: int = 0
    debug: bool = False
    color: str = "auto"

    def out(self) -> Console:
        """The console of results."""
        from lynx_plan.report.style import make_console

        return make_console(sys.stdout, self.color)

    def err(self) -> Console:
        """The console of everything else."""
        from lynx_plan.report.style import make_console

        return make_console(sys.stderr, self.color)

    def note(self, text: str) -> None:
        """Tell the user something that is not the result; `-q` silences it."""
        if not self.quiet:
            self.err().print(text, markup=False, highlight=False, soft_wrap=True)

    def detail(self, text: str) -> None:
        """What `-v` adds."""
        if self.verbose:
            self.err().print(text, markup=False, highlight=False, soft_wrap=True)

    def wrote(self, path: str, next_command: str = "") -> None:
        """Name the file written and what to type next; nothing if it went to standard output."""
        if path == "-":
            return
        self.note(f"wrote {path}")
        if next_command:
            self.note(f"next: {next_command}")

    def emit(self, document: dict[str, Any]) -> None:
        """Print the one JSON document of `--json`."""
        click.echo(json.dumps(document, indent=2))

    def print_error(self, error: LynxError) -> None:
        """`error: WHERE: MESSAGE`, then `hint: ...`, a line each whatever the message quotes."""
        self._print_labelled("error", "error", " ".join(str(error).split()))
        if error.hint:
            self._print_labelled("hint", "hint", error.hint)

    def print_failure(self, message: str) -> None:
        """An error without a hint."""
        self._print_labelled("error", "error", message)

    def _print_labelled(self, label: str, style: str, text: str) -> None:
        from rich.text import Text

        self.err().print(Text.assemble((f"{label}:", style), f" {text}"), soft_wrap=True, highlight=False)
