"""`lynx profile` on tiny models: what it writes, and every mistake a model file can make. Needs torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lynx_plan import files
from lynx_plan.model.graph import CostGraph
from tests.cli.conftest import Lynx, assert_answer

GPT = str(Path(__file__).parents[2] / "examples" / "gpt.py")
SMALL = [
    word for pair in ("layers=2", "hidden=32", "heads=4", "sequence=8", "vocab=16") for word in ("--arg", pair)
]  # fmt: skip
PRICED = ["--machine", "a100-80g-nvlink"]


def test_profile_then_plan(lynx: Lynx, folder: Path) -> None:
    result = lynx("profile", GPT, "--tp", "2", *SMALL, *PRICED, "--link", "1GB/s:50us")
    assert result.code == 0, result.err
    for part in ("tp 2", "a100-80g-nvlink", "1GB/s:50us", "parameters", "activations", "of communication and compute"):
        assert part in result.out
    assert "wrote profile.json" in result.err
    assert "next: lynx plan --budget 60%" in result.err
    graph = files.load("profile.json", CostGraph)
    assert graph.mesh == (("tp", 2),)
    assert dict(graph.model.arguments)["hidden"] == "32"
    assert lynx("plan", "--budget", "70%").code == 0
    assert lynx("validate", "profile.json", "plan.json").code == 0
    assert lynx("inspect", "plan.json").code == 0


def test_profile_to_standard_output(lynx: Lynx, folder: Path) -> None:
    result = lynx("profile", GPT, *SMALL, *PRICED, "-o", "-")
    assert result.code == 0, result.err
    assert isinstance(files.from_json_object(json.loads(result.out), "stdout"), CostGraph)
    assert list(folder.iterdir()) == []


def test_fusion_prices_fused_kernels_and_says_so(lynx: Lynx, folder: Path) -> None:
    megatron = str(Path(GPT).with_name("megatron.py"))
    assert lynx("profile", megatron, "--tp", "2", *SMALL, *PRICED, "-o", "eager.json").code == 0
    result = lynx("profile", megatron, "--tp", "2", *SMALL, *PRICED, "--fusion", "megatron", "-o", "fused.json")
    assert result.code == 0, result.err
    assert "note: priced as a backend with fused kernels runs it" in result.err
    eager, fused = (files.load(name, CostGraph) for name in ("eager.json", "fused.json"))
    assert not any("fused" in op.cost_source for op in eager.ops)
    in_layers = [op for op in fused.ops if op.module.startswith("layers.")]
    assert sum("fused:bias-dropout-add" in op.cost_source for op in in_layers) == 2 * 2 * 3  # bias, dropout, residual
    assert sum(op.time_ns for op in fused.ops) < sum(op.time_ns for op in eager.ops)
    assert_answer(lynx("profile", megatron, *SMALL, *PRICED, "--fusion", "warp"), 2, "no fusion 'warp'")
    assert_answer(lynx("profile", megatron, *SMALL, "--fusion", "megatron"), 2, "nothing is fused")


def test_what_a_model_file_says_is_no_part_of_the_result(lynx: Lynx, folder: Path) -> None:
    (folder / "talks.py").write_text("print('hello')\n" + Path(GPT).read_text())
    result = lynx("profile", "talks.py", *SMALL, *PRICED, "-o", "-")
    assert result.code == 0, result.err
    assert isinstance(files.from_json_object(json.loads(result.out), "stdout"), CostGraph)
    assert "hello" in result.err


def test_a_message_is_one_line(lynx: Lynx, folder: Path) -> None:
    (folder / "wordy.py").write_text("raise ValueError('first' + chr(10) + 'second')\n")
    result = lynx("profile", "wordy.py")
    assert_answer(result, 2, "first second")


def test_only_rank_0_writes(lynx: Lynx, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    result = lynx("profile", GPT, *SMALL, *PRICED)
    assert (result.code, result.out, result.err) == (0, "", "")
    assert list(folder.iterdir()) == []


def test_mistakes_on_the_command_line(lynx: Lynx, folder: Path) -> None:
    assert_answer(lynx("profile", "gone.py"), 2, "gone.py", "no such model file")
    assert_answer(lynx("profile", GPT, "--machine", "abacus"), 2, "abacus", "a100-80g-nvlink")
    assert_answer(lynx("profile", GPT, "--link", "fast"), 2, "--link", "500MB/s")
    assert_answer(lynx("profile", GPT, "--arg", "layers"), 2, "--arg", "key=value")
    assert_answer(lynx("profile", GPT, "--tp", "0"), 2, "--tp")
    assert_answer(lynx("profile"), 2, "MODEL.py")
    assert_answer(lynx("profile", GPT, "-o", "no/such/folder.json"), 2, "folder does not exist")
    assert list(folder.iterdir()) == []


def test_tp_that_does_not_divide_the_heads(lynx: Lynx, folder: Path) -> None:
    assert_answer(lynx("profile", GPT, "--tp", "3", *SMALL, *PRICED), 2, "heads", "gpt.py")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "build_model"),
        ("def build_model(mesh):\n    return None\n", "example_inputs"),
        ("raise RuntimeError('no weights here')\n", "no weights here"),
        ("def build_model(mesh:\n", "model.py:1"),
        ("import a_library_that_is_not_there\n", "a_library_that_is_not_there"),
        (
            "from torch import nn\n"
            "def build_model(mesh):\n    raise ValueError('too\\nsmall')\n"
            "def example_inputs():\n    return ()\n",
            "small",
        ),
    ],
)
def test_mistakes_of_a_model_file(lynx: Lynx, folder: Path, text: str, message: str) -> None:
    (folder / "model.py").write_text(text)
    assert_answer(lynx("profile", "model.py", *PRICED), 2, "model.py", message)
    assert [path.name for path in folder.iterdir() if path.is_file()] == ["model.py"]


def test_another_builder(lynx: Lynx, folder: Path) -> None:
    assert_answer(lynx("profile", f"{GPT}:build_other", *SMALL, *PRICED), 2, "build_other")


def test_show_prints_what_inspect_prints(lynx: Lynx, folder: Path) -> None:
    result = lynx("profile", GPT, "--tp", "2", *SMALL, *PRICED, "--show")
    assert result.code == 0, result.err
    for part in ("layer classes", "sums the partial results of layers.*.mlp.down", "gelu_backward of layers.*.mlp"):
        assert part in result.out
    assert "memory that recomputation cannot touch" in result.out
    assert result.out.rstrip() in lynx("inspect", "profile.json").out
