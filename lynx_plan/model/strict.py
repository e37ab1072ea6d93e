"""How records behave at the file boundary, without importing pydantic: unknown fields are errors."""

from __future__ import annotations

from typing import Any

STRICT: dict[str, Any] = {"extra": "forbid"}
SCHEMA_VERSION = "1.0"
