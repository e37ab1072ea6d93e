"""Trace a module and its loss into one forward and backward graph of ATen ops, and tidy that graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from lynx_plan.errors import LynxError
from lynx_plan.torch_rt import compat
from lynx_plan.torch_rt.attributes import assigned, counted, numbers_of, refuse_assigned, refuse_hidden, state_of
from lynx_plan.torch_rt.call_shape import CallShape
from lynx_plan.torch_rt.dtensors import is_dtensor, unwrap
from lynx_plan.torch_rt.effect_tokens import remove_tokens
from lynx_plan.torch_rt.lean_tracing import lean_tracing
from lynx_plan.torch_rt.model_file import place, scalar, user_code
from lynx_plan.torch_rt.refusals import refuse_unsupported
from lynx_plan.torch_rt.source_notes import LOSS, SourceNotes

MERGED = "lynx_merged"
_PREFIX = "model."  # of parameter names in the traced wrapper
_DATA_DEPENDENT = (
    compat.DataDependentOutputException,
    compat.DynamicOutputShapeException,
    torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode,
)


class JointStep(nn.Module):
    """What is traced: the loss of the model's output, as a function of the call's tensors alone."""

    def __init__(self, model: nn.Module, loss: Callable[[Any], Tensor], shape: CallShape, path: str) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.shape = shape
        self.path = path
        self.assigned: tuple[str, ...] = ()  # state that forward replaces by other tensors, as tracing finds it
        self.counted: tuple[str, ...] = ()  # numbers that forward changes

    def forward(self, *tensors: Tensor) -> Tensor:
        args, kwargs = self.shape.rebuild(tensors)
        return scalar(self.loss(self.model(*args, **kwargs)), self.path)


class _NotedStep(JointStep):
    """Notes where ops come from. Its forward's name marks the end of the user's frames for source notes."""

    def __init__(self, step: JointStep) -> None:
        super().__init__(step.model, step.loss, step.shape, step.path)
        self.notes = SourceNotes(step.model)

    def forward(self, *tensors: Tensor) -> Tensor:
        args, kwargs = self.shape.rebuild(tensors)
        before, numbers = state_of(self.model), numbers_of(self.model)
        with self.notes.active():
            output = self.model(*args, **kwargs)
            self.assigned, self.counted = assigned(before, self.model), counted(numbers, self.model)
            with self.notes.inside(LOSS):
                return scalar(self.loss(output), self.path)


def trace(step: JointStep, tensors: tuple[Tensor, ...]) -> fx.GraphModule:
    """The joint graph of a step, by tracing the model's Python as it runs on fake tensors. Nothing is computed.

    Raises LynxError at the model's line; its `module` is the path of the module that could not be traced.
    """
    noted = _NotedStep(step)
    try:
        with _messages(step), lean_tracing(), ExitStack() as stack:
            fakes = faked(tensors, step.model, stack)
            graph = compat.aot_export_joint_with_descriptors(stack, noted, fakes).graph_module
        step.assigned, step.counted = noted.assigned, noted.counted
        return graph
    except LynxError as error:
        error.module = noted.notes.modules[-1]
        raise


def tidy(joint: fx.GraphModule, step: JointStep) -> None:
    """What every front end's graph goes through before it is read."""
    if not any(compat.is_backward(node) for node in joint.graph.nodes):
        hint = "check requires_grad, and that the loss is computed from the model's output"
        text = "the loss does not depend on any parameter that requires a gradient"
        raise LynxError(text, where=step.path, hint=hint)
    refuse_unsupported(joint, step.path)
    refuse_assigned(tuple(name for name in step.assigned if name in _read(joint.graph)), step.path)
    remove_tokens(joint.graph)
    if any(map(is_dtensor, step.model.parameters())):
        unwrap(joint.graph)
    merge_waits(joint.graph)
    merge_getitems(joint.graph)
    sum_tied_gradients(joint.graph, step.model)
    joint.recompile()


def faked(tensors: tuple[Tensor, ...], model: nn.Module, stack: ExitStack) -> tuple[Tensor, ...]:
    """The tensors as fake ones of fixed sizes, in a mode that makes symbols of sizes that depend on data."""
    if any(isinstance(each, compat.FakeTensor) for each in (*tensors, *model.parameters())):
        return tensors
    mode = compat.symbolic_mode()
    stack.enter_context(compat.tracing(mode))
    return tuple(mode.from_tensor(tensor, static_shapes=True) for tensor in tensors)


