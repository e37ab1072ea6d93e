"""The committed JSON Schemas are those of the records, and say what files must have."""

from __future__ import annotations

import json

import pytest

from lynx_plan.files import KINDS
from schemas.make import FOLDER, schema_name, schema_text


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_committed_schema_is_current(kind: str) -> None:
    committed = (FOLDER / schema_name(kind)).read_text(encoding="utf-8")
    assert committed == schema_text(kind), "make schemas"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_schema_requires_a_header_and_forbids_unknown_fields(kind: str) -> None:
    schema = json.loads(schema_text(kind))
    assert schema["required"][:2] == ["schema_version", "kind"]
    assert schema["properties"]["kind"] == {"const": kind}
    assert schema["additionalProperties"] is False


def test_no_schema_is_left_over() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == {schema_name(kind) for kind in KINDS}
