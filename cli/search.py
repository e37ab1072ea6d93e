"""`--gap`, `--time-limit` and `--window`: how long `lynx plan` searches, what idle time it is given, how it shows where
a search stands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from lynx_plan.errors import LynxError

if TYPE_CHECKING:
    from lynx_plan.cli.session import Session
    from lynx_plan.model.plan import GivenWindow
    from lynx_plan.solve.base import Progress

Command = TypeVar("Command", bound=Callable[..., Any])
Report = Callable[["Progress"], None]
WINDOW_KINDS = ("bubble", "forward")
PROVING = ("opt",)  # the algorithms that search until a gap or a time is reached


def search_options(command: Command) -> Command:
    """`--gap`, `--time-limit` and `--window`."""
    for add in (
        click.option("--window", multiple=True, metavar="KIND:TIME",
                     help="Idle time before each backward pass, bubble:20ms or forward:5ms; may be repeated."),
        click.option("--time-limit", default="60s", show_default=True, metavar="TIME",
                     help="With opt: stop after this time with the best plan so far."),
        click.option("--gap", default="1%", show_default=True,
                     help="With opt: stop when the step is proven this near to the best, 1% or 0.01."),
    ):  # fmt: skip
        command = add(command)
    return command


def interleave_option(command: Command) -> Command:
    """`--interleave/--no-interleave`."""
    return click.option(
        "--interleave/--no-interleave",
        default=True,
        help="With several microbatches, merge each backward pass with the next forward pass where that is faster.",
    )(command)


def gap(text: str) -> float:
    """`1%` or `0.01` as a fraction."""
    hint = "write a share from 0 to below 1, for example 1% or 0.01"
    percent = text.strip().endswith("%")
    try:
        number = Decimal(text.strip().removesuffix("%").strip())
    except InvalidOperation:
        raise LynxError(f"'{text}' is not a share", where="--gap", hint=hint) from None
    share = number / 100 if percent else number
    if not share.is_finite() or not 0 <= share < 1:
        raise LynxError(f"a gap of '{text}' proves nothing", where="--gap", hint=hint)
    return float(share)


def seconds(text: str) -> float:
    """`60`, `60s` or `500ms` in seconds."""
    value = _time_ns(f"{text}s" if text.strip().replace(".", "", 1).isdigit() else text, "--time-limit", "60s")
    return value / 1e9


def given_windows(texts: tuple[str, ...]) -> tuple[GivenWindow, ...]:
    """`KIND:TIME` texts as records, in the order given."""
    from lynx_plan.model.plan import GivenWindow

    found = []
    for text in texts:
        kind, colon, room = text.partition(":")
        if not colon or kind not in WINDOW_KINDS:
            hint = "write for example bubble:20ms (of a pipeline) or forward:5ms (of the next microbatch)"
            raise LynxError(f"'{text}' is not {' or '.join(WINDOW_KINDS)} and a time", where="--window", hint=hint)
        found.append(GivenWindow(kind=kind, room_ns=_time_ns(room, "--window", f"{kind}:20ms")))
    return tuple(found)


def unused_note(ctx: click.Context, algo: str) -> str:
    """What to say where options of proving algorithms were typed for another; empty if nothing."""
    names = ("gap", "time_limit")
    typed = [name for name in names if ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE]
    if not typed or algo.partition(":")[0] in PROVING:
        return ""
    spelled = " and ".join("--" + name.replace("_", "-") for name in typed)
    return f"{algo} does not search to a gap: {spelled} changed nothing (of use with {', '.join(PROVING)})"


@contextmanager
def progress(session: Session) -> Iterator[Report | None]:
    """A status line on standard error while a search runs; None where that is no terminal, or with `-q`."""
    if session.quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.text import Text

    from lynx_plan.report.progress import progress_text

    with session.err().status(Text("planning")) as status:
        yield lambda now: status.update(Text(progress_text(now)))


def _time_ns(text: str, where: str, example: str) -> int:
    """A time of more than nothing, in nanoseconds."""
    from lynx_plan.units import parse_time_ns

    try:
        value = parse_time_ns(text)
    except LynxError as error:
        raise LynxError(error.message, where=where, hint=f"for example {where} {example}") from None
    if value <= 0:
        raise LynxError(f"'{text}' is no time at all", where=where, hint=f"for example {where} {example}")
    return value
