"""The checker: every rule is broken by hand-made orders and must be the one that refuses; legal orders pass."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from lynx_plan import files
from lynx_plan.analyze.classes import layer_classes, op_lines, structure_digest
from lynx_plan.analyze.flow import resolve
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.programs import compress
from lynx_plan.check import check_order, check_plan, differences
from lynx_plan.errors import AnswerNo
from lynx_plan.model.graph import CostGraph, Phase, Role, StorageKind
from lynx_plan.model.plan import OVER_BUDGET, Plan, PlannedClass, StagePlan
from lynx_plan.model.program import Item, Program, Run
from lynx_plan.simulate.memory import memory_curve
from lynx_plan.simulate.outcome import predict
from tests.unit.builders import GraphBuilder, Sizes, megatron_graph, op_named, plain_order
from tests.unit.random_orders import random_graph, random_order

GRAPH = megatron_graph(2, Sizes(dropout=True))
PLAIN = plain_order(GRAPH)


def item(name: str, replica: int = 0) -> Item:
    return Item(op_named(GRAPH, name), replica)


def insert(items: tuple[Item, ...], new: Item, before: str) -> tuple[Item, ...]:
    at = items.index(item(before))
    return (*items[:at], new, *items[at:])


def move(items: tuple[Item, ...], name: str, before: str) -> tuple[Item, ...]:
    return insert(tuple(other for other in items if other != item(name)), item(name), before)


def swap(items: tuple[Item, ...], first: str, second: str) -> tuple[Item, ...]:
    places = {item(first): item(second), item(second): item(first)}
    return tuple(places.get(other, other) for other in items)


def refusal(graph: CostGraph, items: tuple[Item, ...], budget_bytes: int | None = None) -> AnswerNo:
    with pytest.raises(AnswerNo) as caught:
        check_order(graph, items, budget_bytes=budget_bytes)
    return caught.value


GELU = item("layers.0.gelu")
LEGAL = insert(PLAIN, item("layers.0.gelu", 1), "layers.0.down_wgrad")

ILLEGAL = [
    ("known", "9999", (*PLAIN, Item(9999))),
    ("known", "-1", (*PLAIN, Item(-1))),
    ("microbatch", "layers.0.gelu@forwardm+1", (*PLAIN, Item(GELU.op, 0, 1))),
    ("once", "layers.0.gelu@forward", (*PLAIN, GELU)),
    ("once", "layers.0.gelu@r1", insert(LEGAL, item("layers.0.gelu", 1), "layers.0.down_wgrad")),
    (
        "once",
        "layers.1.w_up_accumulate@weight_gradient",
        tuple(i for i in PLAIN if i != item("layers.1.w_up_accumulate")),
    ),
    ("replica", "layers.0.gelu_bw@r1", insert(PLAIN, item("layers.0.gelu_bw", 1), "layers.0.up_dgrad")),
    ("replica", "layers.0.up_wgrad@r1", (*PLAIN, item("layers.0.up_wgrad", 1))),
    ("random-state", "layers.0.dropout1@r1", insert(PLAIN, item("layers.0.dropout1", 1), "layers.0.dropout1")),
    ("graph-order", "layers.0.k@forward", swap(PLAIN, "layers.0.q", "layers.0.v")),
    ("graph-order", "layers.0.gelu@forward", move(PLAIN, "layers.0.down", "layers.0.gelu")),
    ("produced", str(item("layers.0.gelu_bw")), move(PLAIN, "layers.0.gelu_bw", "layers.0.down_dgrad")),
    ("produced", str(item("layers.0.up_reduce_wait")), swap(PLAIN, "layers.0.up_reduce", "layers.0.up_reduce_wait")),
    ("produced", str(item("layers.0.gelu", 1)), insert(PLAIN, item("layers.0.gelu", 1), "layers.0.up")),
    ("version", "layers.0.down@forward", insert(PLAIN, item("layers.0.gelu", 1), "layers.0.down")),
    ("dead", "layers.0.gelu@r1", (*PLAIN, item("layers.0.gelu", 1))),
    ("dead", "layers.0.gelu@r1", insert(LEGAL, item("layers.0.gelu", 2), "layers.0.down_wgrad")),
    (
        "dead",
        "layers.0.reduce1_wait@r1",
        insert(
            insert(PLAIN, item("layers.0.reduce1", 1), "layers.0.add2_bw"),
            item("layers.0.reduce1_wait", 1),
            "layers.0.add2_bw",
        ),
    ),
]


@pytest.mark.parametrize(("rule", "where", "items"), ILLEGAL, ids=[f"{rule}-{where}" for rule, where, _ in ILLEGAL])
def test_each_illegal_order_is_refused_by_its_own_rule(rule: str, where: str, items: tuple[Item, ...]) -> None:
    error = refusal(GRAPH, items)
    assert error.message.startswith(f"{rule}: ")
    assert error.where == where
    assert error.hint


def test_legal_orders_pass() -> None:
    check_order(GRAPH, PLAIN, budget_bytes=None)
    check_order(GRAPH, LEGAL, budget_bytes=None)
    # a weight gradient and its accumulation after other accumulations
    late = move(move(PLAIN, "layers.1.up_wgrad", "layers.0.up_dgrad"), "layers.1.w_up_accumulate", "layers.0.up_dgrad")
    check_order(GRAPH, late, budget_bytes=None)


@pytest.mark.parametrize("seed", range(30))
def test_random_legal_orders_pass_and_their_peak_is_the_least_budget(seed: int) -> None:
    graph = random_graph(seed)
    items = random_order(graph, random.Random(seed))
    peak = graph.static.total_bytes + memory_curve(graph, items, resolve(graph, items)).peak_bytes
    check_order(graph, items, budget_bytes=peak)
    assert refusal(graph, items, peak - 1).message.startswith("budget: ")


def is_legal(graph: CostGraph, items: tuple[Item, ...]) -> bool:
    try:
        check_order(graph, items, budget_bytes=None)
    except AnswerNo:
        return False
    return True


@pytest.mark.parametrize("seed", range(30))
def test_random_mutations_of_a_legal_order_are_refused_or_still_sound(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(seed)
    items = list(random_order(graph, rng))
    for _ in range(20):
        changed = items.copy()
        changed.insert(rng.randrange(len(items)), changed.pop(rng.randrange(len(items))))
        if not is_legal(graph, tuple(changed)):
            continue
        read = {source for sources in resolve(graph, changed).sources for source in sources}
        forward = [i.op for i in changed if not i.replica and graph.ops[i.op].phase is Phase.FORWARD]
        assert forward == sorted(forward)
        assert all(position in read for position, i in enumerate(changed) if i.replica)


def test_the_budget_counts_static_memory() -> None:
    error = refusal(GRAPH, PLAIN, GRAPH.static.total_bytes)
    assert error.message.startswith("budget: peak memory ")


def test_an_op_with_an_effect_is_not_recomputed_and_keeps_its_order() -> None:
    b = GraphBuilder()
    b.layer("layer")
    x = b.source("x", 8, StorageKind.INPUT)
    (a,) = b.op("count", (x,), (8,), effect=True)
    (g,) = b.op("draw", (a,), (8,), phase=Phase.BACKWARD, rng=True)
    (h,) = b.op("draw2", (a,), (8,), phase=Phase.BACKWARD, rng=True)
    b.accumulate("tied", g)
    b.accumulate("tied", h)
    b.op("write", (a,), (), phase=Phase.BACKWARD, effect=True)
    b.op("write2", (a,), (), phase=Phase.BACKWARD, effect=True)
    graph = b.build()
    order = plain_order(graph)
    check_order(graph, order, budget_bytes=None)
    assert refusal(graph, (order[0], Item(0, 1), *order[1:])).message.startswith("replica: ")
    for first, second in ((1, 2), (3, 4), (5, 6)):  # random numbers, one parameter's accumulations, effects
        items = list(order)
        items[first], items[second] = order[second], order[first]
        assert refusal(graph, tuple(items)).message.startswith("effect-order: ")


@pytest.mark.parametrize("through_view", [False, True])
def test_a_transfers_result_is_read_only_after_its_wait(through_view: bool) -> None:
    b = GraphBuilder()
    b.layer("layer")
    b.all_reduce("reduce", b.source("x", 8), 8, Phase.FORWARD, comm_ns=1)
    unwaited = b.ops[0].outputs[0]
    b.op("early", (b.view("view", unwaited, 8) if through_view else unwaited,), (8,))
    error = refusal(b.build(), plain_order(b.build()))
    assert (error.message[:12], error.where) == ("collective: ", "layer.early@forward")


def test_a_wait_must_read_a_launch() -> None:
    b = GraphBuilder()
    b.layer("layer")
    (a,) = b.op("a", (b.source("x", 8),), (8,))
    b.op("wait", (a,), (8,), role=Role.WAIT, alias=True)
    error = refusal(b.build(), plain_order(b.build()))
    assert (error.message[:12], error.where) == ("collective: ", "layer.wait@forward")


def make_plan(graph: CostGraph, items: tuple[Item, ...], micro_batches: int = 2) -> Plan:
    index = GraphIndex(graph)
    predicted = predict(graph, items, micro_batches=micro_batches)
    classes = tuple(
        PlannedClass(digest=c.digest, name=c.name, layers=c.layers, ops=op_lines(index, c.layers[0]))
        for c in layer_classes(index, priced=True)
    )
    stage = StagePlan(layers=tuple(range(len(graph.layers))), classes=classes, program=compress(items, index))
    return Plan(
        algo="test", status="feasible", budget_text="auto", budget_bytes=predicted.peak_bytes, stages=(stage,),
        micro_batches=micro_batches, profile_digest=files.digest(graph), structure_digest=structure_digest(graph),
        model=graph.model, mesh=graph.mesh, predicted=predicted,
    )  # fmt: skip


PLAN = make_plan(GRAPH, LEGAL)
STAGE = PLAN.stages[0]
PROGRAM = STAGE.program


def with_stage(**fields: Any) -> Plan:
    return replace(PLAN, stages=(replace(STAGE, **fields),))


def with_program(**fields: Any) -> Plan:
    return with_stage(program=replace(PROGRAM, **fields))


def test_a_good_plan_passes_also_after_a_trip_through_its_file() -> None:
    check_plan(PLAN, GRAPH)
    check_plan(files.from_json_object(files.to_json_object(PLAN), "plan.json"), GRAPH)


BROKEN = [
    ("has 2 stages", "/stages", replace(PLAN, stages=(STAGE, STAGE))),
    ("has 0 stages", "/stages", replace(PLAN, stages=())),
    ("has 0 microbatches", "/micro_batches", replace(PLAN, micro_batches=0)),
    ("its layers are not", "/stages/0/layers", with_stage(layers=STAGE.layers[:-1])),
    ("its classes do not hold every layer", "/stages/0/classes", with_stage(classes=STAGE.classes[:-1])),
    (
        "its classes do not hold every layer",
        "/stages/0/classes",
        with_stage(classes=(*STAGE.classes[:-1], replace(STAGE.classes[-1], layers=(7,)))),
    ),
    (
        "matches no layers: head op 0: planned x",
        "/stages/0/classes/2",
        with_stage(classes=(*STAGE.classes[:-1], replace(STAGE.classes[-1], ops=("x",)))),
    ),
    ("once: runs twice", "embedding.embed@forward", with_program(prologue=(Run(template=0, layers=(0,)),))),
    ("'x' is not an item", "/program/templates/0", with_program(templates=("x", *PROGRAM.templates[1:]))),
    ("names template 99", "/program/steady/0", with_program(steady=(Run(template=99, layers=(0,)),))),
    ("reaches layer 4 of 4", "/program/steady/0", with_program(steady=(Run(template=0, layers=(4,)),))),
    ("once: never runs", "embedding.embed@forward", with_stage(program=Program(templates=()))),
    ("budget: peak memory", None, replace(PLAN, budget_bytes=1000)),
    ("prediction: step_ns is 5, simulated", "/predicted", replace(PLAN, predicted=replace(PLAN.predicted, step_ns=5))),
]


@pytest.mark.parametrize(("message", "where", "plan"), BROKEN, ids=[message for message, _, _ in BROKEN])
def test_each_broken_plan_is_an_answer_with_its_place(message: str, where: str | None, plan: Plan) -> None:
    with pytest.raises(AnswerNo) as caught:
        check_plan(plan, GRAPH)
    assert caught.value.message.startswith(message)
    assert where in (None, caught.value.where)
    assert caught.value.hint


def test_a_prediction_is_derived_again_only_for_the_same_costs() -> None:
    wrong = replace(PLAN, predicted=replace(PLAN.predicted, step_ns=5))
    dearer = replace(GRAPH, optimizer_ns=77)
    assert structure_digest(dearer) == structure_digest(GRAPH)
    check_plan(wrong, dearer)


def test_no_differences_where_only_costs_changed() -> None:
    assert differences(PLAN, replace(GRAPH, optimizer_ns=77, torch_version="9")) == ()


def stale(graph: CostGraph) -> tuple[str, ...]:
    with pytest.raises(AnswerNo, match="stale: the plan was made for another model") as caught:
        check_plan(PLAN, graph)
    found = differences(PLAN, graph)
    assert found
    assert found[0] in caught.value.message
    assert caught.value.hint
    return found


def test_a_stale_plan_lists_the_first_differing_op_of_each_class() -> None:
    found = stale(megatron_graph(2, Sizes(dropout=True, hidden=2 << 20)))
    assert [line.split(":")[0] for line in found] == ["embedding op 0", "layers.0 op 0", "head op 0"]
    assert "float32[262144]" in found[1]
    assert "; now aten.native_layer_norm forward compute (<0%0 float32[524288]" in found[1]


def test_a_stale_plan_lists_layers_and_parallelism() -> None:
    assert stale(megatron_graph(3, Sizes(dropout=True)))[0] == "layers: planned 4, now 5"
    assert stale(replace(GRAPH, mesh=(("tp", 4),))) == ("parallelism: planned tp 2, now tp 4",)
    assert stale(replace(GRAPH, outputs=()))[0].startswith("head op ")


def test_a_plan_whose_mesh_was_edited_is_stale() -> None:
    with pytest.raises(AnswerNo, match="planned tp 0, now tp 2"):
        check_plan(replace(PLAN, mesh=(("tp", 0),)), GRAPH)


def test_a_stale_plan_whose_ops_are_the_same_says_so() -> None:
    found = stale(replace(GRAPH, static=replace(GRAPH.static, parameters_bytes=1)))
    assert found == ("same ops, but wired differently between layers, or other parameters",)


def test_ops_that_moved_to_another_layer_are_listed() -> None:
    moved_ops = [op_named(GRAPH, f"layers.1.{name}") for name in ("w_ln1_accumulate", "add1_bw")]
    layers = list(GRAPH.layers)
    layers[2] = replace(layers[2], ops=tuple(op for op in layers[2].ops if op not in moved_ops))
    layers[3] = replace(layers[3], ops=tuple(sorted((*layers[3].ops, *moved_ops))))
    found = stale(replace(GRAPH, layers=tuple(layers)))
    line = "aten.add backward compute (>0, #29) -> (float32[262144] %36 1048576B"
    assert found[0] == f"layers.1 op 31: planned {line}); now {line} >b)"
    assert found[1] == "head: planned 11 ops, now 13"


def test_a_layer_with_more_ops_is_listed_by_their_number() -> None:
    fewer = replace(STAGE.classes[1], ops=STAGE.classes[1].ops[:-2])
    plan = with_stage(classes=(STAGE.classes[0], fewer, STAGE.classes[2]))
    found = differences(plan, replace(GRAPH, mesh=(("tp", 4),)))
    assert found[1] == "layers.0: planned 44 ops, now 46"


def test_a_plan_made_to_compare_with_may_be_over_its_budget_if_it_says_so() -> None:
    check_plan(replace(PLAN, budget_bytes=1000, status=OVER_BUDGET), GRAPH)
