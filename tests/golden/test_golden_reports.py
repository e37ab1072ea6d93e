"""What people see, kept as text: summaries, inspection, comparison."""

from __future__ import annotations

from dataclasses import replace

from lynx_plan.errors import Infeasible
from lynx_plan.model.plan import GivenWindow
from lynx_plan.model.run import RunRow
from lynx_plan.report.compare import Entry, compare_table
from lynx_plan.report.inspection import inspect_plan, render_classes, render_header, render_plan, shown_layer
from lynx_plan.report.profile_view import inspect_profile, render_profile
from lynx_plan.report.summary import plan_summary, profile_summary, run_table
from lynx_plan.simulate.outcome import predict
from tests.golden.samples import GRAPH, check_golden, plain_order, plan_of, recomputing_order, rendered, slower

NONE = predict(GRAPH, plain_order(GRAPH))
HEU = plan_of(GRAPH, recomputing_order(GRAPH), algo="heu")
ONDEMAND = plan_of(GRAPH, recomputing_order(GRAPH, in_windows=False), algo="ondemand")
OVER = plan_of(GRAPH, plain_order(GRAPH), algo="none")


def entries() -> list[Entry]:
    """A plan over the budget, the best on-demand plan, a better one, and one that does not exist."""
    error = Infeasible("no plan fits", minimum_budget_bytes=50 << 20)
    return [
        Entry(name="none", plan=OVER, search_ns=1_000_000),
        Entry(name="ondemand", plan=ONDEMAND, search_ns=150_000_000),
        Entry(name="heu", plan=HEU, search_ns=160_000_000),
        Entry(name="selective", infeasible=error),
    ]


def measured_row(name: str, share: float, *, equal: bool | None) -> RunRow:
    """A run of the HEU plan that was `share` slower than predicted."""
    return RunRow(
        name=name, plan_digest="abc", predicted=HEU.predicted, measured=slower(HEU.predicted, share), steps=5,
        gradients_equal=equal, first_difference="" if equal is not False else "layers.0.w_up",
    )  # fmt: skip


def test_profile_summary() -> None:
    check_golden("profile_summary", rendered(profile_summary(GRAPH, NONE)))


def test_plan_summary_of_a_search() -> None:
    facts = (("look-ahead", "1"), ("bound_ns", "99800000"), ("gap", "0.003700"), ("nodes", "12"))
    windows = (GivenWindow(kind="bubble", room_ns=20_000_000), GivenWindow(kind="forward", room_ns=500_000))
    plan = replace(HEU, algo="opt", options=facts, windows=windows)
    check_golden("plan_summary_opt", rendered(plan_summary(plan, search_ns=160_000_000, none=NONE)))


def test_plan_summary() -> None:
    check_golden("plan_summary", rendered(plan_summary(HEU, search_ns=160_000_000, none=NONE)))


def test_inspect_plan() -> None:
    view = inspect_plan(HEU, GRAPH)
    assert GRAPH.layers[shown_layer(view)].name == "layers.2"
    check_golden("inspect_plan", rendered(render_plan(view, layer=shown_layer(view), ascii_only=False, width=100)))


def test_inspect_plan_in_ascii() -> None:
    text = rendered(render_plan(inspect_plan(HEU, GRAPH), layer=1, ascii_only=True, width=80))
    check_golden("inspect_plan_ascii", text.replace("─", "-"))
    assert text.replace("─", "-").isascii()


def test_inspect_plan_without_its_profile() -> None:
    check_golden("inspect_plan_alone", rendered(render_header(HEU)) + rendered(render_classes(HEU)))


def test_inspect_profile() -> None:
    check_golden("inspect_profile", rendered(render_profile(inspect_profile(GRAPH, OVER))))


def test_compare() -> None:
    check_golden("compare", rendered(compare_table(entries(), "model.py, tp 2, budget 60%")))


def test_compare_with_measurements() -> None:
    rows = [
        Entry(name="ondemand", plan=ONDEMAND, search_ns=1, measured=measured_row("ondemand", 0.05, equal=True)),
        Entry(name="heu", plan=HEU, search_ns=1, measured=measured_row("heu", 0.01, equal=False)),
        Entry(name="eager", measured=RunRow(name="eager", measured=NONE, steps=5)),
    ]
    check_golden("compare_measured", rendered(compare_table(rows, "model.py, tp 2, budget 60%")))


def test_run_table() -> None:
    check_golden("run_equal", rendered(run_table(measured_row("heu", 0.03, equal=True))))
    check_golden("run_different", rendered(run_table(measured_row("heu", 0.03, equal=False))))
