"""Parsing and formatting of bytes, times and rates."""

from __future__ import annotations

import pytest

from lynx_plan.errors import LynxError
from lynx_plan.units import (
    format_bytes,
    format_flops_rate,
    format_ms,
    format_rate,
    parse_bytes,
    parse_rate,
    parse_time_ns,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [("60GiB", 60 * 2**30), ("60GB", 60 * 10**9), ("1.5 MiB", 3 * 2**19), ("7B", 7), ("0.1KB", 100), (" 2TiB ", 2**41)],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["abc", "60", "60gib", "-1GiB", "1e3MB", "", "GiB", "1GiB2"])
def test_not_sizes(text: str) -> None:
    with pytest.raises(LynxError, match="is not a size") as caught:
        parse_bytes(text)
    assert "60GiB" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "time_ns"), [("100us", 100_000), ("2.5ms", 2_500_000), ("1s", 10**9), ("3ns", 3), ("0ms", 0)]
)
def test_times(text: str, time_ns: int) -> None:
    assert parse_time_ns(text) == time_ns


@pytest.mark.parametrize("text", ["100", "us", "1 hour"])
def test_not_times(text: str) -> None:
    with pytest.raises(LynxError, match="is not a time"):
        parse_time_ns(text)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("500MB/s", 5 * 10**8), ("1GiB/s", 2**30), ("500mbit", 62_500_000), ("1gbit/s", 125_000_000), ("8kbit", 1000)],
)
def test_rates(text: str, bytes_per_s: int) -> None:
    assert parse_rate(text) == bytes_per_s


@pytest.mark.parametrize("text", ["500MB", "500MB/h", "500Mbit", "fast"])
def test_not_rates(text: str) -> None:
    with pytest.raises(LynxError, match="is not"):
        parse_rate(text)


def test_human_forms() -> None:
    assert format_bytes(512) == "512 B"
    assert format_bytes(3 * 2**29) == "1.50 GiB"
    assert format_bytes(2**50) == "1024.00 TiB"
    assert format_bytes(-(2**20)) == "-1.00 MiB"
    assert format_ms(12_345_678) == "12.35 ms"
    assert format_rate(5 * 10**8) == "500.00 MB/s"
    assert format_rate(12) == "12 B/s"
    assert format_flops_rate(3.12e14) == "312.00 TFLOP/s"
