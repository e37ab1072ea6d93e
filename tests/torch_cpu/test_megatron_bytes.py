"""examples/megatron.py keeps, per layer, what Korthikanti et al. count (arXiv 2205.05198, table 2), to the byte.

Their formulas leave out the LayerNorm statistics: mean and rstd, fp32, of two norms, 16 bytes a token. Those are of
the whole sequence on every rank, or of its part where the sequence is split too.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from lynx_plan import files
from lynx_plan.analyze.flow import resolve
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.model.graph import CostGraph, ModelSpec
from lynx_plan.report.policies import kept_bytes
from lynx_plan.solve.base import Problem
from lynx_plan.solve.registry import solver
from lynx_plan.torch_rt.capture import capture_file

EXAMPLE = Path(__file__).parents[2] / "examples" / "megatron.py"
# s sequence, b micro-batch, h hidden, a heads, t tensor parallel
SHAPES = [(64, 2, 128, 8), (32, 1, 64, 4), (48, 3, 96, 12)]
CASES = [
    ("none", 1, False, lambda s, b, h, a, t: s * b * h * (34 + 5 * a * s / h)),
    ("none", 4, False, lambda s, b, h, a, t: s * b * h * (10 + 24 / t + 5 * a * s / (h * t))),
    ("none", 4, True, lambda s, b, h, a, t: s * b * h / t * (34 + 5 * a * s / h)),
    ("selective", 4, False, lambda s, b, h, a, t: s * b * h * (10 + 24 / t)),
    ("selective", 2, False, lambda s, b, h, a, t: s * b * h * (10 + 24 / t)),
    ("selective", 4, True, lambda s, b, h, a, t: s * b * h * 34 / t),
    ("full", 1, False, lambda s, b, h, a, t: 2 * s * b * h),
    ("full", 4, False, lambda s, b, h, a, t: 2 * s * b * h),
]


@cache
def captured(shape: tuple[int, ...], tp: int, sequence_parallel: bool, dtype: str) -> CostGraph:
    sequence, micro_batch, hidden, heads = shape
    arguments = {
        "layers": 3,
        "hidden": hidden,
        "heads": heads,
        "sequence": sequence,
        "vocab": 64,
        "micro_batch": micro_batch,
        "dtype": dtype,
        "sequence_parallel": str(sequence_parallel).lower(),
    }
    pairs = tuple(sorted((key, str(value)) for key, value in arguments.items()))
    machine = files.load_machine("a100-80g-nvlink")
    spec = ModelSpec(path=str(EXAMPLE), arguments=pairs)
    return capture_file(spec, (("tp", tp),) if tp > 1 else (), machine).graph


def kept_per_layer(graph: CostGraph, algo: str) -> set[int]:
    """Bytes that each repeated layer keeps."""
    index = GraphIndex(graph)
    items = solver(algo)(Problem(graph=graph, index=index, budget_bytes=10**12)).items
    by_layer = kept_bytes(index, items, resolve(graph, items))
    return {kept for layer, kept in zip(graph.layers, by_layer, strict=True) if layer.name.startswith("layers.")}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("algo", "tp", "sequence_parallel", "formula"), CASES)
def test_kept_bytes_are_the_published_ones(algo, tp, sequence_parallel, formula, dtype):
    for shape in SHAPES if dtype == "bfloat16" else SHAPES[:1]:
        sequence, batch, *_ = shape
        statistics = 0 if algo == "full" else 16 * sequence * batch // (tp if sequence_parallel else 1)
        assert kept_per_layer(captured(shape, tp, sequence_parallel, dtype), algo) == {formula(*shape, tp) + statistics}


def test_the_causal_mask_is_one_buffer():
    graph = captured(SHAPES[0], 1, False, "bfloat16")
    assert sum(tensor.name == "future" for tensor in graph.tensors) == 1
    assert sum(op.kind == "aten.masked_fill.Scalar" for op in graph.ops) >= 6  # forward and backward of three layers
