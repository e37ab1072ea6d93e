"""A bound plan as a function: one call runs a step's forward and backward passes and accumulations in its order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from lynx_plan.analyze.steps import StepOrder
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import Role
from lynx_plan.torch_rt.attributes import state_of
from lynx_plan.torch_rt.bind import Bound
from lynx_plan.torch_rt.call_shape import call_of
from lynx_plan.torch_rt.dtensors import local
from lynx_plan.torch_rt.kept_runtime import Block
from lynx_plan.torch_rt.parts import parts_of
from lynx_plan.torch_rt.rewrite import PLAIN, Argument, Draft, Pass, rewrite

Clock = Callable[..., None]


class Executable:
    """The program of `bound`, compiled for the tensors of `model`; `rewrite.MARKED` passes for measuring.

    `main_gradients` (parameter name -> tensor) are written; frozen parameters have none. `order`: another order of the
    step than the plan's.
    """

    def __init__(
        self,
        bound: Bound,
        model: nn.Module,
        main_gradients: Mapping[str, torch.Tensor],
        *,
        passes: tuple[Pass, ...] = PLAIN,
        order: StepOrder | None = None,
    ) -> None:
        self.order = order or bound.order
        drafts = []
        self.pass_times: tuple[tuple[str, int], ...] = ()
        for part in parts_of(bound.captured.graph, self.order):
            draft, times = rewrite(bound.captured, part, passes)
            drafts.append(draft)
            self.pass_times += times
        self.codes = tuple(fx.GraphModule(bound.captured.joint, draft.graph) for draft in drafts)
        self._orders = tuple(tuple(draft.arguments) for draft in drafts)
        self._static = _static_arguments(drafts[0], model, main_gradients)
        self._inputs = _input_facts(drafts[0])
        self._shape, self._model = bound.captured.shape, model

    def __call__(self, microbatches: Sequence[Any], losses: torch.Tensor, *, clock: Clock | None = None) -> None:
        """Run a step with the module's arguments of each microbatch; `losses` [microbatches] is filled."""
        inputs = [self._checked(microbatch) for microbatch in microbatches]
        done = 0
        carried: list[torch.Tensor] = []
        for part, first in self.order.runs(len(microbatches)):
            values = {**self._static, Argument("first"): first == 0, Argument("clock"): clock, **inputs[first]}
            if first + 1 < len(inputs):
                values |= {Argument(a.kind, a.name, 1): tensor for a, tensor in inputs[first + 1].items()}
            values[Argument("carried")] = carried
            done, carried = self._run(part, values, losses, done)

    def _run(
        self, part: int, values: Mapping[Argument, Any], losses: torch.Tensor, done: int
    ) -> tuple[int, list[torch.Tensor]]:
        """Run a part; how many losses there are now, and what it carries on."""
        with torch.no_grad():
            outputs, carried = self.codes[part].forward(*[values[argument] for argument in self._orders[part]])
        if outputs:
            losses[done].copy_(outputs[0])
        return done + bool(outputs), carried

    def _checked(self, inputs: Any) -> dict[Argument, torch.Tensor]:
        """The microbatch's tensors by argument; LynxError where they are not like the example's."""
        tensors = self._shape.tensors_of(call_of(self._model, inputs))
        found = {}
        for argument, expected in self._inputs.items():
            tensor = tensors[int(argument.name)]
            if (facts := (tuple(tensor.shape), tensor.dtype)) != expected:
                raise LynxError(
                    f"tensor {argument.name} of a microbatch is {facts}; the plan is for {expected}",
                    hint="every microbatch has the example's shapes and dtypes; profile and plan again for others",
                )
            found[argument] = tensor
        return found

    def static_tensors(self) -> tuple[torch.Tensor, ...]:
        """Parameters, buffers, main gradients and tangents that calls read or write."""
        return tuple(value for value in self._static.values() if isinstance(value, torch.Tensor))


def main_gradients(bound: Bound, model: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors that gradients accumulate into, by parameter name: each `.grad`, made where there is none."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    found = {}
    for op in bound.captured.graph.ops:
        if op.role is Role.ACCUMULATE:
            parameter = parameters[op.parameter]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter, requires_grad=False)
            found[op.parameter] = local(parameter.grad)
    return found


def _static_arguments(
    draft: Draft, model: nn.Module, gradients: Mapping[str, torch.Tensor]
) -> dict[Argument, torch.Tensor]:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = state_of(model)
    made: dict[Argument, torch.Tensor] = {}
    for argument in draft.arguments:
        match argument.kind:
            case "parameter":
                made[argument] = local(parameters[argument.name].detach())
            case "buffer":
                made[argument] = buffers[argument.name]
            case "gradient":
                made[argument] = gradients[argument.name]
            case "block":
                made[argument] = _block(draft, model, int(argument.name))
    return made | _tangents(draft)


def _block(draft: Draft, model: nn.Module, number: int) -> Block:
    captured = draft.captured
    return Block(model.get_submodule(captured.graph.capture.kept_blocks[number].module), captured.kept[number])


def _input_facts(draft: Draft) -> dict[Argument, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of each tensor that a microbatch brings."""
    return {
        Argument(ref.kind, ref.name): (tuple(node.meta["val"].shape), node.meta["val"].dtype)
        for node, ref in draft.captured.input_nodes().items()
        if ref.kind == "input"
    }


def _tangents(draft: Draft) -> dict[Argument, torch.Tensor]:
    """Ones: the gradient of a loss with respect to itself."""
    tangents = {}
    for node, ref in draft.captured.input_nodes().items():
        if ref.kind == "tangent":
            like = node.meta["val"]
            tangents[Argument(ref.kind, ref.name)] = torch.ones(like.shape, dtype=like.dtype, device=like.device)
    return tangents
