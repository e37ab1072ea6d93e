"""Every private PyTorch name that Lynx uses, in one place. Tried on torch 2.13.0."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.fx.node import Node

from lynx_plan.errors import LynxError

TRIED = ("2.13.0",)


def torch_version() -> str:
    """The installed version without its build suffix (`2.13.0`, not `2.13.0+cpu`)."""
    return torch.__version__.partition("+")[0]


def private(module: str, name: str) -> Any:
    """`module.name`, or a LynxError that says which versions of torch have it."""
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise LynxError(
            f"torch {torch.__version__} has no {module}.{name}, which Lynx needs",
            hint=f"install a torch that Lynx was tried on: {', '.join(TRIED)}",
        ) from None


_AOT = "torch._functorch.aot_autograd"
_DESCRIPTORS = "torch._functorch._aot_autograd.descriptors"

OpOverload = private("torch._ops", "OpOverload")
functional_collectives = private("torch.ops", "_c10d_functional")
WAIT = functional_collectives.wait_tensor.default
aot_export_joint_with_descriptors = private(_AOT, "aot_export_joint_with_descriptors")
FakeTensor = private("torch._subclasses.fake_tensor", "FakeTensor")
FakeTensorMode = private("torch._subclasses.fake_tensor", "FakeTensorMode")
DataDependentOutputException = private("torch._subclasses.fake_tensor", "DataDependentOutputException")
DynamicOutputShapeException = private("torch._subclasses.fake_tensor", "DynamicOutputShapeException")
ParamAOTInput = private(_DESCRIPTORS, "ParamAOTInput")
BufferAOTInput = private(_DESCRIPTORS, "BufferAOTInput")
PlainAOTInput = private(_DESCRIPTORS, "PlainAOTInput")
TangentAOTInput = private(_DESCRIPTORS, "TangentAOTInput")
PlainAOTOutput = private(_DESCRIPTORS, "PlainAOTOutput")
GradAOTOutput = private(_DESCRIPTORS, "GradAOTOutput")
InputMutationAOTOutput = private(_DESCRIPTORS, "InputMutationAOTOutput")
TorchDispatchMode = private("torch.utils._python_dispatch", "TorchDispatchMode")
tree_leaves = private("torch.utils._pytree", "tree_leaves")
tree_flatten = private("torch.utils._pytree", "tree_flatten")
tree_unflatten = private("torch.utils._pytree", "tree_unflatten")


def subclass_input() -> type:
    """Descriptor of a graph input that is a part of a tensor subclass."""
    return private(_DESCRIPTORS, "SubclassGetAttrAOTInput")


def subclass_output() -> type:
    """Descriptor of a graph output that is a part of a tensor subclass."""
    return private(_DESCRIPTORS, "SubclassGetAttrAOTOutput")


def schema(op: Any) -> Any:
    """The schema of an op overload: its name, arguments and whether it changes them."""
    return op._schema


def overload_name(op: Any) -> str:
    """`dim` of `aten.max.dim`; empty for the default overload."""
    return op._overloadname.removeprefix("default")


def storage_key(value: torch.Tensor) -> int:
    """Equal for tensors that share a storage, as long as they live."""
    return value.untyped_storage()._cdata


def gloo_group(store: Any, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
    """A process group of Gloo alone, unknown to torch.distributed: what a group written in Python hands work to."""
    group = dist.ProcessGroup(store, rank, size)
    gloo = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    return group


def registered_name(group: dist.ProcessGroup) -> str:
    """The name that torch.distributed gave a group."""
    return private("torch.distributed.distributed_c10d", "_world").pg_names[group]


def registered_groups() -> tuple[tuple[dist.ProcessGroup, str], ...]:
    """The process groups of this rank, with their names."""
    return tuple(private("torch.distributed.distributed_c10d", "_world").pg_names.items())


def fake_store() -> Any:
    """The store of the `fake` process-group backend; importing its module registers the backend."""
    return private("torch.testing._internal.distributed.fake_pg", "FakeStore")()


@contextmanager
def overridden(functions: Mapping[str, Callable[..., Any]], key: str = "AutogradCPU") -> Iterator[None]:
    """Inside, `aten` ops of these names (`sum`, `softmax.int`) run these functions at a dispatch key of the CPU."""
    ops = [aten_op(name) for name in functions]
    library = torch.library.Library("aten", "IMPL")
    # An op remembers which kernel it found, before and after.
    for op in ops:
        op._dispatch_cache.clear()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Warning only once for all operators")
            for name, function in functions.items():
                library.impl(name, function, key, allow_override=True)
        yield
    finally:
        library._destroy()
        for op in ops:
            op._dispatch_cache.clear()


def aten_op(name: str) -> Any:
    """An `aten` op by its name and overload; `sum` is the default overload."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def without_autocast() -> Any:
    """Inside, no autocast happens on the CPU."""
    keys = private("torch._C", "DispatchKeySet")(private("torch._C", "DispatchKey").AutocastCPU)
    return private("torch._C", "_ExcludeDispatchKeyGuard")(keys)


def current_node_meta() -> dict[str, Any]:
    """The metadata that nodes made from now on inherit; a new dict at times, so never keep it."""
    return private("torch.fx.traceback", "current_meta")


# Metadata of joint-graph nodes, set by AOTAutograd: no public accessors.
NODE_NOTE = "custom"  # the one key of `current_node_meta` that is copied to nodes and free for others


def is_backward(node: Node) -> bool:
    return node.meta.get("partitioner_tag") == "is_backward"


def is_gradient_sum(node: Node) -> bool:
    """Adds gradients of a value used several times; its sequence number means nothing."""
    return bool(node.meta.get("is_gradient_acc"))


