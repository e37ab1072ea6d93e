"""What a real run of a block shows: on copies of its parameters and inputs, filled with random values."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import flop_registry

from lynx_plan.torch_rt import compat
from lynx_plan.torch_rt.call_shape import CallShape, shape_of
from lynx_plan.torch_rt.live_bytes import LiveBytes

_TIMED = 3


@dataclass(frozen=True)
class Strided:
    """Shape, strides in elements and dtype of a result."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class KeptFacts:
    """A block's results, what it saves between forward and backward, and what it costs. Bytes are activations."""

    call: CallShape  # of the block's arguments
    result: CallShape  # of what it returns
    outputs: tuple[Strided, ...]
    differentiable_outputs: tuple[int, ...]
    takes_gradient: tuple[bool, ...]  # of inputs, then parameters
    gradients: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    held: tuple[int, ...]  # inputs whose storages autograd saves
    held_outputs: tuple[int, ...]  # outputs whose storages it saves
    saved_bytes: int  # beside these and parameters
    forward_scratch_bytes: int
    backward_scratch_bytes: int
    forward_flops: int
    backward_flops: int
    forward_ns: int
    backward_ns: int


def in_a_thread(run: Callable[[], Any]) -> Any:
    """Call `run` in a thread of its own, outside of all tracing, with one compute thread; raises what it raises."""
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(lambda: (torch.set_num_threads(1), run())[1]).result()
        finally:
            torch.set_num_threads(threads)


def run_really(
    block: nn.Module, forward: Callable[..., Any], shape: CallShape, tensors: tuple[Tensor, ...]
) -> KeptFacts:
    """Run `forward` on a real copy of `block` and of its arguments, with gradients, and look. Draws no user's random.

    Raises what the block raises.
    """
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        real = _real_copy(block)
        inputs = tuple(_real(t).requires_grad_(t.requires_grad) for t in tensors)
        run = _Run(real, forward, shape, inputs)
        run.look()
        return run.facts()


class _Flops(compat.TorchDispatchMode):
    """Floating-point operations of matmuls, convolutions and attention, by torch's formulas."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if formula := flop_registry.get(getattr(func, "overloadpacket", None)):
            self.total += int(formula(*args, **(kwargs or {}), out_val=result))
        return result


class _Run:
    def __init__(self, block: nn.Module, forward: Callable[..., Any], shape: CallShape, inputs: tuple[Tensor, ...]):
        self.block, self.forward, self.shape, self.inputs = block, forward, shape, inputs
        self.parameters = [p for _, p in block.named_parameters() if p.requires_grad]
        self.takes = tuple(t.requires_grad for t in (*inputs, *self.parameters))
        self.static = {compat.storage_key(t) for t in (*block.parameters(), *block.buffers())}
        self.saved: dict[int, Tensor] = {}
        self.times: list[tuple[int, int]] = []

    def _pack(self, tensor: Tensor) -> Tensor:
        if compat.storage_key(tensor) not in self.static:
            self.saved.setdefault(compat.storage_key(tensor), tensor.detach())
        return tensor

    def _call(self) -> tuple[CallShape, tuple[Tensor, ...]]:
        args, kwargs = self.shape.rebuild(self.inputs)
        return shape_of(((self.forward(self.block, *args, **kwargs),), {}))

    def _backward(self, used: list[Tensor], ones: list[Tensor]) -> tuple[Tensor | None, ...]:
        wanted = [t for t, takes in zip((*self.inputs, *self.parameters), self.takes, strict=True) if takes]
        return torch.autograd.grad(used, wanted, ones, allow_unused=True)

    def look(self) -> None:
        """One run for bytes and operations, then some for times."""
        static = [*self.inputs, *self.block.parameters(), *self.block.buffers()]
        with LiveBytes(static) as live, _Flops() as count:
            with saved_tensors_hooks(self._pack, lambda tensor: tensor):
                self.result, self.outputs = self._call()
            own = {compat.storage_key(t): t.untyped_storage().nbytes() for t in self.outputs}
            inputs = {compat.storage_key(t): i for i, t in enumerate(self.inputs)}
            self.held = tuple(sorted(inputs[key] for key in self.saved if key in inputs))
            self.held_outputs = tuple(i for i, t in enumerate(self.outputs) if compat.storage_key(t) in self.saved)
            kept = {key: t.untyped_storage().nbytes() for key, t in self.saved.items()}
            self.saved_bytes = sum(size for key, size in kept.items() if key not in own and key not in inputs)
            # one element for each input that has a gradient: `kept_runtime` holds that instead of the input
            self.saved_bytes += sum(t.element_size() for t in self.inputs if t.requires_grad)
            ends = sum(own.values()) + self.saved_bytes
            self.forward_scratch, self.forward_flops = max(0, live.peak_bytes - ends), count.total
            self.saved.clear()
            used, ones = _differentiable(self.outputs)
            before, live.peak_bytes = live.now_bytes, live.now_bytes
            self.gradients = self._backward(used, ones)
            made = sum(g.untyped_storage().nbytes() for g in self.gradients if g is not None)
            self.backward_scratch = max(0, live.peak_bytes - before - made)
            self.backward_flops = count.total - self.forward_flops
        for _ in range(_TIMED):
            begun = time.perf_counter_ns()
            _, outputs = self._call()
            used, ones = _differentiable(outputs)
            between = time.perf_counter_ns()
            self._backward(used, ones)
            self.times.append((between - begun, time.perf_counter_ns() - between))

    def facts(self) -> KeptFacts:
        wanted = [t for t, takes in zip((*self.inputs, *self.parameters), self.takes, strict=True) if takes]
        return KeptFacts(
            call=self.shape,
            result=self.result,
            outputs=tuple(Strided(tuple(t.shape), t.stride(), t.dtype) for t in self.outputs),
            differentiable_outputs=tuple(i for i, t in enumerate(self.outputs) if t.requires_grad),
            takes_gradient=self.takes,
            gradients=tuple((tuple(t.shape), t.dtype) for t in wanted),
            held=self.held,
            held_outputs=self.held_outputs,
            saved_bytes=self.saved_bytes,
            forward_scratch_bytes=self.forward_scratch,
            backward_scratch_bytes=self.backward_scratch,
            forward_flops=self.forward_flops,
            backward_flops=self.backward_flops,
            forward_ns=int(median(first for first, _ in self.times)),
            backward_ns=int(median(second for _, second in self.times)),
        )


def _differentiable(outputs: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs that have gradients, and gradients for them."""
    used = [t for t in outputs if t.requires_grad]
    return used, [torch.ones_like(t) for t in used]


def _real_copy(block: nn.Module) -> nn.Module:
    """The block with real tensors in place of those that are traced, which need not be `nn.Parameter`s."""
    memo: dict[int, Any] = {id(tensor): _real(tensor) for tensor in block.buffers()}
    for tensor in block.parameters():
        memo[id(tensor)] = nn.Parameter(_real(tensor), requires_grad=tensor.requires_grad)
    own = block.__dict__.pop("forward", None)  # the stand-in, which is being traced
    try:
        return copy.deepcopy(block, memo)
    finally:
        if own is not None:
            block.__dict__["forward"] = own


def _real(tensor: Tensor) -> Tensor:
    """Random values in [0, 1) (whole numbers: 0 and 1) of the same shape, strides and dtype."""
    made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
    if made.is_floating_point() or made.is_complex():
        return made.copy_(torch.rand(tuple(tensor.shape)).to(made.dtype))
    return made.copy_(torch.randint(0, 2, tuple(tensor.shape)).to(made.dtype))
