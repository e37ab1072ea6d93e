"""Parameters that share memory: seen by storage, counted once, and said."""

from __future__ import annotations

from torch import nn

from lynx_plan.torch_rt import compat


def tie_notes(model: nn.Module) -> tuple[str, ...]:
    """One line per group of parameters in the same storage, such as `embedding.weight and head.weight are one`."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(compat.storage_key(parameter), []).append(name)
    groups = [group for group in names.values() if len(group) > 1]
    return tuple(f"{' and '.join(group)} share memory, counted once" for group in groups)
