"""Under what conditions costs are measured here: processor, cores, clock and torch. Never a host's name."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from lynx_plan.torch_rt import compat

_CLOCK = Path("/sys/devices/system/cpu/cpu0/cpufreq")


def conditions() -> tuple[str, ...]:
    """One line each, the same as long as nothing changes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"processor: {_processor()}",
        f"cores: {cores}",
        f"clock: {_clock()}",
        f"torch: {compat.torch_version()}",
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _clock() -> str:
    governor, fastest = _read("scaling_governor"), _read("cpuinfo_max_freq")
    if not governor:
        return "governor and frequency are not readable here"
    return f"governor {governor}, at most {int(fastest) // 1000} MHz" if fastest else f"governor {governor}"


def _read(name: str) -> str:
    try:
        return (_CLOCK / name).read_text().strip()
    except OSError:
        return ""
