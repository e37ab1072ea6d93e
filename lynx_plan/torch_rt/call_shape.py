"""The arguments of a model's forward, taken apart: tensors, and everything else, which is part of the traced graph.

Positional and keyword arguments may hold tensors in tuples, lists, dicts, named tuples and dataclasses, beside numbers,
texts and None.
"""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lynx_plan.errors import LynxError
from lynx_plan.torch_rt import compat

_TENSOR = "<tensor>"


@dataclass(frozen=True)
class CallShape:
    """How a call is put together: `leaves` are its constants, with a mark where a tensor stands."""

    tree: Any
    leaves: tuple[Any, ...]

    def rebuild(self, tensors: tuple[Tensor, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) with these tensors in place."""
        turn = iter(tensors)
        filled = [next(turn) if leaf is _TENSOR else leaf for leaf in self.leaves]
        return compat.tree_unflatten(filled, self.tree)

    def rebuild_output(self, tensors: tuple[Tensor, ...]) -> Any:
        """What a module returned, of the shape of ((output,), {}), with these tensors in place."""
        (output,), _ = self.rebuild(tensors)
        return output

    def tensors_of(self, call: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[Tensor, ...]:
        """The tensors of another call of the same shape; LynxError where it is not, naming the first difference."""
        leaves, tree = _flatten(call)
        if tree != self.tree:
            raise LynxError(
                "a microbatch's arguments are nested otherwise than the example's",
                hint="give what example_inputs gives: the same number of arguments, keys and nesting",
            )
        for number, (leaf, expected) in enumerate(zip(leaves, self.leaves, strict=True)):
            found = _TENSOR if isinstance(leaf, Tensor) else leaf
            if found is not expected and not (type(found) is type(expected) and found == expected):
                raise LynxError(
                    f"argument {number} of a microbatch is {_show(leaf)}; the plan is for {_show(expected)}",
                    hint="what is no tensor is part of the traced model: profile and plan again for another value",
                )
        return tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))


def shape_of(call: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[CallShape, tuple[Tensor, ...]]:
    """A call's shape and its tensors, in order."""
    leaves, tree = _flatten(call)
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, (Tensor, int, float, bool, str, type(None))):
            raise LynxError(
                f"argument {number} of the model is a {type(leaf).__name__}",
                hint="give tensors, numbers, texts and None, also in tuples, lists, dicts and dataclasses",
            )
    marked = tuple(_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    return CallShape(tree, marked), tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))


def call_of(module: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of what `example_inputs` or `batch` gave: a tuple or list, or a dict of keyword arguments.

    A dict whose keys are not all arguments of forward is one argument.
    """
    if isinstance(inputs, dict) and _takes_all(module, inputs):
        return (), dict(inputs)
    if type(inputs) in (tuple, list):
        return tuple(inputs), {}
    return (inputs,), {}


def call(module: nn.Module, inputs: Any) -> Any:
    """The module's output for such inputs."""
    args, kwargs = call_of(module, inputs)
    return module(*args, **kwargs)


def _takes_all(module: nn.Module, names: dict[Any, Any]) -> bool:
    parameters = inspect.signature(module.forward).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return all(isinstance(name, str) for name in names)
    known = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return set(names) <= known


def _flatten(call: Any) -> tuple[list[Any], Any]:
    _register_dataclasses(call)
    return compat.tree_flatten(call)


def _register_dataclasses(value: Any) -> None:
    """Make the tree functions look into the dataclasses of a call."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        compat.register_dataclass(type(value))
        for field in dataclasses.fields(value):
            _register_dataclasses(getattr(value, field.name))
    elif isinstance(value, dict):
        for item in value.values():
            _register_dataclasses(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            _register_dataclasses(item)


def _show(leaf: Any) -> str:
    if leaf is _TENSOR or isinstance(leaf, Tensor):
        return "a tensor"
    return repr(leaf)
