"""Device meshes: a fake world of any size in one process, and which mesh dimension a process group is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from math import ceil

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from lynx_plan.errors import LynxError
from lynx_plan.torch_rt import compat

DIMENSIONS = ("pp", "dp", "cp", "ep", "tp")
MeshShape = tuple[tuple[str, int], ...]


def check_mesh_shape(shape: MeshShape) -> None:
    """Dimensions have known, distinct names and positive sizes."""
    names = [name for name, _ in shape]
    for name, size in shape:
        if name not in DIMENSIONS or size < 1 or names.count(name) > 1:
            hint = f"name dimensions among {', '.join(DIMENSIONS)}, each once, with sizes of at least 1"
            raise LynxError(f"mesh dimension {name}={size} is not valid", hint=hint)


@contextmanager
def fake_mesh(shape: MeshShape) -> Iterator[DeviceMesh | None]:
    """A mesh of this shape in a fake world, seen from rank 0; None without dimensions. No ranks are started."""
    check_mesh_shape(shape)
    if not shape:
        yield None
        return
    if dist.is_initialized():
        raise LynxError(
            "a process group is running here, so no other can be imagined",
            hint="capture from a module with its mesh instead, or destroy the process group first",
        )
    world = math.prod(size for _, size in shape)
    dist.init_process_group("fake", rank=0, world_size=world, store=compat.fake_store())
    try:
        names = tuple(name for name, _ in shape)
        yield init_device_mesh("cpu", tuple(size for _, size in shape), mesh_dim_names=names)
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True)
class Group:
    """A mesh dimension, or several flattened into one (`dp+cp`), as a process group.

    Members are `stride` ranks apart; where the distance is not the same everywhere, on average, rounded up.
    """

    dimension: str
    size: int
    stride: int


def group_names(mesh: DeviceMesh | None) -> dict[str, Group]:
    """Process-group name -> the mesh dimensions that it is: of every group here with the ranks of some dimensions."""
    if mesh is None:
        return {}
    known = _groups_by_ranks(mesh)
    ranks_of = {name: tuple(dist.get_process_group_ranks(group)) for group, name in compat.registered_groups()}
    return {name: known[ranks] for name, ranks in ranks_of.items() if ranks in known}


def _groups_by_ranks(mesh: DeviceMesh) -> dict[tuple[int, ...], Group]:
    """The members of this rank's group along each choice of dimensions; few dimensions come before many."""
    names, coordinate = mesh.mesh_dim_names or (), mesh.get_coordinate()
    assert coordinate is not None, "this rank is not in the mesh"
    found: dict[tuple[int, ...], Group] = {}
    for count in range(1, len(names) + 1):
        for chosen in combinations(range(len(names)), count):
            place = tuple(slice(None) if axis in chosen else coordinate[axis] for axis in range(len(names)))
            ranks = tuple(mesh.mesh[place].flatten().tolist())
            span = ranks[-1] - ranks[0]
            stride = ceil(span / (len(ranks) - 1)) if span else 1
            group = Group("+".join(names[axis] for axis in chosen), len(ranks), stride)
            found.setdefault(ranks, group)
    return found
