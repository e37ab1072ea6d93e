"""Count live activation storages exactly: weak references on storages, taken as a dispatch mode sees them appear.

What exists before (parameters, buffers, main gradients, optimizer state, inputs) is registered as static first
and never counts. Scratch inside kernels is not seen. Costs about 8 us per op: never time a counted step.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from lynx_plan.torch_rt import compat


class LiveBytes(compat.TorchDispatchMode):
    """`now_bytes` and `peak_bytes` of storages that appeared under the mode; `static_bytes` of what was there."""

    def __init__(self, static: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.now_bytes = self.peak_bytes = self.recent_peak_bytes = 0
        self._live: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._static: dict[int, torch.UntypedStorage] = {}
        for tensor in static:
            self._static[compat.storage_key(tensor)] = tensor.untyped_storage()
        self.static_bytes = sum(storage.nbytes() for storage in self._static.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in compat.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf)
        return result

    def take_recent_peak(self) -> int:
        """The peak since the last call: one item's bytes, its inputs and outputs both alive."""
        peak, self.recent_peak_bytes = self.recent_peak_bytes, self.now_bytes
        return peak

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = compat.storage_key(tensor), storage.nbytes()
        if key in self._live or key in self._static:
            return
        self.now_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)
        self.recent_peak_bytes = max(self.recent_peak_bytes, self.now_bytes)

        def gone(_: object) -> None:
            self.now_bytes -= size
            self._live.pop(key, None)

        self._live[key] = weakref.ref(storage, gone)
