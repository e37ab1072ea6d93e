"""`lynx plan --frontier`: table, chart, document, picture, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from lynx_plan.model.graph import CostGraph
from tests.cli.conftest import Lynx, assert_answer

needs_matplotlib = pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="matplotlib is not installed")


def test_the_frontier_is_shown_and_no_plan_is_written(lynx: Lynx, graph: CostGraph, folder: Path) -> None:
    result = lynx("plan", "--frontier", "--algos", "none,ondemand,heu")
    assert result.code == 0, result.err
    assert "step time against peak memory" in result.out
    assert "n none, o ondemand, h heu" in result.out
    assert not (folder / "plan.json").exists()


def test_the_frontier_as_a_document(lynx: Lynx, graph: CostGraph) -> None:
    document = json.loads(lynx("plan", "--frontier", "--algos", "none,heu", "--micro-batches", "2", "--json").out)
    assert {point["algo"] for point in document["points"]} == {"none", "heu"}
    assert all(point["peak_bytes"] <= point["budget_bytes"] for point in document["points"])
    assert "knee" in document


@needs_matplotlib
@pytest.mark.parametrize(("name", "begins"), [("f.png", b"\x89PNG"), ("f.svg", b"<?xml")])
def test_the_frontier_as_a_picture(lynx: Lynx, graph: CostGraph, folder: Path, name: str, begins: bytes) -> None:
    assert lynx("plan", "--frontier", "--algos", "none,heu", "--plot", name).code == 0
    first = (folder / name).read_bytes()
    assert first.startswith(begins)
    assert_answer(lynx("plan", "--frontier", "--algos", "none,heu", "--plot", name), 2, name)
    assert lynx("plan", "--frontier", "--algos", "none,heu", "--plot", name, "--force").code == 0
    assert (folder / name).read_bytes() == first


def test_without_matplotlib_a_picture_is_refused_before_any_work(
    lynx: Lynx, graph: CostGraph, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert_answer(lynx("plan", "--frontier", "--plot", "f.svg"), 2, "matplotlib", "lynx-plan[plot]")
    assert not (folder / "f.svg").exists()


def test_what_the_frontier_refuses(lynx: Lynx, graph: CostGraph) -> None:
    assert_answer(lynx("plan", "--frontier", "--plot", "f.pdf"), 2, "neither .png nor .svg")
    assert_answer(lynx("plan", "--frontier", "--algos", "best"), 2, "no algorithm 'best'")
    result = lynx("plan", "--plot", "f.svg")
    assert result.code == 2
    assert "go with '--frontier'" in result.err
