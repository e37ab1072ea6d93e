"""Start the measuring ranks, feed them, collect their results, and leave none behind.

Under an outer torchrun the ranks are there already, on the links that training will use: this process is one.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lynx_plan.errors import LynxError

TIMEOUT_S = 300  # a rank that waits longer than this for another gives up
END_S = 10


def measure_on_ranks(
    items: list[dict[str, Any]],
    *,
    ranks: int,
    threads: int,
    group_sizes: list[int],
    emulated: bool,
    progress: Callable[[int], None],
) -> list[list[dict[str, Any]]]:
    """Every rank's results, item by item. `emulated`: collectives launch through the emulated link's clock.

    Raises LynxError with the cause if a rank fails.
    """
    with tempfile.TemporaryDirectory(prefix="lynx-measure-") as folder:
        job = {
            "ranks": ranks,
            "threads": threads,
            "folder": folder,
            "emulated": emulated,
            "timeout_s": TIMEOUT_S,
            "group_sizes": group_sizes,
            "items": items,
        }
        if started_outside():
            return _as_rank(job, progress)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(ranks):
                processes.append(_start({**job, "rank": rank}, Path(folder), threads))
            return _collect(processes, Path(folder), progress)
        finally:
            _end(processes)


def started_outside() -> bool:
    """Whether this process is a rank that torchrun, or the like, has started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def _as_rank(job: dict[str, Any], progress: Callable[[int], None]) -> list[list[dict[str, Any]]]:
    """Measure as one of the ranks that are there; every rank gets every rank's results."""
    import torch.distributed as dist

    from lynx_plan.torch_rt.measure_rank import measure_all
    from lynx_plan.torch_rt.world import link_folder, meet

    store, rank, size = meet()
    if size != job["ranks"]:
        hint = f"start {job['ranks']} of them, or run lynx profile by itself to measure on ranks of its own"
        raise LynxError(f"the model needs {job['ranks']} ranks, but {size} were started", hint=hint)
    if job["emulated"]:
        job = {**job, "folder": str(link_folder(store, rank, Path(job["folder"])))}
    results = measure_all({**job, "rank": rank}, progress, store=dist.PrefixStore("lynx-measure", store))
    store.set(f"lynx-measured/{rank}", json.dumps(results))
    gathered = [json.loads(store.get(f"lynx-measured/{other}")) for other in range(size)]
    store.add("lynx-measured/read", 1)
    while rank == 0 and store.add("lynx-measured/read", 0) < size:
        time.sleep(0.01)  # the store lives in rank 0's process
    return gathered


def _start(job: dict[str, Any], folder: Path, threads: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if "lo" in [name for _, name in socket.if_nameindex()]:
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the ranks are neighbours; host names may not resolve
    task = folder / f"job-{job['rank']}.json"
    task.write_text(json.dumps(job))
    with task.open("rb") as source, (folder / f"errors-{job['rank']}").open("wb") as errors:
        command = [sys.executable, "-m", "lynx_plan.torch_rt.measure_rank"]
        return subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE, stderr=errors, env=environment)


def _collect(
    processes: list[subprocess.Popen[bytes]], folder: Path, progress: Callable[[int], None]
) -> list[list[dict[str, Any]]]:
    results: list[list[dict[str, Any]]] = [[] for _ in processes]
    with selectors.DefaultSelector() as selector:
        for rank, process in enumerate(processes):
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ, rank)
        while selector.get_map():
            for key, _ in selector.select():
                line = key.fileobj.readline()
                if not line:
                    selector.unregister(key.fileobj)
                    _check(processes[key.data], key.data, folder)
                    continue
                data = json.loads(line)
                if "error" in data:
                    raise LynxError(data["error"], hint=data["hint"])
                results[key.data] = data.get("results", results[key.data])
                if key.data == 0 and "done" in data:
                    progress(data["done"])
    return results


def _check(process: subprocess.Popen[bytes], rank: int, folder: Path) -> None:
    """A rank closed its output: it has ended, well or not."""
    try:
        code = process.wait(END_S)
    except subprocess.TimeoutExpired:
        code = None
    if code == 0:
        return
    lines = (folder / f"errors-{rank}").read_text(errors="replace").strip().splitlines()
    cause = (
        lines[-1].removeprefix(f"[rank{rank}]: ")
        if lines
        else ("did not end" if code is None else f"ended with exit status {code}")
    )
    raise LynxError(
        f"rank {rank}, which measures ops, failed: {cause}",
        where="measure",
        hint="a model too large for this machine is priced by a machine file: lynx profile --machine NAME",
    )


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
