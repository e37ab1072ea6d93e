"""The front ends, tried in this order: Dynamo, plain joint export, and either with untraceable blocks kept whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from lynx_plan.errors import LynxError
from lynx_plan.model.capture import CaptureSpec, KeptBlock
from lynx_plan.torch_rt import compat, dynamo, joint
from lynx_plan.torch_rt.attributes import attributes_as_buffers, count_notes
from lynx_plan.torch_rt.call_shape import CallShape
from lynx_plan.torch_rt.joint import JointStep, tidy
from lynx_plan.torch_rt.kept_block import kept_whole
from lynx_plan.torch_rt.kept_facts import KeptFacts
from lynx_plan.torch_rt.layers import block_of
from lynx_plan.torch_rt.native_ops import native_kernels
from lynx_plan.torch_rt.source_notes import display_path
from lynx_plan.units import format_bytes

Trace = Callable[[JointStep, tuple[Tensor, ...]], fx.GraphModule]
FRONT_ENDS: dict[str, Trace] = {"dynamo": dynamo.trace, "joint": joint.trace}
NAMES = {"dynamo": "Dynamo capture, then joint export", "joint": "joint export"}
_REASON = 160  # characters of a front end's error that are shown


@dataclass(frozen=True)
class Traced:
    """A joint graph, the choices that led to it, and what the user should know of them."""

    joint: fx.GraphModule
    capture: CaptureSpec
    notes: tuple[str, ...]
    kept: tuple[KeptFacts, ...] = ()  # of `capture.kept_blocks`


def trace_step(
    model: nn.Module,
    shape: CallShape,
    tensors: tuple[Tensor, ...],
    loss: Callable[[Any], Tensor],
    path: str,
    *,
    capture: CaptureSpec | None = None,
    strict: bool = False,
) -> Traced:
    """Trace `loss(model(...))` by the first front end that can; with `capture`, as it says and not otherwise.

    Where none can, the block that cannot be traced is kept whole, and all is tried again; with `strict` that is an
    error. `path` is the model file, for messages. Only kept blocks are run. Raises LynxError at the model's line.
    """
    step = JointStep(model, loss, shape, path)
    plain = tuple(tensor.detach() for tensor in tensors)
    if capture is not None:
        return _again(capture, step, plain)
    blocks: tuple[KeptBlock, ...] = ()
    while True:
        try:
            return _first_that_can(step, plain, blocks)
        except LynxError as error:
            found = _untraceable(error, model)
            if strict or found is None or found.module in [block.module for block in blocks]:
                raise
            blocks = (*blocks, found)


def _first_that_can(step: JointStep, tensors: tuple[Tensor, ...], blocks: tuple[KeptBlock, ...]) -> Traced:
    try:
        return _trace(CaptureSpec(front_end="dynamo", kept_blocks=blocks), step, tensors)
    except Exception as error:
        reason = f", since Dynamo cannot read the model: {short(error)} ({where(error, step.path)})"
    return _trace(CaptureSpec(front_end="joint", kept_blocks=blocks), step, tensors, reason)


def _untraceable(error: LynxError, model: nn.Module) -> KeptBlock | None:
    """The repeated block (else the innermost module) in which plain tracing failed; None outside of the model."""
    module = getattr(error, "module", "")
    if error.__cause__ is None or module not in dict(model.named_modules()) or not module:
        return None
    return KeptBlock(module=block_of(module) or module, source=error.where, reason=error.message)


def _trace(capture: CaptureSpec, step: JointStep, tensors: tuple[Tensor, ...], reason: str = "") -> Traced:
    paths = [block.module for block in capture.kept_blocks]
    with kept_whole(step.model, paths) as facts:
        graph = _run(FRONT_ENDS[capture.front_end], step, tensors)
    notes = [f"traced by {NAMES[capture.front_end]}{reason}", *count_notes(step.counted)]
    for number, block in enumerate(capture.kept_blocks):
        size = format_bytes(facts[number].saved_bytes)
        notes.append(f"warning: {block.module} is kept whole and never recomputed ({size} saved, measured), since")
        notes[-1] += f" {block.source}: {block.reason}"
    return Traced(graph, capture, tuple(notes), tuple(facts[number] for number in range(len(paths))))


def _again(capture: CaptureSpec, step: JointStep, tensors: tuple[Tensor, ...]) -> Traced:
    """As it was traced when the plan was made."""
    try:
        return _trace(capture, step, tensors)
    except LynxError:
        raise
    except Exception as error:
        _run(joint.trace, step, tensors)  # says it better where the model itself is wrong
        raise LynxError(
            f"{NAMES[capture.front_end]} traced the model for the plan, and cannot now: {short(error)}",
            where=where(error, step.path),
            hint="profile and plan again: lynx profile, then lynx plan",
        ) from error


def where(error: BaseException, path: str) -> str:
    """`file:line` of the user's code that an error of Dynamo's names; the model file if it names none."""
    file, line = dynamo.place(str(error))
    return f"{display_path(file, path)}:{line}" if file else path


def short(error: BaseException) -> str:
    """The first line of an error, without what differs from run to run."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return re.sub(r"0x[0-9a-f]+|/\S*/", "", first)[:_REASON]


def _run(trace: Trace, step: JointStep, tensors: tuple[Tensor, ...]) -> fx.GraphModule:
    with ExitStack() as stack:
        buffers = attributes_as_buffers(step.model, step.path)
        for context in (compat.lazy_graph_modules(), native_kernels(), torch.enable_grad(), buffers):
            stack.enter_context(context)
        graph = trace(step, tensors)
        tidy(graph, step)
    return graph
