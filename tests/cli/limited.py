"""Run codedla with the address space of rank 0 limited to LIMIT bytes; note its peak in PEAK."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
    if rank == "0":
        limit = int(os.environ["LIMIT"])
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    from codedla.linalg.panels import Panels

    run = Panels.run

    def noted(self: Panels, *args: Any, **options: Any) -> None:
        run(self, *args, **options)
        Path(os.environ["PEAK"]).write_text(Path("/proc/self/status").read_text())

    Panels.run = noted  # type: ignore[method-assign]
    from codedla.cli.main import main as program

    return program()


if __name__ == "__main__":
    sys.exit(main())
