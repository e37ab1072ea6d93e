"""Time the model file's optimizer step on real parameters."""

from __future__ import annotations

import time
from typing import Any

import torch

from lynx_plan.model.graph import ModelSpec
from lynx_plan.torch_rt.measure_op import agree, summary

REPEATS = 5


def measure_optimizer(job: dict[str, Any]) -> dict[str, int]:
    """Median step time over the job's parameters, scaled by bytes where only a part of them is allocated."""
    parameters = [_parameter(data) for data in job["parameters"]]
    if not parameters:
        return {"median_ns": 0, "spread_ns": 0}
    optimizer = _builder(job["model"])(parameters)
    samples = []
    for _ in range(REPEATS + 2):  # the first steps allocate the state
        agree(0)
        start = time.perf_counter_ns()
        optimizer.step()
        samples.append(time.perf_counter_ns() - start)
    return {name: round(value * job["scale"]) for name, value in summary(samples[2:]).items()}


def _parameter(data: dict[str, Any]) -> torch.nn.Parameter:
    dtype = getattr(torch, data["dtype"])
    parameter = torch.nn.Parameter(torch.rand(data["shape"]).to(dtype))
    parameter.grad = torch.rand(data["shape"]).to(dtype)
    return parameter


def _builder(model: dict[str, Any]) -> Any:
    """`build_optimizer` of the model file; SGD, the default, for a model without a file."""
    from lynx_plan.torch_rt.model_file import load_model_file

    if not model["path"]:
        return lambda parameters: torch.optim.SGD(parameters, lr=0.01)
    arguments = tuple((key, value) for key, value in model["arguments"])
    return load_model_file(ModelSpec(path=model["path"], builder=model["builder"], arguments=arguments)).build_optimizer
