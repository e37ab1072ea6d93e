"""Tensors that modules hold outside of their parameters and buffers, and what a forward assigns.

A plain tensor attribute (`self.scale = torch.ones(4)`) counts as a buffer: it is state that a step reads. Tensors in
lists and dicts have no name of their own, and tensors that want gradients without being parameters get none: both are
refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from lynx_plan.errors import LynxError


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's buffers under all their names, and its plain tensor attributes."""
    found = dict(model.named_buffers(remove_duplicate=False))
    for path, module in model.named_modules(remove_duplicate=False):
        found |= {_join(path, name): value for name, value in vars(module).items() if _is_plain(value)}
    return found


def numbers_of(model: nn.Module) -> dict[str, int | float]:
    """The numbers that the model's modules hold as attributes of their own, such as counters."""
    return {
        _join(path, name): value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, (int, float)) and not name.startswith("_")
    }


@contextmanager
def attributes_as_buffers(model: nn.Module, path: str) -> Iterator[None]:
    """Inside, plain tensor attributes are buffers; afterwards modules have the attributes that they had before.

    Raises LynxError for a tensor that wants a gradient and is no parameter. `path` is the model file.
    """
    _refuse_hidden_parameters(model, path)
    modules = list(model.modules())
    before = [dict(vars(module)) for module in modules]
    names = [[name for name, value in held.items() if _is_plain(value)] for held in before]
    for module, plain in zip(modules, names, strict=True):
        for name in plain:
            module._buffers[name] = module.__dict__.pop(name)
    try:
        yield
    finally:
        for module, held, plain in zip(modules, before, names, strict=True):
            for name in plain:
                module._buffers.pop(name, None)
            module.__dict__.clear()
            module.__dict__.update(held)


def assigned(before: dict[str, Tensor], model: nn.Module) -> tuple[str, ...]:
    """Names of the state that is another tensor now than it was in `before`."""
    after = state_of(model)
    return tuple(name for name, value in before.items() if after.get(name) is not value)


def counted(before: dict[str, int | float], model: nn.Module) -> tuple[str, ...]:
    """Names of the numbers that are other ones now than they were in `before`."""
    after = numbers_of(model)
    return tuple(name for name, value in before.items() if name in after and after[name] != value)


def count_notes(names: tuple[str, ...]) -> tuple[str, ...]:
    """One line per number that forward changes."""
    return tuple(
        f"warning: forward changes the number '{name}', and a run computes with what it was when the model was traced"
        for name in names
    )


def refuse_assigned(names: tuple[str, ...], path: str) -> None:
    """Raises LynxError for the first tensor that forward reads and then replaces by another one."""
    for name in names:
        own = name.rpartition(".")[2]
        raise LynxError(
            f"forward replaces '{name}' by another tensor, so that the next step reads another one",
            where=path,
            hint=f"make it a buffer, self.register_buffer('{own}', ...), and change it in place: self.{own}.copy_(...)",
        )


def refuse_hidden(model: nn.Module, path: str) -> None:
    """Raises LynxError for the first attribute that holds tensors in a list or dict."""
    for name, tensors in _in_containers(model):
        if not all(isinstance(tensor, nn.Parameter) for tensor in tensors):
            own = name.rpartition(".")[2]
            text = f"'{name}' holds tensors that are neither parameters nor buffers"
            hint = f"register each of them: self.register_buffer('{own}_0', ...)"
            raise LynxError(text, where=path, hint=hint)


def _refuse_hidden_parameters(model: nn.Module, path: str) -> None:
    known = {id(parameter) for parameter in model.parameters()}
    for module_path, module in model.named_modules():
        alone = [(_join(module_path, name), [value]) for name, value in vars(module).items()]
        for name, values in [*alone, *_containers(module_path, module)]:
            if any(_wants_gradient(value) and id(value) not in known for value in values):
                raise LynxError(
                    f"'{name}' requires a gradient and is no parameter of the model",
                    where=path,
                    hint="make it an nn.Parameter, several of them an nn.ParameterList",
                )


def _in_containers(model: nn.Module) -> Iterator[tuple[str, list[Tensor]]]:
    for path, module in model.named_modules():
        yield from _containers(path, module)


def _containers(path: str, module: nn.Module) -> Iterator[tuple[str, list[Tensor]]]:
    for name, value in vars(module).items():
        if name in ("_parameters", "_buffers", "_modules"):
            continue
        items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        if tensors := [item for item in items if isinstance(item, Tensor)]:
            yield _join(path, name), tensors


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.requires_grad


def _wants_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad and value.is_leaf


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