def find_changes(step: JointStep, mode: Any, tensors: tuple[Tensor, ...]) -> None:
    """Note in the step what forward replaces and changes, by running it once on fake tensors of this mode.

    Nothing where that fails: a model that only Dynamo can read.
    """
    noted = _NotedStep(step)
    state = {**dict(noted.named_parameters()), **dict(noted.named_buffers())}
    try:
        with mode, compat.forgotten_symbols(mode), torch.no_grad():
            fakes = {name: mode.from_tensor(tensor) for name, tensor in state.items()}
            torch.func.functional_call(noted, fakes, tensors)
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError, AssertionError, LynxError):
        return
    step.assigned, step.counted = noted.assigned, noted.counted


def _read(graph: fx.Graph) -> set[str]:
    """Parameters and buffers that the step reads."""
    ends = [node for node in graph.nodes if node.op == "placeholder" and node.users]
    return {parameter_name(getattr(node.meta["desc"], "target", "")) for node in ends}


@contextmanager
def _messages(step: JointStep) -> Iterator[None]:
    path = step.path
    try:
        with user_code(path, "tracing the model's forward and backward"):
            yield
    except LynxError as error:
        cause = error.__cause__
        if isinstance(cause, AssertionError) and "fake" in str(cause).lower():
            refuse_hidden(step.model, error.where)
        if isinstance(cause, _DATA_DEPENDENT):
            hint = "sizes and branches must not depend on the values of tensors; avoid .item(), nonzero() and the like"
            where = place(cause, path)
            raise LynxError("the model's graph depends on its data", where=where, hint=hint) from cause
        raise


def merge_waits(graph: fx.Graph) -> None:
    """A wait on a wait does nothing: the functional layer waits while it is traced, then the model waits.

    The remaining wait keeps the fake values of those that it replaces, because later views share their storage.
    """
    for node in list(graph.nodes):
        if node.target is compat.WAIT and node.args[0].target is compat.WAIT:
            first = node.args[0]
            first.meta[MERGED] = (*merged_values(first), *merged_values(node), node.meta["val"])
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def merged_values(wait: fx.Node) -> tuple[Tensor, ...]:
    """Fake values of the waits that this one replaces."""
    return wait.meta.get(MERGED, ())


def merge_getitems(graph: fx.Graph) -> None:
    """One node for each output of an op."""
    seen: dict[tuple[fx.Node, Any], fx.Node] = {}
    for node in list(graph.nodes):
        if node.target is operator.getitem:
            first = seen.setdefault(node.args, node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph.erase_node(node)


def sum_tied_gradients(graph: fx.Graph, model: nn.Module) -> None:
    """A parameter with several names gets one gradient, summed as autograd does, under its first name."""
    first_name: dict[nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first_name.setdefault(parameter, name)
    known = dict(model.named_parameters(remove_duplicate=False))
    position = {node: i for i, node in enumerate(graph.nodes)}
    end = next(iter(reversed(graph.nodes)))
    results = list(end.args[0])
    ports: dict[str, list[int]] = {}
    for port, descriptor in enumerate(end.meta["desc"]):
        of = getattr(descriptor, "grad_of", None)
        if isinstance(of, compat.ParamAOTInput) and results[port] is not None:
            ports.setdefault(first_name[known[parameter_name(of.target)]], []).append(port)
    for tied in ports.values():
        gradients = sorted((results[port] for port in tied), key=position.__getitem__)
        for port in tied:
            results[port] = None
        results[tied[0]] = _sum(graph, gradients)
    end.args = (tuple(results),)


def _sum(graph: fx.Graph, gradients: list[fx.Node]) -> fx.Node:
    total = gradients[0]
    for gradient in gradients[1:]:
        with graph.inserting_after(gradient):
            node = graph.call_function(torch.ops.aten.add.Tensor, (total, gradient))
        with compat.fake_mode_of(gradient.meta["val"]):
            node.meta["val"] = total.meta["val"] + gradient.meta["val"]
        compat.mark_gradient_sum(node)
        total = node
    return total


def parameter_name(target: str) -> str:
    """A parameter's or buffer's name in the model, from its name in the traced wrapper."""
    return target.removeprefix(_PREFIX)
