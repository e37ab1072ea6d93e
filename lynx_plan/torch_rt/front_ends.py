"""The front ends, tried in this order: Dynamo, plain joint export, and either with untraceable blocks kept whole."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from lynx_plan.errors import LynxError
from lynx_plan.model.capture import CaptureSpec
from lynx_plan.torch_rt import dynamo, joint
from lynx_plan.torch_rt.call_shape import CallShape
from lynx_plan.torch_rt.joint import JointStep, tidy
from lynx_plan.torch_rt.native_ops import native_kernels
from lynx_plan.torch_rt.source_notes import display_path

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


def trace_step(
    model: nn.Module,
    shape: CallShape,
    tensors: tuple[Tensor, ...],
    loss: Callable[[Any], Tensor],
    path: str,
    *,
    capture: CaptureSpec | None = None,
) -> Traced:
    """Trace `loss(model(...))` by the first front end that can; with `capture`, by its front end and no other.

    `path` is the model file, for messages. Nothing is computed. Raises LynxError at the model's line.
    """
    step = JointStep(model, loss, shape, path)
    plain = tuple(tensor.detach() for tensor in tensors)
    if capture is not None:
        return Traced(_again(capture, step, plain), capture, (_said(capture.front_end),))
    try:
        return Traced(_run(dynamo.trace, step, plain), CaptureSpec(front_end="dynamo"), (_said("dynamo"),))
    except Exception as error:
        reason = f"{short(error)} ({where(error, path)})"
    traced = _run(joint.trace, step, plain)
    note = f"{_said('joint')}, since Dynamo cannot read the model: {reason}"
    return Traced(traced, CaptureSpec(front_end="joint"), (note,))


def _again(capture: CaptureSpec, step: JointStep, tensors: tuple[Tensor, ...]) -> fx.GraphModule:
    """As it was traced when the plan was made."""
    try:
        return _run(FRONT_ENDS[capture.front_end], step, tensors)
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


def _said(front_end: str) -> str:
    return f"traced by {NAMES[front_end]}"


def _run(trace: Trace, step: JointStep, tensors: tuple[Tensor, ...]) -> fx.GraphModule:
    with ExitStack() as stack:
        for context in (_collector_paused(), native_kernels(), torch.enable_grad()):
            stack.enter_context(context)
        graph = trace(step, tensors)
        tidy(graph, step)
    return graph


@contextmanager
def _collector_paused() -> Iterator[None]:
    # Tracing makes millions of small objects and hardly a cycle: looking for cycles is a seventh of its time.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
