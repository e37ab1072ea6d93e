"""Sizes that depend on data: give each a value to price by and a bound for memory, so that the graph has plain numbers.

Tracing makes a symbol of every such size. `settle` replaces the symbols in a joint graph's fake values: by a balanced
load (what an all-to-all sends is spread evenly over the ranks, as many rows come back times `load`, the parts of a
split are equal), and notes the worst-case bytes of every value, from the ranges that `torch._check` gave. A size itself
is a value of no bytes. The traced ops stay as they are: a run computes with the sizes that its data has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from lynx_plan.errors import LynxError
from lynx_plan.torch_rt import compat
from lynx_plan.torch_rt.joint import MERGED
from lynx_plan.torch_rt.kinds import SIZE, argument, base_name, is_collective, is_wait

BOUND_BYTES = "lynx_bound_bytes"  # metadata of a node: worst-case bytes of the storages of its outputs, by port
_SPLITS = ("split_with_sizes", "split_with_sizes_copy")
Show = Callable[[fx.Node], str]


def settle(graph: fx.Graph, *, load: float, bytes_by: str, show: Show) -> tuple[str, ...]:
    """Replace symbolic sizes in the nodes' fake values; notes on what was assumed. `show` gives a node's place.

    `load`: rows that arrive relative to those sent; `bytes_by`: memory is of the "bound" or of the "load".
    Raises LynxError for a size without an upper bound.
    """
    _mark_sizes(graph)
    _read_after_waits(graph)
    if not any(_symbols(value) for node in graph.nodes for value in _leaves(node.meta.get("val"))):
        return ()
    facts = _Facts(graph, load)
    facts.learn()
    bounds = _Bounds(facts)
    bounds.check(show)
    concrete = _Concrete(facts, bounds if bytes_by == "bound" else None)
    for node in graph.nodes:
        concrete.replace(node)
    return _notes(facts, bounds, load, bytes_by)


def _mark_sizes(graph: fx.Graph) -> None:
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, (int, float, bool, *compat.SYMBOLIC)):
            node.meta[SIZE] = True


def _read_after_waits(graph: fx.Graph) -> None:
    """The size of a collective's result is that of the wait's: nothing else reads a result that is on its way."""
    for node in list(graph.nodes):
        if not node.meta.get(SIZE) or base_name(node) != "sym_size" or not is_collective(node.args[0]):
            continue
        wait = next((user for user in node.args[0].users if is_wait(user)), None)
        if wait is not None:
            wait.append(node)
            node.args = (wait, *node.args[1:])


def _leaves(value: Any) -> Iterable[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


def _symbols(value: Any) -> dict[Any, Any]:
    """The free symbols of a fake value, each with a symbolic value that holds it."""
    if isinstance(value, compat.SYMBOLIC):
        return dict.fromkeys(sorted(_expression(value).free_symbols, key=str), value)
    if isinstance(value, Tensor):
        sizes = (*value.shape, *value.stride(), value.storage_offset())
        return {symbol: size for each in sizes for symbol, size in _symbols(each).items()}
    return {}


def _expression(value: Any) -> Any:
    """As a formula of symbols, equal ones being one symbol."""
    return compat.expression(value) if isinstance(value, compat.SYMBOLIC) else compat.integer(value)


@dataclass
class _Facts:
    """What the graph says of its symbols: who makes them, what they are when balanced, which make up a whole."""

    graph: fx.Graph
    load: float
    makers: dict[Any, fx.Node] = field(default_factory=dict)
    examples: dict[Any, Any] = field(default_factory=dict)  # symbol -> a symbolic value that holds it
    values: dict[Any, int] = field(default_factory=dict)  # symbol -> its value when priced
    wholes: list[tuple[frozenset[Any], Any]] = field(default_factory=list)  # symbols whose sum is a formula

    def learn(self) -> None:
        for node in self.graph.nodes:
            for value in _leaves(node.meta.get("val")):
                for symbol, example in _symbols(value).items():
                    self.makers.setdefault(symbol, node)
                    self.examples.setdefault(symbol, example)
            if node.op != "call_function":
                continue
            if base_name(node) == "all_to_all_single":
                sent = _expression(node.args[0].meta["val"].shape[0])
                self._parts(_sizes(argument(node, "input_split_sizes")), sent, 1)
                self._shares(_sizes(argument(node, "output_split_sizes")), sent, self.load)
            elif base_name(node) in _SPLITS:
                whole = node.args[0].meta["val"].shape[int(argument(node, "dim") or 0)]
                self._parts(_sizes(node.args[1]), _expression(whole), 1)

    def value(self, expression: Any) -> int | None:
        """What a formula comes to when balanced; None if it has a symbol of no known value."""
        if not expression.free_symbols <= self.values.keys():
            return None
        return int(expression.xreplace({s: compat.integer(v) for s, v in self.values.items()}))

    def _parts(self, parts: Sequence[Any], whole: Any, factor: float) -> None:
        """The parts are all of `whole`."""
        symbols = [symbol for part in parts for symbol in part.free_symbols]
        if symbols and len(set(symbols)) == len(symbols):
            self.wholes.append((frozenset(symbols), whole))
        self._shares(parts, whole, factor)

    def _shares(self, parts: Sequence[Any], whole: Any, factor: float) -> None:
        """Give the symbols of no value yet equal shares of what the known parts leave."""
        total = self.value(whole)
        if total is None:
            return
        total = round(total * factor)
        open_parts = [part for part in parts if self.value(part) is None]
        left = total - sum(self.value(part) or 0 for part in parts)
        for part, share in zip(open_parts, _equal(left, len(open_parts)), strict=True):
            unknown = sorted(part.free_symbols - self.values.keys(), key=str)
            known = self.value(part.xreplace({symbol: compat.integer(0) for symbol in unknown})) or 0
            for symbol, value in zip(unknown, _equal(share - known, len(unknown)), strict=True):
                self.values[symbol] = value


def _equal(total: int, parts: int) -> list[int]:
    """`total` in equal parts; the first ones are larger by one where it does not divide."""
    if not parts:
        return []
    total = max(0, total)
    return [total // parts + (number < total % parts) for number in range(parts)]


def _sizes(given: Any) -> list[Any]:
    return [_expression(each.meta["val"] if isinstance(each, fx.Node) else each) for each in given or ()]


class _Bounds:
    """Upper bounds of formulas: of each symbol alone, and of the symbols that make up a whole together."""

    def __init__(self, facts: _Facts) -> None:
        self._facts = facts
        self._upper: dict[Any, int | None] = {}
        self._known: dict[Any, int] = {}
        self._wholes: dict[frozenset[Any], int] = {}  # symbols -> a bound of their sum
        self._learned = 0

    def check(self, show: Show) -> None:
        """Raise LynxError for the first symbol without a bound."""
        for symbol, maker in self._facts.makers.items():
            if self._symbol(symbol) is None:
                raise LynxError(
                    f"the size that {base_name(maker)} gives here depends on data, and has no upper bound",
                    where=show(maker),
                    hint="say how large it can be: torch._check(size <= most), directly after it is computed",
                )
            if symbol not in self._facts.values:
                self._facts.values[symbol] = self._symbol(symbol) or 0

    def of(self, expression: Any) -> int:
        """An upper bound of a formula whose symbols are at least 0."""
        if expression not in self._known:
            self._learn()
            bounds = [self._within(expression, symbols, most) for symbols, most in self._wholes.items()]
            self._known[expression] = min([self._interval(expression), *(b for b in bounds if b is not None)])
        return self._known[expression]

    def _learn(self) -> None:
        """Bound the wholes, each by what is known of those before it."""
        for symbols, whole in self._facts.wholes[self._learned :]:
            bounds = [self._within(whole, known, most) for known, most in self._wholes.items()]
            most = min([self._interval(whole), *(b for b in bounds if b is not None)])
            self._wholes[symbols] = min(most, self._wholes.get(symbols, most))
        self._learned = len(self._facts.wholes)

    def _within(self, expression: Any, symbols: frozenset[Any], whole: int) -> int | None:
        """A bound of a formula, where these symbols come to at most `whole` together; None if that does not help."""
        if not expression.free_symbols & symbols:
            return None
        terms = expression.as_coefficients_dict()
        inside = {term: factor for term, factor in terms.items() if term in symbols}
        rest = expression - sum(factor * term for term, factor in inside.items())
        if not inside or min(inside.values()) < 0 or rest.free_symbols & symbols:
            return None
        return int(max(inside.values())) * whole + self._interval(rest)

    def _interval(self, expression: Any) -> int:
        return compat.upper_bound(expression, {symbol: self._symbol(symbol) or 0 for symbol in expression.free_symbols})

    def _symbol(self, symbol: Any) -> int | None:
        if symbol not in self._upper:
            self._upper[symbol] = compat.largest(self._facts.examples[symbol], symbol)
        return self._upper[symbol]


class _Concrete:
    """Fake values without symbols. Tensors that shared a storage share one still."""

    def __init__(self, facts: _Facts, bounds: _Bounds | None) -> None:
        self._facts, self._bounds = facts, bounds
        self._mode = compat.FakeTensorMode(allow_non_fake_inputs=True)
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._kept: list[Any] = []  # old values: their storages' keys must not be used again

    def replace(self, node: fx.Node) -> None:
        """Also of values without symbols: others may be views of them."""
        if "val" not in node.meta:
            return
        value = node.meta["val"]
        self._kept += [value, node.meta.get(MERGED)]
        leaves = _leaves(value)
        if self._bounds is not None and any(_symbols(each) for each in leaves):
            node.meta[BOUND_BYTES] = tuple(self._bound_bytes(each) for each in leaves)
        new = [self._new(each) for each in leaves]
        node.meta["val"] = type(value)(new) if isinstance(value, (tuple, list)) else new[0]
        if MERGED in node.meta:
            node.meta[MERGED] = tuple(self._new(each) for each in node.meta[MERGED])

    def _bound_bytes(self, value: Any) -> int:
        if not isinstance(value, Tensor) or self._bounds is None:
            return 0
        return self._bounds.of(_expression(value.untyped_storage().nbytes()))

    def _new(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, torch.SymInt):
            return self._number(value)
        return True if isinstance(value, torch.SymBool) else value  # a condition that was checked

    def _tensor(self, value: Tensor) -> Tensor:
        size, stride = self._numbers(value.shape), self._numbers(value.stride())
        offset = self._number(value.storage_offset())
        key = compat.storage_key(value)
        with self._mode, torch.no_grad():
            if key not in self._storages:
                span = (
                    0 if 0 in size else 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + offset
                )
                count = max(self._number(value.untyped_storage().nbytes()), span * value.element_size())
                block = torch.empty(count, dtype=torch.uint8, device=value.device)
                self._storages[key] = block.untyped_storage()
            new = torch.empty(0, dtype=value.dtype, device=value.device)
            return new.set_(self._storages[key], offset, size, stride)

    def _number(self, size: Any) -> int:
        return self._facts.value(_expression(size)) or 0

    def _numbers(self, sizes: Iterable[Any]) -> tuple[int, ...]:
        return tuple(self._number(size) for size in sizes)


def _notes(facts: _Facts, bounds: _Bounds, load: float, bytes_by: str) -> tuple[str, ...]:
    largest = max(facts.makers, key=lambda symbol: bounds.of(symbol))
    text = (
        f"{len(facts.makers)} sizes depend on data: priced as a balanced load with {load:g} times as many rows "
        f"received as sent; memory is of {'the worst case' if bytes_by == 'bound' else 'that load'} "
        f"(the largest size is {facts.values[largest]} of at most {bounds.of(largest)})"
    )
    return (text,)
