"""Autocast as a GPU applies it, while a step is traced on CPU tensors.

`torch.autocast("cuda")` switches itself off where CUDA is missing, and the CPU's own autocast casts other ops. While
a capture for a GPU runs, the CPU's autocast stands in: `autocast("cuda")` switches it on, `autocast("cpu")` does
nothing, and the ops that CUDA treats differently follow CUDA's lists (ATen/autocast_mode.h of torch 2.13;
of the rare ops that promote to the widest type, the CPU's list holds). A context that was made before, such as one
of a module that is built by the caller, has switched itself off already.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from lynx_plan.torch_rt import compat

# Run in full precision: their half-precision inputs are cast.
FULL = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt"),
    *("sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "dist", "pdist", "cdist"),
    *("layer_norm", "native_layer_norm", "rms_norm", "group_norm", "norm.Scalar", "norm.ScalarOpt_dim", "renorm"),
    *("cosine_similarity", "logsumexp", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d"),
    *("hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss"),
    *("multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss"),
    "binary_cross_entropy_with_logits",
)
# Give a full-precision result, unless asked for another; nothing is cast before.
FULL_RESULT = (
    *("prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "sum", "sum.dim_IntList"),
    *("linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord"),
)
# Run in the autocast dtype; the CPU's list has the matmuls, convolutions and attention already.
LOWER = ("prelu", "addmv", "addr", "mv")
# Run as they are, where the CPU casts.
PLAIN = (
    *("avg_pool3d", "adaptive_avg_pool3d", "max_pool3d", "adaptive_max_pool3d", "trace", "quantile"),
    *("reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d", "replication_pad3d"),
)


@contextmanager
def gpu_autocast() -> Iterator[None]:
    """While it is active, `torch.autocast("cuda")` works on CPU tensors, with CUDA's lists."""
    kernels: dict[str, Callable[..., Any]] = {}
    kernels |= {name: functools.partial(_cast, compat.aten_op(name), _full) for name in FULL}
    kernels |= {name: functools.partial(_full_result, compat.aten_op(name)) for name in FULL_RESULT}
    kernels |= {name: functools.partial(_cast, compat.aten_op(name), _lower) for name in LOWER}
    kernels |= {name: functools.partial(_cast, compat.aten_op(name), _same) for name in PLAIN}
    kernels["cross_entropy_loss"] = _cross_entropy
    with compat.overridden(kernels, "AutocastCPU"), _standing_in():
        yield


@contextmanager
def _standing_in() -> Iterator[None]:
    """The CPU's autocast does what is asked of CUDA's, and nothing that is asked of the CPU's own."""
    original = {name: getattr(torch.autocast, name) for name in ("__init__", "__enter__", "__exit__")}

    @functools.wraps(original["__init__"])  # whoever binds arguments sees the signature
    def start(
        self: torch.autocast,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        dtype = torch.get_autocast_dtype(device_type) if dtype is None else dtype
        original["__init__"](self, "cpu", dtype, enabled, cache_enabled)  # it would switch CUDA's off
        self.device = device_type

    def enter(self: torch.autocast) -> Any:
        if self.device != "cuda":
            return self
        return _as_cpu(self, original["__enter__"])

    def leave(self: torch.autocast, *error: Any) -> Any:
        return _as_cpu(self, original["__exit__"], *error) if self.device == "cuda" else None

    with ExitStack() as stack:
        for name, function in (("__init__", start), ("__enter__", enter), ("__exit__", leave)):
            stack.callback(setattr, torch.autocast, name, original[name])
            setattr(torch.autocast, name, function)
        yield


def _as_cpu(context: torch.autocast, method: Callable[..., Any], *args: Any) -> Any:
    context.device = "cpu"
    try:
        return method(context, *args)
    finally:
        context.device = "cuda"


def _cast(op: Any, to: Callable[[Any], Any], *args: Any, **kwargs: Any) -> Any:
    with compat.without_autocast():
        return op(*map(to, args), **{key: to(value) for key, value in kwargs.items()})


def _same(value: Any) -> Any:
    return value


def _full(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16) else value


def _lower(value: Any) -> Any:
    single = (torch.float16, torch.bfloat16, torch.float32)
    fits = isinstance(value, Tensor) and value.dtype in single
    return value.to(torch.get_autocast_dtype("cpu")) if fits else value


def _full_result(op: Any, first: Tensor, *args: Any, **kwargs: Any) -> Any:
    names = [argument.name for argument in compat.schema(op).arguments if not argument.kwarg_only]
    asked = kwargs.get("dtype") is not None or ("dtype" in names and len(args) >= names.index("dtype"))
    if not asked and first.dtype in (torch.float16, torch.bfloat16, torch.float32):
        kwargs["dtype"] = torch.float32
    with compat.without_autocast():
        return op(first, *args, **kwargs)


def _cross_entropy(
    logits: Tensor, target: Tensor, weight: Any = None, reduction: int = 1, ignore: int = -100, smoothing: float = 0.0
) -> Tensor:
    """In no list of CUDA's: its log-softmax keeps the logits' dtype, its loss is of the list of full precision."""
    aten = torch.ops.aten
    if smoothing or target.is_floating_point():
        return _cast(aten.cross_entropy_loss.default, _same, logits, target, weight, reduction, ignore, smoothing)
    logarithms = aten.log_softmax.int(logits, 0 if logits.dim() == 1 else 1, logits.dtype)
    return aten.nll_loss_nd.default(logarithms, target, weight, reduction, ignore)
