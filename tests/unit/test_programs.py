"""Programs: expanding undoes compressing for any order; repeated layers share templates; misfits are refused."""

from __future__ import annotations

import random

import pytest

from lynx_plan import files
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.programs import compress, expand
from lynx_plan.errors import AnswerNo
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.program import Item, Program, Run
from tests.unit.builders import chain_graph, megatron_graph, op_named, plain_order
from tests.unit.random_orders import random_graph, random_order


def recompute_gelu_early(graph: CostGraph, layers: int) -> tuple[Item, ...]:
    """Every layer's gelu recomputed in the layer above's backward (the head's for the last)."""
    items = list(plain_order(graph))
    for i in range(layers):
        above = f"layers.{i + 1}.qkv_wgrad" if i + 1 < layers else "head.logits_wgrad"
        items.insert(items.index(Item(op_named(graph, above))), Item(op_named(graph, f"layers.{i}.gelu"), 1))
    return tuple(items)


@pytest.mark.parametrize("seed", range(20))
def test_expand_undoes_compress_for_legal_orders(seed: int) -> None:
    graph = random_graph(seed)
    items = random_order(graph, random.Random(seed))
    assert expand(compress(items, GraphIndex(graph)), graph.layers) == items


@pytest.mark.parametrize("seed", range(20))
def test_expand_undoes_compress_for_any_items(seed: int) -> None:
    rng = random.Random(seed)
    graph = megatron_graph(rng.randrange(1, 6))
    items = [Item(op.id, replica, microbatch) for op in graph.ops for replica in (0, 1, 2) for microbatch in (0, 1)]
    items = rng.sample(items, rng.randrange(len(items)))
    assert expand(compress(items, GraphIndex(graph)), graph.layers) == tuple(items)


def test_repeated_layers_write_their_template_once() -> None:
    graph = megatron_graph(44)
    program = compress(plain_order(graph), GraphIndex(graph))
    assert len(program.templates) == 6  # forward and backward of embedding, layer, head
    assert [run.layers for run in program.steady] == [
        (0,), tuple(range(1, 45)), (45,), (45,), tuple(range(44, 0, -1)), (0,),
    ]  # fmt: skip


def test_recomputation_in_another_layers_window_stays_small() -> None:
    graph = megatron_graph(44)
    items = recompute_gelu_early(graph, 44)
    program = compress(items, GraphIndex(graph))
    assert expand(program, graph.layers) == items
    assert len(program.templates) == 7  # the first layer's backward recomputes nothing of a layer below
    assert any("-1.12r1" in template.split() for template in program.templates)
    assert len(files.adapter(Program).dump_json(program)) < 2000


def test_a_policy_for_every_other_layer_needs_two_backward_templates() -> None:
    graph = megatron_graph(6)
    items = list(plain_order(graph))
    for i in (1, 3, 5):
        reader, gelu = op_named(graph, f"layers.{i}.down_wgrad"), op_named(graph, f"layers.{i}.gelu")
        items.insert(items.index(Item(reader)), Item(gelu, 1))
    program = compress(items, GraphIndex(graph))
    assert expand(program, graph.layers) == tuple(items)
    assert len(program.templates) == 7


def test_parts_are_separate() -> None:
    graph = chain_graph(2)
    prologue, steady = (Run(template=0, layers=(0, 1)),), (Run(template=1, layers=(1,)),)
    program = Program(templates=("0", "1"), prologue=prologue, steady=steady)
    assert expand(program, graph.layers, "prologue") == (Item(0), Item(1))
    assert expand(program, graph.layers) == (Item(2),)
    assert expand(program, graph.layers, "epilogue") == ()


@pytest.mark.parametrize(
    ("template", "run", "message"),
    [
        ("0", Run(template=1, layers=(0,)), "names template 1 of 1"),
        ("0", Run(template=-1, layers=(0,)), "names template -1 of 1"),
        ("0", Run(template=0, layers=(2,)), "reaches layer 2 of 2"),
        ("-1.0", Run(template=0, layers=(0,)), "reaches layer -1 of 2"),
        ("0 9", Run(template=0, layers=(1,)), "names op 9 of layer 'layers.1', which has 2"),
        ("0 zero", Run(template=0, layers=(0,)), "'zero' is not an item"),
    ],
)
def test_a_program_that_does_not_fit_is_an_answer(template: str, run: Run, message: str) -> None:
    graph = chain_graph(2)
    with pytest.raises(AnswerNo, match=message) as caught:
        expand(Program(templates=(template,), steady=(run,)), graph.layers)
    assert caught.value.where.startswith("/program/")
    assert caught.value.hint
