"""The short tables that `profile`, `plan` and `run` print."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table

from lynx_plan.model.graph import CostGraph, Role, StaticMemory
from lynx_plan.model.plan import Outcome, Plan
from lynx_plan.model.run import RunRow
from lynx_plan.report.names import machine_text, mesh_text, model_text
from lynx_plan.report.progress import search_rows
from lynx_plan.report.style import facts, make_table, titled
from lynx_plan.units import format_bytes, format_ms

NOT_NEEDED = "not-needed"


def profile_summary(graph: CostGraph, none: Outcome) -> Table:
    """What was traced, and what a step would cost if everything were kept (`none`)."""
    compute_ns = sum(op.time_ns for op in graph.ops)
    comm_ns = sum(op.comm_ns for op in graph.ops)
    return facts(
        [
            ("model", f"{model_text(graph.model)}, {mesh_text(graph.mesh)}"),
            ("machine", machine_text(graph)),
            ("ops", f"{len(graph.ops)} in {len(graph.layers)} layers"),
            ("parameters", format_bytes(graph.static.parameters_bytes)),
            ("static memory", static_text(graph.static)),
            ("activations", f"{format_bytes(none.peak_activation_bytes)} if nothing is recomputed"),
            ("step", f"{format_ms(none.step_ns)} predicted if nothing is recomputed"),
            ("communication", f"{_percent(comm_ns, comm_ns + compute_ns)} of communication and compute"),
            ("costs", cost_sources(graph)),
        ]
    )


def static_text(static: StaticMemory) -> str:
    """`3.05 MiB (parameters, gradients, optimizer, inputs), recipe mixed-adam, optimizer over 8 ranks`."""
    parts = "parameters, gradients, optimizer, inputs" + (", workspace" if static.workspace_bytes else "")
    recipe = "" if static.recipe == "model" else f", recipe {static.recipe}"
    sharded = "" if static.sharded == "none" else f", {static.sharded} sharded over {static.shards} ranks"
    return f"{format_bytes(static.total_bytes)} ({parts}){recipe}{sharded}"


def cost_sources(graph: CostGraph) -> str:
    """Where the ops' costs come from, most ops first."""
    counts: dict[str, int] = {}
    for op in graph.ops:
        if op.cost_source and op.role != Role.VIEW:
            counts[op.cost_source] = counts.get(op.cost_source, 0) + 1
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return "; ".join(f"{source} ({count} ops)" for source, count in ordered) or "none given"


def plan_summary(plan: Plan, *, search_ns: int, none: Outcome | None = None) -> Table:
    """Budget and prediction; `none` is the step without recomputation, for comparison."""
    predicted = plan.predicted
    beside = f" ({predicted.step_ns / none.step_ns:.3f}x of none, {format_ms(none.step_ns)})" if none else ""
    rows = [
        ("plan", f"{plan.algo}, {plan.status}"),
        *order_rows(plan),
        ("budget", budget_text(plan)),
        ("step", f"{format_ms(predicted.step_ns)} predicted{beside}"),
        ("peak", peak_text(predicted)),
        ("recompute", recompute_text(predicted)),
        ("communication", f"{format_ms(predicted.comm_exposed_ns)} exposed"),
        *search_rows(plan),
        ("search", f"{search_ns / 1e9:.3f} s"),
    ]
    if plan.status == NOT_NEEDED:
        rows.insert(1, ("", "nothing needs recomputing: everything fits the budget"))
    return facts(rows)


def interleaved(plan: Plan) -> bool:
    """Whether backward passes are merged with the next microbatch's forward pass."""
    return any(stage.program.epilogue for stage in plan.stages)


def order_rows(plan: Plan) -> list[tuple[str, str]]:
    """How microbatches follow each other, where there are several."""
    if plan.micro_batches == 1:
        return []
    merged = "each microbatch's backward pass merged with the next one's forward pass"
    return [("order", merged if interleaved(plan) else "one microbatch after the other")]


def budget_text(plan: Plan) -> str:
    """`60% = 1.20 GiB`."""
    return f"{plan.budget_text} = {format_bytes(plan.budget_bytes)}"


def peak_text(outcome: Outcome) -> str:
    """All memory, and the activations in it."""
    return f"{format_bytes(outcome.peak_bytes)}, of it {format_bytes(outcome.peak_activation_bytes)} activations"


def recompute_text(outcome: Outcome) -> str:
    """Hidden and exposed recompute, with the hidden share."""
    total = outcome.recompute_hidden_ns + outcome.recompute_exposed_ns
    if not total:
        return "none"
    hidden, exposed = format_ms(outcome.recompute_hidden_ns), format_ms(outcome.recompute_exposed_ns)
    return f"{hidden} hidden ({_percent(outcome.recompute_hidden_ns, total)}), {exposed} exposed"


def run_table(row: RunRow) -> RenderableType:
    """Predicted beside measured, with their ratio, and what verification found."""
    table = make_table()
    table.add_column("", no_wrap=True)
    for heading in ("predicted", "measured", "measured / predicted"):
        table.add_column(heading, justify="right", no_wrap=True)
    for label, field, show in (
        ("step", "step_ns", format_ms),
        ("peak activations", "peak_activation_bytes", format_bytes),
        ("recompute hidden", "recompute_hidden_ns", format_ms),
        ("recompute exposed", "recompute_exposed_ns", format_ms),
        ("communication exposed", "comm_exposed_ns", format_ms),
    ):
        measured = getattr(row.measured, field)
        predicted = getattr(row.predicted, field) if row.predicted else None
        table.add_row(label, "-" if predicted is None else show(predicted), show(measured), _ratio(measured, predicted))
    title = f"{row.name}: predicted against measured ({row.steps} steps)"
    return Group(titled(title, table), facts([("gradients", gradients_text(row))]))


def gradients_text(row: RunRow) -> str:
    """What verification found, in words."""
    if row.gradients_equal is None:
        return "not verified (add --verify)"
    if row.gradients_equal:
        return "bit-equal to eager PyTorch"
    return f"DIFFER from eager PyTorch, first at {row.first_difference}{_wrong_copy(row)}"


def verification_failed(row: RunRow) -> str:
    """Which gradient differs, and which recomputed op is why, if one is."""
    return f"the gradient of {row.first_difference} differs from eager PyTorch's{_wrong_copy(row)}"


def _wrong_copy(row: RunRow) -> str:
    return f"; the copy {row.wrong_copy} is not what its original was" if row.wrong_copy else ""


def _ratio(measured: int, predicted: int | None) -> str:
    return f"{measured / predicted:.3f}" if predicted else "-"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"
