"""When a rank fails: one message with the cause, and no process left, under our launcher and under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from lynx_plan import files
from lynx_plan.errors import AnswerNo, LynxError
from lynx_plan.model.graph import ModelSpec
from lynx_plan.torch_rt import failure
from lynx_plan.torch_rt.capture import capture_file
from lynx_plan.torch_rt.failure import Board, Cause, Disagreement, cause_of, root, write_cause
from lynx_plan.torch_rt.launch import RunOptions, _explain, run
from tests.torch_cpu.gpt_case import CPU
from tests.torch_cpu.plans import keep_all, plan_of

MODEL = """
import os, pathlib, signal, time
import torch
import torch.distributed._functional_collectives as funcol

FAILS = "{fails}"
WIDTH = {width}

class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return funcol.wait_tensor(funcol.all_reduce(x, "sum", group))

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None

class Model(torch.nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.group = mesh.get_group("tp")
        self.linear = torch.nn.Linear(WIDTH, 4)

    def forward(self, x):
        return Sum.apply(self.linear(x), self.group).pow(2).mean()

def build_model(mesh):
    if "RANK" in os.environ:
        pathlib.Path(f"pid{{os.environ['RANK']}}").write_text(str(os.getpid()))
    return Model(mesh)

def example_inputs():
    return torch.ones(2, WIDTH),

def batch(step, microbatch, dp_rank):
    if step == 2 and os.environ["RANK"] == "1":
        if FAILS == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if FAILS == "raises":
            raise ValueError("no more data")
        if FAILS == "hangs":
            time.sleep(600)
    return example_inputs()
"""


def make_plan(folder: Path, fails: str = "", width: int = 3):
    """A plan for two ranks, in plan.json, of a model whose rank 1 fails in step 2."""
    (folder / "model.py").write_text(MODEL.format(fails=fails, width=width))
    graph = capture_file(ModelSpec(path="model.py"), (("tp", 2),), CPU).graph
    plan = plan_of(graph, keep_all(graph))
    files.write(plan, folder / "plan.json", overwrite=True)
    return plan


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def no_rank_is_left(folder: Path) -> bool:
    pids = [int(path.read_text()) for path in folder.glob("pid*")]
    assert len(pids) == 2
    give_up = time.monotonic() + 10
    while any(map(is_running, pids)) and time.monotonic() < give_up:
        time.sleep(0.05)
    return not any(map(is_running, pids))


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_killed_rank(folder):
    with pytest.raises(LynxError, match=r"^rank 1 was killed by SIGKILL$") as caught:
        run(RunOptions(plans=(("none", make_plan(folder, "killed")),), steps=3))
    assert caught.value.exit_code == 2
    assert "memory" in caught.value.hint
    assert no_rank_is_left(folder)


def test_another_model_is_an_answer_and_not_a_failure(folder):
    plan = make_plan(folder)
    make_plan(folder, width=5)
    with pytest.raises(AnswerNo, match=r"^the model changed since the plan was made: .*\[4,3\].*\[4,5\]") as caught:
        run(RunOptions(plans=(("none", plan),)))
    assert caught.value.exit_code == 1
    assert no_rank_is_left(folder)


def test_no_rank_outlives_its_launcher(folder):
    make_plan(folder, "hangs")
    launcher = subprocess.Popen([sys.executable, "-m", "lynx_plan", "run"], stderr=subprocess.PIPE, text=True)
    give_up = time.monotonic() + 120
    while len(list(folder.glob("pid*"))) < 2 and launcher.poll() is None and time.monotonic() < give_up:
        time.sleep(0.05)
    launcher.terminate()
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 2, errors
    assert errors.startswith("error: was stopped by SIGTERM")
    assert no_rank_is_left(folder)


def test_under_torchrun_the_cause_is_in_rank_0s_output(folder):
    make_plan(folder, "raises")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--log-dir", "logs"]
    command += ["--redirects", "3", "-m", "lynx_plan", "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    (output,) = folder.glob("logs/*/*/0/stderr.log")
    text = output.read_text()
    assert text.count("error: ") == 1
    assert "error: rank 1: model.py:" in text
    assert "batch raised ValueError: no more data" in text
    assert "Traceback" not in text
    assert no_rank_is_left(folder)


def test_too_few_ranks(folder, monkeypatch):
    plan = make_plan(folder)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(LynxError, match=r"the plan is for 2 ranks \(tp 2\), but 3 were started") as caught:
        run(RunOptions(plans=(("none", plan),)))
    assert "torchrun --nproc-per-node 2" in caught.value.hint


LOST = RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3")


@pytest.mark.parametrize(
    ("error", "text", "lost", "shared"),
    [
        (LynxError("is wrong", where="model.py:3"), "rank 4: model.py:3: is wrong", False, False),
        (AnswerNo("changed"), "changed", False, True),
        (Disagreement("rank 1 holds another plan"), "rank 1 holds another plan", False, True),
        (ValueError("one\ntwo"), "rank 4: ValueError: one", False, False),
        (LOST, f"rank 4: RuntimeError: {LOST}", True, False),
        (dist.DistNetworkError("gone"), "rank 4: DistNetworkError: gone", True, False),
    ],
)
def test_causes(error, text, lost, shared):
    cause = cause_of(error, 4)
    assert (str(cause.error()), cause.lost, cause.shared) == (text, lost, shared)
    assert cause.error().exit_code == getattr(error, "exit_code", 2)


def test_the_root_is_the_first_that_is_not_a_lost_connection():
    causes = [cause_of(LOST, 0), cause_of(ValueError("first"), 1), cause_of(ValueError("second"), 2)]
    assert root(causes[::-1]) == causes[1]
    assert root(causes[:1]) is None


@pytest.mark.parametrize(
    ("lost", "exits", "text"),
    [
        ((), {0: -15, 1: -9}, "rank 1 was killed by SIGKILL"),
        ((0,), {0: 1, 1: -11}, "rank 1 was killed by SIGSEGV"),
        ((), {0: -15, 1: 7}, "rank 1: ended with exit code 7: the last words"),
        ((), {1: -15, 0: -15}, "rank 1 was killed by SIGTERM"),
        ((0, 1), {0: 1, 1: 1}, f"rank 0: RuntimeError: {LOST}"),
    ],
)
def test_a_launcher_reads_exit_codes(tmp_path, lost, exits, text):
    log = tmp_path / "logs" / "run" / "attempt_0" / "1"
    log.mkdir(parents=True)
    (log / "stderr.log").write_text("something\nthe last words\n")
    for rank in lost:
        write_cause(cause_of(LOST, rank), tmp_path)
    assert str(_explain(tmp_path, exits).error()) == text


def test_a_written_cause_comes_before_exit_codes(tmp_path):
    write_cause(cause_of(LOST, 0), tmp_path)
    write_cause(cause_of(ValueError("no"), 1), tmp_path)
    (tmp_path / "cause-2.json").write_text('{"rank": 2, "mess')  # cut off
    assert str(_explain(tmp_path, {0: 1, 1: 1, 2: -9}).error()) == "rank 1: ValueError: no"


def test_a_board_names_the_cause_or_who_is_silent(monkeypatch):
    monkeypatch.setattr(failure, "PATIENCE_S", 0.2)
    store = dist.HashStore()
    boards = [Board(store, rank, 3) for rank in range(3)]
    silent = boards[0].explain(cause_of(LOST, 0))
    assert str(silent.error()) == "rank 1, 2 ended without a message"
    boards[2].post(cause_of(LOST, 2))
    assert str(boards[0].explain(cause_of(LOST, 0)).error()) == "rank 1 ended without a message"
    boards[1].post(cause_of(ValueError("no"), 1))
    assert str(boards[0].explain(cause_of(LOST, 0)).error()) == "rank 1: ValueError: no"
    own = Cause(rank=0, message="own")
    assert boards[0].explain(own) == own


def test_a_rank_starts_no_run_for_a_launcher_that_is_gone(folder):
    plan = make_plan(folder)
    job = {"plans": [["none", files.to_json_object(plan)]], "options": {}, "launcher": os.getppid()}
    (folder / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-m", "lynx_plan.torch_rt.rank", str(folder)]
    assert subprocess.run(command, timeout=60, check=False).returncode == 1
    assert not list(folder.glob("pid*"))
