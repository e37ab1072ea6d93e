"""One rank of a run: `python -m lynx_plan.torch_rt.rank FOLDER` under our launcher, or this process under torchrun."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from lynx_plan import files
from lynx_plan.errors import LynxError
from lynx_plan.model.run import RunRow
from lynx_plan.torch_rt.allocator import steady_allocator
from lynx_plan.torch_rt.launch import END_S, RunOptions, find_model

TIMED_STEPS = 5
SEED = 20
_PR_SET_PDEATHSIG = 1


def run_as_rank(options: RunOptions, ranks: int) -> tuple[RunRow, ...]:
    """Take part in a run whose ranks an outer torchrun started; rank 0 gets the rows, the others ().

    Every rank raises the root cause of a failure, so it is in rank 0's output whichever rank failed.
    """
    from lynx_plan.torch_rt.failure import Board, cause_of, explain_termination, second_client
    from lynx_plan.torch_rt.world import meet

    steady_allocator()
    store, rank, size = meet()
    board = Board(second_client(store), rank, size)
    folder = tempfile.TemporaryDirectory(prefix="lynx-link-") if rank == 0 else nullcontext("")
    with folder as scratch:

        def last_act(error: LynxError) -> None:
            if rank == 0:
                shutil.rmtree(scratch, ignore_errors=True)
                _say(error)

        undo = explain_termination(board, last_act)
        try:
            rows = measure(options, store, rank, size, Path(scratch))
            undo()
            return rows
        except Exception as error:
            if not board.claim():
                time.sleep(END_S)  # the other thread says why and ends the process
            raise board.explain(cause_of(error, rank)).error() from error


def main(folder: Path) -> int:
    """A rank under our own launcher: the job, the rows and the causes of failures are files in `folder`."""
    _die_with_the_launcher()
    steady_allocator()
    job = json.loads((folder / "job.json").read_text())
    if os.getppid() != job["launcher"]:
        return 1
    from lynx_plan.torch_rt.failure import cause_of, write_cause
    from lynx_plan.torch_rt.world import meet

    rank = int(os.environ["RANK"])
    try:
        plans = tuple((name, files.from_json_object(plan, name)) for name, plan in job["plans"])
        options = RunOptions(plans=plans, **job["options"])
        rows = measure(options, *meet(), folder)
    except Exception as error:
        write_cause(cause_of(error, rank), folder)
        raise
    if rank == 0:
        data = [files.adapter(RunRow).dump_python(row, mode="json") for row in rows]
        (folder / "rows.json").write_text(json.dumps(data))
    return 0


def measure(options: RunOptions, store: Any, rank: int, size: int, scratch: Path | None = None) -> tuple[RunRow, ...]:
    """Build the model, bind the plans, verify and measure them; rank 0's rows, () elsewhere."""
    import torch

    from lynx_plan.torch_rt import contest
    from lynx_plan.torch_rt.world import join

    first = options.plans[0][1]
    torch.set_num_threads(first.threads)
    with join(store, rank, size, first.mesh, first.link, scratch) as world:
        arena, reference = _arena(options, world)
        differences = _verify(options, arena, reference)
        contest.time_steps(arena, options.steps)
        contest.time_items(arena, min(TIMED_STEPS, max(3, options.steps)))
        contest.count_bytes(arena)
        return _rows(options, arena, differences)


def _arena(options: RunOptions, world: Any) -> Any:
    """The model, its optimizer and data, and a contestant for each plan (and eager)."""
    from lynx_plan.torch_rt.bind import bind
    from lynx_plan.torch_rt.capture import capture_module
    from lynx_plan.torch_rt.contest import Arena, Contestant
    from lynx_plan.torch_rt.data_parallel import FinalAverage
    from lynx_plan.torch_rt.eager import EagerStep, eager_gradients
    from lynx_plan.torch_rt.measure import this_machine
    from lynx_plan.torch_rt.model_file import load_model_file
    from lynx_plan.torch_rt.step import Step

    plan = options.plans[0][1]
    file = load_model_file(find_model(plan.model, options))
    model = file.build(world.mesh)
    captured = capture_module(
        model,
        file.example_inputs(),
        file.loss,
        spec=plan.model,
        mesh=world.mesh,
        mesh_shape=plan.mesh,
        machine=this_machine(world.size),
        capture=plan.capture,
    )
    average = FinalAverage(captured.graph, model, world.mesh)
    contestants = []
    for name, plan in options.plans:
        bound = bind(captured, plan, world.mesh)
        contestants.append(Contestant(name=name, step=Step.of(model, bound, world.mesh), bound=bound))
    if options.eager:
        contestants.append(Contestant(name="eager", step=EagerStep(model, file.loss, average)))
    group = world.coordinate("dp")
    arena = Arena(
        world=world,
        model=model,
        optimizer=file.build_optimizer([p for p in model.parameters() if p.requires_grad]),
        data=lambda step: [file.batch(step, microbatch, group) for microbatch in range(plan.micro_batches)],
        contestants=tuple(contestants),
    )
    return arena, partial(eager_gradients, model, file.loss, average=average)


def _verify(options: RunOptions, arena: Any, reference: Any) -> dict[str, tuple[str, str]]:
    """Contestant -> the first parameter whose gradient is not eager's and the first wrong copy, if asked for."""
    import torch

    from lynx_plan.torch_rt.dtensors import local
    from lynx_plan.torch_rt.verify import first_difference, first_difference_of_ranks

    if not options.verify:
        return {}
    batches = arena.data(0)
    torch.manual_seed(SEED)  # random ops draw alike in every step that is compared
    expected = reference(batches)
    differences = {}
    for contestant in arena.contestants:
        torch.manual_seed(SEED)
        contestant.step(batches)
        found = {name: local(p.grad) for name, p in arena.model.named_parameters() if p.grad is not None}
        if contestant.bound is not None:
            difference = first_difference_of_ranks(first_difference(expected, found))
            wrong = first_difference_of_ranks(contestant.step.wrong_copy(batches[0])) if difference else ""
            differences[contestant.name] = difference, wrong
    return differences


def _rows(options: RunOptions, arena: Any, differences: dict[str, tuple[str, str]]) -> tuple[RunRow, ...]:
    from lynx_plan.torch_rt.clock import timeline
    from lynx_plan.torch_rt.contest import static_tensors
    from lynx_plan.torch_rt.live_bytes import LiveBytes
    from lynx_plan.torch_rt.results import row_of

    micro_batches = options.plans[0][1].micro_batches
    rows = []
    for number, contestant in enumerate(arena.contestants):
        row, samples = row_of(
            arena.world,
            contestant,
            static_bytes=LiveBytes(static_tensors(arena, contestant, arena.data(0))).static_bytes,
            micro_batches=micro_batches,
            difference=differences.get(contestant.name),
        )
        rows.append(row)
        if number == 0 and options.timeline and arena.world.rank == 0:
            bound = contestant.bound
            measured = timeline(bound.captured.graph, bound.order, samples, micro_batches)
            files.write(measured, options.timeline, overwrite=True)
    return tuple(rows) if arena.world.rank == 0 else ()


def _say(error: LynxError) -> None:
    print(f"error: {error}", file=sys.stderr, flush=True)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr, flush=True)


def _die_with_the_launcher() -> None:
    """However the launcher ends, no rank outlives it (Linux; elsewhere the launcher's own clean-up must do)."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
