"""What the job scripts share: where results go, and which shared memory this job uses."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

FOLDER, WORDS = Path(sys.argv[1]), sys.argv[2:]


def write(name, value):
    """Leave a result for the test, whole or not at all."""
    temporary = FOLDER / f"{name}.part"
    temporary.write_text(json.dumps(value))
    temporary.rename(FOLDER / f"{name}.json")


def note_shared_memory():
    """Name the job's files in /dev/shm, without the rank at the end."""
    maps = Path("/proc/self/maps").read_text()
    found = re.findall(r"(/dev/shm/(?:sm_segment\.|vader_segment\.|mpich_shm_|codedla)\S+)", maps)
    write("shared", sorted({re.sub(r"\.\d+$", ".", path) for path in found}))


def faults(specs):
    """Faults from the words of the command line."""
    from codedla.engine.stragglers import parse_fault

    return [parse_fault(spec) for spec in specs]
