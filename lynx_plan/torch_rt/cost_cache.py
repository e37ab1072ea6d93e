"""Measured costs from a cost cache file, and new ones into it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lynx_plan import files
from lynx_plan.errors import LynxError
from lynx_plan.model.costs import CostCache, MeasuredCost
from lynx_plan.torch_rt.conditions import conditions

Item = dict[str, Any]
Result = dict[str, Any]
Measure = Callable[[list[Item]], list[Result]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Beside what an op is measured: its cost holds for that only."""

    ranks: int
    threads: int
    emulated: bool


def measured_or_kept(items: Sequence[Item], setting: Setting, path: str | None, measure: Measure) -> list[Result]:
    """The result of each item: from the file where it is there, else from `measure`, and then also in the file.

    Without a path everything is measured. Raises LynxError for a file of other conditions (another processor,
    clock or torch).
    """
    if path is None:
        return measure(list(items))
    cache = _read(path)
    known = {cost.key: cost for cost in cache.costs}
    keys = [_key(item, setting) for item in items]
    missing = {key: item for key, item in zip(keys, items, strict=True) if key not in known}
    if missing:
        results = measure(list(missing.values()))
        known |= {key: _cost(key, item, result) for (key, item), result in zip(missing.items(), results, strict=True)}
        costs = tuple(known[key] for key in sorted(known))
        files.write(CostCache(conditions=cache.conditions, costs=costs), path, overwrite=True)
    return [_result(known[key]) for key in keys]


def _read(path: str) -> CostCache:
    own = conditions()
    if not Path(path).exists():
        files.check_writable(path, overwrite=False)
        return CostCache(conditions=own)
    cache = files.load(path, CostCache)
    if cache.conditions != own:
        other = next((line for line in cache.conditions if line not in own), "nothing")
        raise LynxError(
            f"holds costs measured under other conditions ({other})", where=path, hint="name another file: --costs FILE"
        )
    return cache


def _key(item: Item, setting: Setting) -> str:
    facts = {"item": item, "ranks": setting.ranks, "threads": setting.threads, "emulated": setting.emulated}
    if item["what"] == "optimizer" and Path(item["model"]["path"]).is_file():
        facts["file"] = hashlib.sha256(Path(item["model"]["path"]).read_bytes()).hexdigest()
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _cost(key: str, item: Item, result: Result) -> MeasuredCost:
    return MeasuredCost(
        key=key,
        what=_what(item),
        time_ns=result["median_ns"],
        spread_ns=result["spread_ns"],
        add_ns=result.get("add_ns", 0),
        comm_ns=result.get("comm_ns", 0),
        steal_ns=result.get("steal_ns", 0),
    )


def _result(cost: MeasuredCost) -> Result:
    found = {"median_ns": cost.time_ns, "spread_ns": cost.spread_ns}
    found |= {"comm_ns": cost.comm_ns, "steal_ns": cost.steal_ns}
    return {**found, "add_ns": cost.add_ns} if cost.add_ns else found


def _what(item: Item) -> str:
    """`aten.mm.default float32[512, 256] float32[256, 64]`."""
    from lynx_plan.torch_rt.measure_call import tensors_in

    if "call" not in item:
        tensors = [item["new"]] if "new" in item else item.get("parameters", [])[:1]
        return " ".join([item["what"], *map(_tensor, tensors)])
    operands = tensors_in([item["call"]["args"], list(item["call"]["kwargs"].values())])
    return " ".join([item["call"]["target"], *map(_tensor, operands)])


def _tensor(data: dict[str, Any]) -> str:
    return f"{data['dtype']}{data['shape']}"
