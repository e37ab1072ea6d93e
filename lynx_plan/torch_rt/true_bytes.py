"""Outputs whose real storage is larger than the tensor in it, which fake tensors do not (always) show."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from lynx_plan.torch_rt.kinds import argument, base_name
from lynx_plan.torch_rt.sizes import BOUND_BYTES

# They clone the whole storage of the tensor that they write a part of, so that its strides stay.
_CLONE_THE_STORAGE = ("copy", "slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter")
# They make room for the loss of each element, then shrink to the mean or sum of these.
_ROOM_FOR_ELEMENTS = ("mse_loss", "smooth_l1_loss", "binary_cross_entropy", "soft_margin_loss")
_NO_REDUCTION = 0
_SUM_OF_BAG = 0


def storage_bytes(node: fx.Node, port: int, value: torch.Tensor, bytes_of: Callable[[fx.Node], int]) -> int:
    """Bytes of the storage of a new output; `bytes_of` gives those of the storage behind an input."""
    size = node.meta[BOUND_BYTES][port] if BOUND_BYTES in node.meta else value.untyped_storage().nbytes()
    name = base_name(node)
    if name in _CLONE_THE_STORAGE and not _overlaps(node.args[0].meta["val"]):
        return bytes_of(node.args[0])
    if name in _ROOM_FOR_ELEMENTS and argument(node, "reduction") != _NO_REDUCTION:
        return node.args[0].meta["val"].numel() * value.element_size()
    if name == "_embedding_bag" and port == 1 and argument(node, "mode") != _SUM_OF_BAG:
        return size + value.element_size()  # one more index than there are
    return size


def _overlaps(value: torch.Tensor) -> bool:
    """An expanded tensor: its elements share memory, so it is cloned as what it looks like."""
    return any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True))
