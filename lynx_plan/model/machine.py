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
class KernelRate:
    """The most that one op's kernel reaches of the memory rate: some do more per byte than move it."""

    __pydantic_config__ = STRICT

    kind: str  # of an op, such as aten.native_dropout
    share: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionGroup:
    """Ops that the execution backend runs as one kernel: neighbours of these kinds, priced by their outer traffic.

    `read_share`: the part of its outer inputs that the kernel reads, below 1 for one that skips what is masked.
    `main_gradient_bytes`: with lynx.accumulate among the kinds, what the kernel adds to, per element; 0: the
    gradient's own dtype. A collective kind alone: the backend reduces in place, without a functional copy.
    """

    __pydantic_config__ = STRICT

    name: str
    kinds: tuple[str, ...]
    read_share: float = 1.0
    main_gradient_bytes: int = 0
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerPass:
    """One sweep of the optimizer's step over what it owns: bytes read and written per parameter."""

    __pydantic_config__ = STRICT

    name: str
    bytes_per_parameter: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A level of a cluster outside the innermost one: how blocks of devices of the level inside it are joined."""

    __pydantic_config__ = STRICT

    name: str
    devices: int = 0  # in one block of this level, those of the levels inside included; 0: all there are
    link: Link  # of one device at this level; devices of a block use theirs at once


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
    matmul_tile: tuple[int, ...] = ()  # rows and columns of the result that one processor computes at a time
    processors: int = 0  # that tiles are dealt to, in waves; 0: waves are not counted
    memory_efficiency: tuple[Efficiency, ...] = ()
    kernels: tuple[KernelRate, ...] = ()
    fusion: tuple[FusionGroup, ...] = ()  # empty: every op is a kernel of its own, as in eager execution
    optimizer_passes: tuple[OptimizerPass, ...] = ()  # empty: parameters and state read and written, gradients read
    attention_share: float = 1.0  # attention's rate relative to a matmul's of the same flops
    attention_backend: str = "cpu"  # "cpu", "flash", "efficient", "cudnn", "math"
    link: Link  # of one device within the innermost level
    devices: int = 0  # joined by `link`, such as those of a node; 0: all there are
    levels: tuple[Level, ...] = ()  # outside of that, from inside out
    compute_slowdown: float = 0.0  # contention: share of compute speed lost while a collective is in flight
    comm_slowdown: float = 0.0  # the reverse, for information: no price depends on it
    sources: tuple[str, ...] = ()  # where each number comes from; datasheet or measured
