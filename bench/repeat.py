"""Two profiles of one model, measured independently: how much do their plans differ in worth?

    python bench/repeat.py [--budget 60%] [--arg key=value ...]

Plans by `heu` from profiles A and B; each plan's predicted step under the other profile's costs, over that of the
other's own plan. The two are equal if the planner does not chase noise.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from lynx_plan import files
from lynx_plan.analyze.programs import expand
from lynx_plan.model.graph import CostGraph
from lynx_plan.simulate.outcome import predict
from lynx_plan.solve.planner import make_plan

ROOT = Path(__file__).resolve().parent.parent
SIZE = ("layers=6", "hidden=256", "heads=8", "sequence=512", "micro_batch=2")
SETTINGS = ((), ("--tp", "2", "--link", "100MB/s:100us"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="60%")
    parser.add_argument("--arg", action="append", default=[], help="argument of examples/gpt.py; replaces the default")
    given = parser.parse_args()
    size = {pair.partition("=")[0]: pair for pair in (*SIZE, *given.arg)}
    for setting in SETTINGS:
        first, second = (
            profile([*setting, *(word for pair in size.values() for word in ("--arg", pair))]) for _ in "AB"
        )
        for name, own, other in (("A under B", second, first), ("B under A", first, second)):
            ratio = step_under(own, other, given.budget) / step_under(own, own, given.budget)
            print(
                f"{' '.join(setting[:2]) or '1 rank'}: plan of {name}: {ratio - 1:+.2%} of the other's own", flush=True
            )
    return 0


def profile(words: list[str]) -> CostGraph:
    """Measured now, from nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "profile.json")
        command = [sys.executable, "-m", "lynx_plan", "-q", "profile", "examples/gpt.py", *words, "-o", path]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return files.load(path, CostGraph)


def step_under(costs: CostGraph, planned_from: CostGraph, budget: str) -> int:
    """Predicted step (ns) of the plan made from one profile, at the costs of another of the same structure."""
    plan = make_plan(planned_from, algo="heu", budget=budget).plan
    return predict(costs, expand(plan.stages[0].program, planned_from.layers)).step_ns


if __name__ == "__main__":
    sys.exit(main())
