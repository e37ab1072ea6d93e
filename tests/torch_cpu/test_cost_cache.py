"""The cost cache: what is measured once is not measured again, and only under the same conditions."""

from __future__ import annotations

from pathlib import Path

import pytest

from lynx_plan import files
from lynx_plan.errors import LynxError
from lynx_plan.model.costs import CostCache
from lynx_plan.model.graph import CostGraph
from lynx_plan.torch_rt import cost_cache, measure
from lynx_plan.torch_rt.capture import Captured
from tests.torch_cpu.gpt_case import capture_gpt


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many items each measuring was given; the ranks answer with made-up times that differ from call to call."""
    calls: list[int] = []

    def ranks(items: list[dict], **_: object) -> list[list[dict]]:
        calls.append(len(items))
        first = 1000 * len(calls)
        made = [
            {"median_ns": first + i, "spread_ns": i, "comm_ns": 7, "steal_ns": 3, "add_ns": 5}
            for i in range(len(items))
        ]
        return [made, made]

    monkeypatch.setattr(measure, "measure_on_ranks", ranks)
    return calls


def priced(captured: Captured, costs: Path | None, ranks: int = 1) -> CostGraph:
    return measure.measure(
        captured, ranks=ranks, threads=1, link=None, progress=None, costs=str(costs) if costs else None
    )


def test_a_second_profile_measures_nothing_and_is_the_same_to_the_byte(counted: list[int], tmp_path: Path) -> None:
    captured, costs = capture_gpt(1, layers=2), tmp_path / "costs.json"
    first, second = (priced(captured, costs) for _ in range(2))
    assert len(counted) == 1
    assert files.to_bytes(first) == files.to_bytes(second)


def test_without_a_cache_every_profile_is_measured(counted: list[int]) -> None:
    captured = capture_gpt(1, layers=2)
    assert priced(captured, None).ops != priced(captured, None).ops
    assert len(counted) == 2


def test_a_deeper_model_measures_its_new_optimizer_only(counted: list[int], tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    priced(capture_gpt(1, layers=2), costs)
    priced(capture_gpt(1, layers=3), costs)
    assert counted[1] == 1


def test_costs_of_other_numbers_of_ranks_are_others(counted: list[int], tmp_path: Path) -> None:
    captured, costs = capture_gpt(1, layers=2), tmp_path / "costs.json"
    priced(captured, costs)
    priced(captured, costs, ranks=2)
    assert counted[0] == counted[1]


def test_the_file_is_sorted_and_names_its_ops_and_conditions(counted: list[int], tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    priced(capture_gpt(1, layers=2), costs)
    cache = files.load(costs, CostCache)
    assert [cost.key for cost in cache.costs] == sorted({cost.key for cost in cache.costs})
    assert any(cost.what.startswith("aten.mm.default float32[") for cost in cache.costs)
    assert [line.partition(":")[0] for line in cache.conditions] == ["processor", "cores", "clock", "torch"]


def test_costs_of_other_conditions_are_refused(
    counted: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured, costs = capture_gpt(1, layers=2), tmp_path / "costs.json"
    priced(captured, costs)
    before = costs.read_bytes()
    monkeypatch.setattr(cost_cache, "conditions", lambda: ("processor: another",))
    with pytest.raises(LynxError, match="other conditions") as caught:
        priced(captured, costs)
    assert "--costs" in caught.value.hint
    assert costs.read_bytes() == before


def test_a_changed_model_file_measures_its_optimizer_again(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    item = {"what": "optimizer", "model": {"path": str(file)}, "parameters": []}
    setting = cost_cache.Setting(ranks=1, threads=1, emulated=False)
    measured: list[str] = []

    def run(items: list[dict]) -> list[dict]:
        measured.append(file.read_text())
        return [{"median_ns": 1, "spread_ns": 0} for _ in items]

    for text in ("lr = 1", "lr = 1", "lr = 2"):
        file.write_text(text)
        cost_cache.measured_or_kept([item], setting, str(tmp_path / "costs.json"), run)
    assert measured == ["lr = 1", "lr = 2"]
