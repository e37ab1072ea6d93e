"""Programs between their two forms: the full order of items, and templates that repeated layers share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.steps import StepOrder
from lynx_plan.errors import AnswerNo
from lynx_plan.model.graph import Layer, Phase
from lynx_plan.model.program import Item, Program, RelativeItem, Run

PARTS = ("prologue", "steady", "epilogue")
HINT = "make the plan again with: lynx plan"


def expand(program: Program, layers: tuple[Layer, ...], part: str = "steady") -> tuple[Item, ...]:
    """The items of one part of a program, in order. Raises AnswerNo where the program does not fit the layers."""
    assert part in PARTS, part
    templates = [_parse(text, number) for number, text in enumerate(program.templates)]
    items: list[Item] = []
    runs: tuple[Run, ...] = getattr(program, part)
    for number, run in enumerate(runs):
        where = f"/program/{part}/{number}"
        if not 0 <= run.template < len(templates):
            raise AnswerNo(f"names template {run.template} of {len(templates)}", where=where, hint=HINT)
        for base in run.layers:
            items.extend(_place(templates[run.template], base, layers, where))
    return tuple(items)


def expand_step(program: Program, layers: tuple[Layer, ...]) -> StepOrder:
    """The order of the step that a program says. Raises AnswerNo as `expand` does."""
    prologue, steady, epilogue = (expand(program, layers, part) for part in PARTS)
    return StepOrder(prologue=prologue, steady=steady, epilogue=epilogue)


def _parse(text: str, number: int) -> list[tuple[int, int, int, int]]:
    """Offset, slot, replica and microbatch of each item of a template."""
    try:
        relative = [RelativeItem.parse(word) for word in text.split()]
    except ValueError as error:
        raise AnswerNo(str(error), where=f"/program/templates/{number}", hint=HINT) from None
    return [(r.offset, r.item.op, r.item.replica, r.item.microbatch) for r in relative]


def _place(
    template: list[tuple[int, int, int, int]], base: int, layers: tuple[Layer, ...], where: str
) -> Iterator[Item]:
    """The template's items with `base` as their layer."""
    for offset, slot, replica, microbatch in template:
        layer = base + offset
        if not 0 <= layer < len(layers):
            raise AnswerNo(f"reaches layer {layer} of {len(layers)}", where=where, hint=HINT)
        ops = layers[layer].ops
        if slot >= len(ops):
            name = layers[layer].name
            raise AnswerNo(f"names op {slot} of layer '{name}', which has {len(ops)}", where=where, hint=HINT)
        yield Item(ops[slot], replica, microbatch)


def compress(items: Sequence[Item], index: GraphIndex) -> Program:
    """The program of a plain step of these items."""
    return compress_step(StepOrder(steady=tuple(items)), index)


def compress_step(order: StepOrder, index: GraphIndex) -> Program:
    """The program that expands to `order`, which repeated layers write once.

    Each part is cut at the first original forward and at the first original backward item of each layer; a segment's
    items are relative to the layer whose item begins it, equal segments share a template, and consecutive
    segments of one template form a run.
    """
    templates: dict[str, int] = {}
    prologue, steady, epilogue = (
        _compress_part(items, index, templates) for items in (order.prologue, order.steady, order.epilogue)
    )
    return Program(templates=tuple(templates), prologue=prologue, steady=steady, epilogue=epilogue)


def _compress_part(items: Sequence[Item], index: GraphIndex, templates: dict[str, int]) -> tuple[Run, ...]:
    """The runs of one part; new templates are added."""
    runs: list[tuple[int, list[int]]] = []
    cuts = [*_cuts(items, index), len(items)] if items else []
    for start, end in pairwise(cuts):
        base = index.op_layer[items[start].op]
        words = [_relative(item, base, index) for item in items[start:end]]
        template = templates.setdefault(" ".join(words), len(templates))
        if runs and runs[-1][0] == template:
            runs[-1][1].append(base)
        else:
            runs.append((template, [base]))
    return tuple(Run(template=template, layers=tuple(members)) for template, members in runs)


def _cuts(items: Sequence[Item], index: GraphIndex) -> list[int]:
    """Positions where segments begin; the first item always begins one."""
    seen: set[tuple[int, bool]] = set()
    cuts: list[int] = []
    for position, item in enumerate(items):
        begins = (index.op_layer[item.op], index.graph.ops[item.op].phase is Phase.FORWARD)
        first = item.replica == 0 and item.microbatch == 0 and begins not in seen
        if first:
            seen.add(begins)
        if first or position == 0:
            cuts.append(position)
    return cuts


def _relative(item: Item, base: int, index: GraphIndex) -> str:
    """Text of an item relative to layer `base`; as `RelativeItem` writes it, without making one."""
    slot = index.op_slot[item.op]
    offset = index.op_layer[item.op] - base
    if not (item.replica or item.microbatch):
        return f"{offset:+d}.{slot}" if offset else str(slot)
    return str(RelativeItem(offset, Item(slot, item.replica, item.microbatch)))
