"""Run a function on a few local gloo ranks and bring back what each returns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_ranks(function: Callable[..., Any], ranks: int, folder: Path, *args: Any) -> list[Any]:
    """`function(rank, *args)` in `ranks` processes; tensors and plain data come back in rank order."""
    mp.start_processes(_rank, (ranks, folder, function, args), nprocs=ranks, start_method="spawn")
    return [torch.load(folder / f"result{rank}", weights_only=True) for rank in range(ranks)]


def _rank(rank: int, ranks: int, folder: Path, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("gloo", rank=rank, world_size=ranks, store=store)
    torch.save(function(rank, *args), folder / f"result{rank}")
    dist.barrier()
    dist.destroy_process_group()
