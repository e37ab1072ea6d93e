"""A GPT as Korthikanti et al. describe it (arXiv 2205.05198), to hold predictions against what they published.

Attention is matmuls, softmax and dropout rather than one op; dropout follows the embedding, attention and the MLP; and
biases are added apart from their matmuls, with what follows them, as Megatron-LM's fused kernels do. Collectives,
norms and both ends of the model are those of gpt.py, and Lynx calls the same functions with the same arguments.
"""

import math

import gpt
import torch
from gpt import SEQUENCE, VOCAB, TensorParallel, batch, build_optimizer, example_inputs
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F

__all__ = ["batch", "build_model", "build_optimizer", "example_inputs"]


def build_model(
    mesh: DeviceMesh | None,
    *,
    layers: int = 4,
    hidden: int = 256,
    heads: int = 4,
    sequence: int = SEQUENCE,
    vocab: int = VOCAB,
    sequence_parallel: bool = False,
    dropout: float = 0.1,
    dtype: str = "float32",
) -> nn.Module:
    """This rank's shard of the model. Its forward takes (tokens, targets) and returns the loss."""
    tp = TensorParallel(mesh, sequence_parallel)
    gpt.check_shape(tp, hidden, heads, sequence, vocab)
    return GPT(tp, layers, hidden, heads, sequence, vocab, dropout).to(getattr(torch, dtype))


# --- what Megatron-LM saves for backward -------------------------------------------------------------------------


class GatheredLinear(Function):
    """All parts of the sequence times a weight. Saves this rank's part alone, and gathers the others again backward."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, tp: TensorParallel) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.tp = tp
        return F.linear(tp.all_gather(x), weight)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        whole = ctx.tp.all_gather(x)
        of_x = ctx.tp.reduce_scatter(gradient @ weight)
        return of_x, gradient.flatten(0, -2).t() @ whole.flatten(0, -2), None


class BiasGelu(Function):
    """GELU of `x + bias`. Saves `x`, and adds the bias again backward."""

    @staticmethod
    def forward(ctx, x: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, bias)
        return F.gelu(x + bias, approximate="tanh")

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, bias = ctx.saved_tensors
        of_x = torch.ops.aten.gelu_backward(gradient, x + bias, approximate="tanh")
        return of_x, of_x.flatten(0, -2).sum(0)


# --- layers ------------------------------------------------------------------------------------------------------


class ColumnParallelLinear(nn.Module):
    """Each rank computes its own part of the output features; the bias is left to the caller."""

    def __init__(self, tp: TensorParallel, inputs: int, outputs: int) -> None:
        super().__init__()
        self.tp = tp
        self.weight = gpt.random_weight(tp.own_generator, outputs // tp.size, inputs)
        self.bias = nn.Parameter(torch.zeros(outputs // tp.size))

    def forward(self, x: Tensor) -> Tensor:
        if self.tp.sequence_parallel:
            return GatheredLinear.apply(x, self.weight, self.tp)
        return F.linear(self.tp.enter(x), self.weight)


class RowParallelLinear(nn.Module):
    """Each rank multiplies its own part of the input features; the results are summed, the bias left to the caller."""

    def __init__(self, tp: TensorParallel, inputs: int, outputs: int) -> None:
        super().__init__()
        self.tp = tp
        self.weight = gpt.random_weight(tp.own_generator, outputs, inputs // tp.size)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.tp.leave(F.linear(x, self.weight))


class Attention(nn.Module):
    """Causal self-attention, op by op; each rank has its own heads. `future` marks what no position may look at."""

    def __init__(self, tp: TensorParallel, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.heads = heads // tp.size
        self.scale = 1 / math.sqrt(hidden // heads)
        self.qkv = ColumnParallelLinear(tp, hidden, 3 * hidden)
        self.projection = RowParallelLinear(tp, hidden, hidden)

    def forward(self, x: Tensor, future: Tensor) -> Tensor:
        qkv = self.qkv(x) + self.qkv.bias  # [sequence, batch, heads * 3 * head size]
        sequence, batch_size, _ = qkv.shape
        parts = qkv.view(sequence, batch_size * self.heads, -1).chunk(3, -1)
        # each [batch * heads, sequence, head size], a view of what is saved
        query, key, value = (part.transpose(0, 1) for part in parts)
        scores = torch.bmm(query, key.transpose(1, 2)) * self.scale
        weights = scores.masked_fill(future, -10000.0).softmax(-1)
        mixed = torch.bmm(F.dropout(weights, self.dropout), value)
        return self.projection(mixed.transpose(0, 1).reshape(sequence, batch_size, -1))


class MLP(nn.Module):
    def __init__(self, tp: TensorParallel, hidden: int) -> None:
        super().__init__()
        self.up = ColumnParallelLinear(tp, hidden, 4 * hidden)
        self.down = RowParallelLinear(tp, 4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(BiasGelu.apply(self.up(x), self.up.bias))


class Block(nn.Module):
    def __init__(self, tp: TensorParallel, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.tp = tp
        self.dropout = dropout
        self.norm1 = gpt.LayerNorm(tp, hidden)
        self.attention = Attention(tp, hidden, heads, dropout)
        self.norm2 = gpt.LayerNorm(tp, hidden)
        self.mlp = MLP(tp, hidden)

    def forward(self, x: Tensor, future: Tensor) -> Tensor:
        x = x + self._biased(self.attention(self.norm1(x), future), self.attention.projection.bias)
        return x + self._biased(self.mlp(self.norm2(x)), self.mlp.down.bias)

    def _biased(self, x: Tensor, bias: Tensor) -> Tensor:
        return F.dropout(x + self.tp.replicated(bias), self.dropout)


class GPT(nn.Module):
    """The ranks draw the same dropout masks, each for its own heads or its own part of the sequence."""

    def __init__(
        self, tp: TensorParallel, layers: int, hidden: int, heads: int, sequence: int, vocab: int, dropout: float
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.embedding = gpt.Embedding(tp, hidden, sequence, vocab)
        self.layers = nn.ModuleList(Block(tp, hidden, heads, dropout) for _ in range(layers))
        self.head = gpt.Head(tp, hidden, vocab)
        self.head.logits.weight = self.embedding.token  # one matrix for both ends
        self.register_buffer("future", torch.ones(sequence, sequence, dtype=torch.bool).triu(1))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = F.dropout(self.embedding(tokens), self.dropout)
        for layer in self.layers:
            x = layer(x, self.future)
        return self.head(x, targets)
