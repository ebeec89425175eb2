"""The medians of ``codedla bench`` as a picture."""

from __future__ import annotations

import io
import statistics

from codedla.cli.verdict import Figures

__all__ = ["draw_bench"]


def draw_bench(figures: Figures) -> bytes:
    """Return a PNG of bars: every case healthy and with a slow rank, NumPy as a line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cases = figures.possible
    figure = Figure(figsize=(8, 1.2 + 0.7 * len(cases)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    slow = f"rank {figures.slow_rank} made {figures.factor:g} times slower"
    for shift, name, colour in ((-0.2, "healthy", "#3b75af"), (0.2, slow, "#e1812c")):
        times = [case.healthy if shift < 0 else case.slow for case in cases]
        bars = axes.barh(
            [place + shift for place in range(len(cases))],
            [statistics.median(seconds) for seconds in times],
            height=0.38,
            label=name,
            color=colour,
        )
        axes.bar_label(bars, fmt=" %.3g s", fontsize=8)
    alone = statistics.median(figures.numpy)
    threads = f"{figures.numpy_threads} thread{'s' * (figures.numpy_threads != 1)}"
    axes.axvline(alone, color="0.4", linestyle="--", label=f"NumPy on the master, {threads}")
    axes.set_yticks(range(len(cases)), [case.name for case in cases])
    axes.invert_yaxis()
    axes.set_xlabel("seconds (median)")
    axes.set_title(
        f"{figures.size} x {figures.size} float64, {figures.n_workers} workers, "
        f"{figures.threads} thread{'s' * (figures.threads != 1)} each",
        fontsize=10,
    )
    axes.margins(x=0.12)
    axes.legend(fontsize=8)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    return picture.getvalue()
