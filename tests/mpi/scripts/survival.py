"""Workers die, freeze, lag or lie at chosen moments. Words: scenario, its parameters."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import time

import numpy as np
from common import FOLDER, WORDS, faults, note_shared_memory, write

import codedla
from codedla.engine import work as tasks
from codedla.mpi import launch, program, session, wire, worker

scenario, *words = WORDS
rank, n_ranks = launch.world_from_env()
logging.basicConfig(level=logging.WARNING)
RNG = np.random.default_rng(90073)
(FOLDER / f"pid{rank}").write_text(str(os.getpid()))
settings = {}
result = {"worst": 0.0, "reports": []}


def signal_to(victim, number):
    """Send a signal to a rank; wait until it is frozen, as that takes a moment."""
    pid = int((FOLDER / f"pid{victim}").read_text())
    os.kill(pid, number)
    while number == signal.SIGSTOP and state(pid) != "T":
        time.sleep(1e-3)


def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def check(product, expected):
    result["worst"] = max(result["worst"], float(np.abs(product - expected).max()))


def multiply(pool, rows=300, inner=200, cols=260, **options):
    """One product of new operands, checked and reported."""
    a, b = RNG.standard_normal((rows, inner)), RNG.standard_normal((inner, cols))
    began = time.perf_counter()
    c, report = codedla.matmul(a, b, pool=pool, return_report=True, **options)
    note(report, time.perf_counter() - began)
    check(c, a @ b)
    return c, a @ b


def note(report, seconds):
    entry = {
        "seconds": seconds,
        "responders": report.responders,
        "lost": report.lost,
        "redispatched": report.redispatched,
        "wrong": report.wrong,
        "sent": report.bytes["sent"],
        "notes": [event.note for event in report.events if event.kind == "silent"],
    }
    result["reports"].append(entry)
    write("result", result)


# -- what happens on the workers ------------------------------------------------------


def once(where, name, what, after=0):
    """Do something, once, when a function of the worker's has been called."""
    original, calls = getattr(where, name), []

    def called(*values, **named):
        value = original(*values, **named)
        calls.append(1)
        if len(calls) == after + 1:
            what()
        return value

    setattr(where, name, called)


def end_me():
    os.kill(os.getpid(), signal.SIGKILL)


def freeze_me():
    os.kill(os.getpid(), signal.SIGSTOP)


def on_reply(what, polls):
    """Do something in the middle of sending a reply, after so many looks at it."""
    original = worker.Worker._send
    flush = worker.Worker._flush_sends
    looks = []

    def send(self, message, arrays=None):
        original(self, message, arrays)
        if arrays and not looks:
            looks.append(0)
            if not polls:
                what()

    def looked(self):
        if looks and looks[0] >= 0 and polls:
            looks[0] += 1
            if looks[0] == polls:
                looks[0] = -1
                what()
        return flush(self)

    worker.Worker._send, worker.Worker._flush_sends = send, looked


def at_order(kind, what):
    original = worker.Worker._obey

    def obey(self, order):
        if order.kind is kind:
            what()
        original(self, order)

    worker.Worker._obey = obey


# -- scenarios ------------------------------------------------------


def killed(pool):
    """Rank 2 dies at one moment; later products do without it."""
    (moment,) = words
    options = {"code": "mds", "blocks": (2, 1), "tolerate": 2, "rows": 1400, "cols": 1400}
    for count in range(5):
        if moment in ("order", "between") and count == 1:
            signal_to(2, signal.SIGKILL)
            time.sleep(0.2 * (moment == "between"))
        multiply(pool, **options)


def many(pool):
    """More workers die than the code tolerates."""
    for count in range(6):
        if count == 2:
            for victim in (1, 4, 7):
                signal_to(victim, signal.SIGKILL)
        multiply(pool, tolerate=2, rows=600, inner=100, cols=600)


def stored(pool):
    """A resident matrix, and more losses than tolerated: what is sent in later rounds?"""
    a = RNG.standard_normal((400, 300))
    result["matrix"] = a.nbytes
    with codedla.store(a, pool=pool, tolerate=1) as matrix:
        for count in range(40):
            if count == 10:
                for victim in (2, 3, 8):
                    signal_to(victim, signal.SIGKILL)
            x = RNG.standard_normal(300)
            began = time.perf_counter()
            y = matrix @ x
            note(matrix.last_report, time.perf_counter() - began)
            check(y, a @ x)


def frozen(pool):
    """A worker that every product needs freezes, and wakes up later."""
    options = {"code": "uncoded", "blocks": (n_ranks - 1, 1)}
    multiply(pool, **options)
    signal_to(2, signal.SIGSTOP)
    for _ in range(3):
        multiply(pool, **options)
    signal_to(2, signal.SIGCONT)
    result["woken"] = len(result["reports"])
    for _ in range(20):
        time.sleep(0.05)
        multiply(pool, **options)


