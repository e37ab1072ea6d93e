"""Trace the ops that eager PyTorch runs, where tracing would take them apart by a formula of its own.

PyTorch's tracing has Python formulas for some ops that have kernels (resizing images, margin losses): other ops, other
memory, other last bits than eager. Inside `native_kernels` such ops are traced as themselves. Recurrent networks
stay taken apart into steps, since their fused kernels hide what they save.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from lynx_plan.torch_rt import compat

LSTM_NOTE = "LSTM layers run step by step; eager PyTorch's fused kernel may differ from them in the last bits"
_WITH_KERNELS = ("upsample_", "_upsample_", "multi_margin_loss", "multilabel_margin_loss_forward")
_FORMULAS = "torch._decomp.decompositions"


@contextmanager
def native_kernels() -> Iterator[None]:
    """Inside, ops with kernels are traced as themselves, and an LSTM never as the fused kernel of the CPU."""
    keys = [getattr(torch._C.DispatchKey, name) for name in ("Autograd", "CompositeImplicitAutograd")]
    ops = _overloads()
    taken = [(op, {key: op.py_kernels.pop(key) for key in keys if key in op.py_kernels}) for op in ops]
    module = __import__(_FORMULAS, fromlist=["one_layer_lstm"])
    select, steps = (compat.private(_FORMULAS, name) for name in ("select_one_layer_lstm_function", "one_layer_lstm"))
    module.select_one_layer_lstm_function = lambda *_: steps
    _forget(ops)
    try:
        yield
    finally:
        module.select_one_layer_lstm_function = select
        for op, kernels in taken:
            op.py_kernels.update(kernels)
        _forget(ops)


def notes_of(model: nn.Module) -> tuple[str, ...]:
    """What a user should know of how a model's layers were traced."""
    return (LSTM_NOTE,) if any(isinstance(module, nn.LSTM) for module in model.modules()) else ()


@contextmanager
def step_by_step() -> Iterator[None]:
    """Inside, eager PyTorch runs LSTM layers as they are traced: the reference that a plan equals bit for bit."""
    functions = nn.modules.rnn._VF
    fused = functions.lstm

    def unfused(*args: Any) -> Any:
        enabled = torch.backends.mkldnn.is_available() and compat.private("torch._C", "_get_mkldnn_enabled")()
        switch = compat.private("torch._C", "_set_mkldnn_enabled")
        switch(False)
        try:
            with torch.backends.cudnn.flags(enabled=False):
                return fused(*args)
        finally:
            switch(enabled)

    functions.lstm = unfused
    try:
        yield
    finally:
        functions.lstm = fused


def _overloads() -> list[Any]:
    packets = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten) if name.startswith(_WITH_KERNELS)]
    return [getattr(packet, overload) for packet in packets for overload in packet.overloads()]


def _forget(ops: list[Any]) -> None:
    for op in ops:
        op._dispatch_cache.clear()  # an op remembers which kernel it found
