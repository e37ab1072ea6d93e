"""`run` on local ranks: the same code that the command calls, with hand-made plans and HEU's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from lynx_plan import files
from lynx_plan.cost.roofline import price
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import ModelSpec, Role
from lynx_plan.model.machine import Link
from lynx_plan.model.timeline import Stream, Timeline
from lynx_plan.solve.planner import make_plan
from lynx_plan.torch_rt.capture import capture_file
from lynx_plan.torch_rt.launch import RunOptions, find_model, run
from tests.torch_cpu.gpt_case import capture_gpt, gpt_spec
from tests.torch_cpu.plans import keep_all, plan_of, recompute_all, recompute_in_windows

LINK = Link(bytes_per_s=10**8, latency_ns=200_000, text="100MB/s:200us")


def plans(tp: int, micro_batches: int, link: Link | None, **arguments: object):
    graph = replace(capture_gpt(tp, **arguments).graph, link=link)
    orders = {"none": keep_all, "full": recompute_all, "windows": recompute_in_windows}
    return graph, tuple(
        (name, plan_of(graph, order(graph), micro_batches=micro_batches, algo=name)) for name, order in orders.items()
    )


def planned(tp: int, micro_batches: int, link: Link, algorithms: tuple[str, ...]):
    """Plans of the real planner, from made-up costs."""
    machine = files.load_machine("cpu-demo")
    graph = price(capture_gpt(tp, machine).graph, machine, link)
    make = partial(make_plan, graph, budget="between:full,none,0.5", micro_batches=micro_batches)
    return tuple((name, make(algo=name).plan) for name in algorithms)


def check_rows(rows, chosen, steps: int) -> None:
    """Gradients are eager's, peaks are as predicted to the byte, and times are there."""
    assert [row.name for row in rows] == [*(name for name, _ in chosen), "eager"]
    for row, (name, plan) in zip(rows, chosen, strict=False):
        assert row.gradients_equal is True, row.first_difference
        assert row.measured.peak_activation_bytes == plan.predicted.peak_activation_bytes, name
        assert row.predicted == plan.predicted
        assert row.plan_digest == files.digest(plan)
    for row in rows:
        assert row.steps == steps
        assert row.measured.step_ns > 0
        assert row.measured.peak_bytes > row.measured.peak_activation_bytes > 0
    eager = rows[-1]
    assert eager.gradients_equal is None
    assert eager.measured.recompute_hidden_ns == eager.measured.recompute_exposed_ns == 0


def test_two_ranks_on_an_emulated_link(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graph, by_hand = plans(2, 2, LINK)
    chosen = (*by_hand, *planned(2, 2, LINK, ("ondemand", "heu")))
    assert any("r1" in text for text in chosen[-1][1].stages[0].program.templates)
    timeline = tmp_path / "timeline.json"
    rows = run(RunOptions(plans=chosen, steps=2, verify=True, eager=True, timeline=str(timeline)))
    check_rows(rows, chosen, 2)
    none, full, windows, ondemand, heu, eager = (row.measured for row in rows)
    assert none.recompute_hidden_ns == none.recompute_exposed_ns == 0
    assert full.recompute_exposed_ns > 0
    assert windows.recompute_hidden_ns > 0
    assert all(each.recompute_hidden_ns + each.recompute_exposed_ns > 0 for each in (full, ondemand, heu))
    assert all(each.comm_exposed_ns > 0 for each in (none, full, windows, ondemand, heu, eager))
    check_timeline(files.load(timeline, Timeline), graph, micro_batches=2)
    assert list(tmp_path.iterdir()) == [timeline]


def check_timeline(timeline: Timeline, graph, micro_batches: int) -> None:
    """Both ranks' items and transfers; a transfer takes the link's time and is the same on both ranks."""
    assert timeline.origin == "measured"
    events = {key: [] for key in ((rank, stream) for rank in (0, 1) for stream in Stream)}
    for event in timeline.events:
        events[event.rank, event.stream].append(event)
    collectives = [op for op in graph.ops if op.role is Role.COLLECTIVE]
    timed = [op for op in graph.ops if op.role is not Role.VIEW]
    for (_, stream), found in events.items():
        assert len(found) == micro_batches * len(collectives if stream is Stream.COMM else timed)
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(found))
    zero, one = (
        [(event.item, event.microbatch, event.start_ns, event.end_ns) for event in events[rank, Stream.COMM]]
        for rank in (0, 1)
    )
    assert zero == one
    assert all(end - start >= 2 * LINK.latency_ns for *_, start, end in zero)
    assert timeline.end_ns == max(event.end_ns for event in timeline.events)


def test_two_ranks_of_plain_gloo_with_sequence_parallelism():
    _, chosen = plans(2, 1, None, sequence_parallel=True)
    check_rows(run(RunOptions(plans=chosen, steps=1, verify=True, eager=True)), chosen, 1)


def test_one_process():
    _, chosen = plans(0, 3, None)
    check_rows(run(RunOptions(plans=chosen, steps=2, verify=True, eager=True)), chosen, 2)


DROPOUT = """
import torch
from torch import nn

def build_model(mesh):
    assert mesh is None
    return nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.Linear(32, 8))

def example_inputs():
    return (torch.randn(4, 8),)

def loss(output):
    return output.square().mean()
"""


def test_random_ops_draw_alike_in_the_steps_that_are_compared(tmp_path):
    (tmp_path / "dropout.py").write_text(DROPOUT)
    machine = files.load_machine("cpu-demo")
    graph = capture_file(ModelSpec(path=str(tmp_path / "dropout.py")), (), machine).graph
    plan = plan_of(graph, keep_all(graph))
    (row,) = run(RunOptions(plans=(("none", plan),), steps=1, verify=True))
    assert row.gradients_equal is True, row.first_difference


def test_the_model_is_found_beside_the_plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = gpt_spec()
    moved, folder = replace(spec, path="gpt.py"), str(Path(spec.path).parent)
    assert find_model(moved, RunOptions(plans=(), folder=folder)).path == spec.path
    assert find_model(moved, RunOptions(plans=(), model=spec.path)).path == spec.path
    for options in (RunOptions(plans=()), RunOptions(plans=(), model="gone.py", folder=folder)):
        with pytest.raises(LynxError, match="no such model file") as caught:
            find_model(moved, options)
        assert caught.value.where == (options.model or "gpt.py")
        assert "--model" in caught.value.hint
    (tmp_path / "gpt.py").write_text("")
    assert find_model(moved, RunOptions(plans=(), folder=folder)).path == "gpt.py"


def test_plans_that_cannot_be_measured_together():
    plan = plan_of(graph := capture_gpt(0).graph, keep_all(graph))
    with pytest.raises(LynxError, match="another micro batches"):
        run(RunOptions(plans=(("a", plan), ("b", replace(plan, micro_batches=2)))))
    with pytest.raises(LynxError, match="no plan to run"):
        run(RunOptions(plans=()))
    with pytest.raises(LynxError, match="for cuda devices; this version runs plans on CPU only"):
        run(RunOptions(plans=(("a", replace(plan, device="cuda")),)))
