"""The comparison of several plans at one budget, relative to the best on-demand plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from lynx_plan.errors import Infeasible
from lynx_plan.model.plan import Outcome, Plan
from lynx_plan.model.run import RunRow
from lynx_plan.report.documents import (
    Document,
    infeasible_document,
    measured_document,
    plan_document,
)
from lynx_plan.report.style import make_table, titled
from lynx_plan.units import BYTE_UNITS, format_bytes

ON_DEMAND = ("full", "selective", "ondemand")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One algorithm's row: its plan, or why there is none; `measured` after a run."""

    name: str
    budget: str = ""
    budget_bytes: int = 0
    plan: Plan | None = None
    search_ns: int = 0
    infeasible: Infeasible | None = None
    measured: RunRow | None = None

    @property
    def fits(self) -> bool:
        return self.plan is not None and self.plan.predicted.peak_bytes <= self.plan.budget_bytes

    @property
    def predicted(self) -> Outcome | None:
        return self.plan.predicted if self.plan else None

    @property
    def outcome(self) -> Outcome | None:
        """Measured where it was measured, else predicted."""
        if self.measured is not None:
            return self.measured.measured
        return self.predicted


Cell = Callable[[Outcome, Entry], str]


def reference(entries: Sequence[Entry]) -> Entry | None:
    """The on-demand plan to compare with: the fastest that fits the budget."""
    steps = [
        (entry.outcome.step_ns, i)
        for i, entry in enumerate(entries)
        if entry.name in ON_DEMAND and entry.fits and entry.outcome
    ]
    return entries[min(steps)[1]] if steps else None


def compare_table(entries: Sequence[Entry], title: str) -> RenderableType:
    """One row per entry, in the order asked for; measured beside predicted where there was a run."""
    base = reference(entries)
    measured = any(entry.measured for entry in entries)
    unit = byte_unit(max((entry.outcome.peak_bytes for entry in entries if entry.outcome), default=0))
    columns = _measured_columns(base, unit) if measured else _predicted_columns(base, unit)
    table = make_table()
    table.add_column("plan", no_wrap=True)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for entry in entries:
        cells = [show(entry.outcome, entry) if entry.outcome else "-" for show in columns.values()]
        table.add_row(entry.name, *cells, _remark(entry), style="best" if entry is base else "")
    return titled(title, table, _caption(base, measured))


def compare_document(entries: Sequence[Entry]) -> Document:
    """What `lynx compare --json` prints."""
    base = reference(entries)
    return {"reference": base.name if base else None, "rows": [_document(entry) for entry in entries]}


def _document(entry: Entry) -> Document:
    row: Document = {"name": entry.name}
    if entry.infeasible:
        row |= infeasible_document(entry.name, entry.budget, entry.budget_bytes, entry.infeasible)
    elif entry.plan:
        row |= plan_document(entry.plan, search_ns=entry.search_ns, path=None)
        row["fits_budget"] = entry.fits
    else:
        row |= {"algo": entry.name, "predicted": None, "plan": None}
    if entry.measured:
        row |= {"measured": measured_document(entry.measured), "gradients_equal": entry.measured.gradients_equal}
        row["plan_digest"] = entry.measured.plan_digest or None
    return row


def _caption(base: Entry | None, measured: bool) -> str:
    kind = "measured" if measured else "predicted"
    if base is None:
        return f"{kind} steps; no on-demand plan (full, selective, ondemand) fits the budget to compare with"
    among = "full, selective, ondemand"
    relative = f"rel.: {kind} step over that of {base.name}, the fastest of {among} here that fits the budget"
    return f"{relative}; act.: peak activations"


def _predicted_columns(base: Entry | None, unit: str) -> dict[str, Cell]:
    return {
        "step\nms": lambda outcome, _: in_ms(outcome.step_ns),
        "rel.\nstep": lambda outcome, _: _relative(outcome, base),
        f"peak\n{unit}": lambda outcome, _: in_unit(outcome.peak_bytes, unit),
        f"act.\n{unit}": lambda outcome, _: in_unit(outcome.peak_activation_bytes, unit),
        "hidden\nms": lambda outcome, _: in_ms(outcome.recompute_hidden_ns),
        "exposed\nms": lambda outcome, _: in_ms(outcome.recompute_exposed_ns),
        "hidden\nshare": lambda outcome, _: _hidden_share(outcome),
        "search\ns": _search,
    }


def _measured_columns(base: Entry | None, unit: str) -> dict[str, Cell]:
    return {
        "step\nms": lambda outcome, _: in_ms(outcome.step_ns),
        "step/\npred.": lambda outcome, entry: _ratio(outcome.step_ns, entry.predicted, "step_ns"),
        "rel.\nstep": lambda outcome, _: _relative(outcome, base),
        f"act.\n{unit}": lambda outcome, _: in_unit(outcome.peak_activation_bytes, unit),
        "act./\npred.": lambda outcome, entry: _ratio(
            outcome.peak_activation_bytes, entry.predicted, "peak_activation_bytes"
        ),
        "hidden\nms": lambda outcome, _: in_ms(outcome.recompute_hidden_ns),
        "exposed\nms": lambda outcome, _: in_ms(outcome.recompute_exposed_ns),
        "hidden\nshare": lambda outcome, _: _hidden_share(outcome),
        "search\ns": _search,
        "gradients": _gradients,
    }


def _search(_: Outcome, entry: Entry) -> str:
    return f"{entry.search_ns / 1e9:.3f}" if entry.plan else "-"


def _gradients(_: Outcome, entry: Entry) -> str:
    equal = entry.measured.gradients_equal if entry.measured else None
    return {None: "-", True: "equal", False: "DIFFER"}[equal]


def _hidden_share(outcome: Outcome) -> str:
    total = outcome.recompute_hidden_ns + outcome.recompute_exposed_ns
    return f"{100 * outcome.recompute_hidden_ns / total:.0f} %" if total else "-"


def _ratio(measured: int, predicted: Outcome | None, field: str) -> str:
    value = getattr(predicted, field) if predicted else 0
    return f"{measured / value:.3f}" if value else "-"


def _remark(entry: Entry) -> str:
    if entry.infeasible:
        return f"infeasible: needs {format_bytes(entry.infeasible.minimum_budget_bytes)}"
    return "over budget" if entry.plan and not entry.fits else ""


def in_ms(time_ns: int) -> str:
    """Milliseconds without their unit, which the column's head states."""
    return f"{time_ns / 1e6:.2f}"


def byte_unit(largest: int) -> str:
    """The unit in which a column of sizes reads best."""
    return next((unit for unit in ("GiB", "MiB", "KiB") if largest >= BYTE_UNITS[unit]), "B")


def in_unit(count: int, unit: str) -> str:
    """A size in `unit`, without it."""
    return f"{count / BYTE_UNITS[unit]:.2f}" if unit != "B" else str(count)


def _relative(outcome: Outcome, base: Entry | None) -> str:
    return f"{outcome.step_ns / base.outcome.step_ns:.3f}x" if base and base.outcome else "-"
