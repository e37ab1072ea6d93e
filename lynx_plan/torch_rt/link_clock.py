"""The emulated link's clock: when each transfer starts and ends, shared by the ranks of one machine.

Ranks are processes of one machine, so CLOCK_MONOTONIC is common to them; what they must agree on lies in
small memory-mapped files of one folder. A transfer starts when its last member has arrived and the link of
every member is free; groups that share a rank share its link. Arrivals are stamped under one lock, so the
member that arrives last knows both and settles start and end for all.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import threading
import time
from pathlib import Path

from lynx_plan.errors import LynxError

RING = 4096  # transfers of one channel that may be unsettled or unread at once
_SEQUENCE, _ARRIVED, _START, _END, _DURATION, _HEADER = range(6)
_POLL_S = 20e-6
_SPIN_NS = 100_000  # the kernel wakes sleepers late by about half of this


def now_ns() -> int:
    """Nanoseconds of the clock that all ranks of a machine share."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def sleep_until(deadline_ns: int) -> None:
    """Sleep to within a tenth of a millisecond of the deadline, then spin: gives the core away meanwhile."""
    remaining = deadline_ns - now_ns()
    if remaining > 2 * _SPIN_NS:
        time.sleep((remaining - _SPIN_NS) / 1e9)
    while now_ns() < deadline_ns:
        pass


class LinkClock:
    """The folder's lock and the time from which each rank's link is free (int64 nanoseconds per rank)."""

    def __init__(self, folder: Path, world_size: int) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._handle, self.free_at = _map(folder / "free_at", world_size)

    def __enter__(self) -> LinkClock:
        self._lock.acquire()
        fcntl.lockf(self._handle, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._handle, fcntl.LOCK_UN)
        self._lock.release()

    def channel(self, name: str, ranks: tuple[int, ...]) -> Channel:
        """The channel of that name between these (global) ranks: the same object on each of them, so to speak."""
        return Channel(self, name, ranks)


class Channel:
    """A sequence of transfers among fixed members, in which every member takes part in the same order."""

    def __init__(self, clock: LinkClock, name: str, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self._clock = clock
        self._next = 0
        key = hashlib.sha256(f"{name}:{ranks}".encode()).hexdigest()[:24]
        self._handle, self._slots = _map(clock.folder / key, RING * _HEADER)

    def arrive(self, duration_ns: int) -> tuple[int, int]:
        """Announce this member's next transfer; gives its sequence number and the time of arrival."""
        sequence, self._next = self._next, self._next + 1
        slots, base = self._slots, (sequence % RING) * _HEADER
        with self._clock as clock:
            arrival = now_ns()
            if slots[base + _SEQUENCE] != sequence + 1:
                self._open(base, sequence)
            slots[base + _ARRIVED] += 1
            slots[base + _DURATION] = max(slots[base + _DURATION], duration_ns)
            if slots[base + _ARRIVED] == len(self.ranks):
                start = max(arrival, *(clock.free_at[rank] for rank in self.ranks))
                end = start + slots[base + _DURATION]
                for rank in self.ranks:
                    clock.free_at[rank] = end
                slots[base + _START] = start
                slots[base + _END] = end
        return sequence, arrival

    def _open(self, base: int, sequence: int) -> None:
        if self._slots[base + _SEQUENCE] and not self._slots[base + _END]:
            raise LynxError(f"more than {RING} transfers wait for a rank of the emulated link")
        for field in range(_HEADER):
            self._slots[base + field] = 0
        self._slots[base + _SEQUENCE] = sequence + 1

    def settled(self, sequence: int) -> tuple[int, int] | None:
        """Start and end of a transfer; None while a member has not arrived. (0, 0): long past, its slot is reused."""
        base = (sequence % RING) * _HEADER
        end, start = self._slots[base + _END], self._slots[base + _START]
        if self._slots[base + _SEQUENCE] != sequence + 1:
            return (0, 0)
        return (start, end) if end else None

    def settle(self, sequence: int, timeout_s: float) -> tuple[int, int]:
        """Wait until all members have arrived; gives start and end, which may lie ahead."""
        give_up = now_ns() + int(timeout_s * 1e9)
        while (times := self.settled(sequence)) is None:
            if now_ns() > give_up:
                raise LynxError(f"a rank did not arrive at transfer {sequence} of ranks {self.ranks}")
            time.sleep(_POLL_S)
        return times


def _map(path: Path, count: int) -> tuple[int, memoryview]:
    """`count` int64 shared through a file; whoever comes first makes it, filled with zeros."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(handle, count * 8)
    return handle, memoryview(mmap.mmap(handle, count * 8)).cast("q")
