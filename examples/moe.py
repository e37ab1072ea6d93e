"""A mixture-of-experts transformer in plain PyTorch with expert parallelism: all-to-all over the mesh dimension "ep".

Lynx imports this file and calls `build_model` and `example_inputs`; `build_optimizer` and `batch` are optional.
Nothing here imports Lynx. The ranks of "ep" share each microbatch: each takes its part of the sequences, holds its
part of the experts, and has all other parameters in full, whose gradients are summed over the ranks. Tokens travel to
their experts and back by all-to-all. Without a mesh, or without "ep" in it, there is no communication at all.

By default every expert takes at most a fixed number of tokens from each rank (`capacity` times a balanced share) and
the rest pass by; `dropless=true` sends every token, so that sizes depend on the data.
"""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F

SEQUENCE, VOCAB, MICRO_BATCH = 64, 512, 4
collectives = torch.ops._c10d_functional  # each returns at once; wait_tensor waits for its result


# --- what Lynx calls ---------------------------------------------------------------------------------------------


def build_model(
    mesh: DeviceMesh | None,
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    experts: int = 8,
    active: int = 2,
    capacity: float = 1.25,
    dropless: bool = False,
    sequence: int = SEQUENCE,
    vocab: int = VOCAB,
) -> nn.Module:
    """This rank's shard of the model. Its forward takes (tokens, targets) and returns the loss."""
    ep = ExpertParallel(mesh)
    if experts % ep.size or hidden % heads:
        raise ValueError(f"experts={experts} do not divide over {ep.size} ranks, or hidden={hidden} over {heads} heads")
    make = DroplessExperts if dropless else CapacityExperts
    blocks = [Block(ep, hidden, heads, experts, active, make(ep, hidden, experts, capacity)) for _ in range(layers)]
    return MoE(ep, blocks, hidden, sequence, vocab)


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
    """The data of one microbatch: random text, the same on every rank of an expert-parallel group."""
    generator = torch.Generator().manual_seed(step * 1_000_003 + microbatch * 1_009 + dp_rank)
    text = torch.randint(vocab, (micro_batch, sequence + 1), generator=generator)
    return text[:, :-1].clone(), text[:, 1:].clone()


# --- communication -----------------------------------------------------------------------------------------------


class ExpertParallel:
    """The ranks that share the experts, and the collectives among them. On one rank every method is free."""

    def __init__(self, mesh: DeviceMesh | None) -> None:
        present = mesh is not None and "ep" in (mesh.mesh_dim_names or ())
        self.group = mesh.get_group("ep").group_name if present else ""
        self.size = mesh.get_group("ep").size() if present else 1
        self.rank = mesh.get_local_rank("ep") if present else 0
        # Shared weights come from the common seed, experts from a seed of each rank's own.
        self.own_generator = torch.Generator().manual_seed(torch.initial_seed() + 1 + self.rank)

    def exchange(self, x: Tensor, received: list[int], sent: list[int]) -> Tensor:
        """`sent[r]` rows of `x` go to rank r, in order; `received[r]` rows come from it."""
        return x if self.size == 1 else Exchange.apply(x, received, sent, self)

    def all_to_all(self, x: Tensor, received: list[int], sent: list[int]) -> Tensor:
        return collectives.wait_tensor(collectives.all_to_all_single(x.contiguous(), received, sent, self.group))

    def total(self, x: Tensor) -> Tensor:
        """The sum over the ranks; each rank's gradient is that of its own summand."""
        return x if self.size == 1 else SumForward.apply(x, self)

    def shared(self, module: nn.Module) -> dict[str, Tensor]:
        """The module's parameters, of which each rank sees a part of the tokens: gradients are summed, in one go."""
        names, values = zip(*module.named_parameters(), strict=True)
        return dict(zip(names, values if self.size == 1 else SumBackward.apply(self, *values), strict=True))

    def run(self, module: nn.Module, *args: Tensor) -> Tensor:
        """A replicated module on this rank's tokens."""
        return torch.func.functional_call(module, self.shared(module), args)


class Exchange(Function):
    """Rows go to their ranks forward; their gradients come back."""

    @staticmethod
    def forward(ctx, x: Tensor, received: list[int], sent: list[int], ep: ExpertParallel) -> Tensor:
        ctx.received, ctx.sent, ctx.ep = received, sent, ep
        return ep.all_to_all(x, received, sent)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.ep.all_to_all(gradient, ctx.sent, ctx.received), None, None, None


