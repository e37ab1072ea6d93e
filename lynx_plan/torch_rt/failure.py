"""Why a run failed: each rank writes down its cause, and whoever speaks to the user picks the root one."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from lynx_plan.errors import AnswerNo, LynxError
from lynx_plan.torch_rt.link_clock import now_ns

PATIENCE_S = 3.0  # for the others to say why, before a rank says that they did not
_LOST = ("gloo", "Connection closed", "Connection reset", "DistNetworkError", "DistStoreError", "Broken pipe")


class Disagreement(LynxError):
    """The ranks hold different files: all of them find it out and raise the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What ended a rank. `lost`: only that another rank was gone. `shared`: every rank says the same."""

    rank: int
    message: str
    hint: str = ""
    where: str = ""
    exit_code: int = 2
    lost: bool = False
    shared: bool = False
    at_ns: int = 0

    def error(self) -> LynxError:
        """As the user sees it."""
        kind = AnswerNo if self.exit_code == AnswerNo.exit_code else LynxError
        if self.shared:
            return kind(self.message, hint=self.hint, where=self.where)
        where = f"rank {self.rank}" + (f": {self.where}" if self.where else "")
        return kind(self.message, hint=self.hint, where=where)


def cause_of(error: BaseException, rank: int) -> Cause:
    """The cause that an exception is."""
    at = now_ns()
    if isinstance(error, LynxError):
        return Cause(
            rank=rank,
            message=error.message,
            hint=error.hint,
            where=error.where,
            exit_code=error.exit_code,
            shared=isinstance(error, (AnswerNo, Disagreement)),
            at_ns=at,
        )
    text = f"{type(error).__name__}: {error}".strip()
    first_line = text.splitlines()[0] if text else type(error).__name__
    lost = isinstance(error, dist.DistError) or any(sign in text for sign in _LOST)
    return Cause(rank=rank, message=first_line, lost=lost, at_ns=at)


def root(causes: Iterable[Cause]) -> Cause | None:
    """The first cause that is not merely the loss of another rank."""
    return min((cause for cause in causes if not cause.lost), key=lambda cause: cause.at_ns, default=None)


def write_cause(cause: Cause, folder: Path) -> None:
    (folder / f"cause-{cause.rank}.json").write_text(json.dumps(asdict(cause)))


def read_causes(folder: Path) -> list[Cause]:
    """Causes that ranks left in a folder; one cut off in the middle of writing is none."""
    causes = []
    for path in sorted(folder.glob("cause-*.json")):
        try:
            causes.append(Cause(**json.loads(path.read_text())))
        except json.JSONDecodeError:
            continue
    return causes


class Board:
    """Causes in the ranks' common store: for ranks that someone else started (an outer torchrun)."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self._store, self.rank, self._size = store, rank, size
        self._claimed = threading.Lock()

    def claim(self) -> bool:
        """True for the first thread of this rank that asks: it speaks, any other keeps silent."""
        return self._claimed.acquire(blocking=False)

    def post(self, cause: Cause) -> None:
        """Say why this rank ends. The store may be gone with the rank that kept it."""
        try:
            self._store.set(f"lynx/cause/{self.rank}", json.dumps(asdict(cause)))
        except (RuntimeError, ConnectionError):
            return

    def explain(self, own: Cause) -> Cause:
        """The root cause: this rank's own, another's, or that another ended without a message."""
        self.post(own)
        if not own.lost:
            return own
        give_up = time.monotonic() + PATIENCE_S
        while True:
            causes = self._read()
            found = root(causes)
            silent = sorted(set(range(self._size)) - {cause.rank for cause in causes})
            if found or not silent or time.monotonic() > give_up:
                break
            time.sleep(0.1)
        if found:
            return found
        if not silent:
            return own
        ranks = ", ".join(map(str, silent))
        return Cause(rank=silent[0], message=f"rank {ranks} ended without a message", shared=True, hint=OUT_OF_MEMORY)

    def _read(self) -> list[Cause]:
        causes = []
        for rank in range(self._size):
            try:
                if self._store.check([f"lynx/cause/{rank}"]):
                    causes.append(Cause(**json.loads(self._store.get(f"lynx/cause/{rank}"))))
            except (RuntimeError, ConnectionError):
                return causes
        return causes


OUT_OF_MEMORY = "the system may have killed it for lack of memory (see dmesg), or its launcher's log says more"


def explain_termination(board: Board, last_act: Callable[[LynxError], None]) -> Callable[[], None]:
    """On SIGTERM, which torchrun sends to all when one rank has failed, call `last_act` with the cause and end at once.

    A thread does it, since the main thread may be waiting inside a collective. Gives the function that undoes it.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    previous = signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def watch() -> None:
        while received := os.read(reader, 1):
            if received[0] == signal.SIGTERM and board.claim():
                own = Cause(rank=board.rank, message="was stopped by SIGTERM", lost=True, at_ns=now_ns())
                last_act(board.explain(own).error())
                os._exit(LynxError.exit_code)

    threading.Thread(target=watch, daemon=True).start()

    def undo() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, previous)
        os.close(writer)

    return undo


def second_client(store: dist.Store) -> dist.Store:
    """Another connection to the same store: a client's calls wait for one another."""
    clone = store.clone()
    clone.set_timeout(timedelta(seconds=PATIENCE_S))
    return clone
