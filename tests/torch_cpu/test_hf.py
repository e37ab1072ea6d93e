"""Hugging Face models from configurations that these tests make: traced, planned, run, and split over ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import lynx_plan
from lynx_plan import files
from lynx_plan.analyze.classes import layer_classes
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import HF, CostGraph, ModelSpec, Phase, Role
from lynx_plan.model.plan import Plan
from lynx_plan.solve.planner import make_plan
from lynx_plan.torch_rt.capture import Captured, capture_file
from lynx_plan.torch_rt.eager import eager_gradients
from lynx_plan.torch_rt.model_file import load_model_file
from tests.cli.conftest import Lynx, assert_answer, folder, lynx  # noqa: F401
from tests.torch_cpu.gpt_case import CPU
from tests.torch_cpu.ranks import run_ranks

pytest.importorskip("transformers", reason="needs the extra 'hf' (transformers)")

LAYERS = 2
PLAIN = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": LAYERS, "vocab_size": 128, "max_position_embeddings": 64, "dtype": "float32",
}  # fmt: skip
KINDS = {
    "gpt2": {"n_embd": 64, "n_layer": LAYERS, "n_head": 4, "n_positions": 64, "vocab_size": 128, "dtype": "float32"},
    "llama": PLAIN,
    "mistral": PLAIN,
    "qwen2": PLAIN,
    "qwen3": {**PLAIN, "head_dim": 16},
    "mixtral": {**PLAIN, "num_local_experts": 4, "num_experts_per_tok": 2},
}


def config(folder_: Path, kind: str, **changes: object) -> str:
    path = folder_ / f"{kind}.json"
    path.write_text(json.dumps({"model_type": kind, **KINDS[kind], **changes}))
    return str(path)


def spec(path: str, **arguments: object) -> ModelSpec:
    pairs = {"seq": 16, "micro_batch": 2, **arguments}
    return ModelSpec(path=path, builder=HF, arguments=tuple(sorted((k, str(v)) for k, v in pairs.items())))


@pytest.mark.parametrize("kind", KINDS)
def test_layers_are_one_class_and_gradients_equal_eagers(tmp_path: Path, kind: str) -> None:
    model = spec(config(tmp_path, kind))
    captured = capture_file(model, (), CPU)
    classes = [known for known in layer_classes(GraphIndex(captured.graph), priced=False) if len(known.layers) > 1]
    assert [len(known.layers) for known in classes] in ([LAYERS], [])  # first and last may differ at their ends
    assert sum(layer.name.rpartition(".")[2].isdigit() for layer in captured.graph.layers) == LAYERS
    file = load_model_file(model)
    module = file.build(None)
    assert captured.graph.static.parameters_bytes == sum(p.nbytes for p in module.parameters())
    batches = [file.batch(0, number, 0) for number in range(2)]
    torch.manual_seed(5)
    expected = eager_gradients(module, file.loss, batches)
    for algo, budget in (("none", "100%"), ("heu", "between:full,none,0.3")):
        plan = make_plan(captured.graph, algo=algo, budget=budget, micro_batches=2).plan
        torch.manual_seed(5)
        lynx_plan.Step(module, plan, file.loss)(batches)
        different = [n for n, p in module.named_parameters() if not torch.equal(p.grad, expected[n])]
        assert different == [], (algo, different)


@pytest.mark.parametrize("kind", KINDS)
def test_for_a_gpu(tmp_path: Path, kind: str) -> None:
    path = config(tmp_path, kind, dtype="bfloat16", attn_pdrop=0.0) if kind == "gpt2" else config(
        tmp_path, kind, dtype="bfloat16"
    )  # fmt: skip
    graph = capture_file(spec(path), (), files.load_machine("a100-80g-nvlink")).graph
    assert sum(op.kind == "attention" for op in graph.ops) == LAYERS
    if kind not in ("gpt2",):
        assert any("rms_norm" in op.kind for op in graph.ops) or any(op.kind == "aten.rsqrt" for op in graph.ops)


def tp2(path: str) -> Captured:
    return capture_file(spec(path), (("tp", 2),), CPU)


def test_a_models_own_tensor_parallel_plan(tmp_path: Path) -> None:
    graph = tp2(config(tmp_path, "llama")).graph
    forward = [op for op in graph.ops if op.role is Role.COLLECTIVE and op.phase is Phase.FORWARD]
    reduced = [op for op in forward if op.kind == "all_reduce"]
    assert [op.module.rpartition(".")[2] for op in reduced] == ["o_proj", "down_proj"] * LAYERS
    assert [op.module for op in forward if op.kind == "all_gather"] == ["lm_head"]
    backward = [op for op in graph.ops if op.role is Role.COLLECTIVE and op.phase is not Phase.FORWARD]
    assert len(backward) == 5 * LAYERS + 1  # before q, k, v, gate and up in each layer, and the head


def test_on_two_ranks(tmp_path: Path) -> None:
    """Gradients of plans equal eager's on each shard, and the shards compute what the whole model does."""
    paths = [config(tmp_path, kind) for kind in ("llama", "qwen3", "mixtral")]
    jobs, losses = [], []
    for path in paths:
        graph = tp2(path).graph
        plan = make_plan(graph, algo="heu", budget="between:full,none,0.3").plan
        file = load_model_file(spec(path))
        losses.append(float(file.loss(file.build(None)(**file.batch(0, 0, 0)))))
        jobs.append((path, plan))
    for different, found in run_ranks(_run, 2, tmp_path, jobs):
        assert different == [[], [], []]
        assert found == pytest.approx(losses, rel=1e-5)


