"""The process group that `lynx run` uses on CPU: Gloo, with each transfer recorded and, given a link, held back.

Gloo does the work; on an emulated link a transfer is complete no earlier than the link clock says. Functional
collectives, DTensor and `torch.distributed` calls alike go through it. It subclasses `dist.ProcessGroup`
rather than `Backend`: only the former can be written in Python (tried on torch 2.13).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Work

from lynx_plan.cost.collectives import collective_ns
from lynx_plan.model.machine import Link
from lynx_plan.torch_rt import compat
from lynx_plan.torch_rt.link_clock import Channel, LinkClock, now_ns, sleep_until

BACKEND = "lynx"
_PATIENCE_NS = 5_000_000_000  # for Gloo's threads to let go of tensors: on a busy machine they wait for a core
_POLL_S = 10e-6


@dataclass(slots=True)
class Transfer:
    """One collective as this rank saw it. Start and end are 0 until its wait (on a link) or its completion."""

    kind: str
    payload_bytes: int
    launch_ns: int
    start_ns: int = 0
    end_ns: int = 0
    blocked_ns: int = 0  # time that wait() took


class Recorder:
    """This process's transfers in launch order, while `on`."""

    def __init__(self) -> None:
        self.on = False
        self.transfers: list[Transfer] = []

    def start(self) -> None:
        self.on, self.transfers = True, []

    def stop(self) -> list[Transfer]:
        """The transfers since `start`."""
        self.on = False
        return self.transfers


@dataclass(frozen=True, slots=True)
class Pace:
    """What the groups of this process are held to; without a clock they only record."""

    link: Link | None
    clock: LinkClock | None
    recorder: Recorder


class PacedWork(Work):
    """Gloo's work, complete when Gloo is done and the link's time is over.

    Memory dies where a program says, whatever the backend does inside. A collective has its tensors until its
    wait (Gloo copies the input of some at launch; NCCL does not). Gloo's threads let go of a work's tensors some
    time after it is complete, and `wait` waits for that too: `held` are weak references to aliases that only
    Gloo has.
    """

    def __init__(
        self,
        inner: Work,
        transfer: Transfer,
        channel: Channel | None,
        sequence: int,
        timeout: timedelta,
        tensors: Any,
        held: list[weakref.ref[torch.Tensor]],
    ) -> None:
        super().__init__()
        self._tensors = tensors
        self.last_act: Callable[[], Any] | None = None  # of the wait, such as a copy out of a buffer
        self._inner: Work | None = inner
        self._transfer = transfer
        self._channel, self._sequence, self._timeout = channel, sequence, timeout
        self._held = held

    def wait(self, timeout: timedelta | None = None) -> bool:
        entered = now_ns()
        if self._inner is not None:
            self._inner.wait(timeout) if timeout else self._inner.wait()
            self._transfer.end_ns = self._transfer.end_ns or now_ns()
            if self.last_act is not None:
                self.last_act()
            self._inner = self._tensors = self.last_act = None
            give_up = now_ns() + _PATIENCE_NS
            while any(alias() is not None for alias in self._held) and now_ns() < give_up:
                time.sleep(_POLL_S)
        if self._channel is not None:
            start, end = self._channel.settle(self._sequence, self._timeout.total_seconds())
            sleep_until(end)
            self._transfer.start_ns, self._transfer.end_ns = start, end
        self._transfer.blocked_ns += now_ns() - entered
        return True

    def is_completed(self) -> bool:
        if self._inner is not None and not self._inner.is_completed():
            return False
        times = (0, 0) if self._channel is None else self._channel.settled(self._sequence)
        return times is not None and now_ns() >= times[1]

    def is_success(self) -> bool:
        return self.is_completed() and (self._inner is None or self._inner.is_success())

    def exception(self) -> Any:
        return self._inner.exception() if self._inner is not None else None

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> torch.futures.Future:
        """Completes when `wait` would return; a thread waits, since nothing else fires at the link's time."""
        assert self._inner is not None, "ask for the future before waiting"
        inner, future = self._inner.get_future(), torch.futures.Future()

        def finish() -> None:
            try:
                value = inner.wait()
                self._held = []  # the future's owner keeps the tensors
                self.wait()
                future.set_result(value)
            except Exception as error:  # handed on to whoever asks for the future's value
                future.set_exception(error)

        threading.Thread(target=finish, daemon=True).start()
        return future


