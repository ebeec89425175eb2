"""Something is raised at one place. Words: place, "plain" (a script of one's own) or "run"."""

# ruff: noqa: E402 - what is raised before the imports is part of this
from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np
from common import WORDS, note_shared_memory, write

import codedla
from codedla.mpi import launch

place, how = WORDS
rank, _ = launch.world_from_env()
on_master, on_worker = rank == 0, rank == 2
if (place == "worker import" and on_worker) or (place == "master import" and on_master):
    write("raised", time.time())
    raise RuntimeError(f"raised on purpose: {place}")
if how == "run":
    import mpi4py

    mpi4py.rc.finalize = False  # as program.run has it; what is patched below imports MPI earlier

from codedla.engine import decoder, encoder
from codedla.engine import work as tasks
from codedla.engine.stragglers import parse_fault
from codedla.linalg import product
from codedla.mpi import master, program, wire, worker
from codedla.mpi.pool import MPIPool

options = {"code": "mds", "blocks": (2, 1), "tolerate": 1}
if "memory" in place or place in ("task", "task exit", "task untold", "operands", "error"):
    # Every share is needed, else the last reply may come too late to be heard of.
    options = {"code": "uncoded", "blocks": (3, 1)}


def fail(*_, **__):
    write("raised", time.time())
    raise RuntimeError(f"raised on purpose: {place}")


def leave(*_, **__):
    write("raised", time.time())
    sys.exit(7)


def starve(*_, **__):
    raise MemoryError(f"raised on purpose: {place}")


class Untold(Exception):
    """An exception that cannot even be printed."""

    def __str__(self):
        fail()


def replace(where, name, by, *, here, after=0):
    """Put another function in, on this rank, from call number ``after`` on."""
    if not here:
        return
    original, calls = getattr(where, name), []

    def replaced(*words, **more):
        calls.append(1)
        return original(*words, **more) if len(calls) <= after else by(*words, **more)

    setattr(where, name, replaced)


def untold(*_, **__):
    raise Untold


def damage(thing):
    """A pickle that cannot be read."""
    write("raised", time.time())
    return b"\x80\x04damaged"


def signalled(number, when):
    """A signal arrives while the worker computes, or when it has nothing to do."""
    if not on_worker:
        return
    write("raised", time.time())
    if when == "idle":
        threading.Timer(1.0, os.kill, (os.getpid(), number)).start()
    else:
        original = tasks.multiply

        def hit(*words, **more):
            os.kill(os.getpid(), number)
            time.sleep(0.01)
            return original(*words, **more)

        tasks.multiply = hit


match place:
    case "master pool" | "worker pool":
        replace(MPIPool, "__init__", fail, here=on_master if "master" in place else on_worker)
    case "encode":
        replace(encoder.DenseEncoder, "coded_together", fail, here=on_master)
    case "check":
        replace(product.ReplyCheck, "check", fail, here=on_master, after=2)
        options["verify"] = "locate"
    case "fold" | "finish":
        name = {"fold": "idle"}.get(place, place)
        after = int(place == "finish")  # nobody knows how often the master has to wait
        replace(decoder.SystematicDecoder, name, fail, here=on_master, after=after)
    case "close":
        replace(master.Master, "_dismiss", fail, here=on_master)
    case "hello":
        replace(worker.pickle, "dumps", damage, here=on_worker)
    case "error":
        replace(worker.pickle, "dumps", damage, here=on_worker, after=1)
        replace(tasks, "multiply", fail, here=on_worker, after=2)
    case "task":
        replace(tasks, "multiply", fail, here=on_worker, after=1)
    case "task untold":
        replace(tasks, "multiply", untold, here=on_worker, after=1)
    case "task exit":
        replace(tasks, "multiply", leave, here=on_worker, after=1)
    case "task memory":
        replace(tasks, "multiply", starve, here=on_worker, after=1)
    case "operands memory":
        replace(wire.Incoming, "arrays", starve, here=on_worker, after=2)
    case "operands":
        replace(worker.Worker, "_receive", fail, here=on_worker, after=1)
    case "orders":
        replace(worker.Worker, "_obey", fail, here=on_worker, after=1)
    case "task SIGINT" | "task SIGTERM" | "idle SIGINT" | "idle SIGTERM":
        when, name = place.split()
        signalled(getattr(signal, name), when)


def work(pool):
    note_shared_memory()
    rng = np.random.default_rng(90067)
    result = {"worst": 0.0, "lost": [], "again": [], "products": 0}
    sizes = (20, 400, 400, 20, 400)
    for count, rows in enumerate(sizes):
        a, b = rng.standard_normal((rows, 300)), rng.standard_normal((300, rows))
        if place == "inside" and count:
            fail()
        if place == "inside exit" and count:
            leave()
        if place in ("SIGINT", "SIGTERM") and count == 1:
            number = getattr(signal, place)
            write("raised", time.time() + 0.2)
            threading.Timer(0.2, os.kill, (os.getpid(), number)).start()
            time.sleep(3)
        if "idle" in place and count == 1:
            time.sleep(1.5)
        options["progress"] = {"progress": fail, "progress exit": leave}.get(place)
        c, report = codedla.matmul(a, b, pool=pool, return_report=True, **options)
        result["worst"] = max(result["worst"], float(np.abs(c - a @ b).max()))
        result["lost"] += [[k, why] for k, why in report.lost.items()]
        result["again"] += [report.redispatched] if report.redispatched else []
        result["products"] += 1
        write("result", result)
        # So that a reply that was not needed, or a greeting, is heard.
        time.sleep(0.02)
    return 0


# A worker in time might be given nothing but products until the job is over, and the master wait
# for none of three.
late = {"orders": ["delay:2:0.1"], "fold": [f"delay:{k}:0.05" for k in (1, 2, 3)]}.get(place, [])
faults = [parse_fault(text) for text in late]
if how == "run":
    sys.exit(program.run(work, faults=faults))
from mpi4py import MPI

with codedla.MPIPool(MPI.COMM_WORLD, faults=faults) as pool:
    if pool is not None:
        work(pool)
if (place == "worker after" and on_worker) or (place == "master after" and on_master):
    fail()
write(f"end{rank}", True)
