"""A GPT in plain PyTorch whose parameters are sharded over the data-parallel ranks ("dp"), as FSDP or ZeRO-3 do it.

Lynx imports this file and calls `build_model` and `example_inputs`; `build_optimizer` and `batch` are optional.
Nothing here imports Lynx. Each rank has a microbatch of its own. The parameters of a block are one flat tensor, of
which each rank holds its part: it is gathered before the block runs, and the gradients are averaged into the parts by
a reduce-scatter. The gathered parameters are activations like any other: a plan keeps them for the backward pass, or
gathers them again. Without a mesh, or without "dp" in it, there is no communication at all.
"""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F

SEQUENCE, VOCAB, MICRO_BATCH = 64, 512, 2
collectives = torch.ops._c10d_functional  # each returns at once; wait_tensor waits for its result


# --- what Lynx calls ---------------------------------------------------------------------------------------------


def build_model(
    mesh: DeviceMesh | None,
    *,
    layers: int = 4,
    hidden: int = 128,
    heads: int = 4,
    sequence: int = SEQUENCE,
    vocab: int = VOCAB,
) -> nn.Module:
    """This rank's shard of the model. Its forward takes (tokens, targets) and returns the loss."""
    if hidden % heads:
        raise ValueError(f"heads={heads} does not divide hidden={hidden}")
    dp = DataParallel(mesh)
    embedding = Sharded(dp, Embedding(hidden, sequence, vocab))
    blocks = [Sharded(dp, Block(hidden, heads)) for _ in range(layers)]
    return GPT(embedding, blocks, Sharded(dp, Head(hidden, vocab)))


def example_inputs(
    *, micro_batch: int = MICRO_BATCH, sequence: int = SEQUENCE, vocab: int = VOCAB
) -> tuple[Tensor, Tensor]:
    """Tokens and targets of one microbatch, both int64 [micro_batch, sequence]."""
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
    """The data of one microbatch: random text, other text on every data-parallel rank."""
    generator = torch.Generator().manual_seed(step * 1_000_003 + microbatch * 1_009 + dp_rank)
    text = torch.randint(vocab, (micro_batch, sequence + 1), generator=generator)
    return text[:, :-1].clone(), text[:, 1:].clone()


# --- sharding ----------------------------------------------------------------------------------------------------


class DataParallel:
    """The ranks that share the parameters, and the collectives among them."""

    def __init__(self, mesh: DeviceMesh | None) -> None:
        present = mesh is not None and "dp" in (mesh.mesh_dim_names or ())
        self.group = mesh.get_group("dp").group_name if present else ""
        self.size = mesh.get_group("dp").size() if present else 1
        self.rank = mesh.get_local_rank("dp") if present else 0

    def gather(self, shard: Tensor) -> Tensor:
        """The ranks' shards, one after the other; the gradient of this rank's is the mean of the ranks' gradients."""
        return shard if self.size == 1 else Gather.apply(shard, self)


class Gather(Function):
    """Gathers shards forward; averages the ranks' gradients into shards backward."""

    @staticmethod
    def forward(ctx, shard: Tensor, dp: DataParallel) -> Tensor:
        ctx.dp = dp
        return collectives.wait_tensor(collectives.all_gather_into_tensor(shard, dp.size, dp.group))

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        dp = ctx.dp
        total = collectives.reduce_scatter_tensor(gradient.contiguous(), "sum", dp.size, dp.group)
        return collectives.wait_tensor(total) / dp.size, None


class Sharded(nn.Module):
    """A module whose parameters are one flat tensor, of which this rank holds `shard`."""

    def __init__(self, dp: DataParallel, whole: nn.Module) -> None:
        super().__init__()
        self.dp = dp
        self.names, values = zip(*whole.named_parameters(), strict=True)
        self.shapes = [value.shape for value in values]
        flat = torch.cat([value.detach().flatten() for value in values])
        part = ceil(len(flat) / dp.size)
        padded = F.pad(flat, (0, part * dp.size - len(flat)))
        self.shard = nn.Parameter(padded[dp.rank * part : (dp.rank + 1) * part].clone())
        object.__setattr__(self, "whole", whole)  # no submodule: the full parameters are none of this module's
        for parameter in whole.parameters():
            parameter.data = parameter.data.new_empty(0)

    def forward(self, *args: Tensor) -> Tensor:
        flat = self.dp.gather(self.shard)
        sizes = [shape.numel() for shape in self.shapes]
        parts = flat.split([*sizes, len(flat) - sum(sizes)])
        values = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=False)]
        return torch.func.functional_call(self.whole, dict(zip(self.names, values, strict=True)), args)


# --- layers ------------------------------------------------------------------------------------------------------


class Embedding(nn.Module):
    """Token embedding plus learned positions."""

    def __init__(self, hidden: int, sequence: int, vocab: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.empty(vocab, hidden).normal_(std=0.02))
        self.position = nn.Parameter(torch.empty(sequence, hidden).normal_(std=0.02))

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.token) + self.position


class Block(nn.Module):
    """Causal self-attention and an MLP, each behind a norm."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.projection = nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[sequences, length, hidden] to the same."""
        query, key, value = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Head(nn.Module):
    """Final norm, logits, and the mean cross entropy."""

    def __init__(self, hidden: int, vocab: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.logits = nn.Linear(hidden, vocab, bias=False)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(self.norm(x)).flatten(0, 1), targets.flatten())


class GPT(nn.Module):
    def __init__(self, embedding: nn.Module, blocks: list[Sharded], head: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(blocks)
        self.head = head

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x, targets)