class PacedGroup(dist.ProcessGroup):
    """Gloo behind a link: `ranks` are the members' global ranks, in group order."""

    def __init__(self, options: Any, pace: Pace) -> None:
        rank, size = options.group_rank, options.group_size
        super().__init__(rank, size)
        self._pace, self._timeout = pace, options.timeout
        self._label = str(options.group_id)
        self._ranks = tuple(options.global_ranks_in_group) or tuple(range(size))
        self._channels: dict[str, Channel] = {}
        self._inner = compat.gloo_group(options.store, rank, size, options.timeout)

    def _channel(self, label: str, members: Sequence[int]) -> Channel | None:
        if self._pace.clock is None or len(members) < 2:
            return None
        if label not in self._channels:
            ranks = tuple(self._ranks[member] for member in members)
            self._channels[label] = self._pace.clock.channel(f"{self._label}/{label}", ranks)
        return self._channels[label]

    def _launch(
        self, kind: str, payload: int, channel: Channel | None, call: Callable[..., Work], tensors: Any, *rest: Any
    ) -> PacedWork:
        """Stamp the arrival, let Gloo begin (`call(*tensors, *rest)`), and give the work to wait for."""
        link, recorder = self._pace.link, self._pace.recorder
        if channel is not None and link is not None:
            sequence, launch = channel.arrive(collective_ns(kind, len(channel.ranks), payload, link))
        else:
            sequence, launch = 0, now_ns()
        held: list[weakref.ref[torch.Tensor]] = []
        inner = call(*_aliases(tensors, held), *rest)
        transfer = Transfer(kind, payload, launch, launch)
        if recorder.on:
            recorder.transfers.append(transfer)
            if channel is None:
                with suppress(RuntimeError):  # some works of Gloo have no future: then the wait's end counts
                    inner.get_future().add_done_callback(lambda _: _mark_end(transfer))
        return PacedWork(inner, transfer, channel, sequence, self._timeout, tensors, held)

    def _all(self, kind: str, payload: Any, call: Callable[..., Work], tensors: Any, *rest: Any) -> PacedWork:
        """A collective of the whole group; `payload` are the tensors that hold the full, unsharded one's bytes."""
        return self._launch(kind, _bytes(payload), self._channel("all", range(self.size())), call, tensors, *rest)

    # Names and signatures are those of dist.ProcessGroup.

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        opts = opts or dist.AllreduceOptions()
        return self._all("all_reduce", tensors, self._inner.allreduce, (tensors,), opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work:
        opts = opts or dist.AllreduceCoalescedOptions()
        return self._all("all_reduce", tensors, self._inner.allreduce_coalesced, (tensors,), opts)

    def reduce(self, tensors: Any, opts: Any = None) -> Work:
        return self._all("all_reduce", tensors, self._inner.reduce, (tensors,), opts or dist.ReduceOptions())

    def broadcast(self, tensors: Any, opts: Any = None) -> Work:
        return self._all("broadcast", tensors, self._inner.broadcast, (tensors,), opts or dist.BroadcastOptions())

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        opts = opts or dist.AllgatherOptions()
        return self._all("all_gather", outputs, self._inner.allgather, (outputs, inputs), opts)

    def _allgather_base(self, output: Any, source: Any, opts: Any = None) -> Work:
        opts = opts or dist.AllgatherOptions()
        return self._all("all_gather", output, self._inner._allgather_base, (output, source), opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        opts = opts or dist.AllgatherOptions()
        return self._all("all_gather", outputs, self._inner.allgather_coalesced, (outputs, inputs), opts)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        opts, call = opts or dist.AllgatherOptions(), self._inner.allgather_into_tensor_coalesced
        return self._all("all_gather", outputs, call, (outputs, inputs), opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        opts = opts or dist.ReduceScatterOptions()
        return self._all("reduce_scatter", inputs, self._inner.reduce_scatter, (outputs, inputs), opts)

    def _reduce_scatter_base(self, output: Any, source: Any, opts: Any = None) -> Work:
        """As Gloo does it, an all-reduce of a copy; Gloo's own does not say when it is complete."""
        options = dist.AllreduceOptions()
        options.reduceOp = (opts or dist.ReduceScatterOptions()).reduceOp
        buffer = source.clone(memory_format=torch.contiguous_format)
        work = self._all("reduce_scatter", source, self._inner.allreduce, ([buffer],), options)
        part = buffer.view(self.size(), *output.shape)[self.rank()]
        work.last_act = partial(_copy_part, output, part, source)
        return work

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        if len(inputs) == 1:
            return self._reduce_scatter_base(outputs[0], inputs[0], opts)
        opts, call = opts or dist.ReduceScatterOptions(), self._inner.reduce_scatter_tensor_coalesced
        return self._all("reduce_scatter", inputs, call, (outputs, inputs), opts)

    def alltoall_base(self, output: Any, source: Any, out_splits: Any, in_splits: Any, opts: Any = None) -> Work:
        opts, call = opts or dist.AllToAllOptions(), self._inner.alltoall_base
        return self._all("all_to_all", source, call, (output, source), out_splits, in_splits, opts)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        opts = opts or dist.AllToAllOptions()
        return self._all("all_to_all", inputs, self._inner.alltoall, (outputs, inputs), opts)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        opts, payload = opts or dist.GatherOptions(), [inputs] * self.size()
        return self._all("all_gather", payload, self._inner.gather, (outputs, inputs), opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        opts, payload = opts or dist.ScatterOptions(), [outputs] * self.size()
        return self._all("all_gather", payload, self._inner.scatter, (outputs, inputs), opts)

    def barrier(self, opts: Any = None) -> Work:
        return self._all("all_reduce", (), self._inner.barrier, (), opts or dist.BarrierOptions())

    def send(self, tensors: Any, destination: int, tag: int = 0) -> Work:
        channel = self._channel(f"{self.rank()}>{destination}#{tag}", (self.rank(), destination))
        return self._launch("send", _bytes(tensors), channel, self._inner.send, (tensors,), destination, tag)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Work:
        channel = self._channel(f"{source}>{self.rank()}#{tag}", (source, self.rank()))
        return self._launch("recv", _bytes(tensors), channel, self._inner.recv, (tensors,), source, tag)

    # torch 2.13's names for the same calls; older versions know only the ones above.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    def getBackendName(self) -> str:
        return BACKEND

    # Read by the functional collectives and by torch.distributed; a Python subclass has to give them itself.
    @property
    def pg_name(self) -> str:
        return compat.registered_name(self)

    @property
    def group_name(self) -> str:
        return self.pg_name


def _copy_part(output: torch.Tensor, part: torch.Tensor, _source: torch.Tensor) -> None:
    output.copy_(part)


def _mark_end(transfer: Transfer) -> None:
    transfer.end_ns = now_ns()


def _aliases(tensors: Any, held: list[weakref.ref[torch.Tensor]]) -> Any:
    """The same tensors (in lists and tuples) as new objects that share memory, with weak references to them."""
    if isinstance(tensors, torch.Tensor):
        alias = tensors.detach()
        held.append(weakref.ref(alias))
        return alias
    return [_aliases(tensor, held) for tensor in tensors]


def _bytes(tensors: Any) -> int:
    if isinstance(tensors, torch.Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(_bytes(tensor) for tensor in tensors)


def register(pace: Pace) -> str:
    """Make `pace` what groups of the backend (whose name is returned) are held to from now on."""
    dist.Backend.register_backend(BACKEND, lambda options, _: PacedGroup(options, pace), True, devices=["cpu"])
    return BACKEND
