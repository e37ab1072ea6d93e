"""One factory for consoles and tables, and the names of styles. No meaning by colour alone."""

from __future__ import annotations

from shutil import get_terminal_size
from typing import TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

PIPE_WIDTH = 10_000  # wide enough that nothing is wrapped or cut where no terminal limits it
MIN_WIDTH = 100  # a narrower terminal breaks lines itself: better than cells cut short
CHART_WIDTH = 100
THEME = Theme(
    {
        "error": "bold red",
        "hint": "bold",
        "title": "bold",
        "label": "dim",
        "best": "bold green",
        "bad": "red",
        "backward": "blue",
        "weight_gradient": "cyan",
        "recompute": "yellow",
        "forward": "green",
        "comm": "magenta",
        "idle": "dim",
        "memory": "blue",
    }
)


def make_console(stream: TextIO, color: str = "auto") -> Console:
    """A console on `stream`; `color` is auto (rich's own rules: NO_COLOR, FORCE_COLOR, terminal), always or never."""
    width: int | None = PIPE_WIDTH
    height: int | None = 100
    if stream.isatty():
        columns = get_terminal_size().columns
        width, height = (MIN_WIDTH, None) if columns < MIN_WIDTH else (None, None)
    if color == "never":
        return Console(file=stream, theme=THEME, width=width, height=height, color_system=None)
    if color == "always":
        return Console(
            file=stream, theme=THEME, width=width, height=height, force_terminal=True, no_color=False,
            color_system="standard",
        )  # fmt: skip
    return Console(file=stream, theme=THEME, width=width, height=height)


def titled(title: str, table: Table, caption: str = "") -> Group:
    """A table under its title and over its caption, which may both be wider than it."""
    parts: list[RenderableType] = [Text(title, style="title"), table]
    return Group(*parts, Text(caption, style="label")) if caption else Group(*parts)


def make_table() -> Table:
    """An empty table: a rule only under the head."""
    return Table(
        box=box.SIMPLE_HEAD,
        header_style="bold",
        pad_edge=False,
        padding=(0, 1),
        collapse_padding=True,
        show_edge=False,
    )


def facts(rows: list[tuple[str, str]]) -> Table:
    """Labels and values, one pair a line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="label", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(label, value)
    return table


def is_ascii(console: Console) -> bool:
    """Whether the console's stream cannot show block characters."""
    return not console.encoding.lower().startswith("utf")
