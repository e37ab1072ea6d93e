"""Parse and format bytes, times and rates. Integers inside; humans see ms, GiB, TFLOP/s. Standard library only."""

from __future__ import annotations

import re
from decimal import Decimal

from lynx_plan.errors import LynxError

BYTE_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
              "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}  # fmt: skip
TIME_UNITS_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_NUMBER = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*$")


def _parse(text: str, units: dict[str, int], what: str, example: str) -> int:
    match = _NUMBER.match(text)
    if not match or match[2] not in units:
        raise LynxError(
            f"'{text}' is not {what}",
            hint=f"write a number and one of {', '.join(units)}, for example {example}",
        )
    return int(Decimal(match[1]) * units[match[2]])


def parse_bytes(text: str) -> int:
    """Bytes of a size such as `60GiB` or `500MB` (GB is 10^9, GiB is 2^30)."""
    return _parse(text, BYTE_UNITS, "a size", "60GiB")


def parse_time_ns(text: str) -> int:
    """Nanoseconds of a time such as `100us` or `2.5ms`."""
    return _parse(text, TIME_UNITS_NS, "a time", "100us")


def parse_rate(text: str) -> int:
    """Bytes per second of a rate such as `500MB/s`, or of a link speed in bits such as `500mbit`."""
    bits = re.match(r"^\s*(\d+(?:\.\d+)?)\s*([kmg])bit(?:/s)?\s*$", text)
    if bits:
        return int(Decimal(bits[1]) * {"k": 10**3, "m": 10**6, "g": 10**9}[bits[2]] / 8)
    size, slash, second = text.partition("/")
    if not slash or second.strip() != "s":
        raise LynxError(f"'{text}' is not a rate", hint="write a size per second, for example 500MB/s, or 500mbit")
    return _parse(size, BYTE_UNITS, "a rate", "500MB/s")


def format_bytes(count: int) -> str:
    """`count` bytes for humans, in powers of 1024 (`1.50 GiB`)."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.2f} {unit}"


def format_ms(time_ns: int) -> str:
    """`time_ns` nanoseconds as milliseconds (`12.34 ms`)."""
    return f"{time_ns / 1e6:.2f} ms"


def format_rate(bytes_per_s: int) -> str:
    """`bytes_per_s` for humans, in powers of 1000 (`500.00 MB/s`)."""
    for unit, size in (("GB/s", 10**9), ("MB/s", 10**6), ("KB/s", 10**3)):
        if bytes_per_s >= size:
            return f"{bytes_per_s / size:.2f} {unit}"
    return f"{bytes_per_s} B/s"


def format_flops_rate(flops_per_s: float) -> str:
    """Floating-point operations per second as `12.34 TFLOP/s`."""
    return f"{flops_per_s / 1e12:.2f} TFLOP/s"