def tag(node: Node, *, backward: bool) -> None:
    """Tag a node as AOTAutograd tags what it traces in forward and in backward."""
    node.meta["partitioner_tag"] = "is_backward" if backward else "is_forward"


def mark_gradient_sum(node: Node) -> None:
    """Note on a node that Lynx adds what AOTAutograd notes on its own."""
    node.meta.update(partitioner_tag="is_backward", is_gradient_acc=True)


def fake_mode_of(value: torch.Tensor) -> Any:
    """The mode that a fake tensor belongs to."""
    return value.fake_mode


def sequence_number(node: Node) -> int | None:
    """A backward node has that of the forward node that it differentiates."""
    return node.meta.get("seq_nr")


def set_sequence_number(node: Node, number: int | None) -> None:
    """Give a backward node the number of the forward node that it belongs to; None: not known."""
    node.meta["seq_nr"] = number


def dynamo_graph_capture(module: torch.nn.Module) -> Callable[..., torch.fx.GraphModule]:
    """Dynamo's reading of a module's forward, given arguments; imported here because it is heavy."""
    return private("torch._dynamo.functional_export", "dynamo_graph_capture_for_export")(module)


INVOKE_SUBGRAPH = torch.ops.higher_order.invoke_subgraph


def region(function: Callable[..., Any], *, most: int) -> Callable[..., Any]:
    """A function that Dynamo reads once for all calls that are alike, in at most so many kinds."""
    return torch.compiler.nested_compile_region(function, max_reuse_entries=most)


def dynamo_reset() -> None:
    """Forget everything that Dynamo knows of earlier captures."""
    private("torch._dynamo", "reset")()


def lazy_graph_modules() -> Any:
    """A context in which graph modules are compiled to Python when they are called first, and never if they are not."""
    return private("torch.fx._lazy_graph_module", "_use_lazy_graph_module")(True)


def graph_module(root: Any, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """A graph module, lazy where that is on."""
    return private("torch.fx._lazy_graph_module", "_make_graph_module")(root, graph)


def dynamo_settings(**values: Any) -> Any:
    """A context in which Dynamo's configuration has these values."""
    return private("torch._dynamo", "config").patch(**values)


# Sizes that depend on data.
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def symbolic_mode() -> Any:
    """A mode of fake tensors in which a value or a size that depends on data becomes a symbol."""
    shapes = private("torch.fx.experimental.symbolic_shapes", "ShapeEnv")
    env = shapes(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=env)


def forgotten_symbols(fake_mode: Any) -> Any:
    """A context in which new symbols need not be results of anything."""
    return fake_mode.shape_env.ignore_fresh_unbacked_symbols()


def expression(value: Any) -> Any:
    """A symbolic value as a formula (sympy), in which symbols known to be equal are one."""
    return value.node.shape_env.replace(value.node.expr)


def integer(value: int) -> Any:
    """A number as a formula."""
    return private("sympy", "Integer")(value)


def largest(value: Any, symbol: Any) -> int | None:
    """The upper bound of a symbol of this symbolic value, as far as `torch._check` gave one."""
    upper = value.node.shape_env.var_to_range[symbol].upper
    return int(upper) if upper.is_Integer and int(upper) < torch.iinfo(torch.int64).max // 2 else None


def upper_bound(formula: Any, largest_of: Mapping[Any, int]) -> int:
    """The most that a formula comes to, for symbols between 0 and these bounds."""
    ranges = private("torch.utils._sympy.value_ranges", "ValueRanges")
    bounds = {symbol: ranges(integer(0), integer(most)) for symbol, most in largest_of.items()}
    return int(private("torch.utils._sympy.value_ranges", "bound_sympy")(formula, bounds).upper)


def tracing(fake_mode: Any) -> Any:
    """A context in which AOTAutograd uses the fake tensors of this mode."""
    context = private("torch._guards", "TracingContext")(fake_mode)
    return private("torch._guards", "tracing")(context)


def register_dataclass(kind: type) -> None:
    """Let the tree functions look into a dataclass; once is enough."""
    known = private("torch.utils._pytree", "SUPPORTED_NODES")
    if kind not in known:
        private("torch.utils._pytree", "register_dataclass")(kind)


_SCHEDULES = "torch.distributed.pipelining.schedules"


def schedule_class(name: str) -> Any:
    """A pipeline schedule's class, such as `ScheduleInterleaved1F1B`."""
    return private(_SCHEDULES, name)


def pipeline_order(schedule: Any) -> dict[int, list[Any]]:
    """Per rank the computations of a schedule of several stages per rank, with None for idle turns."""
    order: dict[int, list[Any]] = schedule.pipeline_order
    return order


def pipeline_order_with_transfers(schedule: Any) -> dict[int, list[Any]]:
    """The same with sends and receives: what its runtime goes through."""
    order: dict[int, list[Any]] = schedule.pipeline_order_with_comms
    return order


def run_single_stage(schedule: Any) -> None:
    """Let a schedule of one stage per rank call its stage's methods, in its order, without inputs or losses."""
    schedule._initialize_stage = lambda *_: None
    schedule._step_microbatches()


def simulated_order(schedule: Any) -> dict[int, list[Any]]:
    """PyTorch's own dry run of a schedule: per rank the actions by turn, None for turns without.

    It knows neither pairs that overlap, which its runtime runs one after the other, nor FSDP's actions.
    """
    order = {
        rank: [one for each in actions for one in each.sub_actions or (each,) if one.microbatch_index is not None]
        for rank, actions in schedule.pipeline_order_with_comms.items()
    }
    simulate = private(_SCHEDULES, "_simulate_comms_compute")
    turns: dict[int, list[Any]] = simulate(order, schedule.stage_index_to_group_rank.__getitem__, schedule._num_stages)
    return turns
