"""Machines and links: what a cost is computed from. Records only; every number carries its source."""

from __future__ import annotations

from dataclasses import dataclass

from lynx_plan.model.strict import SCHEMA_VERSION, STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link between ranks: alpha-beta. `bytes_per_s` is per rank and direction; `text` is what the user typed."""

    __pydantic_config__ = STRICT

    bytes_per_s: int
    latency_ns: int
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Dense peak rate of one dtype in FLOP/s, of the unit that matmuls of that dtype use."""

    __pydantic_config__ = STRICT

    dtype: str
    flops_per_s: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Share of the peak that work of at least `size` reaches (matmul: flops; memory: bytes); linear between points."""

    __pydantic_config__ = STRICT

    size: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A target device (a machine file, and part of every profile). Rates are dense, per device."""

    __pydantic_config__ = STRICT

    schema_version: str = SCHEMA_VERSION
    kind: str = "lynx.machine"
    name: str
    device: str  # "cpu" or "cuda"
    memory_bytes: int
    margin_bytes: int  # left free under `--budget auto`: workspace, allocator slack
    peaks: tuple[Peak, ...] = ()
    memory_bytes_per_s: int = 0
    launch_ns: int = 0  # least time of one op
    matmul_efficiency: tuple[Efficiency, ...] = ()
    memory_efficiency: tuple[Efficiency, ...] = ()
    attention_share: float = 1.0  # attention's rate relative to a matmul's of the same flops
    attention_backend: str = "cpu"  # "cpu", "flash", "efficient", "cudnn", "math"
    link: Link
    compute_slowdown: float = 0.0  # contention: share of compute speed lost while a collective is in flight
    sources: tuple[str, ...] = ()  # where each number comes from; datasheet or measured
