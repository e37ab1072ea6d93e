"""What the user types for a link (`500MB/s:100us`), parsed. Plain values only."""

from __future__ import annotations

from lynx_plan.errors import LynxError
from lynx_plan.model.machine import Link
from lynx_plan.units import format_rate, parse_rate, parse_time_ns

_HINT = "write RATE or RATE:LATENCY, for example 500MB/s:100us or 500mbit:2ms"


def parse_link(text: str, *, where: str = "--link") -> Link:
    """A link from `RATE[:LATENCY]`: bytes (or bits) per second, per rank and direction; latency 0 if left out.

    Raises LynxError for anything else, also for a rate below 1 byte/s.
    """
    rate, colon, latency = text.strip().partition(":")
    try:
        bytes_per_s = parse_rate(rate)
        latency_ns = parse_time_ns(latency) if colon else 0
    except LynxError as error:
        raise LynxError(f"'{text}' is not a link: {error.message}", where=where, hint=_HINT) from None
    if bytes_per_s < 1:
        raise LynxError(f"'{text}' is a link that carries nothing", where=where, hint=_HINT)
    return Link(bytes_per_s=bytes_per_s, latency_ns=latency_ns, text=text.strip())


def link_text(link: Link) -> str:
    """A link for humans, and for an op's cost source: what the user typed, or rate and latency."""
    return link.text or f"{format_rate(link.bytes_per_s)}:{link.latency_ns}ns"
