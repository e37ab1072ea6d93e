"""Links as users type them."""

from __future__ import annotations

import pytest

from lynx_plan.cost.link import link_text, parse_link
from lynx_plan.errors import LynxError
from lynx_plan.model.machine import Link


@pytest.mark.parametrize(
    ("text", "bytes_per_s", "latency_ns"),
    [
        ("500MB/s:100us", 500_000_000, 100_000),
        ("1GB/s", 1_000_000_000, 0),
        ("500mbit", 62_500_000, 0),
        ("500mbit:2ms", 62_500_000, 2_000_000),
        ("1.5GiB/s:0ns", 3 * 2**29, 0),
    ],
)
def test_links(text: str, bytes_per_s: int, latency_ns: int) -> None:
    assert parse_link(text) == Link(bytes_per_s=bytes_per_s, latency_ns=latency_ns, text=text)


@pytest.mark.parametrize("text", ["", "fast", "500MB", "500MB/s:", "500MB/s:soon", "0MB/s", "-5MB/s", "1GB/s:1us:2"])
def test_what_is_no_link_says_so_with_a_hint(text: str) -> None:
    with pytest.raises(LynxError) as caught:
        parse_link(text, where="--link")
    assert caught.value.where == "--link"
    assert "500MB/s:100us" in caught.value.hint
    assert f"'{text}'" in caught.value.message


def test_a_link_prints_what_was_typed_or_its_numbers() -> None:
    assert link_text(parse_link("500mbit:2ms")) == "500mbit:2ms"
    assert link_text(Link(bytes_per_s=10**9, latency_ns=5)) == "1.00 GB/s:5ns"
