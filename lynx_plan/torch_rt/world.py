"""A rank's place in the world: its store, process groups on the plan's link, and mesh."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from lynx_plan.errors import LynxError
from lynx_plan.model.machine import Link
from lynx_plan.torch_rt.link_clock import LinkClock
from lynx_plan.torch_rt.mesh import MeshShape
from lynx_plan.torch_rt.paced_group import Pace, Recorder, register

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This rank among `size`; `recorder` sees every transfer of its groups."""

    rank: int
    size: int
    mesh: DeviceMesh | None
    recorder: Recorder

    def coordinate(self, dimension: str) -> int:
        """This rank's index along a mesh dimension; 0 where there is none."""
        if self.mesh is None or dimension not in (self.mesh.mesh_dim_names or ()):
            return 0
        return self.mesh.get_local_rank(dimension)


def meet() -> tuple[dist.Store, int, int]:
    """The ranks' common store, this rank and their number, from the launcher's environment variables."""
    return next(rendezvous("env://"))


@contextmanager
def join(
    store: dist.Store, rank: int, size: int, shape: MeshShape, link: Link | None, scratch: Path
) -> Iterator[World]:
    """Make the process groups and the mesh of this shape on the emulated link (None: plain Gloo); undone at the end.

    The link's clock lies in rank 0's `scratch` folder, which the caller removes.
    """
    folder = link_folder(store, rank, scratch) if link else None
    recorder = Recorder()
    clock = LinkClock(folder, size) if folder else None
    backend = register(Pace(link=link, clock=clock, recorder=recorder))
    dist.init_process_group(backend, store=dist.PrefixStore("lynx", store), rank=rank, world_size=size)
    names = tuple(name for name, _ in shape)
    sizes = tuple(length for _, length in shape)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names) if shape else None
    yield World(rank=rank, size=size, mesh=mesh, recorder=recorder)
    dist.barrier()
    dist.destroy_process_group()


def link_folder(store: dist.Store, rank: int, scratch: Path) -> Path:
    """A folder that all ranks share for the link's clock; LynxError if they are not on one machine."""
    machine = _BOOT.read_text().strip() if _BOOT.exists() else ""
    if rank == 0:
        store.set("lynx/link", f"{machine}\n{scratch.resolve()}")
    where, folder = store.get("lynx/link").decode().split("\n")
    if where != machine or not Path(folder).is_dir():
        raise LynxError(
            "the ranks are on several machines, but the plan is for an emulated link, which needs one",
            hint="profile and plan again without --link to use the real one",
        )
    return Path(folder)
