"""Rewritten graphs: any legal order gives eager's gradients bit for bit, and the memory that was predicted."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from lynx_plan.analyze.flow import resolve
from lynx_plan.analyze.steps import StepOrder
from lynx_plan.check import check_order
from lynx_plan.model.program import Item
from lynx_plan.simulate.memory import memory_curve
from lynx_plan.torch_rt.bind import Bound, bind
from lynx_plan.torch_rt.capture import Captured
from lynx_plan.torch_rt.eager import eager_gradients
from lynx_plan.torch_rt.live_bytes import LiveBytes
from lynx_plan.torch_rt.model_file import plain_loss
from lynx_plan.torch_rt.parts import parts_of
from lynx_plan.torch_rt.rewrite import MARKED, PLAIN, rewrite
from lynx_plan.torch_rt.step import Step
from lynx_plan.torch_rt.verify import first_difference
from tests.torch_cpu.gpt_case import capture_real, load_gpt, randomise
from tests.torch_cpu.models import Convolution, Tied, Views, capture
from tests.torch_cpu.plans import Order, keep_all, plan_of, recompute_all
from tests.unit.random_orders import random_order


@pytest.fixture(scope="module")
def gpt() -> tuple[nn.Module, Captured, list[tuple[torch.Tensor, ...]]]:
    spec, file = load_gpt()
    model = file.build(None)
    randomise(model)
    return model, capture_real(file, spec, model, None), [file.batch(0, number, 0) for number in range(3)]


def differs(model: nn.Module, captured: Captured, items: Order, batches: list[tuple[torch.Tensor, ...]]) -> str:
    """The first parameter whose gradient is not eager's."""
    check_order(captured.graph, items, budget_bytes=None)
    torch.manual_seed(1)
    expected = eager_gradients(model, plain_loss, batches)
    torch.manual_seed(1)
    step = Step.of(model, bind(captured, plan_of(captured.graph, items), None))
    step(batches)
    return first_difference(expected, {name: p.grad for name, p in model.named_parameters() if p.grad is not None})


def curves(model: nn.Module, bound: Bound, batches: list[tuple[torch.Tensor, ...]]) -> tuple[list[int], list[int]]:
    """Activation bytes per position, predicted (for each microbatch) and counted."""
    step = Step.of(model, bound)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    inputs = [tensor for args in batches for tensor in args]
    static = [*model.parameters(), *model.buffers(), *gradients, *inputs, *step.prepare(len(batches), marked=True)]
    counted: list[int] = []
    with LiveBytes(static) as live:
        step(batches, clock=lambda: counted.append(live.take_recent_peak()))
    width = len(bound.items) + 1
    per_item = [each for start in range(0, len(counted), width) for each in counted[start + 1 : start + width]]
    predicted = memory_curve(bound.captured.graph, bound.items, bound.flow).bytes
    return list(predicted) * len(batches), per_item


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("order", [keep_all, recompute_all])
def test_gpt_gradients_and_memory(gpt, order, microbatches):
    model, captured, batches = gpt
    items = order(captured.graph)
    assert differs(model, captured, items, batches[:microbatches]) == ""
    predicted, counted = curves(model, bind(captured, plan_of(captured.graph, items), None), batches[:microbatches])
    assert counted == predicted


def test_recomputing_everything_needs_less_memory(gpt):
    _, captured, _ = gpt
    graph = captured.graph
    peaks = [memory_curve(graph, o, resolve(graph, o)).peak_bytes for o in (keep_all(graph), recompute_all(graph))]
    assert peaks[1] < 0.7 * peaks[0]


@pytest.mark.parametrize("seed", range(4))
def test_random_legal_orders(gpt, seed):
    model, captured, batches = gpt
    items = random_order(captured.graph, random.Random(seed))
    assert any(item.replica > 1 for item in items)
    assert differs(model, captured, items, batches[:2]) == ""
    predicted, counted = curves(model, bind(captured, plan_of(captured.graph, items), None), batches[:2])
    assert counted == predicted


@pytest.mark.parametrize(
    ("model", "shape"), [(Convolution(), (4, 3, 6, 6)), (Views(), (8, 8))], ids=["convolution", "views"]
)
def test_other_models(model, shape):
    batches = [(torch.randn(shape, generator=torch.Generator().manual_seed(number)),) for number in range(2)]
    captured = capture(model, *batches[0])
    buffers = [buffer.clone() for buffer in model.buffers()]
    for items in (keep_all(captured.graph), random_order(captured.graph, random.Random(0))):
        with torch.no_grad():  # the running statistics play no part in the gradients, but let both start alike
            for buffer, value in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(value)
        assert differs(model, captured, items, batches) == ""


def test_tied_weights_accumulate_as_autograd_does():
    model = Tied()
    batches = [(torch.randint(10, (2, 3), generator=torch.Generator().manual_seed(n)),) for n in range(3)]
    captured = capture(model, *batches[0])
    assert differs(model, captured, keep_all(captured.graph), batches) == ""


def test_buffers_are_updated():
    model, reference = Convolution(), Convolution()
    reference.load_state_dict(model.state_dict())
    x = torch.randn(4, 3, 6, 6)
    captured = capture(model, x)
    Step.of(model, bind(captured, plan_of(captured.graph, keep_all(captured.graph)), None))([(x,), (x,)])
    for _ in range(2):
        reference(x)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, dict(reference.named_buffers())[name]), name
    assert model.norm.num_batches_tracked == 2


def test_a_wrong_order_of_accumulation_would_be_seen(gpt):
    model, captured, batches = gpt
    step = Step.of(model, bind(captured, plan_of(captured.graph, keep_all(captured.graph)), None))
    step(batches[::-1])
    found = {name: p.grad for name, p in model.named_parameters()}
    assert first_difference(eager_gradients(model, plain_loss, batches), found) != ""


def test_passes_are_listed_and_timed(gpt):
    _, captured, _ = gpt
    (part,) = parts_of(captured.graph, StepOrder(steady=keep_all(captured.graph)))
    draft, times = rewrite(captured, part, MARKED)
    assert [name for name, _ in times] == ["declare_arguments", "place_items", "return_outputs", "mark_items"]
    assert len(draft.begins) == len(part.items)
    plain, _ = rewrite(captured, part, PLAIN)
    assert len(draft.graph.nodes) == len(plain.graph.nodes) + len(part.items) + 1


def test_copies_are_named_after_what_they_recompute(gpt):
    _, captured, _ = gpt
    items = recompute_all(captured.graph)
    (part,) = parts_of(captured.graph, StepOrder(steady=tuple(items)))
    draft, _ = rewrite(captured, part, PLAIN)
    names = [node.name for node in draft.begins]
    gelu = next(op for op in captured.graph.ops if op.kind == "aten.gelu")
    assert names[items.index(Item(gelu.id, 1))] == f"{captured.nodes[gelu.id].name}_r1"
