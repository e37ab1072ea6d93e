"""Solve a MILP in a child process, which can be ended at any moment without losing the best answer so far."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lynx_plan.errors import LynxError
from lynx_plan.solve.apart_worker import save
from lynx_plan.solve.milp import INFINITY, NODE_LIMIT, Milp, MilpProgress, MilpResult, MilpStatus

GRACE_S = 5.0  # beyond the time limit, for a child that does not notice it
BY_HAND = "stopped by Ctrl-C: the best answer so far stands"
Report = Callable[[MilpProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a search stops: at a relative gap, after so many nodes (the same ones every time), or after a time."""

    gap: float
    time_limit_s: float
    node_limit: int = NODE_LIMIT


def solve_apart(
    milp: Milp, limits: Limits, *, start: NDArray[np.float64] | None = None, report: Report | None = None
) -> MilpResult:
    """The answer of `milp.solve`, found by a child process.

    Where the child is stopped (Ctrl-C, the time limit), killed or broken, the best answer so far stands, then the
    start if it is one; `note` says what happened. Without any of them the status is UNKNOWN. LynxError where the child
    cannot solve at all, for want of HiGHS for instance.
    """
    if start is not None and not milp.satisfied(start):
        start = None
    with tempfile.TemporaryDirectory(prefix="lynx-solve-") as folder:
        search = _Search(milp, limits, start, Path(folder))
        note = search.run(report)
        return search.result(note)


class _Search:
    """One child and what it has told so far."""

    def __init__(self, milp: Milp, limits: Limits, start: NDArray[np.float64] | None, folder: Path) -> None:
        self.milp, self.limits, self.start, self.folder = milp, limits, start, folder
        self.told: dict[str, Any] = {}

    def run(self, report: Report | None) -> str:
        """Run the child to its end, or end it; why it was ended, if so."""
        self._write()
        # -P: modules of the working folder (a user's json.py) must not stand in for others
        command = [sys.executable, "-P", "-m", "lynx_plan.solve.apart_worker", str(self.folder)]
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C at the terminal is ours alone
        )
        try:
            return self._follow(child, report)
        except KeyboardInterrupt:
            return BY_HAND
        finally:
            child.kill()
            child.communicate()

    def _write(self) -> None:
        np.savez(self.folder / "model.npz", **self.milp.arrays())  # type: ignore[arg-type]
        if self.start is not None:
            save(self.folder / "start.npy", self.start)
        job = {
            "start": self.start is not None,
            "gap": self.limits.gap,
            "node_limit": self.limits.node_limit,
            "time_limit_s": self.limits.time_limit_s,
        }
        (self.folder / "job.json").write_text(json.dumps(job))

    def _follow(self, child: subprocess.Popen[bytes], report: Report | None) -> str:
        """Read what the child tells until it ends or its time is over."""
        assert child.stdout is not None
        give_up = time.monotonic() + self.limits.time_limit_s + GRACE_S
        pending = b""
        with selectors.DefaultSelector() as ready:
            ready.register(child.stdout, selectors.EVENT_READ)
            while (left := give_up - time.monotonic()) > 0:
                if not ready.select(left):
                    continue
                chunk = os.read(child.stdout.fileno(), 1 << 16)
                if not chunk:
                    return _ending(child.wait())
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    self._hear(line, report)
        return f"ended at the time limit of {self.limits.time_limit_s:g} s: the best answer so far stands"

    def _hear(self, line: bytes, report: Report | None) -> None:
        self.told = json.loads(line)
        if report is not None:
            report(MilpProgress(**self.told, values=np.zeros(0)))

    def result(self, note: str) -> MilpResult:
        """What the child left: its result, else its best answer, else the start, else nothing."""
        if (self.folder / "error.json").exists():
            error = json.loads((self.folder / "error.json").read_text())
            raise LynxError(error["message"], hint=error["hint"])
        if (self.folder / "result.json").exists():
            facts = json.loads((self.folder / "result.json").read_text())
            facts["status"] = MilpStatus(facts["status"])
            return MilpResult(**facts, values=np.load(self.folder / "values.npy", allow_pickle=False))
        bound, nodes = float(self.told.get("bound", -INFINITY)), int(self.told.get("nodes", 0))
        if (self.folder / "best.npy").exists():
            best = np.load(self.folder / "best.npy", allow_pickle=False)
            return self.milp.answer_of(best, note=note, bound=bound, nodes=nodes)
        if self.start is not None:
            return self.milp.answer_of(self.start, note=note, bound=bound, nodes=nodes)
        return MilpResult(
            status=MilpStatus.UNKNOWN, objective=INFINITY, bound=bound, values=np.zeros(0), nodes=nodes, note=note
        )


def _ending(code: int) -> str:
    """How a child ended that left no result."""
    if code < 0:
        return f"the solver was killed by {signal.Signals(-code).name}: the best answer so far stands"
    return f"the solver ended with exit code {code}: the best answer so far stands"
