"""Write the JSON Schema of each Lynx file beside this script, from the records that validate them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lynx_plan.files import KINDS, adapter
from lynx_plan.model.strict import SCHEMA_VERSION

FOLDER = Path(__file__).parent


def main() -> None:
    """Write them all."""
    for kind in KINDS:
        path = FOLDER / schema_name(kind)
        path.write_text(schema_text(kind), encoding="utf-8")
        print(f"wrote {path}")


def schema_name(kind: str) -> str:
    """`profile.schema.json` for `lynx.profile`."""
    return f"{kind.removeprefix('lynx.')}.schema.json"


def schema_text(kind: str) -> str:
    """The schema of files of this kind, as text; the same records always give the same text."""
    body: dict[str, Any] = adapter(KINDS[kind]).json_schema()
    properties = body["properties"]
    properties["kind"] = {"const": kind}
    major = SCHEMA_VERSION.partition(".")[0]
    properties["schema_version"] = {"type": "string", "pattern": f"^{major}\\.[0-9]+$"}
    body["required"] = ["schema_version", "kind", *body.get("required", [])]
    header = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"Lynx {kind.removeprefix('lynx.')}"}
    return json.dumps({**header, **{key: value for key, value in body.items() if key != "title"}}, indent=1) + "\n"


if __name__ == "__main__":
    main()
