"""Load, validate, digest and write Lynx's files. Files are data; writes are atomic. May import model and pydantic."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from lynx_plan.errors import LynxError
from lynx_plan.model.costs import CostCache
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.machine import Machine
from lynx_plan.model.plan import Plan
from lynx_plan.model.strict import SCHEMA_VERSION
from lynx_plan.model.timeline import Timeline

Record = TypeVar("Record", CostGraph, Plan, Timeline, Machine, CostCache)
KINDS: dict[str, type[Any]] = {
    "lynx.profile": CostGraph,
    "lynx.plan": Plan,
    "lynx.timeline": Timeline,
    "lynx.machine": Machine,
    "lynx.costs": CostCache,
}
MAKERS = {
    "lynx.profile": "lynx profile MODEL.py",
    "lynx.plan": "lynx plan profile.json",
    "lynx.timeline": "lynx run --plan plan.json --timeline timeline.json",
    "lynx.machine": "lynx machine measure",
    "lynx.costs": "lynx profile MODEL.py --costs FILE",
}

_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def adapter(record: type[Any]) -> TypeAdapter[Any]:
    """The validator and serialiser of a record type; made once, on first use."""
    if record not in _ADAPTERS:
        _ADAPTERS[record] = TypeAdapter(record)
    return _ADAPTERS[record]


def to_json_object(record: Any) -> dict[str, Any]:
    """A record as JSON data: header first, fields in their order, defaults left out."""
    body = adapter(type(record)).dump_python(record, mode="json", exclude_defaults=True)
    return {"schema_version": record.schema_version, "kind": record.kind, **body}


def to_bytes(record: Any) -> bytes:
    """The file's text: the same record always gives the same bytes."""
    indent = 1 if record.kind in ("lynx.plan", "lynx.machine") else None
    separators = None if indent else (",", ":")
    return (json.dumps(to_json_object(record), indent=indent, separators=separators) + "\n").encode()


def digest(record: Any) -> str:
    """sha256 of a record's file text."""
    return hashlib.sha256(to_bytes(record)).hexdigest()


def load(path: str | Path, expected: type[Record]) -> Record:
    """Read and validate a file of the expected record type; `-` is standard input; `.gz` is read as it is."""
    record = load_any(path)
    if not isinstance(record, expected):
        wanted = next(kind for kind, cls in KINDS.items() if cls is expected)
        raise LynxError(
            f"is a {record.kind.removeprefix('lynx.')}, not a {wanted.removeprefix('lynx.')}",
            where=str(path),
            hint=f"make one with: {MAKERS[wanted]}",
        )
    return record


def load_any(path: str | Path) -> Any:
    """Read and validate a Lynx file of any kind."""
    data = parse_json(read_bytes(path), str(path))
    return from_json_object(data, str(path))


def read_bytes(path: str | Path) -> bytes:
    """The bytes of a file (unpacked if gzip), or of standard input for `-`."""
    if str(path) == "-":
        raw = sys.stdin.buffer.read()
    else:
        try:
            raw = Path(path).read_bytes()
        except OSError as error:
            hint = "check the path" if isinstance(error, FileNotFoundError) else "check that it is a readable file"
            raise LynxError(f"cannot be read: {error.strerror}", where=str(path), hint=hint) from None
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError) as error:
        raise LynxError(f"is not a whole gzip file: {error}", where=str(path), hint="copy or make it again") from None


def parse_json(raw: bytes, where: str) -> Any:
    """JSON data, with line and column in the error."""
    try:
        return json.loads(raw)
    except json.JSONDecodeError as error:
        place = f"{where}:{error.lineno}:{error.colno}"
        raise LynxError(f"is not JSON: {error.msg}", where=place, hint="make the file again") from None
    except (UnicodeDecodeError, RecursionError):
        raise LynxError("is not JSON text", where=where, hint="make the file again") from None


