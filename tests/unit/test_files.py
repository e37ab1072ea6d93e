"""Files: round trips, versions, errors that name the place, and writes that leave no half file."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lynx_plan import files
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.plan import Plan
from tests.unit.builders import chain_graph

GRAPH = chain_graph(3)


def write_json(path: Path, change: dict[str, Any]) -> Path:
    """GRAPH's file with some top-level fields changed."""
    path.write_text(json.dumps({**files.to_json_object(GRAPH), **change}))
    return path


@pytest.mark.parametrize("name", ["profile.json", "profile.json.gz"])
def test_round_trip(tmp_path: Path, name: str) -> None:
    files.write(GRAPH, tmp_path / name, overwrite=False)
    assert files.load(tmp_path / name, CostGraph) == GRAPH


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        files.write(GRAPH, tmp_path / name, overwrite=False)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert files.digest(GRAPH) == files.digest(replace(GRAPH))
    assert files.digest(GRAPH) != files.digest(replace(GRAPH, threads=2))


def test_header_comes_first() -> None:
    assert list(files.to_json_object(GRAPH))[:2] == ["schema_version", "kind"]


def test_another_major_version_is_refused(tmp_path: Path) -> None:
    path = write_json(tmp_path / "p.json", {"schema_version": "2.0"})
    with pytest.raises(LynxError, match=r"schema version 2\.0; this Lynx reads 1\.x") as caught:
        files.load(path, CostGraph)
    assert "lynx profile" in caught.value.hint
    assert caught.value.where.endswith("#/schema_version")


def test_unknown_fields_are_ignored_only_in_a_newer_minor_version(tmp_path: Path) -> None:
    path = write_json(tmp_path / "p.json", {"schema_version": "1.7", "novelty": 3})
    assert files.load(path, CostGraph) == replace(GRAPH, schema_version="1.7")
    path = write_json(tmp_path / "p.json", {"novelty": 3})
    with pytest.raises(LynxError) as caught:
        files.load(path, CostGraph)
    assert caught.value.where.endswith("#/novelty")


def test_a_wrong_field_is_named_by_its_pointer(tmp_path: Path) -> None:
    data = files.to_json_object(GRAPH)
    data["ops"][1]["time_ns"] = "soon"
    (tmp_path / "p.json").write_text(json.dumps(data))
    with pytest.raises(LynxError) as caught:
        files.load(tmp_path / "p.json", CostGraph)
    assert caught.value.where.endswith("#/ops/1/time_ns")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"kind": ', "is not JSON"),
        (b"[]", "is not a Lynx file"),
        (b'{"kind": "other"}', "is not a Lynx file"),
        (b'{"kind": "lynx.plan"}', "has no schema version"),
        (b"\xff\xfe\x00", "is not JSON text"),
        (gzip.compress(b"{}")[:-6], "is not a whole gzip file"),
    ],
)
def test_broken_content(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "p.json").write_bytes(content)
    with pytest.raises(LynxError, match=message) as caught:
        files.load_any(tmp_path / "p.json")
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_json_errors_give_line_and_column(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{\n "kind" 3}')
    with pytest.raises(LynxError) as caught:
        files.load_any(tmp_path / "p.json")
    assert caught.value.where.endswith("p.json:2:9")


def test_a_profile_is_not_a_plan(tmp_path: Path) -> None:
    path = write_json(tmp_path / "p.json", {})
    with pytest.raises(LynxError, match="is a profile, not a plan") as caught:
        files.load(path, Plan)
    assert "lynx plan" in caught.value.hint


def test_a_missing_file() -> None:
    with pytest.raises(LynxError, match="cannot be read"):
        files.load_any("nowhere.json")


def test_an_existing_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("mine")
    with pytest.raises(LynxError, match="exists") as caught:
        files.write(GRAPH, path, overwrite=False)
    assert "--force" in caught.value.hint
    assert path.read_text() == "mine"
    files.write(GRAPH, path, overwrite=True)
    assert files.load(path, CostGraph) == GRAPH


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.json"
    path.write_text("old")

    def fail(_source: object, _target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        files.write(GRAPH, path, overwrite=True)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.json"]


def test_a_target_without_a_folder(tmp_path: Path) -> None:
    with pytest.raises(LynxError, match="folder does not exist"):
        files.check_writable(tmp_path / "no" / "p.json", overwrite=True)
    with pytest.raises(LynxError, match="is a folder"):
        files.check_writable(tmp_path, overwrite=True)


def test_shipped_machines_load_and_state_their_sources() -> None:
    assert files.shipped_machines()
    for name in files.shipped_machines():
        machine = files.load_machine(name)
        assert machine.name == name
        assert machine.sources


def test_an_unknown_machine_lists_the_known_ones() -> None:
    with pytest.raises(LynxError, match="no machine 'abacus'") as caught:
        files.load_machine("abacus")
    assert "a100-80g-nvlink" in caught.value.hint


def test_a_folder_that_takes_no_files_is_named_not_the_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "check_writable", lambda path, overwrite: None)
    with pytest.raises(LynxError, match="cannot be written") as caught:
        files.write_bytes(b"x", "/proc/x.json", overwrite=True)
    assert (caught.value.where, bool(caught.value.hint)) == ("/proc/x.json", True)
