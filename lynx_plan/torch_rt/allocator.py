"""Keep the C allocator's behaviour the same in measurement and run: memory that was freed stays mapped."""

from __future__ import annotations

import ctypes

# (malloc.h name, its number in glibc, value)
_SETTINGS = (
    ("M_MMAP_MAX", -4, 0),  # no mapping of its own for a large block
    ("M_TRIM_THRESHOLD", -1, 2**31 - 1),  # free blocks at the top are kept
    ("M_TOP_PAD", -2, 64 * 2**20),
    ("M_ARENA_MAX", -8, 1),  # blocks that communication threads free are found by the compute thread
)


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
    done = True
    for _name, number, value in _SETTINGS:
        done = mallopt(number, value) == 1 and done
    return done