def from_json_object(data: Any, where: str) -> Any:
    """Validate JSON data by its `kind` and `schema_version`."""
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise LynxError(
            f"is not a Lynx file: its kind is {kind!r}", where=where, hint=f"known kinds: {', '.join(KINDS)}"
        )
    newer_minor = _check_version(data.get("schema_version"), where, kind)
    return _validate(KINDS[kind], data, where, drop_unknown=newer_minor, hint=f"make it again with: {MAKERS[kind]}")


def _check_version(version: Any, where: str, kind: str) -> bool:
    """True if the file is of a newer minor version, whose unknown fields are ignored."""
    parts = str(version).split(".")
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        raise LynxError(f"has no schema version: {version!r}", where=f"{where}#/schema_version", hint="make it again")
    own_major, own_minor = SCHEMA_VERSION.split(".")
    if parts[0] != own_major:
        raise LynxError(
            f"has schema version {version}; this Lynx reads {own_major}.x",
            where=f"{where}#/schema_version",
            hint=f"make it again with this Lynx: {MAKERS[kind]}",
        )
    return int(parts[1]) > int(own_minor)


def _validate(record: type[Any], data: Any, where: str, *, drop_unknown: bool, hint: str) -> Any:
    try:
        return adapter(record).validate_python(data)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        unknown = [p["loc"] for p in problems if p["type"] in ("extra_forbidden", "unexpected_keyword_argument")]
        if drop_unknown and unknown and len(unknown) == len(problems):
            for loc in unknown:
                _remove(data, loc)
            return _validate(record, data, where, drop_unknown=False, hint=hint)
        first = problems[0]
        pointer = "/".join(str(part) for part in first["loc"])
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise LynxError(f"{first['msg']}{more}", where=f"{where}#/{pointer}", hint=hint) from None


def _remove(data: Any, loc: tuple[int | str, ...]) -> None:
    for part in loc[:-1]:
        data = data[part]
    del data[loc[-1]]


def write(record: Any, path: str | Path, *, overwrite: bool) -> None:
    """Write a record atomically; `-` is standard output; a name that ends in `.gz` is compressed."""
    raw = to_bytes(record)
    write_bytes(gzip.compress(raw, mtime=0) if str(path).endswith(".gz") else raw, path, overwrite=overwrite)


def write_bytes(raw: bytes, path: str | Path, *, overwrite: bool) -> None:
    """Write bytes to a file in one step: a failure leaves the old file as it was."""
    if str(path) == "-":
        sys.stdout.buffer.write(raw)
        sys.stdout.buffer.flush()
        return
    target = Path(path)
    check_writable(target, overwrite=overwrite)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        message = f"cannot be written: {error.strerror}"
        raise LynxError(message, where=str(path), hint="name another file with -o") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def check_writable(path: str | Path, *, overwrite: bool) -> None:
    """Fail early where `write` would: call it before long work."""
    target = Path(path)
    if str(path) == "-":
        return
    if not target.parent.is_dir():
        raise LynxError("its folder does not exist", where=str(path), hint=f"make it: mkdir -p {target.parent}")
    if target.is_dir():
        raise LynxError("is a folder", where=str(path), hint="name a file")
    if target.exists() and not overwrite:
        raise LynxError("exists", where=str(path), hint="add --force to overwrite it, or name another with -o")
    if not os.access(target.parent, os.W_OK):
        raise LynxError("its folder cannot be written", where=str(path), hint="name another with -o")


def shipped_machines() -> tuple[str, ...]:
    """Names of the machine files that Lynx ships."""
    folder = resources.files("lynx_plan.machines")
    return tuple(sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json")))


def load_machine(name_or_path: str) -> Machine:
    """A shipped machine by its name, or a machine file by its path."""
    if name_or_path in shipped_machines():
        raw = (resources.files("lynx_plan.machines") / f"{name_or_path}.json").read_bytes()
        machine: Machine = from_json_object(parse_json(raw, name_or_path), name_or_path)
        return machine
    if not Path(name_or_path).exists():
        hint = f"shipped machines: {', '.join(shipped_machines())}; or name a machine file"
        raise LynxError(f"no machine '{name_or_path}'", where="--machine", hint=hint)
    return load(name_or_path, Machine)
