"""How a step was captured, so that a run captures it alike. Records only."""

from __future__ import annotations

from dataclasses import dataclass

from lynx_plan.model.strict import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBlock:
    """A block that could not be traced: it runs as it is, its activations are kept, and it is never recomputed."""

    __pydantic_config__ = STRICT

    module: str  # path of the block, such as `layers.3`
    source: str  # file:line of what could not be traced
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSpec:
    """The choices behind a captured graph. Other choices may give another graph, so a plan carries them."""

    __pydantic_config__ = STRICT

    front_end: str = "joint"  # "dynamo" (capture, then joint export), "joint" (joint export of the module itself)
    kept_blocks: tuple[KeptBlock, ...] = ()
    moe_load: float = 1.0  # symbolic sizes: the most loaded rank's load relative to a balanced one, for times
    moe_bytes: str = "bound"  # symbolic sizes: bytes are of the worst case ("bound") or of the load ("load")


PLAIN = CaptureSpec()
