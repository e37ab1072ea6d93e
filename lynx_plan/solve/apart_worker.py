"""The child of `apart`: solve the model in FOLDER, tell of every better answer, leave the result there.

`python -m lynx_plan.solve.apart_worker FOLDER`. Each better answer goes to `best.npy`; a line of JSON on standard
output tells of it, and of better bounds. The process ends when its standard input does, so it never outlives who
waits for it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lynx_plan.errors import LynxError
from lynx_plan.solve.milp import Milp, MilpProgress

_PR_SET_PDEATHSIG = 1


def main(folder: Path) -> int:
    """Solve and write `result.json` and `values.npy`, or `error.json`."""
    _end_with_the_parent()
    job = json.loads((folder / "job.json").read_text())
    with np.load(folder / "model.npz", allow_pickle=False) as arrays:
        milp = Milp.of_arrays(arrays)
    start = np.load(folder / "start.npy", allow_pickle=False) if job["start"] else None

    def watch(progress: MilpProgress) -> None:
        if len(progress.values):
            save(folder / "best.npy", progress.values)
        line = {"objective": progress.objective, "bound": progress.bound, "nodes": progress.nodes}
        print(json.dumps(line), flush=True)

    try:
        result = milp.solve(
            gap=job["gap"], node_limit=job["node_limit"], time_limit_s=job["time_limit_s"], start=start, watch=watch
        )
    except LynxError as error:
        (folder / "error.json").write_text(json.dumps({"message": error.message, "hint": error.hint}))
        return 1
    save(folder / "values.npy", result.values)
    facts = {
        "status": result.status.value,
        "objective": result.objective,
        "bound": result.bound,
        "nodes": result.nodes,
        "note": result.note,
    }
    (folder / "result.json").write_text(json.dumps(facts))
    return 0


def save(path: Path, values: NDArray[np.float64]) -> None:
    """Write an array so that readers see it whole or not at all."""
    draft = path.with_suffix(".draft.npy")
    np.save(draft, values, allow_pickle=False)
    draft.replace(path)


def _end_with_the_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def wait() -> None:
        while os.read(0, 1):  # not sys.stdin: its lock, held while the interpreter ends, would abort the process
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
