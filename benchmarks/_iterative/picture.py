"""Loss against time, one panel for each condition."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["plot"]


def plot(path: Path, rows: Sequence[dict[str, Any]], delay: float) -> None:
    """Draw the courses of the losses above the least one that any run reached.

    Parameters
    ----------
    path : Path
    rows : sequence of dict
        ``title, condition, seconds, losses`` of one run each; runs without losses are left out.
    delay : float
        Seconds that a late worker sleeps.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [row for row in rows if row["losses"]]
    conditions = list(dict.fromkeys(row["condition"] for row in shown))
    titles = list(dict.fromkeys(row["title"] for row in shown))
    least = min(min(row["losses"]) for row in shown)
    figure, axes = plt.subplots(
        1,
        len(conditions),
        figsize=(4 * len(conditions), 4),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, condition in zip(axes[0], conditions, strict=True):
        for row in shown:
            if row["condition"] == condition:
                gaps = [max(loss - least, 1e-12) for loss in row["losses"]]
                color = f"C{titles.index(row['title'])}"
                axis.plot(row["seconds"], gaps, label=row["title"], color=color)
        axis.set_title(condition)
        axis.set_xlabel("seconds")
        axis.set_xscale("log")
        axis.set_yscale("log")
    axes[0][0].set_ylabel(f"mean loss - {least:.4f}")
    axes[0][0].legend(fontsize="small", title=f"late: {delay:g} s in every task")
    figure.savefig(path, dpi=120)
    plt.close(figure)
