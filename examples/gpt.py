"""A GPT in plain PyTorch with Megatron-style tensor parallelism.

Lynx imports this file and calls `build_model` and `example_inputs`; `build_optimizer` and `batch` are optional.
Nothing here imports Lynx. Activations are [sequence, batch, hidden], as in Megatron-LM, so that sequence
parallelism splits their first dimension. Without a mesh, or without a "tp" dimension in it, there is no
communication at all.
"""

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F

SEQUENCE, VOCAB, MICRO_BATCH = 128, 512, 2
collectives = torch.ops._c10d_functional  # each returns at once; wait_tensor waits for its result


# --- what Lynx calls ---------------------------------------------------------------------------------------------


def build_model(
    mesh: DeviceMesh | None,
    *,
    layers: int = 4,
    hidden: int = 256,
    heads: int = 4,
    sequence: int = SEQUENCE,
    vocab: int = VOCAB,
    sequence_parallel: bool = False,
    dtype: str = "float32",
) -> nn.Module:
    """This rank's shard of the model. Its forward takes (tokens, targets) and returns the loss."""
    tp = TensorParallel(mesh, sequence_parallel)
    check_shape(tp, hidden, heads, sequence, vocab)
    return GPT(tp, layers, hidden, heads, sequence, vocab).to(getattr(torch, dtype))


def example_inputs(
    *, micro_batch: int = MICRO_BATCH, sequence: int = SEQUENCE, vocab: int = VOCAB
) -> tuple[Tensor, Tensor]:
    """Tokens and targets of one microbatch, both int64 [sequence, micro_batch]."""
    return batch(0, 0, 0, micro_batch=micro_batch, sequence=sequence, vocab=vocab)


def batch(
    step: int,
    microbatch: int,
    dp_rank: int,
    *,
    micro_batch: int = MICRO_BATCH,
    sequence: int = SEQUENCE,
    vocab: int = VOCAB,
) -> tuple[Tensor, Tensor]:
    """The data of one microbatch: random text, the same on every rank of a tensor-parallel group."""
    generator = torch.Generator().manual_seed(step * 1_000_003 + microbatch * 1_009 + dp_rank)
    text = torch.randint(vocab, (sequence + 1, micro_batch), generator=generator)
    return text[:-1].clone(), text[1:].clone()


def build_optimizer(params: list[nn.Parameter], *, optimizer: str = "sgd") -> torch.optim.Optimizer:
    """`optimizer` is "sgd" or "adamw"."""
    if optimizer == "adamw":
        return torch.optim.AdamW(params, lr=1e-4)
    if optimizer == "sgd":
        return torch.optim.SGD(params, lr=1e-2)
    raise ValueError(f"optimizer={optimizer} is neither sgd nor adamw")


# --- communication -----------------------------------------------------------------------------------------------


class TensorParallel:
    """The ranks that share each layer, and the collectives among them. On one rank every method is free."""

    def __init__(self, mesh: DeviceMesh | None, sequence_parallel: bool) -> None:
        present = mesh is not None and "tp" in (mesh.mesh_dim_names or ())
        self.group = mesh.get_group("tp").group_name if present else ""
        self.size = mesh.get_group("tp").size() if present else 1
        self.rank = mesh.get_local_rank("tp") if present else 0
        self.sequence_parallel = sequence_parallel and self.size > 1
        # Replicated weights come from the common seed, shards from a seed of each rank's own.
        self.common_generator = torch.default_generator
        self.own_generator = torch.Generator().manual_seed(torch.initial_seed() + 1 + self.rank)

    def enter(self, x: Tensor) -> Tensor:
        """Into a column-parallel layer: every rank needs all of `x`."""
        if self.size == 1:
            return x
        return GatherSequence.apply(x, self) if self.sequence_parallel else CopyToRanks.apply(x, self)

    def leave(self, x: Tensor) -> Tensor:
        """Out of a row-parallel layer: `x` is this rank's summand of the result."""
        if self.size == 1:
            return x
        return ScatterSequence.apply(x, self) if self.sequence_parallel else ReduceFromRanks.apply(x, self)

    def replicated(self, parameter: Tensor) -> Tensor:
        """A replicated parameter used on this rank's part of the sequence: its gradient is summed over the ranks."""
        return CopyToRanks.apply(parameter, self) if self.sequence_parallel else parameter

    def all_reduce(self, x: Tensor, how: str = "sum") -> Tensor:
        return x if self.size == 1 else collectives.wait_tensor(collectives.all_reduce(x, how, self.group))

    def all_gather(self, x: Tensor) -> Tensor:
        whole = collectives.all_gather_into_tensor(x.contiguous(), self.size, self.group)
        return collectives.wait_tensor(whole)

    def reduce_scatter(self, x: Tensor) -> Tensor:
        part = collectives.reduce_scatter_tensor(x.contiguous(), "sum", self.size, self.group)
        return collectives.wait_tensor(part)


