"""Predicted against measured, unplanned: many models, microbatches and numbers of ranks, one after another.

    python bench/accuracy.py [-o bench/results/accuracy.md] [--only TEXT] [--steps 15]

Each row profiles a model by measuring on this machine, then runs `none` (nothing is recomputed) and the untouched
model in eager PyTorch, in turn in the same processes. Step: the median, and half the interquartile range as spread.
Peak: activation bytes of `none` in the runtime against the predicted ones; eager's own peak stands beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
GPT, LLAMA, RESNET = "examples/gpt.py", "bench/models/llama.py", "bench/models/resnet.py"
LINK = "100MB/s:100us"
ROWS = (
    (GPT, 1, "layers=4 hidden=512 heads=8 sequence=256 micro_batch=1"),
    (GPT, 1, "layers=4 hidden=512 heads=8 sequence=256 micro_batch=4"),
    (GPT, 1, "layers=6 hidden=256 heads=8 sequence=512 micro_batch=2"),
    (GPT, 1, "layers=2 hidden=1024 heads=16 sequence=256 micro_batch=2"),
    (LLAMA, 1, "layers=4 hidden=256 sequence=256 micro_batch=2"),
    (LLAMA, 1, "layers=4 hidden=512 sequence=256 micro_batch=2"),
    (RESNET, 1, "width=32 blocks=6 micro_batch=8"),
    (RESNET, 1, "width=64 blocks=4 micro_batch=4"),
    (GPT, 2, "layers=4 hidden=512 heads=8 sequence=256 micro_batch=1"),
    (GPT, 2, "layers=4 hidden=512 heads=8 sequence=256 micro_batch=4"),
    (GPT, 2, "layers=6 hidden=256 heads=8 sequence=512 micro_batch=2"),
    (GPT, 2, "layers=2 hidden=1024 heads=16 sequence=256 micro_batch=2"),
    (GPT, 2, "layers=10 hidden=256 heads=8 sequence=1024 micro_batch=1"),
    (GPT, 2, "layers=4 hidden=512 heads=8 sequence=512 micro_batch=2 sequence_parallel=true"),
)
HEADINGS = "model | ranks | step, ms | spread | predicted, ms | step / pred. | peak, MiB | peak / pred. | eager's peak"


@dataclass(frozen=True, slots=True)
class Row:
    """One combination, measured."""

    name: str
    ranks: int
    step_ns: int
    spread_ns: int
    predicted_ns: int
    peak_bytes: int
    predicted_bytes: int
    eager_bytes: int

    @property
    def step_ratio(self) -> float:
        return self.step_ns / self.predicted_ns

    @property
    def peak_ratio(self) -> float:
        return self.peak_bytes / self.predicted_bytes

    def __str__(self) -> str:
        cells = (
            self.name,
            str(self.ranks),
            f"{self.step_ns / 1e6:.1f}",
            f"{self.spread_ns / self.step_ns:.1%}",
            f"{self.predicted_ns / 1e6:.1f}",
            f"{self.step_ratio:.3f}",
            f"{self.peak_bytes / 2**20:.2f}",
            f"{self.peak_ratio:.4f}",
            f"{self.eager_bytes / self.peak_bytes:.3f}x",
        )
        return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", help="also write the table to this file")
    parser.add_argument("--only", default="", help="rows whose model and arguments contain this text")
    parser.add_argument("--steps", type=int, default=15)
    given = parser.parse_args()
    chosen = [row for row in ROWS if given.only in f"{row[0]} {row[1]} {row[2]}"]
    lines = [f"| {HEADINGS} |", "|---|" + "---:|" * HEADINGS.count("|")]
    print("\n".join(lines), flush=True)
    rows = []
    for model, ranks, arguments in chosen:
        rows.append(measure(model, ranks, arguments, given.steps))
        print(rows[-1], flush=True)
    ends = summary(rows)
    print(f"\n{ends}")
    if given.output:
        text = "\n".join([heading(given.steps), *lines, *map(str, rows), "", ends, ""])
        Path(given.output).write_text(text)
    return 0


def measure(model: str, ranks: int, arguments: str, steps: int) -> Row:
    """Profile, plan nothing, run."""
    with tempfile.TemporaryDirectory() as folder:
        profile = str(Path(folder) / "profile.json")
        link = ["--tp", str(ranks), "--link", LINK] if ranks > 1 else []
        words = [word for pair in arguments.split() for word in ("--arg", pair)]
        lynx(["-q", "profile", model, *link, *words, "-o", profile])
        table = ["compare", profile, "--algo", "none", "--run", "--steps", str(steps), "--json"]
        none, eager = json.loads(lynx(table))["rows"]
    if not none["gradients_equal"]:
        sys.exit(f"{model} {arguments}: gradients differ from eager's")
    measured, predicted = none["measured"], none["predicted"]
    return Row(
        name=f"{Path(model).stem} {arguments}",
        ranks=ranks,
        step_ns=measured["step_ns"],
        spread_ns=measured["step_spread_ns"],
        predicted_ns=predicted["step_ns"],
        peak_bytes=measured["peak_activation_bytes"],
        predicted_bytes=predicted["peak_activation_bytes"],
        eager_bytes=eager["measured"]["peak_activation_bytes"],
    )


def lynx(words: Sequence[str]) -> str:
    """Run `lynx` from the project's root and return its output; a failure ends the bench."""
    command = [sys.executable, "-m", "lynx_plan", *words]
    done: Any = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}\n{done.stderr}")
    return done.stdout


def summary(rows: Sequence[Row]) -> str:
    """How far off: averages and worst, of steps and of peaks."""
    steps = [abs(row.step_ratio - 1) for row in rows]
    peaks = [abs(row.peak_ratio - 1) for row in rows]
    return (
        f"{len(rows)} combinations. Step off by {mean(steps):.1%} on average, {max(steps):.1%} at worst; "
        f"peak off by {mean(peaks):.2%} on average, {max(peaks):.2%} at worst."
    )


def heading(steps: int) -> str:
    where = f"{os.cpu_count()} cores ({platform.machine()}), one thread per rank, torch {version('torch')}"
    return (
        "# Predicted against measured, unplanned\n\n"
        f"`python bench/accuracy.py --steps {steps}` on {where}; two ranks over an emulated link of {LINK}.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
