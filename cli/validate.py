"""`lynx validate`: are these files what they claim to be, and is this plan legal for its profile?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lynx_plan.cli import options
from lynx_plan.cli.session import Session
from lynx_plan.errors import LynxError

if TYPE_CHECKING:
    from lynx_plan.model.plan import Plan
    from lynx_plan.report.documents import Document

HELP = """Check files; a plan also against its profile, by the checker that every plan passes before it is written.

\b
  lynx validate profile.json
  lynx validate plan.json --profile profile.json
  lynx validate my-machine.json --json

The profile is profile.json beside the plan unless named. Exit code 1: not legal, 2: not readable.
"""


@click.command("validate", help=HELP)
@click.argument("paths", nargs=-1, required=True, metavar="FILE...")
@click.option("--profile", metavar="FILE", help="The profile to check plans against (default: profile.json beside).")
@options.json_option
@click.pass_obj
def command(session: Session, paths: tuple[str, ...], profile: str | None, json_: bool) -> None:
    from lynx_plan.report.documents import invalid_document

    documents: list[Document] = []
    errors: list[LynxError] = []
    for path in paths:
        try:
            document = _validate(path, profile)
        except LynxError as error:
            errors.append(error)
            documents.append(invalid_document(path, str(error), error.hint))
            continue
        documents.append(document)
        if not json_:
            against = f", legal for {document['checked_against']}" if document["checked_against"] else ""
            session.out().print(f"{path}: valid {document['kind']}{against}", markup=False, highlight=False)
    if json_:
        session.emit({"files": documents})
    if errors:
        *first, worst = sorted(errors, key=lambda failure: failure.exit_code)
        for failure in first:
            session.print_error(failure)
        raise worst


def _validate(path: str, profile: str | None) -> Document:
    from lynx_plan.files import load_any
    from lynx_plan.model.graph import CostGraph
    from lynx_plan.model.plan import Plan
    from lynx_plan.report.documents import validate_document

    record = load_any(path)
    against = None
    if isinstance(record, Plan):
        against = profile or str(Path(path).parent / "profile.json")
        _check_plan(record, path, against, named=profile is not None)
    elif isinstance(record, CostGraph):
        from lynx_plan.analyze.index import GraphIndex

        _located(path, lambda: GraphIndex(record))
    return validate_document(path, record.kind.removeprefix("lynx."), against)


def _check_plan(plan: Plan, path: str, profile: str, *, named: bool) -> None:
    from lynx_plan.check import check_plan

    if not named and not Path(profile).is_file():
        raise LynxError("its profile is not beside it", where=path, hint="name it: --profile FILE")
    graph = options.load_profile(profile)
    _located(path, lambda: check_plan(plan, graph))


def _located(path: str, check: Callable[[], object]) -> None:
    """Run a check; its error names the file as well."""
    try:
        check()
    except LynxError as error:
        error.where = f"{path}: {error.where}" if error.where else path
        raise