def deserted(pool):
    """Nobody is left that gives a sign of life."""
    session.PATIENCE = 1.0
    multiply(pool)
    for victim in range(1, n_ranks):
        signal_to(victim, signal.SIGSTOP)
    multiply(pool)


def reply(pool):
    """A worker freezes while its reply arrives in the result, and goes on later."""
    target, _ = words
    options = {"code": "uncoded", "blocks": (n_ranks - 1, 1)}
    a, b = RNG.standard_normal((1600, 50)), RNG.standard_normal((50, 1600))
    expected, out = a @ b, None
    if target == "out":
        out = np.empty(expected.shape)
    elif target == "map":
        out = np.memmap(FOLDER / "out", np.float64, "w+", shape=expected.shape)
    c, report = codedla.matmul(a, b, pool=pool, out=out, return_report=True, **options)
    note(report, report.times["total"])
    check(c, expected)
    assert out is None or c is out
    kept = np.array(c)
    if target == "out":
        # It is the caller's again. (Into a map replies are received directly, and complete it.)
        out[...] = kept = np.full_like(kept, 5.0)
    pid = int((FOLDER / "pid2").read_text())
    result["stopped"] = state(pid)
    signal_to(2, signal.SIGCONT)
    for _ in range(10):
        time.sleep(0.03)
        multiply(pool, **options)
    result["unharmed"] = bool(np.allclose(c, kept, rtol=0, atol=1e-11))


def late(pool):
    """A worker is slow, but alive."""
    options = {"code": "uncoded", "blocks": (n_ranks - 1, 1)}
    for _ in range(12):
        multiply(pool, **options)


def lying(pool):
    """A worker answers wrongly."""
    for rows in (40, 40, 600, 600, 40):
        multiply(pool, rows=rows, cols=rows, tolerate=1, verify="locate")
    for rows in (40, 600):
        # Whoever tolerates a late worker may never see its wrong answer.
        uncoded = {"code": "uncoded", "blocks": (n_ranks - 1, 1)}
        multiply(pool, rows=rows, cols=rows, verify="locate", **uncoded)


def twice(pool):
    """A worker sends every answer twice, and computes the share of a lost one."""
    signal_to(1, signal.SIGKILL)
    for rows in (40, 40, 40, 900, 900, 40, 900, 40):
        multiply(pool, rows=rows, cols=rows, code="uncoded", blocks=(n_ranks - 1, 1))


def chaos(pool):
    """Two workers freeze and go on at random."""
    seed, rounds, code = int(words[0]), int(words[1]), words[2]
    draw = random.Random(seed)
    a = RNG.standard_normal((500, 120))
    asleep = {}
    options = {"code": code} if code == "uncoded" else {"code": code, "tolerate": 2}
    with codedla.store(a, pool=pool, **options) as matrix:
        for _ in range(rounds):
            for victim in (2, 5):
                if victim not in asleep and draw.random() < 0.2:
                    signal_to(victim, signal.SIGSTOP)
                    asleep[victim] = draw.randrange(1, 12)
                elif victim in asleep:
                    asleep[victim] -= 1
                    if not asleep[victim]:
                        signal_to(victim, signal.SIGCONT)
                        del asleep[victim]
            if len(asleep) == 2 and code == "uncoded":
                signal_to(2, signal.SIGCONT)
                del asleep[2]
            x = RNG.standard_normal(120)
            began = time.perf_counter()
            y = matrix @ x
            note(matrix.last_report, time.perf_counter() - began)
            check(y, a @ x)
    for victim in asleep:
        signal_to(victim, signal.SIGCONT)


if rank == 2:
    if scenario == "killed":
        match words[0]:
            case "compute":
                once(worker.Worker, "_carry_on", end_me, after=3)
            case "send":
                on_reply(end_me, 1)
            case "stop":
                at_order(wire.Kind.STOP, end_me)
            case "leave":
                at_order(wire.Kind.LEAVE, end_me)
    if scenario == "reply":
        on_reply(freeze_me, int(words[1]))
    if scenario == "twice":
        send = worker.Worker._send

        def send_twice(self, message, arrays=None):
            send(self, message, arrays)
            if message.words[1] == wire.Kind.REPLY:
                send(self, message, arrays)

        worker.Worker._send = send_twice
    if scenario == "late" and words[0] == "deaf":
        compute = tasks.multiply

        def deaf(a, b, reply, _):
            time.sleep(0.7)
            return compute(a, b, reply, lambda: True)

        tasks.multiply = deaf


def work(pool):
    note_shared_memory()
    globals()[scenario](pool)
    write("result", result)
    return 0


specs = {"late": ["delay:2:0.7"] * (words == ["busy"]), "lying": words}.get(scenario, [])
deadline = 0.25 if scenario == "late" else None
sys.exit(program.run(work, faults=faults(specs), deadline=deadline))
