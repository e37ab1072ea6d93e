"""`lynx machine`: what it lists, shows and measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lynx_plan import files
from lynx_plan.model.machine import Machine
from tests.cli.conftest import Lynx, assert_answer

SHIPPED = files.shipped_machines()


def test_list_names_every_machine(lynx: Lynx) -> None:
    result = lynx("machine", "list")
    assert result.code == 0, result.err
    assert all(name in result.out for name in SHIPPED)
    assert [m["name"] for m in json.loads(lynx("machine", "list", "--json").out)["machines"]] == list(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_show_prints_every_source(lynx: Lynx, name: str) -> None:
    result = lynx("machine", "show", name)
    assert result.code == 0, result.err
    machine = files.load_machine(name)
    for source in (*machine.sources, *(peak.source for peak in machine.peaks)):
        assert source in result.out
    document = json.loads(lynx("machine", "show", name, "--json").out)
    assert files.from_json_object(document, "shown") == machine


def test_no_such_machine(lynx: Lynx) -> None:
    assert_answer(lynx("machine", "show", "abacus"), 2, "no machine 'abacus'", "a100-80g-nvlink")


def test_measure_writes_a_machine_that_prices(lynx: Lynx, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lynx_plan.torch_rt import measure_machine

    monkeypatch.setattr(measure_machine, "QUICK_WIDTHS", (16, 32))
    monkeypatch.setattr(measure_machine, "QUICK_TRAFFIC", (2**10, 2**14))
    monkeypatch.setattr(measure_machine, "PAYLOADS", (2**8, 2**12))
    monkeypatch.setattr(measure_machine, "CONTENTION", {"what": "contention", "width": 16, "bytes": 2**12})
    result = lynx("machine", "measure", "--quick", "--name", "here")
    assert result.code == 0, result.err
    assert "lynx profile MODEL.py --machine machine.json" in result.err
    machine = files.load("machine.json", Machine)
    assert (machine.name, machine.device) == ("here", "cpu")
    assert {peak.dtype for peak in machine.peaks} == {"float32", "bfloat16"}
    assert machine.memory_bytes_per_s > 0
    assert machine.link.bytes_per_s > 0
    assert 0 <= machine.compute_slowdown < 1
    assert any(source.startswith("conditions: 2 concurrent rank(s)") for source in machine.sources)
    assert lynx("validate", "machine.json").code == 0
    gpt = str(Path(__file__).parents[2] / "examples" / "gpt.py")
    assert lynx("profile", gpt, "--arg", "layers=1", "--machine", "machine.json").code == 0
    assert_answer(lynx("machine", "measure", "--quick", "-o", "machine.json"), 2, "exists", "--force")
