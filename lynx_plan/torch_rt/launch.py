"""`run`: measure plans on local ranks, started by PyTorch's own launcher, or as one rank of an outer torchrun."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lynx_plan.errors import LynxError
from lynx_plan.files import adapter, to_json_object
from lynx_plan.model.graph import HF, ModelSpec
from lynx_plan.model.plan import Plan
from lynx_plan.model.run import RunRow
from lynx_plan.torch_rt.failure import OUT_OF_MEMORY, Cause, read_causes, root

END_S = 5  # for ranks to end after SIGTERM, before SIGKILL


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What to measure. Plans are of one model, mesh and link; `eager` adds the untouched model.

    `timeline` (a path): write the first plan's measured timeline. `model` takes the place of the plans' own
    path, which is looked up from here and from `folder`, where the plan file lies.
    """

    plans: tuple[tuple[str, Plan], ...]
    steps: int = 5
    verify: bool = False
    eager: bool = False
    timeline: str | None = None
    model: str | None = None
    folder: str | None = None


def run(options: RunOptions) -> tuple[RunRow, ...]:
    """One row per plan, then eager's; on ranks of an outer torchrun other than 0 an empty tuple.

    Raises LynxError with the cause if a rank fails (no rank is left), AnswerNo if a plan is not the model's.
    """
    ranks = check_options(options)
    find_model(options.plans[0][1].model, options)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        from lynx_plan.torch_rt.rank import run_as_rank

        return run_as_rank(options, ranks)
    with tempfile.TemporaryDirectory(prefix="lynx-run-") as folder:
        write_job(options, Path(folder))
        _launch(Path(folder), ranks, options.plans[0][1].threads)
        return read_rows(Path(folder))


def check_options(options: RunOptions) -> int:
    """The number of ranks that the plans need; LynxError if they cannot be measured together."""
    if not options.plans:
        raise LynxError("there is no plan to run", hint="make one with: lynx plan profile.json")
    first = options.plans[0][1]
    for what in ("model", "mesh", "device", "link", "threads", "micro_batches", "structure_digest"):
        for name, plan in options.plans[1:]:
            if getattr(plan, what) != getattr(first, what):
                raise LynxError(f"plan '{name}' has another {what.replace('_', ' ')} than '{options.plans[0][0]}'")
    if first.device != "cpu":
        what = f"the plan is for {first.device} devices; this version runs plans on CPU only"
        raise LynxError(what, where="/device", hint="profile without --machine to plan for, and run on, this machine")
    if any(size < 1 for _, size in first.mesh):
        raise LynxError(f"the plan's mesh is {first.mesh}", where="/mesh", hint="make the plan again with: lynx plan")
    ranks = math.prod(size for _, size in first.mesh)
    given = os.environ.get("WORLD_SIZE") if "RANK" in os.environ else None
    if given is not None and int(given) != ranks:
        shape = " x ".join(f"{name} {size}" for name, size in first.mesh) or "one rank"
        noun = "1 rank" if ranks == 1 else f"{ranks} ranks"
        hint = f"start {ranks} with: torchrun --nproc-per-node {ranks} -m lynx_plan run"
        raise LynxError(
            f"the plan is for {noun} ({shape}), but {given} were started",
            hint=hint,
        )
    return ranks


def find_model(spec: ModelSpec, options: RunOptions) -> ModelSpec:
    """The model with a path that exists: the one given, else the plan's from here, else from the plan's folder."""
    path = options.model or spec.path
    places: Sequence[Path] = [Path(path)]
    if options.folder and not options.model:
        places = [*places, Path(options.folder) / path]
    for place in places:
        if place.is_file() or (place.exists() and spec.builder == HF):
            return replace(spec, path=str(place))
    raise LynxError("no such model file", where=path, hint="say where it is: --model PATH")


def write_job(options: RunOptions, folder: Path) -> None:
    """What the ranks are to do, as JSON."""
    job = {
        "plans": [[name, to_json_object(plan)] for name, plan in options.plans],
        "options": {
            "steps": options.steps,
            "verify": options.verify,
            "eager": options.eager,
            "timeline": options.timeline,
            "model": options.model,
            "folder": options.folder,
        },
        "launcher": os.getpid(),
    }
    (folder / "job.json").write_text(json.dumps(job))


def read_rows(folder: Path) -> tuple[RunRow, ...]:
    rows = json.loads((folder / "rows.json").read_text())
    return tuple(adapter(RunRow).validate_python(row) for row in rows)


def _launch(folder: Path, ranks: int, threads: int) -> None:
    """Run the ranks to their end; LynxError with the root cause if one fails."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logs = folder / "logs"
    logs.mkdir()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
        shutdown_timeout=END_S,
        logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=Std.ALL),
    )
    arguments = ("-m", "lynx_plan.torch_rt.rank", str(folder))
    try:
        with _environment(threads), _quiet(), _signal_handlers_restored():
            elastic_launch(config, sys.executable)(*arguments)
    except ChildFailedError as error:
        first = sorted(error.failures.items(), key=lambda pair: (pair[1].timestamp, pair[0]))
        exits = {rank: failure.exitcode for rank, failure in first}
        raise _explain(folder, exits).error() from None
    except SignalException as stop:
        if stop.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise LynxError(f"was stopped by {stop.sigval.name}") from None


def _explain(folder: Path, exits: dict[int, int]) -> Cause:
    """The root cause: what a rank wrote down, else how one ended, else the loss of a connection.

    `exits`: rank -> exit code, the first to end first. The launcher ends the others with SIGTERM.
    """
    causes = read_causes(folder)
    if found := root(causes):
        return found
    lost = {cause.rank for cause in causes}
    suspects = [rank for rank in exits if rank not in lost]
    suspects.sort(key=lambda rank: exits[rank] == -signal.SIGTERM)
    if not suspects:
        return causes[0]
    rank = suspects[0]
    if exits[rank] >= 0:
        return Cause(rank=rank, message=f"ended with exit code {exits[rank]}{_last_words(folder, rank)}")
    name = signal.Signals(-exits[rank]).name
    hint = OUT_OF_MEMORY if name == "SIGKILL" else ""
    return Cause(rank=rank, message=f"rank {rank} was killed by {name}", hint=hint, shared=True)


def _last_words(folder: Path, rank: int) -> str:
    """The last line that a rank wrote to standard error."""
    for path in sorted((folder / "logs").glob(f"**/{rank}/stderr.log")):
        lines = path.read_text(errors="replace").strip().splitlines()
        if lines:
            return f": {lines[-1].strip()}"
    return ""


@contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Variables that the ranks inherit: threads before torch starts, and Gloo on the loopback device."""
    wanted = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    if "GLOO_SOCKET_IFNAME" not in os.environ and "lo" in [name for _, name in socket.if_nameindex()]:
        wanted["GLOO_SOCKET_IFNAME"] = "lo"  # host names need not resolve for ranks of one machine
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _quiet() -> Iterator[None]:
    """The launcher logs what Lynx says itself, better."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _signal_handlers_restored() -> Iterator[None]:
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