def _run(rank: int, jobs: list[tuple[str, Plan]]) -> tuple[list[list[str]], list[float]]:
    """On each rank and for each model: parameters whose gradients are not eager's, and the loss."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    different, losses = [], []
    for path, plan in jobs:
        file = load_model_file(spec(path))
        model = file.build(mesh)
        batches = [file.batch(0, 0, 0)]
        expected = eager_gradients(model, file.loss, batches)
        losses.append(float(lynx_plan.Step(model, plan, file.loss, mesh=mesh)(batches)[0]))
        different.append([n for n, p in model.named_parameters() if not torch.equal(p.grad, expected[n])])
    return different, losses


def test_profile_plan_and_run(tmp_path: Path, lynx: Lynx, folder: Path) -> None:  # noqa: F811
    path = config(tmp_path, "llama")
    words = ["--hf", path, "--seq", "16", "--micro-batch", "2"]
    result = lynx("profile", *words, "--machine", "cpu-demo", "--arg", "num_hidden_layers=3")
    assert result.code == 0, result.err
    graph = files.load("profile.json", CostGraph)
    assert sum(".layers." in f".{layer.name}" for layer in graph.layers) == 3
    assert lynx("plan", "--budget", "between:full,none,0.3").code == 0
    assert lynx("run", "--verify", "--steps", "1").code == 0


def test_what_is_wrong_is_said(tmp_path: Path, lynx: Lynx, folder: Path) -> None:  # noqa: F811
    priced = ["--machine", "cpu-demo"]
    path = config(tmp_path, "llama")
    assert_answer(lynx("profile", *priced), 2, "either a model file MODEL.py or --hf", "--help")
    assert_answer(lynx("profile", "--hf", "nowhere.json", *priced), 2, "no such configuration", "config.json")
    assert_answer(lynx("profile", "--hf", path, "--arg", "bogus=1", *priced), 2, "no 'bogus' to override", "--arg")
    (tmp_path / "bad.json").write_text("{")
    assert_answer(lynx("profile", "--hf", str(tmp_path / "bad.json"), *priced), 2, "not JSON", "config.json")
    gpt2 = config(tmp_path, "gpt2")
    assert_answer(lynx("profile", "--hf", gpt2, "--tp", "2", *priced), 2, "no tensor-parallel plan", "--tp")
    odd = config(tmp_path, "llama", num_key_value_heads=1)
    assert lynx("profile", "--hf", odd, "--tp", "2", *priced).code == 2
    assert not Path("profile.json").exists()


def test_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(LynxError, match="transformers library") as caught:
        capture_file(spec(config(tmp_path, "llama")), (), CPU)
    assert "lynx-plan[hf]" in caught.value.hint
