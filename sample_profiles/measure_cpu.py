"""Measure this CPU as a machine file: `python sample_profiles/measure_cpu.py` writes machines/cpu-demo.json.

Two ranks of one thread each run side by side, as in the demo. Nothing else should run meanwhile.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lynx_plan import files
from lynx_plan.model.machine import Efficiency, Link, Machine, Peak
from lynx_plan.torch_rt.measure_call import tensor_data
from lynx_plan.torch_rt.measure_ranks import measure_on_ranks
from lynx_plan.torch_rt.measure_reuse import COLD_BYTES

COMMAND = (
    "measured: python sample_profiles/measure_cpu.py, two ranks of one thread on a 2-core AMD EPYC virtual machine"
)
MATMULS = (64, 128, 256, 512, 1024)
VECTORS = tuple(4**power * 1024 for power in range(2, 8))  # elements
ALL_REDUCES = (1024, 4 * 2**20)  # elements
HEADS, LENGTH, WIDTH = 8, 256, 64
RANKS = 2


def operand(*shape: int, dtype: str = "float32") -> dict[str, Any]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return {"tensor": {**tensor_data(shape, strides, dtype), "reuse": COLD_BYTES}}


def op(target: str, *args: Any) -> dict[str, Any]:
    return {"what": "op", "call": {"target": target, "args": list(args), "kwargs": {}}}


def items() -> dict[tuple[str, int], dict[str, Any]]:
    """What is measured, by (name, size)."""
    work: dict[tuple[str, int], dict[str, Any]] = {}
    for n in MATMULS:
        for dtype in ("float32", "bfloat16"):
            two = operand(n, n, dtype=dtype)
            work[f"mm-{dtype}", n] = op("aten.mm.default", two, two)
    for n in VECTORS:
        work["add", n] = op("aten.add.Tensor", operand(n), operand(n))
    work["launch", 1] = op("aten.add.Tensor", operand(1), operand(1))
    query = operand(1, HEADS, LENGTH, WIDTH)
    name = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    work["attention", LENGTH] = op(name, query, query, query)
    for n in ALL_REDUCES:
        call = {"target": "_c10d_functional.all_reduce.default", "args": [operand(n), "sum", {"group": RANKS}]}
        work["all_reduce", n] = {"what": "collective", "call": {**call, "kwargs": {}}}
    return work


def machine(times: dict[tuple[str, int], dict[str, int]]) -> Machine:
    """A machine file from the slower rank's lower quartiles."""
    rates = {key: 2 * key[1] ** 3 * 10**9 / r["low_ns"] for key, r in times.items() if key[0].startswith("mm-")}
    best = {dtype: max(rate for key, rate in rates.items() if key[0] == f"mm-{dtype}") for dtype in DTYPES}
    moved = {n: 12 * n * 10**9 / times["add", n]["low_ns"] for n in VECTORS}
    top = max(moved.values())
    attention = 4 * HEADS * LENGTH * LENGTH * WIDTH * 10**9 / times["attention", LENGTH]["low_ns"]
    small, large = (times["all_reduce", n] for n in ALL_REDUCES)
    payload = 4 * ALL_REDUCES[1]
    steal = large["steal_ns"] / (large["comm_ns"] or 1)
    peak = {dtype: round(rate, -9) for dtype, rate in best.items()}
    return Machine(
        name="cpu-demo",
        device="cpu",
        memory_bytes=8 * 2**30,
        margin_bytes=2**30,
        peaks=tuple(
            Peak(dtype=d, flops_per_s=int(peak[d]), source="measured: best square matmul, operands not cache-hot")
            for d in DTYPES
        ),
        memory_bytes_per_s=int(round(top, -8)),
        launch_ns=times["launch", 1]["low_ns"],
        matmul_efficiency=tuple(
            Efficiency(size=2 * n**3, share=round(min(1.0, rates["mm-float32", n] / peak["float32"]), 3))
            for n in MATMULS
        ),
        memory_efficiency=tuple(
            Efficiency(size=12 * n, share=round(min(1.0, rate / top), 3)) for n, rate in moved.items()
        ),
        attention_share=round(attention / best["float32"], 3),
        attention_backend="cpu",
        # a ring of two: 2 steps of latency, the payload once
        link=Link(bytes_per_s=round(payload * 10**9 / large["comm_ns"]), latency_ns=small["comm_ns"] // 2),
        compute_slowdown=round(min(0.9, steal), 3),
        sources=(
            "memory_bytes: assumption: 8 GiB for each of two ranks",
            "margin_bytes: assumption: an eighth for the interpreter, libraries and allocator slack",
            "memory_bytes_per_s: measured: best addition, bytes read and written",
            "launch_ns: measured: addition of one element",
            "matmul_efficiency: measured: square float32 matmuls of 64 to 1024; sizes are flops; used for every dtype",
            "memory_efficiency: measured: additions of 16 Ki to 16 Mi elements, operands not cache-hot",
            f"attention_share: measured: {HEADS} heads, length {LENGTH}, head size {WIDTH}, against the best matmul",
            "link.bytes_per_s: measured: Gloo all-reduce of 16 MiB on the loopback device",
            "link.latency_ns: measured: Gloo all-reduce of 4 KiB, half of it",
            "compute_slowdown: measured: compute time lost beside the all-reduce of 16 MiB",
            COMMAND,
        ),
    )


DTYPES = ("float32", "bfloat16")


def main() -> None:
    """Measure and write."""
    work = items()
    results = measure_on_ranks(
        list(work.values()), ranks=RANKS, threads=1, group_sizes=[RANKS], emulated=False, progress=lambda _: None
    )
    slower = [max(pair, key=lambda result: result["low_ns"]) for pair in zip(*results, strict=True)]
    path = Path(__file__).resolve().parent / "machines" / "cpu-demo.json"
    files.write(machine(dict(zip(work, slower, strict=True))), path, overwrite=True)
    print(path.read_text())


if __name__ == "__main__":
    main()
