"""Model files: what they may define, and a message with a place for each mistake."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from lynx_plan.errors import LynxError
from lynx_plan.model.graph import ModelSpec
from lynx_plan.torch_rt.capture import capture_file
from lynx_plan.torch_rt.model_file import ModelFile, convert, load_model_file
from tests.torch_cpu.gpt_case import CPU, gpt_spec

PLAIN = """
import torch
from torch import nn

def build_model(mesh, *, width: int = 4, scale: float = 1.0):
    class Model(nn.Linear):
        def forward(self, x):
            return super().forward(x).pow(2).sum() * scale
    return Model(width, width)

def example_inputs(*, width: int = 4):
    return torch.ones(2, width)
"""


def write(folder: Path, text: str) -> str:
    path = folder / "model.py"
    path.write_text(text)
    return str(path)


def load(folder: Path, text: str = PLAIN, builder: str = "build_model", **arguments: str) -> ModelFile:
    spec = ModelSpec(path=write(folder, text), builder=builder, arguments=tuple(sorted(arguments.items())))
    return load_model_file(spec)


def test_a_plain_file_needs_two_functions(tmp_path):
    file = load(tmp_path)
    model = file.build(None)
    (x,) = file.example_inputs()
    assert x.shape == (2, 4)
    assert torch.equal(file.batch(5, 0, 0)[0], x)
    assert file.loss(model(x)).dim() == 0
    optimizer = file.build_optimizer(list(model.parameters()))
    assert (type(optimizer), optimizer.param_groups[0]["momentum"]) == (torch.optim.SGD, 0)


def test_models_are_built_after_one_common_seed(tmp_path):
    file = load(tmp_path)
    first = file.build(None).weight
    torch.manual_seed(77)
    assert torch.equal(first, file.build(None).weight)


def test_nothing_is_written_beside_the_file(tmp_path):
    load(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]


def test_a_changed_file_is_read_again(tmp_path):
    load(tmp_path)
    assert load(tmp_path, PLAIN.replace("width: int = 4", "width: int = 9")).example_inputs()[0].shape == (2, 9)


def test_arguments_reach_the_functions_that_take_them(tmp_path):
    file = load(tmp_path, width="6", scale="2.5")
    assert file.build(None).weight.shape == (6, 6)
    assert file.example_inputs()[0].shape == (2, 6)


def test_argument_values():
    assert [convert(text) for text in ("3", "0.5", "1e3", "true", "false", "adamw")] == [
        3,
        0.5,
        1e3,
        True,
        False,
        "adamw",
    ]


def test_unknown_arguments_are_refused_with_the_known_ones(tmp_path):
    with pytest.raises(LynxError, match="'widht'") as caught:
        load(tmp_path, widht="6")
    assert "scale, width" in caught.value.hint


def test_another_builder(tmp_path):
    text = PLAIN + "\ndef tiny(mesh):\n    return build_model(mesh, width=1)\n"
    assert load(tmp_path, text, builder="tiny").build(None).weight.shape == (1, 1)
    with pytest.raises(LynxError, match="no function huge"):
        load(tmp_path, text, builder="huge")


@pytest.mark.parametrize(
    ("output", "value"),
    [("x.sum()", True), ("{'loss': x.sum()}", True), ("Out(x.sum())", True), ("x", False), ("3", False)],
)
def test_the_loss_is_the_output_or_in_it(tmp_path, output, value):
    text = "import torch\nclass Out:\n    def __init__(self, loss): self.loss = loss\n"
    text += f"def build_model(mesh): ...\ndef example_inputs():\n    x = torch.ones(2)\n    return ({output},)\n"
    file = load(tmp_path, text)
    (result,) = file.example_inputs()
    if value:
        assert file.loss(result) == 2
    else:
        with pytest.raises(LynxError, match="not a scalar") as caught:
            file.loss(result)
        assert "loss(output)" in caught.value.hint


def mistake(folder: Path, old: str, new: str) -> LynxError:
    assert old in PLAIN
    spec = ModelSpec(path=write(folder, PLAIN.replace(old, new)))
    with pytest.raises(LynxError) as caught:
        capture_file(spec, (("tp", 2),), CPU)
    assert caught.value.hint
    assert caught.value.exit_code == 2
    return caught.value


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("import torch\n", "import torch\nraise RuntimeError('not here')\n", 3, "RuntimeError: not here"),
        ("import torch\n", "import torch, no_such_module\n", 2, "No module named 'no_such_module'"),
        ("import torch\n", "import sys\nimport torch\nsys.exit(3)\n", 4, "SystemExit: 3"),
        ("import torch\n", "import torch\ndef f(:\n", 3, "model.py is not valid Python: invalid syntax"),
        ("    return Model(", "    raise KeyError('layers')\n    return Model(", 9, "KeyError: 'layers'"),
        ("    return torch.ones", "    return 1 / 0 or torch.ones", 12, "ZeroDivisionError"),
        ("super().forward(x).", "super().forward(x[:, 1:]).", 8, "RuntimeError"),
        ("def build_model", "def build", None, "no function build_model"),
        ("def example_inputs", "def inputs", None, "no function example_inputs"),
        ("    return Model(width, width)", "    return None", None, "returned a NoneType"),
        (".pow(2).sum()", "", None, "not a scalar"),
    ],
)
def test_mistakes_have_a_place(tmp_path, old, new, line, message):
    error = mistake(tmp_path, old, new)
    assert message in error.message
    assert error.where == str(tmp_path / "model.py") + (f":{line}" if line else "")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(LynxError, match="no such model file"):
        load_model_file(ModelSpec(path=str(tmp_path / "absent.py")))


def test_a_neighbours_mistake_is_placed_there_too(tmp_path):
    (tmp_path / "neighbour_of_the_model.py").write_text("x = 1\nraise ValueError('neighbour')\n")
    error = mistake(tmp_path, "import torch\n", "import neighbour_of_the_model, torch\n")
    assert (error.where, "neighbour" in error.message) == (str(tmp_path / "model.py") + ":2", True)
    sys.path.remove(str(tmp_path))


def test_tensor_parallelism_that_does_not_divide_the_heads():
    with pytest.raises(LynxError, match="over 3 ranks does not divide heads=4") as caught:
        capture_file(gpt_spec(), (("tp", 3),), CPU)
    assert "gpt.py:" in caught.value.where


def test_mesh_dimensions_are_checked():
    for shape in ((("xp", 2),), (("tp", 0),), (("tp", 2), ("tp", 2))):
        with pytest.raises(LynxError, match="not valid"):
            capture_file(gpt_spec(), shape, CPU)
