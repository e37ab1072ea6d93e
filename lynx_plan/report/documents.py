"""The JSON documents of `--json`: one place for their keys. Values are integers, text, lists and null."""

from __future__ import annotations

from typing import Any

from lynx_plan.errors import Infeasible
from lynx_plan.model.plan import Outcome, Plan
from lynx_plan.model.run import RunRow

Document = dict[str, Any]


def predicted_document(outcome: Outcome) -> Document:
    """All figures of a predicted step."""
    return {
        "step_ns": outcome.step_ns,
        "peak_bytes": outcome.peak_bytes,
        "peak_activation_bytes": outcome.peak_activation_bytes,
        "recompute_hidden_ns": outcome.recompute_hidden_ns,
        "recompute_exposed_ns": outcome.recompute_exposed_ns,
        "comm_exposed_ns": outcome.comm_exposed_ns,
    }


def measured_document(row: RunRow) -> Document:
    """The figures that a run can measure: all but static memory, which it does not count."""
    document = predicted_document(row.measured)
    del document["peak_bytes"]
    return {**document, "step_spread_ns": row.step_spread_ns, "steps": row.steps}


def plan_document(plan: Plan, *, search_ns: int, path: str | None) -> Document:
    """What `lynx plan --json` prints; `path` is the plan's file, None where it was not written."""
    return {
        "algo": plan.algo,
        "status": plan.status,
        "search_ns": search_ns,
        "budget": plan.budget_text,
        "budget_bytes": plan.budget_bytes,
        "micro_batches": plan.micro_batches,
        "options": dict(plan.options),
        "windows": [{"kind": window.kind, "room_ns": window.room_ns} for window in plan.windows],
        "predicted": predicted_document(plan.predicted),
        "plan": path,
    }


def infeasible_document(algo: str, budget: str, budget_bytes: int, error: Infeasible) -> Document:
    """The same where no plan fits."""
    return {
        "algo": algo,
        "status": "infeasible",
        "search_ns": None,
        "budget": budget,
        "budget_bytes": budget_bytes,
        "minimum_budget_bytes": error.minimum_budget_bytes,
        "predicted": None,
        "plan": None,
        "message": error.message,
        **error.details,
    }


def run_document(row: RunRow) -> Document:
    """What `lynx run --json` prints."""
    return {
        "name": row.name,
        "plan_digest": row.plan_digest,
        "predicted": predicted_document(row.predicted) if row.predicted else None,
        "measured": measured_document(row),
        "gradients_equal": row.gradients_equal,
        "first_difference": row.first_difference or None,
        "wrong_copy": row.wrong_copy or None,
    }


def validate_document(path: str, kind: str, checked_against: str | None) -> Document:
    """One valid file of `lynx validate --json`."""
    return {"file": path, "kind": kind, "valid": True, "checked_against": checked_against, "message": None}


def invalid_document(path: str, message: str, hint: str) -> Document:
    """One file of `lynx validate --json` that is not valid, or not legal."""
    return {"file": path, "kind": None, "valid": False, "checked_against": None, "message": message, "hint": hint}
