"""`lynx_plan.Step`: run a plan inside one's own training loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from lynx_plan import files
from lynx_plan.errors import LynxError
from lynx_plan.model.plan import Plan
from lynx_plan.torch_rt.bind import Bound, bind
from lynx_plan.torch_rt.capture import capture_module
from lynx_plan.torch_rt.copies import wrong_copy
from lynx_plan.torch_rt.data_parallel import FinalAverage
from lynx_plan.torch_rt.dtensors import distributed_like, is_dtensor
from lynx_plan.torch_rt.executable import Clock, Executable, main_gradients
from lynx_plan.torch_rt.measure import this_machine
from lynx_plan.torch_rt.model_file import plain_loss
from lynx_plan.torch_rt.rewrite import MARKED, PLAIN


class Step:
    """One training step's forward and backward, run as a plan says; it takes the place of `loss.backward()`.

        step = lynx_plan.Step(model, "plan.json", mesh=mesh)
        for batches in loader:                      # batches: a list of the module's argument tuples
            losses = step(batches)                  # fills .grad: the sum over the microbatches
            optimizer.step()

    The module is captured at the first call (or here, given `example_inputs`): every rank of the mesh must make
    it, shapes and module structure are fixed from then on. `.grad` is overwritten by each call, so there is
    nothing to zero; parameters that require no gradient get none. Scale the loss yourself if the mean over
    microbatches is meant. Gradients that the model does not reduce over the mesh's "dp" are averaged over it at the
    end, as DistributedDataParallel would.
    `loss` maps the module's output to a scalar (default: the output, or its `.loss`).
    `plan` is a plan or the path of one; no profile is needed. Raises AnswerNo if the module is not the plan's.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan | str | Path,
        loss: Callable[[Any], torch.Tensor] | None = None,
        *,
        example_inputs: tuple[Any, ...] | None = None,
        mesh: DeviceMesh | None = None,
    ) -> None:
        self.model = model
        self.plan = plan if isinstance(plan, Plan) else files.load(plan, Plan)
        self._loss, self._mesh = loss or plain_loss, mesh
        self.bound: Bound | None = None
        self._executables: dict[bool, Executable] = {}
        self._gradients: dict[str, torch.Tensor] = {}
        self._losses = torch.zeros(0)
        self._average: FinalAverage | None = None
        if example_inputs is not None:
            self._bind(example_inputs)

    @classmethod
    def of(cls, model: nn.Module, bound: Bound, mesh: DeviceMesh | None = None) -> Step:
        """A step of a module that was captured and bound already."""
        step = cls(model, bound.plan, mesh=mesh)
        step._average = FinalAverage(bound.captured.graph, model, mesh)
        step.bound = bound
        step._gradients = main_gradients(bound, model)
        return step

    def __call__(self, microbatches: Sequence[tuple[Any, ...]], *, clock: Clock | None = None) -> torch.Tensor:
        """Run all microbatches; gives their losses [len(microbatches)].

        `clock` is called between items; it measures microbatches, so gradients are not averaged over ranks then.
        """
        if not microbatches:
            raise LynxError("a step needs at least one microbatch")
        if self.bound is None:
            self._bind(microbatches[0])
        executable = self._executable(marked=clock is not None)
        losses = self._loss_buffer(len(microbatches))
        executable(microbatches, losses, clock=clock)
        self._publish()
        if clock is None and self._average is not None:
            self._average()
        return losses.clone()

    def prepare(self, microbatches: int, *, marked: bool) -> tuple[torch.Tensor, ...]:
        """Build what a call needs ahead of it; gives the static tensors of the step except the microbatches' own."""
        assert self.bound is not None
        return (*self._executable(marked=marked).static_tensors(), self._loss_buffer(microbatches))

    def wrong_copy(self, args: tuple[Any, ...]) -> str:
        """The first recomputed op that makes other bits than its original did, on one microbatch; empty if none.

        For when gradients are not what they should be: keeps all originals, and overwrites `.grad`.
        """
        if self.bound is None:
            self._bind(args)
        return wrong_copy(self.bound, self.model, self._gradients, args)

    def _loss_buffer(self, microbatches: int) -> torch.Tensor:
        if self._losses.numel() != microbatches:
            assert self.bound is not None
            graph = self.bound.captured.graph
            dtype = getattr(torch, graph.tensors[graph.outputs[0]].dtype)
            device = next(iter(self._gradients.values())).device if self._gradients else None
            self._losses = torch.zeros(microbatches, dtype=dtype, device=device)
        return self._losses

    def _bind(self, args: tuple[Any, ...]) -> None:
        mesh = self._mesh
        sizes = () if mesh is None else tuple(zip(mesh.mesh_dim_names or (), mesh.shape, strict=True))
        shape = tuple((name, size) for name, size in sizes if size > 1)  # as `lynx profile` writes it
        ranks = 1 if mesh is None else mesh.size()
        captured = capture_module(
            self.model,
            args,
            self._loss,
            spec=self.plan.model,
            mesh=mesh,
            mesh_shape=shape,
            machine=this_machine(ranks),
            capture=self.plan.capture,
        )
        self.bound = bind(captured, self.plan, mesh)
        self._average = FinalAverage(captured.graph, self.model, mesh)
        self._gradients = main_gradients(self.bound, self.model)

    def _executable(self, *, marked: bool) -> Executable:
        assert self.bound is not None
        if marked not in self._executables:
            self._executables[marked] = Executable(
                self.bound, self.model, self._gradients, passes=MARKED if marked else PLAIN
            )
        return self._executables[marked]

    def _publish(self) -> None:
        """`.grad` is the main gradient again, even after `zero_grad(set_to_none=True)`."""
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            if name in self._gradients and (parameter.grad is None or not is_dtensor(parameter)):
                parameter.grad = distributed_like(parameter, self._gradients[name])
