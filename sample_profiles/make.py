"""Make the sample profiles again: `python sample_profiles/make.py [NAME...]`, such as `gpt-20b-tp8-a100-80g-nvlink`.

Traces examples/gpt.py, or a model of a Hugging Face configuration, on fake tensors (no GPU, nothing allocated) and
prices it by shipped machine files. The same code and the same torch give the same bytes.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from lynx_plan import files
from lynx_plan.cost.roofline import price
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import HF, ModelSpec
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
NVLINK, PCIE = "a100-80g-nvlink", "a100-80g-pcie"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is traced once; `tp` 1: no mesh."""

    name: str
    spec: ModelSpec
    tp: int
    machines: tuple[str, ...]

    def samples(self) -> tuple[str, ...]:
        """Names of its sample profiles, one per machine."""
        split = f"-tp{self.tp}" if self.tp > 1 else ""
        return tuple(f"{self.name}{split}-{machine}" for machine in self.machines)


def models() -> tuple[Model, ...]:
    """All that there are samples of."""
    gpts = [
        Model(name=f"gpt-{size}", spec=gpt(*SIZES[size], micro_batch=16), tp=tp, machines=(NVLINK, PCIE))
        for size in SIZES
        for tp in (2, 4, 8)
    ]
    return (
        *gpts,
        Model(name="gpt-1t", spec=gpt(128, 25600, 160, micro_batch=1), tp=8, machines=(NVLINK,)),
        Model(name="gpt2-xl", spec=hugging_face("gpt2-xl", seq=1024, micro_batch=4), tp=1, machines=(NVLINK,)),
        Model(name="llama-3-8b", spec=hugging_face("llama-3-8b", seq=4096, micro_batch=1), tp=1, machines=(NVLINK,)),
        Model(name="llama-3-70b", spec=hugging_face("llama-3-70b", seq=4096, micro_batch=1), tp=8, machines=(NVLINK,)),
        Model(
            name="mixtral-8x7b", spec=hugging_face("mixtral-8x7b", seq=2048, micro_batch=1), tp=1, machines=(NVLINK,)
        ),
    )


def gpt(layers: int, hidden: int, heads: int, *, micro_batch: int) -> ModelSpec:
    """examples/gpt.py and its arguments, as `--arg` would give them."""
    return _spec(
        "examples/gpt.py",
        "build_model",
        layers=layers,
        hidden=hidden,
        heads=heads,
        sequence=2048,
        vocab=51200,
        micro_batch=micro_batch,
        dtype="bfloat16",
        optimizer="adamw",
    )


def hugging_face(name: str, *, seq: int, micro_batch: int) -> ModelSpec:
    """A configuration of this folder, as `--hf` would give it; bfloat16 parameters."""
    path = f"sample_profiles/configs/{name}.json"
    return _spec(path, HF, seq=seq, micro_batch=micro_batch, dtype="bfloat16")


def _spec(path: str, builder: str, **arguments: object) -> ModelSpec:
    pairs = tuple(sorted((key, str(value)) for key, value in arguments.items()))
    return ModelSpec(path=path, builder=builder, arguments=pairs)


def make(model: Model, names: set[str]) -> list[Path]:
    """Trace once, price for each machine of the named samples (all have the same attention backend) and write."""
    chosen = [(n, files.load_machine(m)) for n, m in zip(model.samples(), model.machines, strict=True) if n in names]
    first = chosen[0][1]
    assert all(machine.attention_backend == first.attention_backend for _, machine in chosen)
    captured = capture_file(model.spec, (("tp", model.tp),) if model.tp > 1 else (), first)
    paths = []
    for name, machine in chosen:
        paths.append(FOLDER / f"{name}.profile.json.gz")
        files.write(price(captured.graph, machine, None), paths[-1], overwrite=True)
    return paths


def main(names: list[str]) -> None:
    """Make the named samples, or all of them."""
    known = {name for model in models() for name in model.samples()}
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"no sample '{unknown[0]}'; known samples:\n  " + "\n  ".join(sorted(known)))
    os.chdir(FOLDER.parent)  # the model's path in the profile is relative to the repository
    wanted = set(names) or known
    for model in models():
        if wanted & set(model.samples()):
            for path in make(model, wanted):
                print(f"{path.relative_to(FOLDER.parent)}  {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except LynxError as error:
        sys.exit(f"{error}\n{error.hint}")
