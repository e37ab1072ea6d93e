"""Rows of a MILP that others imply: fewer rows, the same solutions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def undominated(base: Vector, matrix: Vector) -> tuple[Vector, Vector]:
    """Drop rows that another row with no smaller base and coefficients implies."""
    order = np.lexsort((base, *matrix.T))
    base, matrix = base[order], matrix[order]
    last = np.ones(len(base), dtype=bool)  # of rows with the same coefficients, the one of the largest base
    last[:-1] = (matrix[1:] != matrix[:-1]).any(axis=1)
    base, matrix = base[last], matrix[last]
    keep = np.ones(len(base), dtype=bool)
    for i in range(len(base)):
        larger = (base >= base[i]) & (matrix >= matrix[i]).all(axis=1)
        keep[i] = larger.sum() == 1  # itself
    return base[keep], matrix[keep]
