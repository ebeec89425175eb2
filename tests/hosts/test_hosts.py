"""Products over four hosts with links of 0, 1, 5 and 20 ms, one of which is cut off midway."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from codedla.mpi import launch
from codedla.mpi.leftovers import Leftovers

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
HOSTS = HERE / "hosts.py"

LAUNCHER = launch.find_launcher()
FOUR = ("h0:0", "h1:1", "h2:5", "h3:20")

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.root,
    pytest.mark.skipif(
        os.environ.get("CODEDLA_TEST_HOSTS") != "1",
        reason="makes network name spaces: set CODEDLA_TEST_HOSTS=1 (make test-hosts)",
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="network name spaces need root"),
    pytest.mark.skipif(
        shutil.which("ip") is None or not os.path.exists("/dev/net/tun"),
        reason="needs ip (iproute2) and /dev/net/tun",
    ),
]
needs_openmpi = pytest.mark.skipif(
    LAUNCHER is None or LAUNCHER.kind != "openmpi",
    reason="needs Open MPI: where a host is lost, MPICH's launcher ends the job",
)

SETTINGS = {"CODEDLA_HOSTS": f"t{os.getpid() % 10_000}", "CODEDLA_HOSTS_PYTHON": sys.executable}


def hosts(*words: str, timeout: float = 30) -> str:
    done = subprocess.run(
        [sys.executable, str(HOSTS), *words],
        env={**os.environ, **SETTINGS},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def four():
    """Four hosts, and nothing of them afterwards."""
    try:
        hosts("up", *FOUR)
        yield
    finally:
        hosts("down")
    name = SETTINGS["CODEDLA_HOSTS"]
    namespaces = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=True
    ).stdout
    assert f"{name}-" not in namespaces
    assert not Path(f"/run/codedla-hosts-{name}").exists()


def run_on(name: str, *words: str) -> list[str]:
    return [sys.executable, str(HOSTS), "run", name, *words]


class Command:
    """``codedla matmul`` on nine ranks, started on h0 with ranks on all four."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        rng = np.random.default_rng(2718281)
        self.a, self.b = rng.standard_normal((600, 500)), rng.standard_normal((500, 400))
        np.save(folder / "A.npy", self.a)
        np.save(folder / "B.npy", self.b)
        (folder / "tmp").mkdir(exist_ok=True)
        where = ",".join(f"h{number}:{slots}" for number, slots in enumerate((3, 2, 2, 2)))
        arguments = f"--prtemca plm_ssh_agent {HERE / 'agent.sh'} --host {where} -x PYTHONPATH"
        self.process = subprocess.Popen(
            run_on(
                "h0",
                sys.executable,
                "-m",
                "codedla",
                "matmul",
                "A.npy",
                "B.npy",
                "-o",
                "C.npy",
                "--ranks",
                "9",
                "--tolerate",
                "2",
                "--json",
                "-v",
                "--report",
                "r.json",
                *words,
            ),
            cwd=folder,
            env={
                **os.environ,
                **SETTINGS,
                "PYTHONPATH": str(ROOT),
                "TMPDIR": str(folder / "tmp"),
                "CODEDLA_MPIRUN_ARGS": arguments,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def all_met(self) -> None:
        """Wait until the ranks of all hosts have met."""
        end = time.monotonic() + 60
        while not list((self.folder / "tmp").glob("codedla-job-*/done.begun")):
            assert time.monotonic() < end
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)

    def ranks(self) -> int:
        """How many ranks there are."""
        mark = self.mark()
        processes = Leftovers(mark).processes() if mark else []
        return sum(process.rank is not None for process in processes)

    def mark(self) -> str:
        """What marks the job's processes; empty before there are any."""
        for name in os.listdir("/proc"):
            try:
                entries = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            done = [e for e in entries if e.startswith(b"CODEDLA_DONE=" + bytes(self.folder))]
            if done:
                return next(
                    e.partition(b"=")[2].decode() for e in entries if e.startswith(b"CODEDLA_JOB=")
                )
        return ""

    def end(self, timeout: float) -> str:
        """Wait for it; return what it said on stderr."""
        _, err = self.process.communicate(timeout=timeout)
        return err

    def is_right(self) -> bool:
        product = np.load(self.folder / "C.npy")
        return float(np.abs(product - self.a @ self.b).max()) < 1e-9

    def left(self) -> list[str]:
        """What is left of it: folders and processes."""
        found = [path.name for path in (self.folder / "tmp").iterdir()]
        mark = str(self.folder).encode()
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and mark in Path(f"/proc/{name}/environ").read_bytes():
                    found.append(Path(f"/proc/{name}/cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found


SLOW = [word for rank in range(1, 9) for word in ("--inject", f"delay:{rank}:3")]


ECHO = """
import socket, sys, time
def no_delay(end):
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.settimeout(2.0)
    return end
if sys.argv[1] == "serve":
    server = socket.create_server(("", 7000))
    print("up", flush=True)
    while True:
        end = server.accept()[0]
        no_delay(end)
        try:
            while data := end.recv(1 << 16):
                if data.endswith(b"!"):
                    end.sendall(b".")
        except OSError:
            pass
else:
    end = no_delay(socket.create_connection((sys.argv[1], 7000), 2.0))
    times = []
    for size in (1,) * 11 + (int(sys.argv[2]),):
        began = time.perf_counter()
        end.sendall(bytes(size - 1) + b"!")
        assert end.recv(1) == b"."
        times.append(time.perf_counter() - began)
    print(sorted(times[:11])[5], times[-1])
"""


def test_links_have_delay_and_bandwidth_and_can_be_cut():
    def ask(size: int = 1) -> subprocess.CompletedProcess:
        return subprocess.run(
            run_on("a", sys.executable, "-c", ECHO, "b", str(size)),
            env={**os.environ, **SETTINGS},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    try:
        hosts("up", "a:2", "b:8:100")
        with subprocess.Popen(
            run_on("b", sys.executable, "-c", ECHO, "serve"),
            env={**os.environ, **SETTINGS},
            stdout=subprocess.PIPE,
        ) as server:
            assert server.stdout.readline() == b"up\n"
            trip, bulk = map(float, ask(5_000_000).stdout.split())
            assert 0.02 <= trip < 0.03
            assert 0.4 < bulk < 0.8, "5 MB at 100 Mbit/s"
            hosts("cut", "b")
            assert "imed out" in ask().stderr
            hosts("mend", "b")
            assert ask().returncode == 0
            assert json.loads(hosts("status"))["lost"] > 0
            hosts("down")
            assert server.wait(10) == -signal.SIGKILL
    finally:
        hosts("down")


def test_names_of_hosts(four):
    there = subprocess.run(
        run_on("h2", sys.executable, "-c", "import socket as s; print(s.gethostname(), "
               "*(s.gethostbyname(f'h{n}') for n in range(4)))"),
        env={**os.environ, **SETTINGS}, capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert there.stdout.split() == ["h2", *(f"10.78.0.{10 + n}" for n in range(4))]


@needs_openmpi
def test_a_product_over_four_hosts(tmp_path, four):
    command = Command(tmp_path)
    err = command.end(60)
    assert command.process.returncode == 0, err
    assert command.is_right()
    assert "h3" not in err, "nobody is lost"
    assert command.left() == []


@needs_openmpi
def test_a_host_that_is_cut_off_midway(tmp_path, four):
    command = Command(tmp_path, *SLOW)
    command.all_met()
    time.sleep(1.0)
    hosts("cut", "h3")
    cut = time.monotonic()
    err = command.end(90)
    ended = time.monotonic() - cut
    assert command.process.returncode == 0, err
    assert command.is_right()
    assert "rank 7 on h3" in err
    assert "rank 8 on h3" in err
    assert ended < 30, err
    report = json.loads((tmp_path / "r.json").read_text())
    assert {entry["rank"] for entry in report["lost"]} <= {7, 8}
    assert {7, 8}.isdisjoint(report["responders"])
    assert command.left() == []


@needs_openmpi
def test_a_host_that_is_cut_off_at_the_start(tmp_path, four, monkeypatch):
    """The ranks can never meet: bounded, and said."""
    monkeypatch.setenv("CODEDLA_START", "8")
    command = Command(tmp_path, *SLOW)
    end = time.monotonic() + 60
    while command.ranks() < 9 and time.monotonic() < end:
        time.sleep(0.02)
    hosts("cut", "h3")
    err = command.end(60)
    if command.process.returncode == 0:
        assert command.is_right(), "they met in the last moment"
    else:
        assert command.process.returncode == 1
        assert not (tmp_path / "C.npy").exists()
        assert "CODEDLA_START" in err
    assert command.left() == []


@needs_openmpi
def test_a_host_that_is_lost(tmp_path, four):
    """Open MPI ends the job, and returns 0; what is finished is safe."""
    panels = ("--panel-rows", "100")
    pause = [w for rank in range(1, 9) for w in ("--inject", f"delay:{rank}:0.5")]
    command = Command(tmp_path, *panels, *pause)
    command.all_met()
    time.sleep(2.5)
    name = f"{SETTINGS['CODEDLA_HOSTS']}-h3"
    there = subprocess.run(
        ["ip", "netns", "pids", name], capture_output=True, text=True, check=True
    ).stdout
    lost = time.monotonic()
    for pid in map(int, there.split()):
        os.kill(pid, signal.SIGKILL)
    err = command.end(30)
    assert command.process.returncode == 1, err
    assert time.monotonic() - lost < 15
    assert "as it does when a host is lost" in err
    assert "panels are safe" in err
    assert command.left() == []
    again = Command(tmp_path, *panels, "--resume")
    err = again.end(60)
    assert again.process.returncode == 0, err
    assert again.is_right()
    assert again.left() == []


class Plain:
    """``program_run.py`` by an mpirun of one's own, which nobody sweeps up after."""

    def __init__(self, folder: Path, where: str, n_ranks: int, *words: str) -> None:
        self.folder = folder
        script = ROOT / "tests" / "mpi" / "scripts" / "program_run.py"
        line = launch.command(
            LAUNCHER,
            n_ranks,
            [sys.executable, str(script), str(folder), *words],
            export=["PYTHONPATH", "CODEDLA_ORPHAN"],
        )
        hosts_of = ["--prtemca", "plm_ssh_agent", str(HERE / "agent.sh"), "--host", where]
        line[1:1] = hosts_of
        with (folder / "stderr").open("wb") as stderr:
            self.process = self.start(line, stderr)

    def start(self, line: list[str], stderr: IO[bytes]) -> subprocess.Popen:
        return subprocess.Popen(
            run_on("h0", *line),
            env={
                **os.environ,
                **SETTINGS,
                "PYTHONPATH": str(ROOT),
                "TMPDIR": str(self.folder),
                "CODEDLA_ORPHAN": "8",  # the master's own signs of life come every 5 s
            },
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )

    def result(self) -> dict[str, Any]:
        end = time.monotonic() + 60
        while not (self.folder / "result.json").exists():
            assert time.monotonic() < end
            assert self.process.poll() is None
            time.sleep(0.05)
        return json.loads((self.folder / "result.json").read_text())

    def end(self) -> None:
        for pid in ranks(self.folder).values():
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait(10)


@needs_openmpi
@pytest.mark.parametrize("words", [("500", "1"), ("500", "1", "delay:3:2")], ids=["idle", "busy"])
def test_ranks_that_are_cut_off_end_themselves(tmp_path, four, words):
    """Nobody can reach them to do so, where the hosts are machines."""
    job = Plain(tmp_path, "h0:3,h3:1", 4, *words)
    try:
        job.result()
        time.sleep(1.0)
        worker = ranks(tmp_path)[3]
        hosts("cut", "h3")
        cut = time.monotonic()
        while alive(worker) and time.monotonic() < cut + 30:
            time.sleep(0.1)
        assert 6 < time.monotonic() - cut < 20
        before = len(job.result()["seconds"])
        time.sleep(2.0)
        assert len(job.result()["seconds"]) > before, "the others go on"
    finally:
        job.end()


@needs_openmpi
def test_ranks_that_wait_for_others_do_not_end_themselves(tmp_path, four):
    """The round lasts longer than CODEDLA_ORPHAN; some have nothing to do all the time."""
    job = Plain(tmp_path, "h0:2,h2:1,h3:1", 4, "2", "1", "delay:1:20", "delay:2:20")
    try:
        assert job.process.wait(90) == 0, (tmp_path / "stderr").read_text()
        result = job.result()
        assert result["worst"] < 1e-10
        assert max(result["seconds"]) > 15
        assert result["lost"] == {}
    finally:
        job.end()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ranks(folder: Path) -> dict[int, int]:
    """Pids of the ranks with this folder in their command line."""
    found = {}
    for name in os.listdir("/proc"):
        try:
            rank = rank_of(int(name)) if name.isdigit() else None
            if (
                rank is not None
                and str(folder).encode() in Path(f"/proc/{name}/cmdline").read_bytes()
            ):
                found[rank] = int(name)
        except OSError:
            continue
    return found


def rank_of(pid: int) -> int | None:
    for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
        if entry.startswith(b"OMPI_COMM_WORLD_RANK="):
            return int(entry.partition(b"=")[2])
    return None
