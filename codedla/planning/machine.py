"""What a machine is, for the model: speeds of its cores, of its memory and of its messages.

The choice of a code needs no more than two of these figures, and has its own
(:mod:`codedla.measured.speeds`): the model is asked about other machines than this one.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from codedla.errors import UsageError
from codedla.writing import write_text

__all__ = ["Machine"]

SCHEMA = "codedla.machine/1"
_MAY_BE_ZERO = ("overhead", "latency", "setup", "overhead_round", "ranks_per_host")


@dataclass(frozen=True)
class Machine:
    """Speeds in flop/s, bytes/s and seconds, all of one core unless said otherwise.

    The defaults are round numbers of a cluster with a 100 Gbit/s network and one core per rank.
    They are assumed, not measured: ``codedla simulate --calibrate`` measures.

    Parameters
    ----------
    flops : float
        Of a matrix product in double precision.
    copy : float
        Receiving a message into memory that was not used before.
    encode : float
        Bytes read and written while blocks are combined.
    scan : float
        Bytes looked over for NaN, size and norm before and after a product, or by a product with
        a vector.
    overhead : float
        Seconds of the master per message, its share of the bookkeeping included.
    latency : float
        Seconds that a message is under way, besides its bytes.
    bandwidth : float
        Of the master's link, each way; infinite where all ranks share one memory.
    setup : float
        Seconds that a product takes on the master besides all that depends on sizes.
    overhead_round : float
        The overhead of a message where A's shares are resident, all of a round's included.
    cores : float
        Cores of a host. Two that share their units count as fewer.
    ranks_per_host : int
        Ranks that share these cores, the master among them on its host; 0: every rank has a core
        of its own.
    storage : float
        Bytes/s that one worker reads from a shared file.
    storage_total : float
        Bytes/s that all of them together read.
    source : str
        Where the figures come from.
    """

    flops: float = 4e10
    copy: float = 8e9
    encode: float = 8e9
    scan: float = 8e9
    overhead: float = 5e-6
    latency: float = 2e-6
    bandwidth: float = 12e9
    setup: float = 2e-3
    overhead_round: float = 5e-6
    cores: float = 1.0
    ranks_per_host: int = 0
    storage: float = 2e9
    storage_total: float = 1e11
    source: str = "assumed"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "source":
                continue
            free = field.name in _MAY_BE_ZERO
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or math.isnan(value) or value < 0 or (value == 0 and not free):
                raise UsageError(
                    f"a machine's {field.name} must be a {'number' if free else 'positive number'}"
                    f"{', 0 or more' if free else ''}; got {value!r}; measure it with "
                    "codedla simulate --calibrate"
                )
        if self.ranks_per_host != int(self.ranks_per_host):
            raise UsageError(
                f"a machine's ranks_per_host is a whole number; got {self.ranks_per_host!r}"
            )

    def share_of_core(self, ranks: int) -> float:
        """Return what part of a core each of ``ranks`` busy ranks of a host has."""
        return min(1.0, self.cores / max(ranks, 1))

    def save(self, path: str | Path) -> None:
        """Write the figures as JSON."""
        figures = {
            name: None if value == math.inf else value for name, value in asdict(self).items()
        }
        write_text(Path(path), json.dumps({"schema": SCHEMA, **figures}, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Machine:
        """Read figures that :meth:`save` wrote; those left out are the assumed ones.

        Raises
        ------
        UsageError
            It cannot be read, or is something else.
        """
        try:
            document = json.loads(Path(path).read_text())
        except OSError as error:
            raise UsageError(f"a machine is read from {path}: {error.strerror}") from None
        except (ValueError, UnicodeDecodeError):
            raise UsageError(f"a machine is a JSON file; got {path}, which is not JSON") from None
        known = {field.name for field in fields(cls)}
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise UsageError(
                f"a machine is a JSON object with schema {SCHEMA!r}; got {path}; write one with "
                "codedla simulate --calibrate"
            )
        strange = sorted(set(document) - known - {"schema"})
        if strange:
            raise UsageError(
                f"a machine has {', '.join(sorted(known))}; {path} has {', '.join(strange)}, too"
            )
        # JSON has no infinity.
        given: dict[str, Any] = {
            name: math.inf if document[name] is None else document[name]
            for name in known & set(document)
        }
        return cls(**given)
