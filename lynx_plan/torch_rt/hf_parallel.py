"""Tensor parallelism of a Hugging Face model by its own plan (`base_model_tp_plan`), with functional collectives.

Each linear layer that the plan calls colwise or rowwise keeps its rank's part of the weight. A layer's collectives are
those of the plan: an all-reduce after each rowwise layer, one of the input's gradient before each colwise layer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F

from lynx_plan.errors import LynxError
from lynx_plan.torch_rt import compat

_ops = compat.functional_collectives


def shard(model: nn.Module, mesh: DeviceMesh, path: str) -> None:
    """Keep this rank's part of what the model's plan names; LynxError for a model without one, or an unknown style."""
    group = mesh.get_group("tp")
    name, rank, size = group.group_name, dist.get_rank(group), group.size()
    plan = _plan(model, path)
    _check(model, size, path)
    for pattern, style in plan.items():
        found = [m for n, m in _named(model) if re.fullmatch(re.escape(pattern).replace(r"\*", r"\d+"), n)]
        if style not in _STYLES:
            known = ", ".join(_STYLES)
            text = f"its tensor-parallel plan has the style '{style}' ({pattern}); known here: {known}"
            raise LynxError(text, where=path, hint="profile it without --tp, or as a model file of your own")
        for part in found:
            _STYLES[style](part, name, rank, size)


def _plan(model: nn.Module, path: str) -> dict[str, str]:
    base = getattr(model.config, "base_model_tp_plan", None)
    if not base:
        kind = model.config.model_type
        hint = "profile it without --tp, or write a model file (examples/gpt.py shows how)"
        raise LynxError(f"models of type {kind} have no tensor-parallel plan in transformers", where=path, hint=hint)
    prefix = model.base_model_prefix
    return {**{f"{prefix}.{pattern}": style for pattern, style in base.items()}, **(type(model)._tp_plan or {})}


def _check(model: nn.Module, size: int, path: str) -> None:
    for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"):
        count = getattr(model.config, key, None)
        if count is not None and count % size:
            raise LynxError(f"tensor parallelism over {size} ranks does not divide {key}={count}", where=path)


def _named(model: nn.Module) -> list[tuple[str, Any]]:
    """Modules, and the parameters that are weights of several experts: (module, its parameter's name)."""
    found: list[tuple[str, Any]] = list(model.named_modules())
    for name, module in model.named_modules():
        found += [(f"{name}.{own}", (module, own)) for own, p in module.named_parameters(recurse=False) if p.dim() == 3]
    return found


class _Copy(Function):
    """Identity; the gradient is summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _ops.wait_tensor(_ops.all_reduce(gradient.contiguous(), "sum", ctx.group)), None


class _Reduce(Function):
    """Sum over the ranks; the gradient passes."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, group: str) -> Tensor:
        return _ops.wait_tensor(_ops.all_reduce(x.contiguous(), "sum", group))

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Gather(Function):
    """The ranks' parts of the last dimension, joined; the gradient is cut. `rank` is a tensor, so that every rank has
    the same graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rank: Tensor, group: str, size: int) -> Tensor:
        ctx.save_for_backward(rank)
        ctx.size = size
        whole = _ops.wait_tensor(_ops.all_gather_into_tensor(x.contiguous(), size, group))
        return torch.cat(whole.chunk(size), -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (rank,) = ctx.saved_tensors
        part = gradient.unflatten(-1, (ctx.size, -1)).index_select(-2, rank).squeeze(-2)
        return part, None, None, None


class ColumnLinear(nn.Linear):
    """Holds some of the output features; `gathered`: its output is made whole again."""

    group, size, gathered = "", 1, False

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(_Copy.apply(x, self.group), self.weight, self.bias)
        return _Gather.apply(y, self.rank, self.group, self.size) if self.gathered else y


class RowLinear(nn.Linear):
    """Holds some of the input features; outputs are summed, then the bias is added."""

    group = ""

    def forward(self, x: Tensor) -> Tensor:
        y = _Reduce.apply(F.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias


def _cut(module: nn.Module, name: str, dim: int, rank: int, size: int) -> None:
    parameter = getattr(module, name, None)
    if parameter is not None:
        part = parameter.detach().chunk(size, dim)[rank].clone()
        setattr(module, name, nn.Parameter(part, requires_grad=parameter.requires_grad))


def _colwise(module: nn.Linear, group: str, rank: int, size: int, *, gathered: bool = False) -> None:
    _cut(module, "weight", 0, rank, size)
    _cut(module, "bias", 0, rank, size)
    module.__class__ = ColumnLinear
    module.group, module.size, module.gathered = group, size, gathered
    if gathered:
        module.register_buffer("rank", torch.tensor([rank]), persistent=False)
    module.out_features = module.weight.shape[0]


def _colwise_gathered(module: nn.Linear, group: str, rank: int, size: int) -> None:
    _colwise(module, group, rank, size, gathered=True)


def _rowwise(module: Any, group: str, rank: int, size: int) -> None:
    if isinstance(module, tuple):  # the experts' weights [experts, out, in]
        _cut(*module, 2, rank, size)
        return
    _cut(module, "weight", 1, rank, size)
    module.__class__ = RowLinear
    module.group, module.in_features = group, module.weight.shape[1]


def _packed_colwise(part: tuple[nn.Module, str], _group: str, rank: int, size: int) -> None:
    """Two matrices in one [experts, 2 x out, in]: a part of each."""
    module, name = part
    whole = getattr(module, name)
    parts = [half.chunk(size, 1)[rank] for half in whole.detach().chunk(2, 1)]
    setattr(module, name, nn.Parameter(torch.cat(parts, 1), requires_grad=whole.requires_grad))


def _experts(module: nn.Module, group: str, _rank: int, _size: int) -> None:
    """Each rank has a part of every expert: inputs (states, choices, weights) are copied, outputs summed."""

    def before(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(_Copy.apply(a, group) if a.is_floating_point() else a for a in args)

    module.register_forward_pre_hook(before)
    module.register_forward_hook(lambda _module, _args, output: _Reduce.apply(output, group))


def _replicated(module: nn.Module, group: str, _rank: int, _size: int) -> None:
    """Whole on every rank, used on a part of the heads: gradients are summed."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        del module._parameters[name]
        module.register_parameter(f"{name}_whole", parameter)
    module.__class__ = _summed(type(module), group)


def _summed(kind: type, group: str) -> type:
    def get(self: nn.Module) -> Tensor:
        return _Copy.apply(self.weight_whole, group)

    return type(f"Summed{kind.__name__}", (kind,), {"weight": property(get)})


_STYLES: dict[str, Callable[..., None]] = {
    "colwise": _colwise,
    "colwise_gather_output": _colwise_gathered,
    "colwise_rep": _colwise_gathered,
    "rowwise": _rowwise,
    "packed_colwise": _packed_colwise,
    "moe_tp_experts": _experts,
    "replicated_with_grad_allreduce": _replicated,
}
