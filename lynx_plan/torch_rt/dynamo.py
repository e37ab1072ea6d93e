"""The first front end: Dynamo reads the model's Python, then AOTAutograd traces forward and backward of what it read.

It takes models whose Python looks at masks or sizes in ways that plain tracing cannot follow, and knows the module
and source line of each op. It sees what the model computes, not its print or log calls.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, fx, nn

from lynx_plan.torch_rt import compat
from lynx_plan.torch_rt.dtensors import is_dtensor, unwrap
from lynx_plan.torch_rt.joint import JointStep, find_changes, parameter_name
from lynx_plan.torch_rt.lean_tracing import lean_tracing
from lynx_plan.torch_rt.regions import inline_regions, repeated_regions
from lynx_plan.torch_rt.source_notes import KEY, LOSS, Note, is_user_file

_SETTINGS = {
    "assume_static_by_default": True,
    "automatic_dynamic_shapes": False,
    "capture_scalar_outputs": True,
    "capture_dynamic_output_shape_ops": True,
    "specialize_int": True,
    "specialize_float": True,
    "allow_rnn": True,
    "inline_single_use_invoke_subgraph": False,
}
_FRAME = re.compile(r'^\s*File "(.+)", line (\d+)')
_KEYED = re.compile(r"""\[['"]?([^\]'"]+)['"]?\]""")


def trace(step: JointStep, tensors: tuple[Tensor, ...]) -> fx.GraphModule:
    """The joint graph, with `Note`s on its forward nodes. Raises whatever Dynamo or AOTAutograd raise."""
    with _settings() as said, ExitStack() as stack:
        graph = _read(step, tensors)
        mode = graph.meta["fake_mode"]
        stack.enter_context(compat.tracing(mode))
        mode.static_shapes = True  # of parameters and buffers too: only what ops make may have sizes that data decide
        fakes = tuple(mode.from_tensor(tensor) for tensor in tensors)
        if any("side effects" in str(warning.message) for warning in said):
            find_changes(step, mode, fakes)
        stack.enter_context(lean_tracing())
        joint = compat.aot_export_joint_with_descriptors(stack, graph, fakes).graph_module
    tag_backward(joint.graph)
    for node in joint.graph.nodes:
        if node.op == "call_function" and not compat.is_backward(node):
            node.meta[compat.NODE_NOTE] = {KEY: _note(node)}
    if any(map(is_dtensor, step.model.parameters())):
        unwrap(joint.graph)
    declare_unused(joint.graph, step.model)
    return joint


def _read(step: JointStep, tensors: tuple[Tensor, ...]) -> fx.GraphModule:
    """What Dynamo reads, repeated blocks once; each by itself where it cannot do that, with the same result."""
    try:
        with repeated_regions(step.model):
            graph = compat.dynamo_graph_capture(step)(*tensors)
    except Exception:  # of many kinds; if the regions are not at fault, it is raised again
        compat.dynamo_reset()
        return compat.dynamo_graph_capture(step)(*tensors)
    inline_regions(graph)
    return graph


@contextmanager
def _settings() -> Iterator[list[warnings.WarningMessage]]:
    """Dynamo as Lynx needs it: nothing of other captures, static shapes, log calls left out. Gives what it warns of."""
    compat.dynamo_reset()
    ignored = {logging.Logger.warning, logging.Logger.info, logging.Logger.debug, warnings.warn, *_once()}
    with (
        compat.dynamo_settings(**_SETTINGS, ignore_logging_functions=ignored),
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always")
        try:
            yield said
        finally:
            compat.dynamo_reset()


def _once() -> tuple[Callable[..., Any], ...]:
    """The log methods that Hugging Face's transformers add to the standard library's."""
    names = ("warning_once", "info_once", "warning_advice")
    return tuple(getattr(logging.Logger, name) for name in names if hasattr(logging.Logger, name))


def _note(node: fx.Node) -> Note:
    file, line = place(node.meta.get("stack_trace") or "")
    return Note(_module(node.meta.get("nn_module_stack") or {}), file, line)


def _module(stack: Mapping[str, tuple[str, Any]]) -> str:
    """The model's innermost module: `layers.3.mlp` of `L['self'].model.layers[3].mlp`."""
    paths = [_KEYED.sub(r".\1", path) for path, _ in stack.values()]
    inside = [match.group(1) for path in paths if (match := re.search(r"\.model(?:\.(.*))?$", path))]
    return (inside[-1] or "") if inside else LOSS


@lru_cache(4096)  # repeated blocks have the same
def place(trace: str) -> tuple[str, int]:
    """File and line of the innermost frame of the user's; of a model in a library, the innermost outside torch."""
    frames = [(match.group(1), int(match.group(2))) for text in trace.splitlines() if (match := _FRAME.match(text))]
    for own in (True, False):
        for file, line in reversed(frames):
            if is_user_file(file, libraries=not own):
                return file, line
    return "", 0


def tag_backward(graph: fx.Graph) -> None:
    """Tag every op from the first that the loss's gradient reaches: all of forward comes before all of backward.

    AOTAutograd's tags and sequence numbers leave out the backward of an autograd function that Dynamo has read:
    there an op gets the number of its module's last forward op.
    """
    begun, last = False, {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        begun = begun or compat.is_backward(node) or any(map(compat.is_backward, node.all_input_nodes))
        module = _module(node.meta.get("nn_module_stack") or {})
        if not begun:
            last[module] = compat.sequence_number(node)
        elif not compat.is_backward(node):
            compat.set_sequence_number(node, last.get(module))
        compat.tag(node, backward=begun)


def declare_unused(graph: fx.Graph, model: nn.Module) -> None:
    """Inputs for the parameters and buffers that the step never reads: they take memory all the same."""
    ends = [node for node in graph.nodes if node.op == "placeholder"]
    known = {parameter_name(getattr(node.meta["desc"], "target", "")) for node in ends}
    alike = {id(tensor) for name, tensor in named_tensors(model, keep=True) if name in known}
    first = next(iter(graph.nodes))
    for number, (name, tensor) in enumerate(named_tensors(model)):
        if name in known or id(tensor) in alike:
            continue
        kind = compat.ParamAOTInput if isinstance(tensor, nn.Parameter) else compat.BufferAOTInput
        with graph.inserting_before(first):
            node = graph.placeholder(f"unused_{number}")
        node.meta.update(val=_fake_like(tensor, ends), desc=kind(target=f"model.{name}"), partitioner_tag="is_forward")


def named_tensors(model: nn.Module, *, keep: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Parameters, then buffers; `keep`: also under their further names."""
    yield from model.named_parameters(remove_duplicate=not keep)
    yield from model.named_buffers(remove_duplicate=not keep)


def _fake_like(tensor: Tensor, inputs: list[fx.Node]) -> Tensor:
    mode = next(compat.fake_mode_of(node.meta["val"]) for node in inputs if isinstance(node.meta["val"], Tensor))
    with mode:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
