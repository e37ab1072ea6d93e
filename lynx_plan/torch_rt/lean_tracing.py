"""Tracing without what Lynx never reads: a tenth of its time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lynx_plan.torch_rt import compat

_PROXIES = "torch.fx.experimental.proxy_tensor"
_DISABLED = "__dynamo_disable"  # where a dispatch method keeps its version that switches Dynamo off


@contextmanager
def lean_tracing() -> Iterator[None]:
    """Inside, AOTAutograd notes no second copy of shapes, and does not switch Dynamo off at each op: it is not on."""
    proxies = __import__(_PROXIES, fromlist=["_extract_tensor_metadata"])
    extract = compat.private(_PROXIES, "_extract_tensor_metadata")
    methods = [_method(kind) for kind in _modes()]
    before = [vars(method).get(_DISABLED) for method in methods]
    proxies._extract_tensor_metadata = lambda *_, **__: None
    for method in methods:
        setattr(method, _DISABLED, method)
    try:
        yield
    finally:
        proxies._extract_tensor_metadata = extract
        for method, own in zip(methods, before, strict=True):
            setattr(method, _DISABLED, own)


def _modes() -> tuple[type, ...]:
    functional = compat.private("torch._subclasses.functional_tensor", "FunctionalTensorMode")
    return compat.private(_PROXIES, "ProxyTorchDispatchMode"), functional, compat.FakeTensorMode


def _method(mode: Any) -> Any:
    """The mode's dispatch method behind the wrapper that switches Dynamo off."""
    return mode.__torch_dispatch__.__wrapped__
