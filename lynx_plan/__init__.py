"""Lynx: plan activation recomputation into communication windows, and run the plan on PyTorch.

`lynx_plan.Step` is the public runtime; it is imported on first use, since it needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lynx_plan.torch_rt.step import Step

__all__ = ["Step", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "Step":
        from lynx_plan.torch_rt.step import Step

        return Step
    raise AttributeError(f"module 'lynx_plan' has no attribute '{name}'")
