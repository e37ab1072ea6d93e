"""RMSNorm as a GPU runs it: one op that keeps its statistics, where the CPU's is made of many.

The CPU has no kernel of `aten._fused_rms_norm`, so tracing there takes it apart. These ops stand for it and for its
backward in a traced graph, which never runs: shapes and dtypes alone, as on the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

NAMESPACE = "lynx_target"
_library = torch.library.Library(NAMESPACE, "DEF")
_library.define("_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)")
_library.define(
    "_fused_rms_norm_backward(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor rstd, Tensor? weight, "
    "bool[2] output_mask) -> (Tensor, Tensor?)"
)


def rms_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None):
    """What replaces `aten.rms_norm` while tracing for a GPU."""
    if weight is not None and weight.dtype != input.dtype:  # the GPU takes it apart, too
        upcast = input.float()
        scale = torch.rsqrt(upcast.pow(2).mean(_dims(normalized_shape), keepdim=True) + _eps(input, eps))
        return (upcast * scale).to(input.dtype) * weight
    return _RMSNorm.apply(input, tuple(normalized_shape), weight, eps)


class _RMSNorm(torch.autograd.Function):
    """Saves the input, the weight and the statistics."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, shape: tuple[int, ...], weight: Tensor | None, eps: float | None) -> Tensor:
        result, rstd = torch.ops.lynx_target._fused_rms_norm(input.contiguous(), shape, weight, eps)
        ctx.save_for_backward(input, rstd, weight)
        ctx.shape = shape
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        input, rstd, weight = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], weight is not None and ctx.needs_input_grad[2]]
        of_input, of_weight = torch.ops.lynx_target._fused_rms_norm_backward(
            gradient.contiguous(), input, ctx.shape, rstd, weight, wanted
        )
        return (of_input if wanted[0] else None), None, (of_weight if wanted[1] else None), None


def _forward(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None):
    rows = (*input.shape[: input.dim() - len(normalized_shape)], *(1 for _ in normalized_shape))
    full = torch.float64 if input.dtype == torch.float64 else torch.float32
    return torch.empty_like(input), input.new_empty(rows, dtype=full)


def _backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Sequence[bool],
):
    return torch.empty_like(input), torch.empty_like(weight) if weight is not None and output_mask[1] else None


def _dims(normalized_shape: Sequence[int]) -> list[int]:
    return list(range(-len(normalized_shape), 0))


def _eps(input: Tensor, eps: float | None) -> float:
    return torch.finfo(input.dtype).eps if eps is None else eps


for _name, _function in (("_fused_rms_norm", _forward), ("_fused_rms_norm_backward", _backward)):
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _function, lib=_library)
    _library.impl(_name, _function, "CompositeExplicitAutograd")
