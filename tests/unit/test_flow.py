"""Flow: which copy is read, and how long storages live; against a slow independent derivation on random orders."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from lynx_plan.analyze.flow import READS_UNTIL_WAIT, resolve
from lynx_plan.errors import AnswerNo
from lynx_plan.model.graph import CostGraph, Role, StorageKind
from lynx_plan.model.program import Item
from lynx_plan.simulate.memory import memory_curve
from tests.unit.builders import chain_graph, megatron_graph, op_named, plain_order
from tests.unit.random_orders import random_graph, random_order


def lifetimes(graph: CostGraph, items: tuple[Item, ...], op: int) -> list[tuple[int, int]]:
    """Start and end of the instances of an op's first output's storage."""
    storage = graph.tensors[graph.ops[op].outputs[0]].storage
    return [(life.start, life.end) for life in resolve(graph, items).lifetimes if life.storage == storage]


def test_chain_sources_and_lifetimes() -> None:
    graph = chain_graph(3)  # f0 f1 f2 b2 b1 b0 accumulate
    flow = resolve(graph, plain_order(graph))
    assert flow.sources == ((-1,), (0,), (1,), (2, 1), (3, 0), (4, -1), (5,))
    spans = [(life.start, life.end) for life in flow.lifetimes]
    assert spans == [(0, 4), (1, 3), (2, 6), (3, 4), (4, 5), (5, 6)]  # f2 makes the loss, which lives to the end


def test_a_reader_reads_the_latest_copy_and_the_original_dies_at_its_own_last_use() -> None:
    graph = chain_graph(3)
    items = (*map(Item, range(4)), Item(0, 1), *map(Item, range(4, 7)))
    flow = resolve(graph, items)
    assert flow.sources[5] == (3, 4)
    assert lifetimes(graph, items, 0) == [(0, 1), (4, 5)]


def test_views_and_waits_keep_their_storage_alive() -> None:
    graph = megatron_graph(1)
    items = plain_order(graph)
    qkv, attention_bw = op_named(graph, "layers.0.qkv"), op_named(graph, "layers.0.attention_bw")
    assert lifetimes(graph, items, qkv) == [(qkv, attention_bw)]
    reduce, add = op_named(graph, "layers.0.reduce1"), op_named(graph, "layers.0.add1")
    assert lifetimes(graph, items, reduce) == [(reduce, add)]


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast", *READS_UNTIL_WAIT])
def test_what_a_collective_reads_lives_until_its_wait_unless_it_copies(kind: str) -> None:
    graph = megatron_graph(1)
    project, reduce = op_named(graph, "layers.0.proj"), op_named(graph, "layers.0.reduce1")
    ops = tuple(replace(op, kind=kind) if op.id == reduce else op for op in graph.ops)
    wait = next(op.id for op in ops if op.role is Role.WAIT and op.inputs == ops[reduce].outputs)
    order = (*map(Item, range(reduce + 1)), Item(0, 1), *map(Item, range(reduce + 1, len(ops))))
    end = wait + 1 if kind in READS_UNTIL_WAIT else reduce  # the copy of op 0 runs in between
    assert lifetimes(replace(graph, ops=ops), order, project) == [(project, end)]


def test_a_value_recomputed_without_its_view_is_not_what_the_reader_reads() -> None:
    graph = megatron_graph(1)
    items = list(plain_order(graph))
    qkv, attention_bw = op_named(graph, "layers.0.qkv"), op_named(graph, "layers.0.attention_bw")
    items.insert(items.index(Item(attention_bw)), Item(qkv, 1))
    spans = lifetimes(graph, tuple(items), qkv)
    assert spans == [(qkv, attention_bw + 1), (attention_bw, attention_bw)]


def test_microbatches_do_not_mix() -> None:
    graph = chain_graph(2)  # f0 f1 b1 b0 accumulate
    items = tuple(Item(op, 0, microbatch) for op in range(5) for microbatch in (0, 1))
    flow = resolve(graph, items)
    assert flow.sources[2:4] == ((0,), (1,))
    assert flow.sources[4:6] == ((2, 0), (3, 1))
    assert [life.end for life in flow.lifetimes if life.storage == 2] == [9, 9]  # both losses live to the end


def test_parameters_and_inputs_have_no_lifetime() -> None:
    graph = megatron_graph(2)
    for life in resolve(graph, plain_order(graph)).lifetimes:
        assert graph.storages[life.storage].kind is StorageKind.ACTIVATION


def test_an_input_that_is_not_there_yet_is_an_answer() -> None:
    graph = chain_graph(3)
    with pytest.raises(AnswerNo, match="'f1' at position 0 reads 'f0' before 'f0' has run") as caught:
        resolve(graph, (Item(1), Item(0)))
    assert caught.value.where == "1"
    with pytest.raises(AnswerNo, match="cannot run twice"):
        resolve(graph, (*plain_order(graph), Item(6, 1)))


@pytest.mark.parametrize("seed", range(30))
def test_memory_of_random_orders_equals_a_slow_derivation(seed: int) -> None:
    graph = random_graph(seed)
    items = random_order(graph, random.Random(seed))
    flow = resolve(graph, items)
    assert memory_curve(graph, items, flow).bytes == slow_curve(graph, items)


def slow_curve(graph: CostGraph, items: tuple[Item, ...]) -> tuple[int, ...]:
    """Bytes alive by walking back from every read to the item that allocated what it reads."""
    last: dict[tuple[int, int], int] = {}  # (allocating position, storage) -> last use

    def producer_position(tensor: int, before: int) -> int:
        return max((p for p in range(before) if items[p].op == graph.tensors[tensor].producer), default=-1)

    def allocation(tensor: int, position: int) -> int:
        """Where the value that `position` made was allocated."""
        storage = graph.tensors[tensor].storage
        for needed in graph.ops[items[position].op].inputs:
            if graph.tensors[needed].storage == storage:
                source = producer_position(needed, position)
                return allocation(needed, source) if source >= 0 else -1
        return position

    def use(tensor: int, made_at: int, used_at: int) -> None:
        storage = graph.tensors[tensor].storage
        if made_at >= 0 and graph.storages[storage].kind is StorageKind.ACTIVATION:
            key = (allocation(tensor, made_at), storage)
            last[key] = max(last.get(key, 0), used_at)

    for position, item in enumerate(items):
        for tensor in graph.ops[item.op].inputs:
            use(tensor, producer_position(tensor, position), position)
        for tensor in graph.ops[item.op].outputs:
            use(tensor, position, position)
    for tensor in graph.outputs:
        use(tensor, producer_position(tensor, len(items)), len(items) - 1)
    return tuple(
        sum(graph.storages[storage].bytes for (start, storage), end in last.items() if start <= position <= end)
        for position in range(len(items))
    )
