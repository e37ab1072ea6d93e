"""The cost graph: ops of one microbatch's forward and backward on one rank, in execution order. Records only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from lynx_plan.model.capture import PLAIN, CaptureSpec
from lynx_plan.model.machine import Link, Machine
from lynx_plan.model.strict import SCHEMA_VERSION, STRICT

HOST_KIND = "host."  # kinds of ops that compute sizes on the host: no time on the device, and no bytes


class Role(StrEnum):
    """What an op does to the streams and to memory."""

    COMPUTE = "compute"
    VIEW = "view"  # no bytes, no time; its outputs alias its first input's storage
    COLLECTIVE = "collective"  # launched on the compute stream, runs on its group's communication stream
    WAIT = "wait"  # blocks the compute stream until its collective is done; its output aliases the collective's
    ACCUMULATE = "accumulate"  # adds a new weight gradient to its main gradient


class Phase(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"  # input gradients: other work waits for them
    WEIGHT_GRADIENT = "weight_gradient"  # nothing but the optimizer waits for it


class StorageKind(StrEnum):
    PARAMETER = "parameter"
    BUFFER = "buffer"
    INPUT = "input"
    GRADIENT = "gradient"  # a main gradient: static, an accumulate op writes it
    ACTIVATION = "activation"  # everything else; the only kind that counts as activation bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """A block of device memory; tensors and views point to it. `id` is its index in `CostGraph.storages`."""

    __pydantic_config__ = STRICT

    id: int
    bytes: int
    kind: StorageKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A value. `id` is its index in `CostGraph.tensors`; `producer` is an op id, -1 for a graph input."""

    __pydantic_config__ = STRICT

    id: int
    name: str
    storage: int
    producer: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """A node. `id` is its index in `CostGraph.ops`, which are in execution order.

    Times are nanoseconds. `time_ns` is time on the compute stream (for a collective: its launch, which
    includes the copy that a functional collective makes; a wait or view: 0); `comm_ns` is time on the
    communication stream of `group` (collectives only).
    """

    __pydantic_config__ = STRICT

    id: int
    name: str
    kind: str
    role: Role
    phase: Phase
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: str = ""  # canonical text of the non-tensor arguments
    group: str = ""  # mesh dimension of a collective, such as "tp"; "dp+cp": several flattened into one
    group_size: int = 1
    group_stride: int = 1  # ranks from one member to the next: the group spans group_size * group_stride ranks
    comm_bytes: int = 0  # payload of a collective: bytes of its full (unsharded) tensor
    time_ns: int = 0
    spread_ns: int = 0  # half the interquartile range of the measurement; 0 where priced by formula
    comm_ns: int = 0
    steal_ns: int = 0  # compute time lost to contention while this collective is in flight
    steal_span_ns: int = 0  # the first part of comm_ns, over which steal_ns is spread evenly; 0: all of it
    flops: int = 0
    bytes: int = 0  # bytes read and written
    cost_source: str = ""  # "measured", "roofline:MACHINE", "alpha-beta:LINK", "free"
    rng: bool = False
    effect: bool = False  # mutates state outside the graph, depends on data, or routes it (top-k): never recomputed
    parameter: str = ""  # accumulate ops: the parameter's name
    module: str = ""
    source: str = ""  # file:line of the model


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A contiguous part of the model with its forward and backward ops (`ops`, ascending ids).

    Every op belongs to exactly one layer; what lies before, between and after the repeated layers
    (embedding, head) are layers too. `id` is its index in `CostGraph.layers`, in forward order.
    """

    __pydantic_config__ = STRICT

    id: int
    name: str
    ops: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticMemory:
    """Bytes on the device for the whole step, whatever the plan."""

    __pydantic_config__ = STRICT

    parameters_bytes: int
    buffers_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    inputs_bytes: int
    workspace_bytes: int = 0  # a layer's whole parameters and gradients, where these are sharded
    recipe: str = "model"  # what bytes per parameter come from: the traced model and its optimizer, or a named recipe
    sharded: str = "none"  # "optimizer", "gradients" or "parameters" (each includes those before) over `shards` ranks
    shards: int = 1

    @property
    def total_bytes(self) -> int:
        parts = (self.parameters_bytes, self.buffers_bytes, self.gradients_bytes, self.optimizer_bytes)
        return sum(parts) + self.inputs_bytes + self.workspace_bytes


HF = "hf"  # a ModelSpec's builder where the path is a Hugging Face configuration, not a Python file


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """How to build the model again: what the user typed. `arguments` are `key=value` pairs, sorted."""

    __pydantic_config__ = STRICT

    path: str
    builder: str = "build_model"
    arguments: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CostGraph:
    """`profile.json`."""

    __pydantic_config__ = STRICT

    schema_version: str = SCHEMA_VERSION
    kind: str = "lynx.profile"
    model: ModelSpec
    mesh: tuple[tuple[str, int], ...]  # (dimension, size), of pp dp cp ep tp
    machine: Machine
    link: Link | None = None  # the emulated link given with --link; None: the machine's own
    threads: int = 1  # compute threads per rank, for measured costs and for the run
    torch_version: str = ""
    capture: CaptureSpec = PLAIN
    optimizer: str = ""
    optimizer_ns: int = 0
    static: StaticMemory
    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    storages: tuple[Storage, ...]
    layers: tuple[Layer, ...]
    outputs: tuple[int, ...] = ()  # tensor ids alive to the end of the microbatch: the loss
    notes: tuple[str, ...] = field(default=())  # what capture and pricing want the user to know
