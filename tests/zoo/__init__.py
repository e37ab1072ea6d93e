"""The zoo: small models of the kinds that people train, one model file each (`lynx profile tests/zoo/NAME.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Kind:
    """A model of the zoo and what is special about it.

    `tight`: the share of `none`'s activations that some plan at a tight budget stays under (1: logits or crossing
    values are nearly all there is), so that a planner that gives up is seen.
    """

    name: str
    special: str
    tight: float = 0.7

    @property
    def path(self) -> str:
        return str(FOLDER / f"{self.name}.py")


ZOO = (
    Kind("adapters", "frozen base, trained rank-4 adapters"),
    Kind("attention_dropout", "dropout inside attention and of whole channels"),
    Kind("autocast", "bfloat16 autocast inside forward, a norm outside it"),
    Kind("batchnorm", "buffers, a batch counter, in-place ReLU"),
    Kind("branch", "a block that looks at its data: kept whole"),
    Kind("budgets", "gated MLP blocks, nearly all memory in activations"),
    Kind("checkpointed", "the user's own torch.utils.checkpoint"),
    Kind("contrastive", "two towers, a scalar parameter, a transposed loss", 1.0),
    Kind("convnext", "depthwise convolutions, GroupNorm, channels-last"),
    Kind("cumulative", "cumsum, cumprod, cummax, logsumexp"),
    Kind("custom_function", "autograd functions written by hand"),
    Kind("diffusion", "einsum, random noise in forward, time embedding"),
    Kind("dlrm", "embedding bags, advanced indexing", 1.0),
    Kind("double_backward", "a gradient inside the loss", 1.0),
    Kind("dropout", "large masks that may be drawn again"),
    Kind("ema_buffers", "buffers that forward reads and updates", 0.8),
    Kind("encoder_decoder", "one tensor that every decoder layer reads"),
    Kind("fft", "complex numbers and complex parameters"),
    Kind("gan", "two losses, detached samples, functional_call", 1.0),
    Kind("gnn", "index_add, scatter_reduce, gathers by edge"),
    Kind("gpt", "causal attention, tied to nothing"),
    Kind("gru", "recurrent layers, traced step by step", 0.8),
    Kind("linear_algebra", "Cholesky, solves, eigenvalues, checks for errors"),
    Kind("llama", "RMSNorm, rotary, grouped-query attention, SwiGLU"),
    Kind("lstm", "recurrent layers with a fused kernel in eager PyTorch", 1.0),
    Kind("lstm_on_data", "the same on data that needs no gradient", 1.0),
    Kind("mamba", "a scan over time written as a loop"),
    Kind("mixed_precision", "bfloat16 blocks, float32 ends, float64 loss"),
    Kind("mixer", "transposes between two MLPs"),
    Kind("mlp", "the simplest"),
    Kind("moe_dense", "top-k routing kept, einsum experts, a second loss term"),
    Kind("post_norm", "torch.nn's encoder layer, an additive mask"),
    Kind("ragged_attention", "boolean masks made of integer inputs, ignored targets"),
    Kind("random_kinds", "every kind of random op"),
    Kind("resampling", "resizing, padding, unfolding, sampling on a grid"),
    Kind("resnet", "BatchNorm, in-place ReLU, `+=`, strides", 0.9),
    Kind("selection", "gradients through sort, top-k, scatter, where, clamp", 0.85),
    Kind("t5_bias", "attention written out, one bias that all layers share"),
    Kind("tied", "one weight as embedding and head; logits outweigh the rest", 1.0),
    Kind("tp_mlp", "tensor parallel by functional collectives"),
    Kind("unet", "skip connections over the whole depth"),
    Kind("uneven", "blocks of two widths, a large head"),
    Kind("vae", "random numbers in the middle, outputs in a dict", 0.9),
    Kind("views", "chunks, `+=`, slices assigned into zeros"),
    Kind("vit", "convolution patches, torch.nn's attention, label smoothing"),
    Kind("weight_norm", "parametrized weights, buffers of spectral norm", 0.9),
)
