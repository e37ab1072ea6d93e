"""What an ATen op is to Lynx: its canonical kind, whether it draws random numbers, whether it may run twice."""

from __future__ import annotations

import torch
from torch import fx

from lynx_plan.model.graph import HOST_KIND
from lynx_plan.torch_rt import compat, target_norm

COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
}
ATTENTION = {
    "_scaled_dot_product_flash_attention": "attention",
    "_scaled_dot_product_flash_attention_for_cpu": "attention",
    "_scaled_dot_product_efficient_attention": "attention",
    "_scaled_dot_product_cudnn_attention": "attention",
    "_scaled_dot_product_flash_attention_backward": "attention_backward",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "attention_backward",
    "_scaled_dot_product_efficient_attention_backward": "attention_backward",
    "_scaled_dot_product_cudnn_attention_backward": "attention_backward",
}
SIZE = "lynx_size"  # metadata of a node that computes sizes or conditions on them, no tensors
# Their results decide which data goes where. A copy could break a tie in another way than its original did.
ROUTING = frozenset(
    [
        "topk",
        "kthvalue",
        "sort",
        "msort",
        "argsort",
        "argmax",
        "argmin",
        "median",
        "nanmedian",
        "mode",
        "max.dim",
        "min.dim",
        "nonzero",
        "nonzero_static",
        "multinomial",
        "unique_dim",
        "unique_consecutive",
        "unique_dim_consecutive",
        "_unique",
        "_unique2",
        "bincount",
        "histc",
        "searchsorted",
        "bucketize",
    ]
)


KEPT = ("kept_forward", "kept_backward")  # of blocks that cannot be traced


def base_name(node: fx.Node) -> str:
    """The op's name without namespace and overload."""
    if not isinstance(node.target, compat.OpOverload):
        return str(node.target)
    return compat.schema(node.target).name.partition("::")[2]


def is_collective(node: fx.Node) -> bool:
    functional = getattr(node.target, "namespace", "") == compat.functional_collectives.name
    return functional and not is_wait(node)


def is_wait(node: fx.Node) -> bool:
    return node.target is compat.WAIT


def is_size(node: fx.Node) -> bool:
    """Computes numbers, no tensors: sizes that depend on data, and conditions on them."""
    return SIZE in node.meta


def kind_of(node: fx.Node) -> str:
    """Canonical: one name for every attention backend, no `default` overload (`aten.mm`, `aten.add.Tensor`)."""
    name = base_name(node)
    if is_wait(node):
        return "wait"
    if is_collective(node):
        return COLLECTIVES.get(name, name)
    if is_size(node) and (name == "sym_size" or not isinstance(node.target, compat.OpOverload)):
        return HOST_KIND + getattr(node.target, "__name__", name)
    return ATTENTION.get(name) or str(node.target).replace(f"{target_norm.NAMESPACE}.", "aten.").removesuffix(
        ".default"
    )


def is_random(node: fx.Node) -> bool:
    """Draws from a generator. Attention without dropout does not, though it is tagged so."""
    if not isinstance(node.target, compat.OpOverload) or torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    return base_name(node) not in ATTENTION or bool(argument(node, "dropout_p"))


def is_routing(node: fx.Node) -> bool:
    """Makes a discrete choice that later ops follow: it runs once, and its results are kept."""
    if not isinstance(node.target, compat.OpOverload):
        return False
    name = base_name(node)
    return name in ROUTING or f"{name}.{compat.overload_name(node.target)}" in ROUTING


def is_unrepeatable(node: fx.Node) -> bool:
    """Changes its arguments, or its result's size depends on data, or it routes data, or it is no plain op."""
    target = node.target
    if not isinstance(target, compat.OpOverload) or is_routing(node) or base_name(node) in KEPT:
        return True
    tags = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
    return compat.schema(target).is_mutable or any(tag in target.tags for tag in tags)


def argument(node: fx.Node, name: str) -> object:
    """An argument of an op by its schema name, its default if it was not given, None if it has no such argument."""
    for position, declared in enumerate(compat.schema(node.target).arguments):
        if declared.name == name:
            if position < len(node.args):
                return node.args[position]
            return node.kwargs.get(name, declared.default_value if declared.has_default_value() else None)
    return None
