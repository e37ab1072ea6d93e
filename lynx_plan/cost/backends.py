"""Execution backends by name: what they fuse and what their optimizer step sweeps. Eager execution fuses nothing.

A machine file may name its own groups; these are for `--fusion`. Figures are read from the backends' sources.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lynx_plan.errors import LynxError
from lynx_plan.model.machine import FusionGroup, Machine, OptimizerPass

_MEGATRON = "NVIDIA/Megatron-LM 3.0 (2022)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What a backend adds to a machine."""

    fusion: tuple[FusionGroup, ...] = ()
    optimizer_passes: tuple[OptimizerPass, ...] = ()


MEGATRON = Backend(
    fusion=(
        FusionGroup(
            name="bias-gelu",
            kinds=("aten.add.Tensor", "aten.gelu", "aten.gelu_backward"),
            source=f"{_MEGATRON}, megatron/model/fused_bias_gelu.py",
        ),
        FusionGroup(
            name="bias-dropout-add",
            kinds=("aten.add.Tensor", "aten.native_dropout"),
            source=f"{_MEGATRON}, megatron/model/transformer.py, bias_dropout_add_fused_train",
        ),
        FusionGroup(
            name="scaled-masked-softmax",
            kinds=("aten.mul.Tensor", "aten.masked_fill.Scalar", "aten._softmax", "aten._softmax_backward_data"),
            read_share=0.5,
            source=f"{_MEGATRON}, megatron/fused_kernels/scaled_upper_triang_masked_softmax.h: reads each row up to "
            "the diagonal, writes all of it, forward and backward",
        ),
        FusionGroup(
            name="gradient-accumulation",
            kinds=("aten.mm", "lynx.accumulate"),
            main_gradient_bytes=4,
            source=f"{_MEGATRON}, --no-gradient-accumulation-fusion's default: apex wgrad_gemm_accum_fp32 adds the "
            "weight gradient to the fp32 main gradient in the matmul",
        ),
        FusionGroup(
            name="in-place-all-reduce",
            kinds=("all_reduce",),
            source=f"{_MEGATRON}, megatron/mpu/mappings.py: torch.distributed.all_reduce reduces in place",
        ),
    ),
    optimizer_passes=(
        OptimizerPass(
            name="zero the main gradients",
            bytes_per_parameter=4,
            source=f"{_MEGATRON}, megatron/model/distributed.py, zero_grad_buffer: writes fp32",
        ),
        OptimizerPass(
            name="divide by the data-parallel size",
            bytes_per_parameter=8,
            source=f"{_MEGATRON}, megatron/model/distributed.py, allreduce_gradients: reads and writes fp32, always",
        ),
        OptimizerPass(
            name="unscale and look for infinities",
            bytes_per_parameter=8,
            source=f"{_MEGATRON}, megatron/optimizer/optimizer.py, with fp16: reads and writes fp32",
        ),
        OptimizerPass(
            name="gradient norm",
            bytes_per_parameter=4,
            source=f"{_MEGATRON}, megatron/optimizer/clip_grads.py, multi_tensor_l2norm: reads fp32",
        ),
        OptimizerPass(
            name="clip",
            bytes_per_parameter=8,
            source=f"{_MEGATRON}, megatron/optimizer/clip_grads.py, multi_tensor_scale: reads and writes fp32",
        ),
        OptimizerPass(
            name="Adam",
            bytes_per_parameter=28,
            source="NVIDIA apex FusedAdam: reads gradient, parameter and two moments, writes the last three, fp32",
        ),
        OptimizerPass(
            name="copy to the model",
            bytes_per_parameter=6,
            source=f"{_MEGATRON}, megatron/optimizer/optimizer.py: reads the fp32 parameters, writes 16-bit ones",
        ),
    ),
)
BACKENDS = {"none": Backend(), "megatron": MEGATRON}


def with_backend(machine: Machine, name: str) -> Machine:
    """The machine with another backend's fusion groups and optimizer passes. Raises LynxError for an unknown name."""
    if name not in BACKENDS:
        raise LynxError(f"no fusion '{name}'", where="--fusion", hint=f"name one of {', '.join(BACKENDS)}")
    backend = BACKENDS[name]
    return replace(machine, fusion=backend.fusion, optimizer_passes=backend.optimizer_passes)
