"""Make the sample profiles again: `python sample_profiles/make.py [NAME...]`, such as `gpt-20b-tp8-a100-80g-nvlink`.

Traces examples/gpt.py on fake tensors (no GPU, nothing allocated) and prices it by a shipped machine file.
The same code and the same torch give the same bytes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lynx_plan import files
from lynx_plan.cost.roofline import price
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import ModelSpec
from lynx_plan.torch_rt.capture import capture_file

FOLDER = Path(__file__).resolve().parent
# layers, hidden size, heads: the GPT sizes of the Lynx paper (arXiv 2406.08756)
SIZES = {
    "1.3b": (24, 2048, 16),
    "2.7b": (32, 2560, 32),
    "6.7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "20b": (44, 6144, 64),
}
TENSOR_PARALLEL = (2, 4, 8)
MACHINES = ("a100-80g-nvlink", "a100-80g-pcie")
MICRO_BATCH, SEQUENCE, VOCAB = 16, 2048, 51200


def configurations() -> dict[str, tuple[str, int, str]]:
    """Name -> size, tensor parallelism, machine."""
    return {
        f"gpt-{size}-tp{tp}-{machine}": (size, tp, machine)
        for size in SIZES
        for tp in TENSOR_PARALLEL
        for machine in MACHINES
    }


def model_spec(size: str) -> ModelSpec:
    """The model file and its arguments, as `--arg` would give them."""
    layers, hidden, heads = SIZES[size]
    arguments = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "sequence": SEQUENCE,
        "vocab": VOCAB,
        "micro_batch": MICRO_BATCH,
        "dtype": "bfloat16",
        "optimizer": "adamw",
    }
    pairs = tuple(sorted((key, str(value)) for key, value in arguments.items()))
    return ModelSpec(path="examples/gpt.py", arguments=pairs)


def make(size: str, tp: int, machines: list[str]) -> list[Path]:
    """Trace once, price for each machine (all have the same attention backend) and write."""
    first, *rest = [files.load_machine(machine) for machine in machines]
    assert all(machine.attention_backend == first.attention_backend for machine in rest)
    captured = capture_file(model_spec(size), (("tp", tp),), first)
    paths = []
    for machine in (first, *rest):
        paths.append(FOLDER / f"gpt-{size}-tp{tp}-{machine.name}.profile.json.gz")
        files.write(price(captured.graph, machine, None), paths[-1], overwrite=True)
    return paths


def main(names: list[str]) -> None:
    """Make the named samples, or all of them."""
    known = configurations()
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"no sample '{unknown[0]}'; known samples:\n  " + "\n  ".join(known))
    os.chdir(FOLDER.parent)  # the model's path in the profile is relative to the repository
    groups: dict[tuple[str, int], list[str]] = {}
    for name in names or known:
        size, tp, machine = known[name]
        groups.setdefault((size, tp), []).append(machine)
    for (size, tp), machines in groups.items():
        for path in make(size, tp, machines):
            print(f"{path.relative_to(FOLDER.parent)}  {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except LynxError as error:
        sys.exit(f"{error}\n{error.hint}")
