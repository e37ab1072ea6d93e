"""Average gradients over the data-parallel ranks at the end of a step, in place, where the model does not do it itself.

What DistributedDataParallel would do: the sum over the ranks, divided by their number.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from lynx_plan.cost.data_parallel import DIMENSION, final_average
from lynx_plan.model.graph import CostGraph


class FinalAverage:
    """Averages the `.grad` of a model's parameters that the step's graph leaves different on the ranks of `dp`."""

    def __init__(self, graph: CostGraph, model: nn.Module, mesh: DeviceMesh | None) -> None:
        average = final_average(graph)
        self.ranks = average.ranks
        self._names = set(average.parameters)
        self._model = model
        self._group = mesh.get_group(DIMENSION) if mesh is not None and self._names else None
        self.transfers = len(average.bytes)  # of one call

    def __call__(self) -> None:
        """All ranks of the group call it."""
        if self._group is None:
            return
        alike: dict[torch.dtype, list[torch.Tensor]] = {}
        for name, parameter in self._model.named_parameters():
            if name in self._names and parameter.grad is not None:
                alike.setdefault(parameter.grad.dtype, []).append(parameter.grad)
        for gradients in alike.values():
            self._group.allreduce_coalesced(gradients).wait()
            torch._foreach_div_(gradients, self.ranks)
