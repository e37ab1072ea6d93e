"""Frontiers as a picture, PNG or SVG by the file's ending; needs matplotlib (the extra `plot`)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

from lynx_plan.errors import LynxError
from lynx_plan.report.frontier import Point

ENDINGS = (".png", ".svg")
GIB, MS = 1 << 30, 1e6


def check_plot(path: str) -> None:
    """LynxError where a picture could not be made: another ending, or no matplotlib."""
    if Path(path).suffix.lower() not in ENDINGS:
        raise LynxError("is neither .png nor .svg", where=path, hint="name for example frontier.svg")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        hint = "install it with: pip install 'lynx-plan[plot]'"
        raise LynxError("a picture needs matplotlib, which is not installed", where="--plot", hint=hint) from None


def frontier_picture(points: Sequence[Point], knee: Point | None, title: str, *, ending: str) -> bytes:
    """The picture's bytes; the same points give the same bytes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "lynx"}):
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.add_subplot()
        for number, algo in enumerate(dict.fromkeys(point.algo for point in points)):
            own = [point for point in points if point.algo == algo]
            xs, ys = [p.peak_bytes / GIB for p in own], [p.step_ns / MS for p in own]
            axes.plot(xs, ys, marker="os^Dv<>ph"[number % 9], label=algo)
        if knee is not None:
            at = (knee.peak_bytes / GIB, knee.step_ns / MS)
            axes.annotate("knee", at, xytext=(8, 8), textcoords="offset points")
        axes.set_xlabel("peak memory, GiB")
        axes.set_ylabel("predicted step, ms")
        axes.set_title(fill(title, 70), fontsize=9)
        axes.legend()
        buffer = io.BytesIO()
        metadata = {"Date": None} if ending == ".svg" else {"Software": None}
        figure.savefig(buffer, format=ending[1:], dpi=150, metadata=metadata)
    return buffer.getvalue()
