"""Pools without MPI: in process (serial) and on a virtual clock (simulated)."""

from codedla.pools.serial import SerialPool
from codedla.pools.simulated import SimulatedPool

__all__ = ["SerialPool", "SimulatedPool"]
