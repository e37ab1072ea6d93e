"""Every plan measured on a real link: two hosts (or network namespaces) whose link is rate-limited.

    python bench/real_link.py --hosts 'hosts -n 2 -r 500mbit --' [--arg key=value ...]

`--hosts` is a command prefix that starts its command once per host with torchrun's variables set. The profile is
measured on those hosts, then all plans and eager run in turn in the same processes; prints the comparison's table.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIZE = ("layers=10", "hidden=256", "heads=8", "sequence=1024", "micro_batch=1", "vocab=512")
BUDGET = "between:full,none,0.5"
ALGORITHMS = "none,full,selective,ondemand,heu"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", required=True, help="command prefix that starts a command on every host")
    parser.add_argument("--arg", action="append", default=[], help="argument of examples/gpt.py; replaces the default")
    parser.add_argument("--budget", default=BUDGET)
    parser.add_argument("--steps", type=int, default=9)
    given = parser.parse_args()
    size = {pair.partition("=")[0]: pair for pair in (*SIZE, *given.arg)}
    model = ["examples/gpt.py", "--tp", "2", *(word for pair in size.values() for word in ("--arg", pair))]
    with tempfile.TemporaryDirectory() as folder:
        profile = str(Path(folder) / "profile.json")
        lynx(given.hosts, ["profile", *model, "-o", profile, "--force"])
        compare = ["compare", profile, "--budget", given.budget, "--algo", ALGORITHMS]
        lynx(given.hosts, [*compare, "--run", "--steps", str(given.steps)])
    return 0


def lynx(hosts: str, words: list[str]) -> None:
    """Run `lynx` on every host, from the project's root; a failure ends the bench."""
    print(f"\n$ {hosts} lynx {shlex.join(words)}", flush=True)
    command = [*shlex.split(hosts), sys.executable, "-m", "lynx_plan", *words]
    if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
        sys.exit(code)


if __name__ == "__main__":
    sys.exit(main())
