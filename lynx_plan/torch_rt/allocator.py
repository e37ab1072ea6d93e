"""Keep the C allocator's behaviour the same in measurement and run: memory that was freed stays mapped."""

from __future__ import annotations

import ctypes

# malloc.h of glibc
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4
_TOP_PAD_BYTES = 64 * 2**20


def steady_allocator() -> bool:
    """Stop glibc from returning freed memory to the system; call it before the process allocates tensors.

    Without it every large tensor is mapped and unmapped anew, and the page faults are the largest noise
    in a step's time. False, and without effect, where the C library is not glibc.
    """
    try:
        libc = ctypes.CDLL(None)
        mallopt = libc.mallopt
        _ = libc.gnu_get_libc_version  # other C libraries have a mallopt that does nothing
    except (AttributeError, OSError, TypeError):
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, _TOP_PAD_BYTES))
    return all([mallopt(name, value) == 1 for name, value in settings])
