"""Predict how long coded products take: a model of one job, for ten workers or ten thousand."""

from codedla.planning.calibration import calibrate
from codedla.planning.machine import Machine
from codedla.planning.rounds import Timings, simulate
from codedla.planning.workload import Workload, workload_of

__all__ = ["Machine", "Timings", "Workload", "calibrate", "simulate", "workload_of"]
