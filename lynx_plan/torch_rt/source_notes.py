"""Note on each traced node which module and which line of the model it comes from."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import nn
from torch.fx.node import Node
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from lynx_plan.torch_rt import compat

KEY = "lynx"
LOSS = "loss"  # stands for a module where the loss is computed outside of the model
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_LYNX = f"{Path(__file__).parents[1]}{os.sep}"
_LIBRARIES = (*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_paths()["stdlib"])


@dataclass(frozen=True)
class Note:
    """A module path such as `layers.3.mlp`, and a source file and line ("" and 0 where unknown)."""

    module: str = ""
    file: str = ""
    line: int = 0


class SourceNotes(TorchFunctionMode):
    """Notes the module and the user's line on every node made while it is active.

    The line is the innermost frame outside torch, Lynx and installed libraries; in a model that lies in a
    library altogether, the innermost outside torch and Lynx.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names = {module: name for name, module in model.named_modules()}
        self.modules: list[str] = [""]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        file, line = user_line()
        compat.current_node_meta()[compat.NODE_NOTE] = {KEY: Note(self.modules[-1], file, line)}
        return func(*args, **(kwargs or {}))

    def enter_module(self, module: nn.Module, _args: object) -> None:
        self.modules.append(self.names.get(module, self.modules[-1]))

    def leave_module(self, _module: nn.Module, _args: object, _output: object) -> None:
        self.modules.pop()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Take notes inside; nothing is left behind."""
        hooks = (
            register_module_forward_pre_hook(self.enter_module),
            register_module_forward_hook(self.leave_module),
        )
        try:
            with self:
                yield
        finally:
            compat.current_node_meta().pop(compat.NODE_NOTE, None)
            for hook in hooks:
                hook.remove()

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """As if a module of this name were running."""
        self.modules.append(name)
        yield
        self.modules.pop()


def note_of(node: Node) -> Note:
    """The note on a node of the traced graph."""
    return node.meta.get(compat.NODE_NOTE, {}).get(KEY, Note())


def user_line() -> tuple[str, int]:
    """File and line of the innermost user frame; ("", 0) if there is none."""
    fallback = ("", 0)
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_LYNX) and "forward" in frame.f_code.co_name:
            break  # the wrapper that calls the model: what lies beyond is not the model
        if is_user_file(file):
            return file, frame.f_lineno
        if is_user_file(file, libraries=True):
            fallback = fallback if fallback[0] else (file, frame.f_lineno)
        frame = frame.f_back
    return fallback


def is_user_file(file: str, *, libraries: bool = False) -> bool:
    """Whether a source file is the user's: outside torch, Lynx and, unless `libraries`, what is installed."""
    return not file.startswith((_TORCH, _LYNX, "<")) and (libraries or not file.startswith(_LIBRARIES))


@cache
def display_path(file: str, model_path: str) -> str:
    """A source file as a profile names it, without absolute paths: the model file as the user typed it."""
    model = Path(model_path)
    path = Path(file).resolve()
    if path == model.resolve():
        return model_path
    folder = model.resolve().parent
    return str(model.parent / path.relative_to(folder)) if path.is_relative_to(folder) else path.name
