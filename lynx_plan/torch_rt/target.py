"""Trace on the CPU for another device: its attention backend, norms, autocast, and the dtypes of its results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx

from lynx_plan.errors import LynxError
from lynx_plan.model.machine import Machine
from lynx_plan.torch_rt import compat
from lynx_plan.torch_rt.target_autocast import gpu_autocast
from lynx_plan.torch_rt.target_norm import rms_norm
from lynx_plan.torch_rt.work import outputs

_HALF = (torch.float16, torch.bfloat16)
# Dtypes that each backend's kernels take; its shape functions would take any.
BACKENDS = {
    "flash": _HALF,
    "cudnn": _HALF,
    "efficient": (*_HALF, torch.float32),
    "math": (*_HALF, torch.float32, torch.float64),
}


@contextmanager
def target_device(machine: Machine) -> Iterator[None]:
    """While it is active, attention, norms and autocast are traced as the machine runs them; afterwards as before."""
    if machine.device == "cpu":
        yield
        return
    if machine.attention_backend not in BACKENDS:
        raise LynxError(
            f"machine '{machine.name}' has attention backend '{machine.attention_backend}', not one of a GPU's",
            where="machine#/attention_backend",
            hint=f"name one of {', '.join(BACKENDS)}",
        )

    def attention(query, key, value, mask=None, dropout=0.0, causal=False, *, scale=None, enable_gqa=False):
        backend = machine.attention_backend
        return _attend(backend, query, key, value, mask, dropout, causal, scale, enable_gqa)

    overridden = {"scaled_dot_product_attention": attention, "rms_norm": rms_norm}
    with compat.overridden(overridden), gpu_autocast():
        yield


def _attend(
    backend: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
    grouped: bool,
) -> Tensor:
    aten = torch.ops.aten
    if backend == "flash" and (mask is not None or query.dtype not in _HALF):
        backend = "efficient"  # what PyTorch takes where flash attention cannot run
    if query.dtype not in BACKENDS[backend]:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in BACKENDS[backend])
        raise LynxError(
            f"attention backend '{backend}' does not take {str(query.dtype).removeprefix('torch.')}",
            hint=f"it takes {names}: change the model's dtype or the machine's attention_backend",
        )
    if grouped and backend != "flash" and query.size(1) != key.size(1):
        repeats = query.size(1) // key.size(1)
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    if backend == "flash":
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, False, scale=scale)[0]
    if backend == "math":
        return aten._scaled_dot_product_attention_math(query, key, value, mask, dropout, causal, scale=scale)[0]
    need_logsumexp = torch.is_grad_enabled()
    call = {
        "efficient": aten._scaled_dot_product_efficient_attention,
        "cudnn": aten._scaled_dot_product_cudnn_attention,
    }
    return call[backend](query, key, value, mask, need_logsumexp, dropout, causal, scale=scale)[0]


def output_dtypes(node: fx.Node, device: str) -> tuple[Any, ...]:
    """The dtype of each output port on the target device (None where a port holds no tensor)."""
    dtypes = [None if value is None else value.dtype for value in outputs(node)]
    if device != "cpu" and node.target is torch.ops.aten.native_layer_norm.default and dtypes[0] in _HALF:
        return (dtypes[0], torch.float32, torch.float32)  # a GPU keeps the statistics in full precision
    return tuple(dtypes)
