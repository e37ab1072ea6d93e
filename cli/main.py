"""The `lynx` command: global options, lazily loaded verbs, and the one place that prints errors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from lynx_plan.cli.lazy import LazyGroup
from lynx_plan.cli.session import Session
from lynx_plan.errors import LynxError

VERBS = {
    "profile": "Trace a model's training step and price every op.",
    "plan": "Decide what to keep and when to recompute the rest.",
    "inspect": "Show a plan or a profile in the terminal.",
    "validate": "Check files: is this plan legal for this profile?",
    "run": "Run a plan on local ranks: predicted against measured.",
    "machine": "List, show or measure the machines that prices come from.",
    "compare": "Plan with several algorithms and compare them in one table.",
}
HELP = """Lynx fits a training step into device memory: it recomputes activations while communication is in flight.

\b
  lynx profile examples/gpt.py --tp 2 --link 500MB/s:100us
  lynx plan --budget 60%
  lynx inspect plan.json
  lynx run --plan plan.json --verify

Defaults come from LYNX_* variables, then from lynx.toml or [tool.lynx] in pyproject.toml.
Exit codes: 0 done, 1 the answer is no, 2 could not answer, 130 interrupted.
"""


def _print_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    for name in ("lynx-plan", "torch", "highspy"):
        try:
            click.echo(f"{name} {version(name)}")
        except PackageNotFoundError:
            click.echo(f"{name} not installed")
    ctx.exit()


@click.group(
    cls=LazyGroup,
    verbs=VERBS,
    help=HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("-q", "--quiet", is_flag=True, help="Print results and errors only.")
@click.option("-v", "--verbose", count=True, help="Say more about what is done.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True,
              help="Colours; auto honours NO_COLOR and FORCE_COLOR.")  # fmt: skip
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
              help="Print the versions of Lynx, torch and HiGHS.")  # fmt: skip
@click.pass_obj
def lynx(session: Session, quiet: bool, verbose: int, debug: bool, color: str) -> None:
    session.quiet, session.verbose, session.debug, session.color = quiet, verbose, debug, color


def main(argv: Sequence[str] | None = None) -> None:
    """Run `lynx` and end the process with its exit code."""
    sys.exit(call(list(sys.argv[1:] if argv is None else argv)))


def call(argv: list[str]) -> int:
    """Run `lynx` and return its exit code; every error is printed here and nowhere else."""
    session = Session(debug="--debug" in argv)
    try:
        return _invoke(argv, session)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except (Exception, KeyboardInterrupt) as error:
        if session.debug:
            import traceback

            traceback.print_exc()
        described, code = _describe(error)
        session.print_error(described)
        return code


def _describe(error: BaseException) -> tuple[LynxError, int]:
    """What to print for an error, and the exit code."""
    if isinstance(error, LynxError):
        return error, error.exit_code
    if isinstance(error, click.ClickException):
        return _usage_error(error), 2
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return LynxError("interrupted"), 130
    if isinstance(error, OSError) and error.strerror:
        hint = "check the path, its permissions and the space left on the device"
        return LynxError(error.strerror, where=str(error.filename or ""), hint=hint), 2
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return LynxError(f"internal error: {what} (this is a bug; --debug shows the traceback)"), 2


def _invoke(argv: list[str], session: Session) -> int:
    asks_for_help = not {"-h", "--help", "--version"}.isdisjoint(argv)
    if asks_for_help or not argv:
        defaults = {}
    else:
        from lynx_plan.cli.settings import load_defaults

        defaults = load_defaults(lynx, Path.cwd())
    result = lynx.main(
        args=argv, prog_name="lynx", standalone_mode=False, obj=session, default_map=defaults, auto_envvar_prefix="LYNX"
    )
    return result if isinstance(result, int) else 0


def _usage_error(error: click.ClickException) -> LynxError:
    """click's message; a wrong value from the environment or the settings file says so."""
    ctx = getattr(error, "ctx", None)
    parameter = getattr(error, "param", None)
    origin = ""
    if ctx is not None and parameter is not None and parameter.name:
        source = ctx.get_parameter_source(parameter.name)
        origin = {"ENVIRONMENT": "environment", "DEFAULT_MAP": "settings file"}.get(source.name if source else "", "")
    hint = f"see: {ctx.command_path} --help" if ctx is not None else "see: lynx --help"
    return LynxError(error.format_message(), where=origin, hint=hint)
