"""Traced models against Megatron-LM's published iteration times: `python bench/megatron.py [ROW...]`.

Published: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198,
table 5: GPT on DGX A100 80GB nodes, sequence 2048, vocabulary 51200, Adam in mixed precision. Predicted: the model of
examples/megatron.py, traced, priced by the a100-80g-nvlink machine file with Megatron-LM's fusions, planned by the
solver that does as Megatron-LM did, and simulated. No constant comes from these rows: the machine file and
cost/backends.py say where each is from. The bar is the analytic model Calculon on its own files for this table.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from lynx_plan.cost.backends import with_backend
from lynx_plan.cost.collectives import collective_ns
from lynx_plan.cost.roofline import price
from lynx_plan.files import load_machine
from lynx_plan.model.graph import CostGraph, ModelSpec
from lynx_plan.model.machine import Link, Machine
from lynx_plan.solve.planner import make_plan
from lynx_plan.torch_rt.capture import capture_file

MACHINE = "a100-80g-nvlink"
SEQUENCE, VOCAB, TENSOR_PARALLEL, BYTES = 2048, 51200, 8, 2
CALCULON_PERCENT = 3.65  # mean absolute error over four models, worst 8.87
TARGET_PERCENT = 3.0
# Between nodes, per GPU: 200 Gbit/s InfiniBand; NCCL's peak bus bandwidth was 96 of 100 GB/s on four such adapters
# (github.com/NVIDIA/nccl-tests issue 119). Latency: assumption.
INFINIBAND = Link(bytes_per_s=24 * 10**9, latency_ns=10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A row of the table; `micro_batches` of `micro_batch` samples make the global batch of a pipeline."""

    name: str
    layers: int
    hidden: int
    heads: int
    micro_batch: int
    micro_batches: int
    stages: int
    chunks: int  # per stage: interleaving
    published: tuple[float, float]  # seconds: full recomputation; sequence parallel with selective recomputation


MODELS = (
    Model(
        name="22B",
        layers=48,
        hidden=6144,
        heads=64,
        micro_batch=4,
        micro_batches=1,
        stages=1,
        chunks=1,
        published=(1.42, 1.10),
    ),
    Model(
        name="175B",
        layers=96,
        hidden=12288,
        heads=96,
        micro_batch=1,
        micro_batches=64,
        stages=8,
        chunks=3,
        published=(18.13, 13.75),
    ),
    Model(
        name="530B",
        layers=105,
        hidden=20480,
        heads=128,
        micro_batch=1,
        micro_batches=280,
        stages=35,
        chunks=3,
        published=(49.05, 37.83),
    ),
    Model(
        name="1T",
        layers=128,
        hidden=25600,
        heads=160,
        micro_batch=1,
        micro_batches=512,
        stages=64,
        chunks=1,
        published=(94.42, 71.49),
    ),
)
WAYS = (("full recomputation", "full", False), ("sequence parallel, selective", "selective", True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="names of models, such as 22B; all if none")
    names = parser.parse_args().models
    os.chdir(Path(__file__).resolve().parent.parent)
    machine = with_backend(load_machine(MACHINE), "megatron")
    errors = []
    print(f"{'model':6} {'recomputation':30} {'published s':>11} {'predicted s':>11} {'error':>7}")
    for model in MODELS:
        if names and model.name not in names:
            continue
        for (text, algo, split), published in zip(WAYS, model.published, strict=True):
            predicted = iteration_ns(model, machine, algo, split) / 1e9
            errors.append(100 * (predicted / published - 1))
            print(f"{model.name:6} {text:30} {published:11.2f} {predicted:11.3f} {errors[-1]:+6.1f}%", flush=True)
    mean = sum(map(abs, errors)) / len(errors)
    print(f"mean absolute error {mean:.2f} % (target {TARGET_PERCENT} %, Calculon {CALCULON_PERCENT} %)")


def iteration_ns(model: Model, machine: Machine, algo: str, sequence_parallel: bool) -> float:
    """One iteration: forward, backward, optimizer, and the pipeline's bubble and messages."""
    layers = model.layers // model.stages
    graph = captured(model, layers, machine, sequence_parallel)
    whole = program_ns(graph, algo)
    if model.stages == 1:
        return whole + graph.optimizer_ns
    few = layers // 2
    layer = (whole - program_ns(captured(model, few, machine, sequence_parallel), algo)) / (layers - few)
    # The embedding is the first stage's, the logits the last one's, which is the slowest.
    last = whole - layer_ns(graph, "embedding")
    bubble = (model.stages - 1) * layers * layer / model.chunks
    steps = model.micro_batches * model.chunks + model.stages - 1
    messages = steps * message_ns(model, machine, sequence_parallel)
    return model.micro_batches * last + bubble + messages + graph.optimizer_ns + shared_embedding_ns(model)


def captured(model: Model, layers: int, machine: Machine, sequence_parallel: bool) -> CostGraph:
    arguments = {
        "layers": layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "sequence": SEQUENCE,
        "vocab": VOCAB,
        "micro_batch": model.micro_batch,
        "dtype": "float16",
        "sequence_parallel": str(sequence_parallel).lower(),
    }
    pairs = tuple(sorted((key, str(value)) for key, value in arguments.items()))
    spec = ModelSpec(path="examples/megatron.py", arguments=pairs)
    return price(capture_file(spec, (("tp", TENSOR_PARALLEL),), machine).graph, machine, None)


def program_ns(graph: CostGraph, algo: str) -> int:
    """Forward and backward of one microbatch."""
    planned = make_plan(graph, algo=algo, enforce_budget=False)
    return planned.plan.predicted.step_ns - graph.optimizer_ns


def layer_ns(graph: CostGraph, name: str) -> int:
    """What the ops of a layer take one after the other."""
    (layer,) = (layer for layer in graph.layers if layer.name == name)
    return sum(graph.ops[op].time_ns + graph.ops[op].comm_ns for op in layer.ops)


def message_ns(model: Model, machine: Machine, sequence_parallel: bool) -> float:
    """What a chunk's forward and backward exchange with its neighbours, while nothing else runs.

    Each rank sends its part of the activation forward and of the gradient backward, through one adapter; without
    sequence parallelism the receivers then gather the parts over NVLink (Narayanan et al., arXiv 2104.04473,
    section 4.1).
    """
    whole = SEQUENCE * model.micro_batch * model.hidden * BYTES
    sent = collective_ns("send", 2, 2 * whole // TENSOR_PARALLEL, INFINIBAND)
    return sent if sequence_parallel else sent + 2 * collective_ns("all_gather", TENSOR_PARALLEL, whole, machine.link)


def shared_embedding_ns(model: Model) -> int:
    """First and last stage sum the fp32 gradients of the embedding that they share."""
    return collective_ns("all_reduce", 2, VOCAB * model.hidden // TENSOR_PARALLEL * 4, INFINIBAND)


if __name__ == "__main__":
    main()
