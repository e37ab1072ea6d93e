"""The user's model file: load it, call its functions, and turn its mistakes into messages with a place."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from lynx_plan.errors import LynxError
from lynx_plan.model.graph import HF, ModelSpec

SEED = 0
SHAPE_OF_A_MODEL_FILE = "a model file defines build_model(mesh) and example_inputs()"
# What a model file may define beside its builder; --arg reaches each function that takes the key.
FUNCTIONS = ("example_inputs", "batch", "build_optimizer", "loss")


class ModelFile:
    """A loaded model file. Its functions get the `--arg` pairs that their signatures take."""

    def __init__(self, spec: ModelSpec, module: ModuleType) -> None:
        self.path = spec.path
        self.builder = spec.builder
        self._functions: dict[str, Callable[..., Any]] = {
            name: found for name in (spec.builder, *FUNCTIONS) if callable(found := getattr(module, name, None))
        }
        self._arguments = {key: convert(text) for key, text in spec.arguments}
        for name in (spec.builder, "example_inputs"):
            if name not in self._functions:
                raise LynxError(f"defines no function {name}", where=self.path, hint=SHAPE_OF_A_MODEL_FILE)
        self._check_arguments()

    def build(self, mesh: DeviceMesh | None) -> nn.Module:
        """This rank's module, made after the common seed."""
        torch.manual_seed(SEED)
        model = self._call(self.builder, mesh)
        if not isinstance(model, nn.Module):
            text = f"{self.builder} returned a {type(model).__name__}, not a module"
            raise LynxError(text, where=self.path, hint="return a torch.nn.Module")
        return model

    def example_inputs(self) -> Any:
        """The arguments of the module's forward: a tuple, or a dict of keyword arguments (`call_shape.call_of`)."""
        return _inputs(self._call("example_inputs"))

    def batch(self, step: int, microbatch: int, dp_rank: int) -> Any:
        """One microbatch's arguments; the example inputs if the file has no `batch`."""
        if "batch" not in self._functions:
            return self.example_inputs()
        return _inputs(self._call("batch", step, microbatch, dp_rank))

    def build_optimizer(self, params: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The file's optimizer; plain SGD if it has none."""
        if "build_optimizer" not in self._functions:
            return torch.optim.SGD(params, lr=1e-3)
        optimizer = self._call("build_optimizer", params)
        if not isinstance(optimizer, torch.optim.Optimizer):
            text = f"build_optimizer returned a {type(optimizer).__name__}, not an optimizer"
            raise LynxError(text, where=self.path, hint="return a torch.optim.Optimizer")
        return optimizer

    def loss(self, output: Any) -> Tensor:
        """The scalar loss of the module's output."""
        value = self._call("loss", output) if "loss" in self._functions else plain_loss(output)
        return scalar(value, self.path)

    def _call(self, name: str, *args: Any) -> Any:
        function = self._functions[name]
        with user_code(self.path, name):
            return function(*args, **{key: value for key, value in self._arguments.items() if takes(function, key)})

    def _check_arguments(self) -> None:
        for key in self._arguments:
            if not any(takes(function, key) for function in self._functions.values()):
                known = sorted({key for function in self._functions.values() for key in keywords(function)})
                hint = f"it takes: {', '.join(known)}" if known else "it takes no arguments"
                raise LynxError(f"takes no argument '{key}'", where=self.path, hint=hint)


def _inputs(value: Any) -> Any:
    """A dict as it is, anything else as a tuple of arguments."""
    if isinstance(value, dict):
        return value
    return tuple(value) if type(value) in (tuple, list) else (value,)


def load_model_file(spec: ModelSpec) -> ModelFile:
    """Import a model file under a name of its own; nothing is written beside it. A configuration of Hugging Face's
    stands for the file that `hf.functions` makes of it.
    """
    if spec.builder == HF:
        from lynx_plan.torch_rt.hf import functions

        return ModelFile(spec, functions(spec.path))
    path = Path(spec.path)
    if not path.is_file():
        raise LynxError("no such model file", where=spec.path, hint=f"name a Python file; {SHAPE_OF_A_MODEL_FILE}")
    name = f"lynx_model_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    loader = _Loader(name, str(path.resolve()))
    module_spec = importlib.util.spec_from_loader(name, loader)
    assert module_spec is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses and typing look the module up
    if str(path.resolve().parent) not in sys.path:
        sys.path.append(str(path.resolve().parent))  # the file may import its neighbours
    with user_code(spec.path, "importing it"):
        loader.exec_module(module)
    return ModelFile(spec, module)


class _Loader(SourceFileLoader):
    """Leaves no `__pycache__` beside the user's file."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        return


@contextmanager
def user_code(path: str, doing: str) -> Iterator[None]:
    """Turn an exception of the user's code into a LynxError at the file and line that raised it."""
    try:
        yield
    except LynxError:
        raise
    except SyntaxError as error:
        text = f"{Path(error.filename or path).name} is not valid Python: {error.msg}"
        raise LynxError(text, where=place(error, path), hint="correct the file") from None
    except (Exception, SystemExit) as error:
        text = str(error).strip() or "no message"
        hint = "correct the model file, or the arguments given with --arg"
        raise LynxError(
            f"{doing} raised {type(error).__name__}: {text}", where=place(error, path), hint=hint
        ) from error


def place(error: BaseException, path: str) -> str:
    """`path:line` of the innermost frame in the model file; the path alone if there is none."""
    resolved = str(Path(path).resolve())
    if isinstance(error, SyntaxError) and error.filename == resolved:
        return f"{path}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == resolved]
    return f"{path}:{lines[-1]}" if lines else path


def plain_loss(output: Any) -> Any:
    """The output itself, or its `.loss`, or its `["loss"]`."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, dict) and "loss" in output:
        return output["loss"]
    return getattr(output, "loss", output)


def scalar(loss: Any, path: str) -> Tensor:
    """The loss, if it is a tensor without dimensions."""
    if isinstance(loss, Tensor) and loss.dim() == 0:
        return loss
    what = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
    hint = "define loss(output) that returns a scalar, or let forward return one, or an output that has .loss"
    raise LynxError(f"the loss is {what}, not a scalar tensor", where=path, hint=hint)


def convert(text: str) -> int | float | bool | str:
    """The value of a `--arg`: int, float, true or false, else text."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def keywords(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names that a function takes as keywords, except those that Lynx passes by position."""
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    own = ("mesh", "output", "params", "step", "microbatch", "dp_rank")
    return tuple(p.name for p in parameters if p.kind in kinds and p.name not in own)


def takes(function: Callable[..., Any], key: str) -> bool:
    """Whether a function takes this keyword."""
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
    return anything or key in keywords(function)
