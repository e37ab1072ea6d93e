"""A causal language model from its Hugging Face configuration: what a model file would define, made from `config.json`.

Everything of the `transformers` library is behind this file, and imported only when it is used. Nothing is downloaded.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from lynx_plan.errors import LynxError

INSTALL = "pip install 'lynx-plan[hf]'"


def functions(path: str) -> Any:
    """What a model file defines, for the configuration at `path` (a config.json, or the folder that holds one)."""

    def hf(mesh: DeviceMesh | None, *, seq: int, micro_batch: int, dtype: str = "", **overrides: Any) -> nn.Module:
        return build(path, mesh, dtype, overrides)

    def example_inputs(*, seq: int, micro_batch: int) -> dict[str, Tensor]:
        return batch(0, 0, 0, seq=seq, micro_batch=micro_batch)

    def batch(step: int, microbatch: int, dp_rank: int, *, seq: int, micro_batch: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(step * 1_000_003 + microbatch * 1_009 + dp_rank)
        tokens = torch.randint(0, _read(path)["vocab_size"], (micro_batch, seq), generator=generator)
        return {"input_ids": tokens, "labels": tokens.clone()}

    def build_optimizer(params: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, lr=1e-4)

    return SimpleNamespace(hf=hf, example_inputs=example_inputs, batch=batch, build_optimizer=build_optimizer)


def build(path: str, mesh: DeviceMesh | None, dtype: str, overrides: dict[str, Any]) -> nn.Module:
    """The model, this rank's shard of it by its own tensor-parallel plan where the mesh has a "tp" dimension."""
    transformers = _transformers()
    config = _config(transformers, path, overrides)
    chosen = getattr(torch, dtype or str(config.dtype or "bfloat16").removeprefix("torch."))
    try:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=chosen)
    except ValueError as error:
        raise LynxError(f"transformers makes no causal language model of it: {_short(error)}", where=path) from None
    if mesh is not None and "tp" in (mesh.mesh_dim_names or ()):
        from lynx_plan.torch_rt.hf_parallel import shard

        shard(model, mesh, path)
    return model


def config_file(path: str) -> Path:
    """The configuration file of a path; LynxError if there is none."""
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        hint = "name a config.json, or the folder that holds one"
        raise LynxError("no such configuration", where=path, hint=hint)
    return file


def _read(path: str) -> dict[str, Any]:
    try:
        data = json.loads(config_file(path).read_text())
    except ValueError as error:
        raise LynxError(f"is not JSON: {error}", where=path, hint="name a Hugging Face config.json") from None
    if not isinstance(data, dict) or not isinstance(data.get("model_type"), str):
        raise LynxError("states no model_type", where=path, hint="name a Hugging Face config.json")
    return data


def _config(transformers: Any, path: str, overrides: dict[str, Any]) -> Any:
    data = _read(path)
    if "num_hidden_layers" in overrides:
        data.pop("layer_types", None)  # one per layer
    kind = data.pop("model_type")
    try:
        known = transformers.AutoConfig.for_model(kind)
        config = transformers.AutoConfig.for_model(kind, **{**data, **overrides})
    except (ValueError, TypeError) as error:
        raise LynxError(f"transformers does not take it: {_short(error)}", where=path) from None
    for key in overrides:
        if key not in data and not hasattr(known, key):
            raise LynxError(f"has no '{key}' to override", where=path, hint="--arg takes the configuration's keys")
    config.use_cache = False
    return config


def _short(error: Exception) -> str:
    """The first sentence: what follows is often a list of everything that the library knows."""
    return str(error).splitlines()[0].partition(". ")[0][:200]


def _transformers() -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import transformers
    except ImportError:
        raise LynxError("needs the transformers library", where="--hf", hint=INSTALL) from None
    transformers.logging.set_verbosity_error()
    return transformers