class SumForward(Function):
    """Sums over the ranks forward; identity backward."""

    @staticmethod
    def forward(ctx, x: Tensor, ep: ExpertParallel) -> Tensor:
        return collectives.wait_tensor(collectives.all_reduce(x, "sum", ep.group))

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class SumBackward(Function):
    """Identity forward; sums the ranks' gradients backward, of all parameters in one collective."""

    @staticmethod
    def forward(ctx, ep: ExpertParallel, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.ep = ep
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        parts = [gradient.contiguous() for gradient in gradients]
        sums = collectives.all_reduce_coalesced(parts, "sum", ctx.ep.group)
        return None, *(collectives.wait_tensor(each) for each in sums)


# --- experts -----------------------------------------------------------------------------------------------------


class Router(nn.Module):
    """Each token's `active` experts, and how much each of them counts."""

    def __init__(self, hidden: int, experts: int, active: int) -> None:
        super().__init__()
        self.active = active
        self.weight = nn.Parameter(torch.empty(experts, hidden).normal_(std=0.02))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of tokens [n, hidden]: experts and weights, both [n * active], a token's experts beside each other."""
        share, expert = F.linear(x, self.weight).softmax(-1).topk(self.active, -1)
        return expert.flatten(), (share / share.sum(-1, keepdim=True)).flatten()


class Experts(nn.Module):
    """This rank's experts, two layers each. Subclasses bring tokens to them."""

    def __init__(self, ep: ExpertParallel, hidden: int, experts: int, capacity: float) -> None:
        super().__init__()
        self.ep, self.experts, self.local, self.capacity = ep, experts, experts // ep.size, capacity
        self.up = nn.Parameter(torch.empty(self.local, hidden, 4 * hidden).normal_(std=0.1, generator=ep.own_generator))
        self.down = nn.Parameter(
            torch.empty(self.local, 4 * hidden, hidden).normal_(std=0.1, generator=ep.own_generator)
        )


class CapacityExperts(Experts):
    """Every expert has the same number of places for the tokens of each rank; who finds none passes by."""

    def forward(self, x: Tensor, expert: Tensor) -> Tensor:
        """`x` [n * active, hidden] through the experts chosen for each row; zero where there was no place."""
        places = ceil(self.capacity * len(x) / self.experts)
        chosen = F.one_hot(expert, self.experts)
        rank_in_line = (chosen.cumsum(0) * chosen).sum(-1) - 1
        nowhere = self.experts * places  # one more row, for those without a place
        slot = torch.where(rank_in_line < places, expert * places + rank_in_line, nowhere)
        sent = x.new_zeros(nowhere + 1, x.shape[-1]).index_add(0, slot, x)[:nowhere]
        equal = [self.local * places] * self.ep.size
        arrived = self.ep.exchange(sent, equal, equal).unflatten(0, (self.ep.size, self.local, places))
        hidden = F.gelu(torch.bmm(arrived.transpose(0, 1).flatten(1, 2), self.up))
        made = torch.bmm(hidden, self.down).unflatten(1, (self.ep.size, places)).transpose(0, 1)
        back = self.ep.exchange(made.reshape(nowhere, -1), equal, equal)
        return F.pad(back, (0, 0, 0, 1)).index_select(0, slot)


class DroplessExperts(Experts):
    """Every token reaches its experts, so that the sizes of what is sent and computed depend on the data."""

    def forward(self, x: Tensor, expert: Tensor) -> Tensor:
        """`x` [n * active, hidden] through the experts chosen for each row."""
        order = expert.argsort(stable=True)
        counts = (expert.unsqueeze(1) == torch.arange(self.experts, device=x.device)).sum(0)
        sent, received, parts = self.sizes(counts, len(x))
        arrived = self.ep.exchange(x.index_select(0, order), received, sent).split(parts)  # by rank, then by expert
        turn = [rank * self.local + local for local in range(self.local) for rank in range(self.ep.size)]
        sizes = [sum(parts[local :: self.local]) for local in range(self.local)]
        rows = torch.cat([arrived[part] for part in turn])  # by expert, then by rank
        hidden = F.gelu(torch.cat([each @ up for each, up in zip(rows.split(sizes), self.up, strict=True)]))
        made = torch.cat([each @ down for each, down in zip(hidden.split(sizes), self.down, strict=True)])
        of_part = dict(zip(turn, made.split([parts[part] for part in turn]), strict=True))
        by_rank = torch.cat([of_part[part] for part in sorted(of_part)])
        back = self.ep.exchange(by_rank, sent, received)
        return torch.zeros_like(x).index_copy(0, order, back)

    def sizes(self, counts: Tensor, most: int) -> tuple[list[int], list[int], list[int]]:
        """Rows sent to each rank, received from each rank, and received from each rank for each expert here.

        `counts` are this rank's rows for each expert. No rank sends more than `most` rows.
        """
        if self.ep.size == 1:
            return [most], [most], checked(counts, most)
        equal = [self.local] * self.ep.size
        theirs = self.ep.all_to_all(counts, equal, equal)
        per_rank = [each.view(self.ep.size, -1).sum(1) for each in (counts, theirs)]
        return checked(per_rank[0], most), checked(per_rank[1], most), checked(theirs, most)


def checked(sizes: Tensor, most: int) -> list[int]:
    """The sizes as numbers, with their bounds told to whoever traces this."""
    numbers = sizes.tolist()
    for number in numbers:
        torch._check(number >= 0)
        torch._check(number <= most)
    return numbers


# --- layers ------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Norm and causal self-attention."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.projection = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(mixed.transpose(1, 2).flatten(2))


class Routing(nn.Module):
    """Norm and router: the normed tokens, and where each of them goes."""

    def __init__(self, hidden: int, experts: int, active: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.router = Router(hidden, experts, active)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normed = self.norm(x)
        return normed, *self.router(normed)


class Block(nn.Module):
    def __init__(self, ep: ExpertParallel, hidden: int, heads: int, experts: int, active: int, mlp: Experts) -> None:
        super().__init__()
        self.ep, self.active = ep, active
        self.attention = Attention(hidden, heads)
        self.routing = Routing(hidden, experts, active)
        self.experts = mlp

    def forward(self, x: Tensor) -> Tensor:
        """[sequences, length, hidden] to the same."""
        x = x + self.ep.run(self.attention, x)
        rows, expert, weight = self.ep.run(self.routing, x.flatten(0, 1))
        made = self.experts(rows.repeat_interleave(self.active, 0), expert) * weight.unsqueeze(-1)
        return x + made.unflatten(0, (-1, self.active)).sum(1).view_as(x)


class Embedding(nn.Module):
    """Token embedding plus learned positions."""

    def __init__(self, hidden: int, sequence: int, vocab: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.empty(vocab, hidden).normal_(std=0.5))
        self.position = nn.Parameter(torch.empty(sequence, hidden).normal_(std=0.5))

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.token) + self.position


class Head(nn.Module):
    """Final norm, logits, and the sum of the cross entropies."""

    def __init__(self, hidden: int, vocab: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.logits = nn.Linear(hidden, vocab, bias=False)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(self.norm(x)).flatten(0, 1), targets.flatten(), reduction="sum")


class MoE(nn.Module):
    def __init__(self, ep: ExpertParallel, blocks: list[Block], hidden: int, sequence: int, vocab: int) -> None:
        super().__init__()
        self.ep = ep
        self.embedding = Embedding(hidden, sequence, vocab)
        self.layers = nn.ModuleList(blocks)
        self.head = Head(hidden, vocab)
        # A buffer, not a Python number: every rank then runs the same graph, on its own part of the data.
        self.register_buffer("rank", torch.tensor(ep.rank))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean loss over the microbatch, of which this rank computes its part."""
        mine, wanted = self.part(tokens), self.part(targets)
        x = self.ep.run(self.embedding, mine)
        for layer in self.layers:
            x = layer(x)
        return self.ep.total(self.ep.run(self.head, x, wanted)) / targets.numel()

    def part(self, data: Tensor) -> Tensor:
        """This rank's sequences."""
        if self.ep.size == 1:
            return data
        if len(data) % self.ep.size:
            raise ValueError(f"a microbatch of {len(data)} sequences does not divide over {self.ep.size} ranks")
        share = len(data) // self.ep.size
        return data.index_select(0, self.rank * share + torch.arange(share, device=data.device))
