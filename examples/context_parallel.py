"""A GPT in plain PyTorch with context parallelism: the ranks of the mesh dimension "cp" share each sequence.

Lynx imports this file and calls `build_model` and `example_inputs`; `build_optimizer` and `batch` are optional.
Nothing here imports Lynx. Each rank has a part of every sequence and all parameters, whose gradients are summed over
the ranks. Attention gathers the keys and values of all ranks, so that each query sees what came before it; backward,
their gradients are summed into the parts. Without a mesh, or without "cp" in it, there is no communication at all.
"""

from __future__ import annotations

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
    hidden: int = 128,
    heads: int = 4,
    sequence: int = SEQUENCE,
    vocab: int = VOCAB,
) -> nn.Module:
    """The model, for this rank's part of the sequence. Its forward takes (tokens, targets) and returns the loss."""
    cp = ContextParallel(mesh)
    if hidden % heads:
        raise ValueError(f"heads={heads} does not divide hidden={hidden}")
    if sequence % cp.size:
        raise ValueError(f"context parallelism over {cp.size} ranks does not divide sequence={sequence}")
    return GPT(cp, layers, hidden, heads, sequence, vocab)


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
    """The data of one microbatch: random text, whole on every rank of a context-parallel group."""
    generator = torch.Generator().manual_seed(step * 1_000_003 + microbatch * 1_009 + dp_rank)
    text = torch.randint(vocab, (sequence + 1, micro_batch), generator=generator)
    return text[:-1].clone(), text[1:].clone()


# --- communication -----------------------------------------------------------------------------------------------


class ContextParallel:
    """The ranks that share each sequence, and the collectives among them. On one rank every method is free."""

    def __init__(self, mesh: DeviceMesh | None) -> None:
        present = mesh is not None and "cp" in (mesh.mesh_dim_names or ())
        self.group = mesh.get_group("cp").group_name if present else ""
        self.size = mesh.get_group("cp").size() if present else 1
        self.rank = mesh.get_local_rank("cp") if present else 0

    def gather(self, x: Tensor) -> Tensor:
        """The ranks' parts of `x`, one after the other in its first dimension."""
        return x if self.size == 1 else GatherParts.apply(x, self)

    def total(self, x: Tensor) -> Tensor:
        """The sum over the ranks; each rank's gradient is that of its own summand."""
        return x if self.size == 1 else SumForward.apply(x, self)

    def run(self, module: nn.Module, *args: Tensor) -> Tensor:
        """A module on this rank's part of the sequence: its parameters' gradients are summed, in one collective."""
        if self.size == 1:
            return module(*args)
        names, values = zip(*module.named_parameters(), strict=True)
        shared = SumBackward.apply(self, *values)
        return torch.func.functional_call(module, dict(zip(names, shared, strict=True)), args)


class GatherParts(Function):
    """All parts of the sequence forward; sums the ranks' gradients and keeps its own part backward."""

    @staticmethod
    def forward(ctx, x: Tensor, cp: ContextParallel) -> Tensor:
        ctx.cp = cp
        return collectives.wait_tensor(collectives.all_gather_into_tensor(x.contiguous(), cp.size, cp.group))

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        cp = ctx.cp
        part = collectives.reduce_scatter_tensor(gradient.contiguous(), "sum", cp.size, cp.group)
        return collectives.wait_tensor(part), None


class SumForward(Function):
    """Sums over the ranks forward; identity backward."""

    @staticmethod
    def forward(ctx, x: Tensor, cp: ContextParallel) -> Tensor:
        return collectives.wait_tensor(collectives.all_reduce(x, "sum", cp.group))

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class SumBackward(Function):
    """Identity forward; sums the ranks' gradients backward, of all parameters in one collective."""

    @staticmethod
    def forward(ctx, cp: ContextParallel, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.cp = cp
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        parts = [gradient.contiguous() for gradient in gradients]
        sums = collectives.all_reduce_coalesced(parts, "sum", ctx.cp.group)
        return None, *(collectives.wait_tensor(each) for each in sums)


# --- layers ------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Causal self-attention of this rank's queries over everybody's keys and values."""

    def __init__(self, cp: ContextParallel, hidden: int, heads: int) -> None:
        super().__init__()
        self.cp, self.heads = cp, heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.projection = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """[part, batch, hidden] to the same; `visible` [part, sequence] says which keys a query sees."""
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # [part, batch, 3, heads, head size]
        query = qkv[:, :, 0].permute(1, 2, 0, 3)
        key, value = self.cp.gather(qkv[:, :, 1:]).permute(2, 1, 3, 0, 4).unbind()  # [batch, heads, sequence, size]
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        return self.projection(mixed.permute(2, 0, 1, 3).flatten(2))


class Block(nn.Module):
    def __init__(self, cp: ContextParallel, hidden: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention = Attention(cp, hidden, heads)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), visible)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Embedding(nn.Module):
    """Token embedding plus learned positions."""

    def __init__(self, hidden: int, sequence: int, vocab: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.empty(vocab, hidden).normal_(std=0.02))
        self.position = nn.Parameter(torch.empty(sequence, hidden).normal_(std=0.02))

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return F.embedding(tokens, self.token) + F.embedding(positions, self.position).unsqueeze(1)


class Head(nn.Module):
    """Final norm, logits, and the sum of the cross entropies."""

    def __init__(self, hidden: int, vocab: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.logits = nn.Linear(hidden, vocab, bias=False)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(self.norm(x)).flatten(0, 1), targets.flatten(), reduction="sum")


class OnePart(nn.Module):
    """Runs a block with its parameters shared among the ranks, so that the block is one module of the model."""

    def __init__(self, cp: ContextParallel, block: nn.Module) -> None:
        super().__init__()
        self.cp, self.block = cp, block

    def forward(self, *args: Tensor) -> Tensor:
        return self.cp.run(self.block, *args)


class GPT(nn.Module):
    def __init__(self, cp: ContextParallel, layers: int, hidden: int, heads: int, sequence: int, vocab: int) -> None:
        super().__init__()
        self.cp = cp
        self.embedding = OnePart(cp, Embedding(hidden, sequence, vocab))
        self.layers = nn.ModuleList(OnePart(cp, Block(cp, hidden, heads)) for _ in range(layers))
        self.head = OnePart(cp, Head(hidden, vocab))
        # A buffer, not a Python number: every rank then runs the same graph, on its own part of the sequence.
        part = sequence // cp.size
        self.register_buffer("positions", torch.arange(part) + cp.rank * part)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean loss over the microbatch, of which this rank computes its part."""
        visible = self.positions.unsqueeze(1) >= torch.arange(len(tokens), device=tokens.device)
        x = self.embedding(tokens.index_select(0, self.positions), self.positions)
        for layer in self.layers:
            x = layer(x, visible)
        return self.cp.total(self.head(x, targets.index_select(0, self.positions))) / targets.numel()