def check_shape(tp: TensorParallel, hidden: int, heads: int, sequence: int, vocab: int) -> None:
    """Raises ValueError for a model that cannot be cut into this many shards."""
    if hidden % heads:
        raise ValueError(f"heads={heads} does not divide hidden={hidden}")
    for name, count in (("heads", heads), ("vocab", vocab), ("sequence", sequence if tp.sequence_parallel else 0)):
        if count % tp.size:
            raise ValueError(f"tensor parallelism over {tp.size} ranks does not divide {name}={count}")


class CopyToRanks(Function):
    """Identity forward; sums the ranks' gradients backward."""

    @staticmethod
    def forward(ctx, x: Tensor, tp: TensorParallel) -> Tensor:
        ctx.tp = tp
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.tp.all_reduce(gradient), None


class ReduceFromRanks(Function):
    """Sums over the ranks forward; identity backward."""

    @staticmethod
    def forward(ctx, x: Tensor, tp: TensorParallel) -> Tensor:
        return tp.all_reduce(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class GatherSequence(Function):
    """All parts of the sequence forward; sums the ranks' gradients and keeps its own part backward."""

    @staticmethod
    def forward(ctx, x: Tensor, tp: TensorParallel) -> Tensor:
        ctx.tp = tp
        return tp.all_gather(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.tp.reduce_scatter(gradient), None


class ScatterSequence(Function):
    """Sums over the ranks and keeps its own part of the sequence forward; gathers the parts backward."""

    @staticmethod
    def forward(ctx, x: Tensor, tp: TensorParallel) -> Tensor:
        ctx.tp = tp
        return tp.reduce_scatter(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.tp.all_gather(gradient), None


# --- layers ------------------------------------------------------------------------------------------------------


def random_weight(generator: torch.Generator, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape).normal_(std=0.02, generator=generator))


class ColumnParallelLinear(nn.Module):
    """Each rank computes its own part of the output features."""

    def __init__(self, tp: TensorParallel, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.tp = tp
        self.weight = random_weight(tp.own_generator, outputs // tp.size, inputs)
        self.bias = nn.Parameter(torch.zeros(outputs // tp.size)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.tp.enter(x), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """Each rank multiplies its own part of the input features; the results are summed, then the bias is added."""

    def __init__(self, tp: TensorParallel, inputs: int, outputs: int) -> None:
        super().__init__()
        self.tp = tp
        self.weight = random_weight(tp.own_generator, outputs, inputs // tp.size)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.tp.leave(F.linear(x, self.weight)) + self.tp.replicated(self.bias)


class LayerNorm(nn.Module):
    def __init__(self, tp: TensorParallel, hidden: int) -> None:
        super().__init__()
        self.tp = tp
        self.weight = nn.Parameter(torch.ones(hidden))
        self.bias = nn.Parameter(torch.zeros(hidden))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.tp.replicated(self.weight), self.tp.replicated(self.bias))


class Attention(nn.Module):
    """Causal self-attention; each rank has its own heads."""

    def __init__(self, tp: TensorParallel, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads // tp.size
        self.qkv = ColumnParallelLinear(tp, hidden, 3 * hidden)
        self.projection = RowParallelLinear(tp, hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # [sequence, batch, 3, heads, head size]
        query, key, value = qkv.permute(2, 1, 3, 0, 4).unbind()  # each [batch, heads, sequence, head size]
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(mixed.permute(2, 0, 1, 3).flatten(2))


class MLP(nn.Module):
    def __init__(self, tp: TensorParallel, hidden: int) -> None:
        super().__init__()
        self.up = ColumnParallelLinear(tp, hidden, 4 * hidden)
        self.down = RowParallelLinear(tp, 4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, tp: TensorParallel, hidden: int, heads: int) -> None:
        super().__init__()
        self.norm1 = LayerNorm(tp, hidden)
        self.attention = Attention(tp, hidden, heads)
        self.norm2 = LayerNorm(tp, hidden)
        self.mlp = MLP(tp, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


# --- the ends of the model ---------------------------------------------------------------------------------------


class VocabularyShard(nn.Module):
    """This rank's rows of the vocabulary.

    `first` is a buffer, not a Python number: every rank then runs the same graph, on its own data.
    """

    def __init__(self, tp: TensorParallel, vocab: int) -> None:
        super().__init__()
        self.rows = vocab // tp.size
        self.register_buffer("first", torch.tensor(tp.rank * self.rows))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's row in this shard (0 if it has none), and whether it has one."""
        row = tokens - self.first
        here = (row >= 0) & (row < self.rows)
        return row.masked_fill(~here, 0), here


class Embedding(nn.Module):
    """Token embedding, split over the vocabulary, plus learned positions."""

    def __init__(self, tp: TensorParallel, hidden: int, sequence: int, vocab: int) -> None:
        super().__init__()
        self.tp = tp
        self.shard = VocabularyShard(tp, vocab)
        self.token = random_weight(tp.own_generator, self.shard.rows, hidden)
        self.position = random_weight(tp.common_generator, sequence, hidden)
        part = sequence // tp.size if tp.sequence_parallel else sequence
        self.register_buffer("positions", torch.arange(part) + (tp.rank * part if tp.sequence_parallel else 0))

    def forward(self, tokens: Tensor) -> Tensor:
        row, here = self.shard(tokens)
        token = F.embedding(row, self.token).masked_fill(~here.unsqueeze(-1), 0)
        position = F.embedding(self.positions, self.tp.replicated(self.position))
        return self.tp.leave(token) + position.unsqueeze(1)


class VocabularyCrossEntropy(Function):
    """Cross entropy of logits that are split over the vocabulary, without gathering them.

    Saves what Megatron-LM saves: the softmax of this rank's logits, and which of them are the targets'.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, row: Tensor, here: Tensor, tp: TensorParallel) -> Tensor:
        logits = logits.float()
        logits = logits - tp.all_reduce(logits.amax(-1), "max").unsqueeze(-1)
        of_target = logits.gather(-1, row.unsqueeze(-1)).squeeze(-1).masked_fill(~here, 0)
        exponentials = logits.exp()
        total = tp.all_reduce(exponentials.sum(-1))
        ctx.save_for_backward(exponentials / total.unsqueeze(-1), row, here)
        return total.log() - tp.all_reduce(of_target)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        softmax, row, here = ctx.saved_tensors
        one_at_target = here.unsqueeze(-1).to(softmax.dtype)
        return softmax.scatter_add(-1, row.unsqueeze(-1), -one_at_target) * gradient.unsqueeze(-1), None, None, None


class Head(nn.Module):
    """Final norm, logits split over the vocabulary, and the mean cross entropy."""

    def __init__(self, tp: TensorParallel, hidden: int, vocab: int) -> None:
        super().__init__()
        self.tp = tp
        self.norm = LayerNorm(tp, hidden)
        self.logits = ColumnParallelLinear(tp, hidden, vocab, bias=False)
        self.shard = VocabularyShard(tp, vocab)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        row, here = self.shard(targets)
        return VocabularyCrossEntropy.apply(self.logits(self.norm(x)), row, here, self.tp).mean()


class GPT(nn.Module):
    def __init__(self, tp: TensorParallel, layers: int, hidden: int, heads: int, sequence: int, vocab: int) -> None:
        super().__init__()
        self.embedding = Embedding(tp, hidden, sequence, vocab)
        self.layers = nn.ModuleList(Block(tp, hidden, heads) for _ in range(layers))
        self.head = Head(tp, hidden, vocab)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x, targets)
