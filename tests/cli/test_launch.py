"""The launcher always comes back, says what the master said, and leaves nothing behind."""

from __future__ import annotations

import json
import mmap
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from codedla.cli.main import main
from codedla.errors import MPIUnavailable, UsageError
from codedla.mpi import launch
from codedla.mpi.guard import Guard
from codedla.mpi.leftovers import Leftovers, Process, scratch_folder
from codedla.mpi.limits import orphan_limit, start_limit
from codedla.mpi.output import NoiseFilter
from codedla.mpi.ranks import Ranks

needs_mpi = pytest.mark.skipif(launch.find_launcher() is None, reason="no mpirun on this machine")

#: Every script: rank, size, the communicator, and how a master reports.
PRELUDE = """
import os, signal, sys, time
import mpi4py
mpi4py.rc.finalize = False
from mpi4py import MPI
world = MPI.COMM_WORLD
world.Set_errhandler(MPI.ERRORS_RETURN)
rank, size = world.rank, world.size

def leave(code):
    sys.stdout.flush()
    if rank == 0:
        with open(os.environ["CODEDLA_DONE"] + ".new", "w") as f:
            f.write(str(code))
        os.replace(f.name, os.environ["CODEDLA_DONE"])
    os._exit(code)

world.Barrier()
time.sleep(0.3)
"""


def script(folder: Path, body: str, *, prelude: str = PRELUDE) -> list[str]:
    path = folder / "job.py"
    path.write_text(prelude + textwrap.dedent(body))
    return [sys.executable, str(path)]


def abandoned_memory() -> set[str]:
    """Shared-memory files of MPI that no living process uses: other jobs may be running."""
    found = {name for name in os.listdir("/dev/shm") if "segment" in name or "mpich" in name}
    for name in os.listdir("/proc"):
        try:
            maps = Path(f"/proc/{name}/maps").read_text() if name.isdigit() else ""
        except OSError:
            continue
        found -= set(re.findall(r"/dev/shm/(\S+)", maps))
    return found


def marked(text: bytes) -> list[int]:
    """Living processes with `text` in their command line."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if text in line:
                found.append(int(name))
    return found


@pytest.fixture
def nothing_left(tmp_path):
    """The test's job leaves no process and no shared-memory file."""
    before = abandoned_memory()
    yield
    assert marked(str(tmp_path).encode()) == []
    left = abandoned_memory() - before
    limit = time.monotonic() + 40
    while left and time.monotonic() < limit:
        time.sleep(0.1)  # another job may just be beginning, or go on without a killed rank
        left &= abandoned_memory()
    assert left == set()


# ---------------------------------------------------------------- without MPI


@pytest.mark.parametrize(
    ("env", "world"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "9"}, (3, 9)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "9", "SLURM_JOB_ID": "7"}, None),
        ({"SLURM_PROCID": "5", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "9"}, (5, 9)),
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "9"},
            None,
        ),
    ],
    ids=["shell", "openmpi", "pmi", "sbatch", "srun", "srun-of-one", "salloc"],
)
def test_world_from_env(env, world):
    assert launch.world_from_env(env) == world


@pytest.mark.parametrize(
    ("text", "kind", "version", "ulfm"),
    [
        ("mpirun (Open MPI) 5.0.11\n", "openmpi", "5.0.11", True),
        ("mpirun (Open MPI) 4.1.4\n", "openmpi", "4.1.4", False),
        ("HYDRA build details:\n    Version:        4.0.2\n", "mpich", "4.0.2", False),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 1\n",
            "intelmpi",
            "2021.18",
            False,
        ),
        ("whatever 1.0\n", "unknown", "", False),
    ],
)
def test_launcher_kinds(tmp_path, monkeypatch, text, kind, version, ulfm):
    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\nprintf '%s' '{text}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("CODEDLA_MPIRUN", str(program))
    found = launch.find_launcher()
    assert found == launch.Launcher(str(program), kind, version, ulfm)


@pytest.mark.parametrize(
    ("kind", "ulfm", "tolerated"),
    [
        ("openmpi", True, [True, True, False, False]),
        ("openmpi", False, [True, True, False, False]),
        ("mpich", False, [False, True, False, False]),
        ("intelmpi", False, [False, True, False, False]),
        ("unknown", False, [None, None, None, False]),
    ],
)
def test_what_a_launcher_tolerates(capsys, monkeypatch, kind, ulfm, tolerated):
    launcher = launch.Launcher("m", kind, "9.9", ulfm)
    losses = launcher.losses()
    assert list(losses) == ["killed worker", "frozen worker", "lost node", "dead master"]
    assert [known for known, _ in losses.values()] == tolerated
    assert launcher.tolerant is (tolerated[0] is True)
    monkeypatch.setattr("codedla.cli.doctor.find_launcher", lambda: launcher)
    main(["doctor", "--no-probe", "--json"])
    findings = {f["name"]: f for f in json.loads(capsys.readouterr().out)["findings"]}
    assert [findings[name]["data"]["tolerated"] for name in losses] == tolerated
    assert all(findings[name]["state"] in ("ok", "info") for name in losses)


def test_launcher_and_library_of_two_kinds(capsys, monkeypatch):
    mine = launch.find_launcher()
    if mine is None or mine.kind not in ("openmpi", "mpich"):
        pytest.skip("needs Open MPI or MPICH")
    for kind in ("openmpi", "mpich"):
        launcher = launch.Launcher("m", kind, "9.9", False)
        monkeypatch.setattr("codedla.cli.doctor.find_launcher", lambda it=launcher: it)
        code = main(["doctor", "--no-probe"])
        (line,) = [x for x in capsys.readouterr().out.splitlines() if "MPI library" in x]
        assert line.startswith("ok " if kind == mine.kind else "fail "), line
        assert (code == 0) is (kind == mine.kind)


@pytest.mark.parametrize(
    ("launcher", "wanted", "unwanted"),
    [
        (launch.Launcher("m", "openmpi", "5.0.11", True), "--with-ft ulfm", "--enable-recovery"),
        (launch.Launcher("m", "openmpi", "4.1.4", False), "--enable-recovery", "--with-ft"),
        (launch.Launcher("m", "openmpi", "5.0.1", False), "--enable-recovery", "--with-ft"),
        (launch.Launcher("m", "mpich", "5.0.2", False), "-disable-auto-cleanup", "--mca"),
        (launch.Launcher("m", "unknown", "", False), "m -n 3 prog", "--mca"),
    ],
)
def test_command(launcher, wanted, unwanted):
    line = launch.command(launcher, 3, ["prog", "arg"])
    text = " ".join(line)
    assert text.startswith("m -n 3 ")
    assert text.endswith(" prog arg")
    assert wanted in text
    assert unwanted not in text


def test_command_refuses_no_ranks():
    with pytest.raises(UsageError, match="at least 1; got 0"):
        launch.command(launch.Launcher("m", "mpich", "", False), 0, ["prog"])


def test_the_users_own_words_for_the_launcher(monkeypatch):
    monkeypatch.setenv("CODEDLA_MPIRUN_ARGS", "--host 'a b,c' -v")
    line = launch.command(launch.Launcher("m", "mpich", "", False), 3, ["prog"])
    assert line[-4:] == ["--host", "a b,c", "-v", "prog"]
    monkeypatch.setenv("CODEDLA_MPIRUN_ARGS", "--host 'a")
    with pytest.raises(UsageError, match="CODEDLA_MPIRUN_ARGS must be words as a shell takes them"):
        launch.command(launch.Launcher("m", "mpich", "", False), 3, ["prog"])


# Looks at a job's ranks, one second apart: (host, rank, ranks started on that host) each.
A = [("a", rank, 2) for rank in range(2)]
B = [("b", rank, 2) for rank in (2, 3)]
FOUR = [("a", rank, 4) for rank in range(4)]
NOT_TOLD = [("", rank, None) for rank in range(3)]


@pytest.mark.parametrize(
    ("looks", "begun", "deserter"),
    [
        ([FOUR] * 9, False, None),
        ([FOUR[:2], FOUR, FOUR, FOUR], False, None),
        ([FOUR[:2] + FOUR[3:]] * 9, False, 2),
        ([FOUR[1:]] * 9, False, 0),
        ([FOUR[1:]] * 9, True, 0),
        ([FOUR[:2] + FOUR[3:]] * 9, True, None),
        ([FOUR, FOUR[:3]], False, 3),
        ([FOUR, FOUR[:3]], True, None),
        ([FOUR, FOUR[1:]], True, 0),
        ([A] * 9, False, None),
        ([A + B] * 9, False, None),
        ([A + B[:1]] * 9, False, -1),
        ([A[1:] + B] * 9, False, 0),
        ([NOT_TOLD] * 9, False, None),
        ([NOT_TOLD[1:]] * 9, False, 0),
        ([[]] * 9, False, None),
    ],
)
def test_who_is_missing(tmp_path, monkeypatch, looks, begun, deserter):
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    file = tmp_path / "begun"
    if begun:
        file.touch()
    ranks = Ranks(met=False)
    found = []
    for look in looks:
        processes = [Process(1, None), *(Process(9, rank, host, n) for host, rank, n in look)]
        found.append(ranks.deserted(processes, file))
        clock[0] += 1.0
    assert (any(found), ranks.deserter, ranks.late) == (deserter is not None, deserter, False)


def test_ranks_that_never_meet(tmp_path, monkeypatch):
    """One of them may have ended on a host that nobody here sees."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setenv("CODEDLA_START", "30")
    ranks = Ranks(met=False)
    processes = [Process(9, rank, host, n) for host, rank, n in A]
    assert not ranks.deserted(processes, tmp_path / "begun")
    clock[0] += 29.0
    assert not ranks.deserted(processes, tmp_path / "begun")
    clock[0] += 2.0
    assert ranks.deserted(processes, tmp_path / "begun")
    assert (ranks.late, ranks.deserter) == (True, None)


def test_ranks_that_never_start(tmp_path, monkeypatch):
    """A launcher waits for a host that it cannot reach."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setenv("CODEDLA_START", "30")
    ranks = Ranks(met=False)
    clock[0] += 29.0
    assert not ranks.deserted([Process(1, None)], tmp_path / "begun")
    clock[0] += 2.0
    assert ranks.deserted([Process(1, None)], tmp_path / "begun")
    assert (ranks.late, ranks.started, ranks.deserter) == (True, False, None)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan"])
@pytest.mark.parametrize("name", ["CODEDLA_ORPHAN", "CODEDLA_START"])
def test_limits_that_are_no_seconds_are_refused_before_anything_starts(name, text, monkeypatch):
    monkeypatch.setenv(name, text)
    with pytest.raises(UsageError, match=rf"{name} must be a positive number .* got '{text}'"):
        launch.run_job(["true"], 2)


def test_limits_that_are_set_to_nothing_are_the_usual_ones(monkeypatch):
    usual = orphan_limit(), start_limit()
    for name in ("CODEDLA_ORPHAN", "CODEDLA_START"):
        monkeypatch.setenv(name, " ")
    assert (orphan_limit(), start_limit()) == usual
    monkeypatch.setenv("CODEDLA_START", "1.5")
    assert start_limit() == 1.5


def test_folders_of_killed_owners_are_reclaimed(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    code = """
import os, sys
from codedla.mpi.leftovers import scratch_folder
with scratch_folder() as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    sys.stdin.read()
    os.kill(os.getpid(), 9)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        folder = Path(owner.stdout.readline().decode().strip())
        assert folder.parent == tmp_path
        monkeypatch.setattr("codedla.mpi.leftovers._NEW", 0.0)
        with scratch_folder():
            assert (folder / "file").exists(), "its owner lives"
        owner.stdin.close()
        owner.wait(10)
    monkeypatch.setattr("codedla.mpi.leftovers._NEW", 60.0)
    with scratch_folder() as mine:
        assert folder.exists(), "as young as one that is not locked yet"
        assert mine.exists()
    monkeypatch.setattr("codedla.mpi.leftovers._NEW", 0.0)
    (tmp_path / "codedla-mine").mkdir()
    with scratch_folder():
        assert not folder.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["codedla-mine"]


def test_shared_memory_that_nobody_maps(tmp_path):
    """Of a rank that ended before anybody looked; not what is older, or in use."""
    host = os.uname().nodename.partition(".")[0]
    names = [
        f"/dev/shm/sm_segment.{host}.test.{os.getpid()}.{what}" for what in ["old", "used", "new"]
    ]
    old, used, new = map(Path, names)
    try:
        old.write_bytes(bytes(4096))
        time.sleep(0.3)
        leftovers = Leftovers("no such job")
        used.write_bytes(bytes(4096))
        new.write_bytes(bytes(4096))
        with used.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            leftovers.sweep()
        assert [path.exists() for path in (old, used, new)] == [True, True, False]
    finally:
        for path in (old, used, new):
            path.unlink(missing_ok=True)


def test_one_blas_thread_unless_the_user_says_otherwise():
    env = launch.job_environment("id", "file", {"HOME": "/"})
    assert env["OPENBLAS_NUM_THREADS"] == env["OMP_NUM_THREADS"] == "1"
    assert (env["CODEDLA_JOB"], env["CODEDLA_DONE"]) == ("id", "file")
    env = launch.job_environment("id", "file", {"OMP_NUM_THREADS": "4"})
    assert env["OMP_NUM_THREADS"] == "4"
    assert "OPENBLAS_NUM_THREADS" not in env


def test_no_launcher(tmp_path, monkeypatch):
    monkeypatch.delenv("CODEDLA_MPIRUN", raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launch.find_launcher() is None
    with pytest.raises(MPIUnavailable, match=r"needs mpirun or mpiexec.*pip install"):
        launch.run_job(["true"], 2)


def test_wrong_launcher_in_the_environment(monkeypatch):
    monkeypatch.setenv("CODEDLA_MPIRUN", "/no/such/mpirun")
    with pytest.raises(UsageError, match="CODEDLA_MPIRUN must name a program"):
        launch.find_launcher()


def fake_launcher(tmp_path, monkeypatch, body: str) -> None:
    """A launcher that is a shell script, so that its ways can be chosen."""
    program = tmp_path / "mpirun"
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {{ echo fake; exit; }}\n{body}\n')
    program.chmod(0o755)
    monkeypatch.setenv("CODEDLA_MPIRUN", str(program))


@pytest.mark.parametrize(
    ("body", "code", "launcher_code"),
    [
        ("exit 0", 1, 0),
        ("exit 213", 213, 213),
        ("kill -9 $$", 137, -9),
        ("echo 0 >$CODEDLA_DONE; exit 137", 0, 137),
        ("echo 3 >$CODEDLA_DONE; exit 0", 3, 0),
        ("echo nonsense >$CODEDLA_DONE; exit 0", 1, 0),
    ],
)
def test_whose_code_counts(tmp_path, monkeypatch, body, code, launcher_code):
    fake_launcher(tmp_path, monkeypatch, body)
    result = launch.run_job(["ignored"], 2, capture=True)
    assert (result.code, result.launcher_code) == (code, launcher_code)


LAUNCHER_WORDS = "the listener thread failed to start"


def failing_launcher(tmp_path, monkeypatch, fails: int, how: str) -> Path:
    """A launcher that fails so many times, then runs a job; the file has a letter per start."""
    starts = tmp_path / "starts"
    body = f"""
    printf x >>{starts}
    [ $(wc -c <{starts}) -gt {fails} ] && {{ echo product; echo 0 >$CODEDLA_DONE; exit 0; }}
    echo {LAUNCHER_WORDS} >&2
    {how}
    """
    fake_launcher(tmp_path, monkeypatch, body)
    return starts


@pytest.mark.parametrize("how", ["exit 213", "exit 255", "kill -SEGV $$"])
@pytest.mark.parametrize("capture", [True, False], ids=["kept", "shown"])
def test_a_launcher_that_fails_is_started_again(tmp_path, monkeypatch, capfd, how, capture):
    """Nothing of the job has begun: neither the user nor the result need to know."""
    starts = failing_launcher(tmp_path, monkeypatch, 2, how)
    result = launch.run_job(["ignored"], 2, capture=capture)
    shown = capfd.readouterr()
    assert (result.code, result.reported, starts.read_text()) == (0, True, "xxx")
    assert (result.stdout or shown.out, result.stderr + shown.err) == ("product\n", "")


@pytest.mark.parametrize("capture", [True, False], ids=["kept", "shown"])
def test_a_launcher_that_always_fails_has_its_say_once(tmp_path, monkeypatch, capfd, capture):
    starts = failing_launcher(tmp_path, monkeypatch, 9, "exit 213")
    result = launch.run_job(["ignored"], 2, capture=capture, restarts=2)
    assert (result.code, result.launcher_code, starts.read_text()) == (213, 213, "xxx")
    assert result.stderr + capfd.readouterr().err == f"{LAUNCHER_WORDS}\n"


@pytest.mark.parametrize(
    "how",
    [
        "exit 1",
        "exit 137",
        "kill -9 $$",
        "touch $CODEDLA_DONE.begun; exit 213",
        "touch $CODEDLA_DONE.raised; exit 213",
        "echo 3 >$CODEDLA_DONE; exit 213",
        "OMPI_COMM_WORLD_RANK=0 sleep 1; exit 213",
    ],
)
def test_what_may_have_begun_is_not_started_again(tmp_path, monkeypatch, capfd, how):
    starts = failing_launcher(tmp_path, monkeypatch, 1, how)
    result = launch.run_job(["ignored"], 2, begins=True)
    assert (result.code != 0, starts.read_text()) == (True, "x")
    assert capfd.readouterr().err == f"{LAUNCHER_WORDS}\n"


def test_a_rank_that_ends_before_the_news_that_all_had_met(tmp_path, monkeypatch):
    """It may be faster than the master, and then the job goes on without it."""
    body = """
    (OMPI_COMM_WORLD_RANK=1 sleep 0.5) &
    (sleep 0.8; touch $CODEDLA_DONE.begun) &
    (OMPI_COMM_WORLD_RANK=0 sleep 2; echo 0 >$CODEDLA_DONE) &
    wait
    """
    fake_launcher(tmp_path, monkeypatch, body)
    result = launch.run_job(["ignored"], 2, begins=True, capture=True)
    assert (result.code, result.reported, result.hung, result.deserter) == (0, True, False, None)


def test_words_of_a_launcher_that_goes_on_are_not_held_for_long(tmp_path, monkeypatch):
    fake_launcher(tmp_path, monkeypatch, "echo waiting >&2; sleep 60")
    code = "from codedla.mpi.launch import run_job; run_job(['x'], 1)"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as process:
        start = time.monotonic()
        assert process.stderr.readline() == b"waiting\n"
        assert time.monotonic() - start < 10
        process.terminate()


REMARK = "-" * 74 + "\nprterun noticed that process rank 2 exited on signal 9\n" + "-" * 74 + "\n"
WORDS = "-" * 74 + "\nThere are not enough slots available\n" + "-" * 74 + "\n"


@pytest.mark.parametrize("reported", [True, False])
def test_remarks_are_dropped_once_the_master_has_reported(tmp_path, monkeypatch, reported):
    (tmp_path / "text").write_text(REMARK + "a real message\n" + WORDS + "-" * 70 + "\nlast\n")
    report = "echo 0 >$CODEDLA_DONE" if reported else ":"
    fake_launcher(tmp_path, monkeypatch, f"cat {tmp_path}/text >&2; {report}; exit 1")
    result = launch.run_job(["ignored"], 2, capture=True)
    assert ("exited on signal" in result.stderr) is not reported
    assert "a real message\n" in result.stderr
    assert "not enough slots" in result.stderr
    assert "last\n" in result.stderr


def test_ranks_that_are_all_interrupted_say_so_once():
    noise = NoiseFilter()
    for _ in range(3):
        assert noise.feed(b"codedla: interrupted\n") == []
    assert noise.end(drop_remarks=True) == b"codedla: interrupted\n"


def test_orphans_of_a_killed_launcher_are_killed(tmp_path, monkeypatch, nothing_left):
    (tmp_path / "orphan.sh").write_text("sleep 100 & wait")
    fake_launcher(tmp_path, monkeypatch, f"setsid sh {tmp_path}/orphan.sh & sleep 0.3; kill -9 $$")
    result = launch.run_job(["ignored"], 2)
    assert result.code == 137
    assert any(entry.startswith("orphan") for entry in result.killed)
    assert result.seconds < 5


def test_stubborn_launcher_is_killed(tmp_path, monkeypatch, nothing_left):
    fake_launcher(tmp_path, monkeypatch, "trap '' TERM INT; while :; do sleep 0.1; done")
    result = launch.run_job(["ignored"], 2, timeout=0.5)
    assert (result.code, result.hung, result.launcher_code) == (1, True, -9)
    assert "launcher SIGKILL" in result.killed
    assert result.seconds < 8


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ignored_signals_stay_ignored(tmp_path, monkeypatch, number):
    """As nohup does with SIGHUP, and a shell with SIGINT of what it starts in the background."""
    fake_launcher(tmp_path, monkeypatch, "touch started; sleep 1; echo 0 >$CODEDLA_DONE")
    code = (
        "import os, signal, sys, threading; from codedla.mpi.launch import run_job\n"
        f"signal.signal({int(number)}, signal.SIG_IGN)\n"
        f"threading.Timer(0.5, os.kill, (os.getpid(), {int(number)})).start()\n"
        "result = run_job(['x'], 1); sys.exit(result.code if result.signal is None else 99)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, timeout=30, check=False)
    assert (tmp_path / "started").exists()
    assert done.returncode == 0


def test_output_streams_while_the_job_runs(tmp_path, monkeypatch):
    seen = tmp_path / "seen"
    wait = f"while [ ! -e {seen} ]; do sleep 0.05; done"
    fake_launcher(
        tmp_path, monkeypatch, f"echo early; echo early >&2; {wait}; echo 0 >$CODEDLA_DONE"
    )
    code = (
        "import sys; from codedla.mpi.launch import run_job\n"
        "sys.exit(run_job(['x'], 1, timeout=60).code)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        # It ends only when both have arrived.
        assert process.stdout.readline() == b"early\n"
        assert process.stderr.readline() == b"early\n"
        seen.touch()
        assert process.wait(20) == 0


# ---------------------------------------------------------------- real jobs


@needs_mpi
@pytest.mark.jobs
def test_success(tmp_path, nothing_left):
    body = """
    print("size", size, os.environ["OPENBLAS_NUM_THREADS"], flush=True) if rank == 0 else None
    leave(0)
    """
    result = launch.run_job(script(tmp_path, body), 5, timeout=60, capture=True)
    assert result.stdout == "size 5 1\n"
    assert (result.code, result.reported, result.hung, result.killed) == (0, True, False, [])
    assert result.stderr == ""


@needs_mpi
@pytest.mark.jobs
@pytest.mark.parametrize("own", [True, False], ids=["own folder", "the user's folder"])
def test_what_a_killed_launcher_left_under_the_same_number(tmp_path, monkeypatch, own):
    """Open MPI 5 does not start where it finds it; numbers come again after some ten thousand."""
    launcher = launch.find_launcher()
    if launcher.kind != "openmpi" or launcher.major < 5:
        pytest.skip("other launchers do not keep such files")
    folder, starts = tmp_path / "sessions", tmp_path / "starts"
    body = f"""
    printf x >>{starts}
    left={folder}/ompi.$$
    [ $(cat {starts}) = x ] && mkdir -p $left && touch $left/pmix.$(hostname).tool
    exec {launcher.path} "$@"
    """
    fake_launcher(tmp_path, monkeypatch, body)
    found = launch.Launcher(str(tmp_path / "mpirun"), "openmpi", launcher.version, launcher.ulfm)
    monkeypatch.setattr(launch, "find_launcher", lambda: found)
    monkeypatch.setenv("TMPDIR", str(folder))
    if not own:
        monkeypatch.setenv("PRTE_MCA_prte_tmpdir_base", str(folder))
    body = "print('size', size, flush=True) if rank == 0 else None; leave(0)"
    result = launch.run_job(script(tmp_path, body), 2, timeout=60, capture=True)
    assert (result.code, result.stdout, result.stderr) == (0, "size 2\n", "")
    assert starts.read_text() == ("x" if own else "xx")


@needs_mpi
@pytest.mark.jobs
def test_the_masters_code_is_returned(tmp_path, nothing_left):
    body = """
    print("what went wrong", file=sys.stderr, flush=True) if rank == 0 else None
    leave(3 if rank == 0 else 0)
    """
    result = launch.run_job(script(tmp_path, body), 3, timeout=60, capture=True)
    assert result.code == 3
    assert result.stderr == "what went wrong\n"


@needs_mpi
@pytest.mark.jobs
def test_master_without_a_report_is_no_success(tmp_path, nothing_left):
    result = launch.run_job(script(tmp_path, "os._exit(0)"), 2, timeout=60, capture=True)
    assert (result.code, result.reported) == (1, False)


@needs_mpi
@pytest.mark.jobs
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_lost_worker(tmp_path, nothing_left, signum):
    if launch.find_launcher().kind != "openmpi" and signum == signal.SIGKILL:
        pytest.skip("this launcher ends the job when a rank is killed")
    body = f"""
    if rank == 2:
        os.kill(os.getpid(), {int(signum)})
    time.sleep(0.5)
    print("product") if rank == 0 else None
    leave(0)
    """
    result = launch.run_job(script(tmp_path, body), 4, timeout=60, grace=30.0, capture=True)
    # MPICH's launcher adds its remark on the killed rank to stdout.
    assert (result.code, result.stdout.splitlines()[0], result.stderr) == (0, "product", "")
    assert result.hung is False
    assert result.seconds < 20


@needs_mpi
@pytest.mark.jobs
def test_everything_hangs(tmp_path, nothing_left):
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(100)"
    result = launch.run_job(script(tmp_path, body), 3, timeout=3, capture=True)
    assert (result.code, result.hung) == (1, True)
    assert result.seconds < 15


@needs_mpi
@pytest.mark.jobs
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_job(tmp_path, nothing_left, signum):
    argv = script(tmp_path, "print('up', flush=True) if rank == 0 else None; time.sleep(100)")
    code = f"import sys; from codedla.mpi.launch import run_job; sys.exit(run_job({argv}, 3).code)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"up\n"
        start = time.monotonic()
        process.send_signal(signum)
        assert process.wait(30) == 128 + signum
        assert time.monotonic() - start < 12


@needs_mpi
@pytest.mark.jobs
@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_ends_before_all_have_met(tmp_path, nothing_left, victim):
    """A fault-tolerant launcher goes on, and the other ranks wait in MPI_Init for ever."""
    program = tmp_path / "early.py"
    program.write_text(
        f"""
import os, signal, time
time.sleep(0.2)
if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "{victim}":
    os.kill(os.getpid(), signal.SIGKILL)
from codedla.mpi.program import run
run(lambda pool: 0)
"""
    )
    result = launch.run_job(
        [sys.executable, str(program)], 4, timeout=60, capture=True, begins=True
    )
    assert (result.code != 0, result.reported) == (True, False)
    assert result.seconds < 10
    if launch.find_launcher().ulfm:
        assert result.deserter == victim


@needs_mpi
@pytest.mark.jobs
def test_a_lost_master_ends_the_job(tmp_path, nothing_left):
    body = """
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
    """
    result = launch.run_job(script(tmp_path, body), 3, timeout=60, capture=True)
    assert (result.code != 0, result.reported) == (True, False)
    assert result.seconds < 15


@needs_mpi
@pytest.mark.jobs
@pytest.mark.parametrize("victim", [0, 2, 3])
def test_a_rank_that_ends_before_it_is_seen(tmp_path, nothing_left, victim):
    """Sooner than anybody can look: the launcher knows how many there should be."""
    program = tmp_path / "rank.sh"
    program.write_text(
        f"""
[ "${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}" = {victim} ] && kill -9 $$
exec "$@"
"""
    )
    python = "from codedla.mpi.program import run; run(lambda pool: 0)"
    argv = ["/bin/sh", str(program), sys.executable, "-c", python, str(tmp_path)]
    result = launch.run_job(argv, 4, timeout=60, capture=True, begins=True)
    assert (result.code != 0, result.reported) == (True, False)
    assert result.seconds < 10
    launcher = launch.find_launcher()
    assert result.tolerant is launcher.tolerant
    if launcher.ulfm:
        assert result.deserter == victim
        assert result.reason.startswith(f"rank {victim} ended before the job had a result")
    elif not launcher.tolerant:
        assert re.match(r"a rank was ended( by SIGKILL)?, and this MPI \(mpich", result.reason)


def start(argv: list[str], n_ranks: int, folder: Path, **env: str) -> subprocess.Popen:
    """Run a job as a child, so that its parent can be killed."""
    (folder / "tmp").mkdir()
    code = (
        "import sys; from codedla.mpi.launch import run_job, scratch_folder\n"
        f"with scratch_folder(): code = run_job({argv}, {n_ranks}, begins=True, grace=2.0).code\n"
        "sys.exit(code)"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(folder / "tmp"), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def gone_after(folder: Path, limit: float) -> float:
    """Seconds until no process with this folder in its command line lives."""
    began = time.monotonic()
    while marked(str(folder).encode()) and time.monotonic() - began < limit:
        time.sleep(0.05)
    return time.monotonic() - began


STUBBORN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""
FROZEN = """
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
"""
WAITING = """
print("up", flush=True) if rank == 0 else None
time.sleep(100)
"""


def children(pid: int) -> list[tuple[int, bytes]]:
    """Children of a process with their command lines."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit():
                parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == pid:
                    found.append((int(name), Path(f"/proc/{name}/cmdline").read_bytes()))
        except OSError:
            continue
    return found


def launcher_of(process: subprocess.Popen) -> int:
    (pid,) = [pid for pid, line in children(process.pid) if b"codedla.mpi.guard" not in line]
    return pid


def test_a_guard_finds_the_package_where_only_a_hook_did(monkeypatch):
    """As in an editable installation, whose folder is not on the path."""
    root = Path(launch.__file__).parents[2]
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p or ".").resolve() != root])
    guard = Guard(Leftovers("no-such-job"))
    with pytest.raises(subprocess.TimeoutExpired):
        guard._child.wait(1.5)  # it waits for this process's end, or a word from it
    guard.release()
    assert guard._child.returncode == 0


@needs_mpi
@pytest.mark.jobs
@pytest.mark.parametrize("extra", ["", STUBBORN, FROZEN], ids=["polite", "stubborn", "frozen"])
def test_a_killed_parent_takes_its_job_along(tmp_path, nothing_left, extra):
    argv = script(tmp_path, extra + WAITING)
    with start(argv, 4, tmp_path) as process:
        assert process.stdout.readline() == b"up\n"
        assert len(list((tmp_path / "tmp").glob("codedla-job-*"))) == 2
        process.kill()
        process.wait(10)
        assert gone_after(tmp_path, 20) < 10
    deadline = time.monotonic() + 2
    while list((tmp_path / "tmp").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list((tmp_path / "tmp").iterdir()) == []


@needs_mpi
@pytest.mark.jobs
@pytest.mark.parametrize("extra", ["", FROZEN], ids=["plain", "frozen"])
def test_a_killed_launcher_takes_its_ranks_along(tmp_path, nothing_left, extra):
    with start(script(tmp_path, extra + WAITING), 4, tmp_path) as process:
        assert process.stdout.readline() == b"up\n"
        os.kill(launcher_of(process), signal.SIGKILL)
        assert process.wait(20) == 137
        assert gone_after(tmp_path, 20) < 1
    assert list((tmp_path / "tmp").iterdir()) == []


@needs_mpi
@pytest.mark.jobs
def test_a_frozen_launcher_does_not_hold_the_result(tmp_path, nothing_left):
    argv = script(
        tmp_path, "print('up', flush=True)if rank == 0 else None\ntime.sleep(1)\nleave(0)"
    )
    with start(argv, 3, tmp_path) as process:
        assert process.stdout.readline() == b"up\n"
        began = time.monotonic()
        os.kill(launcher_of(process), signal.SIGSTOP)
        assert process.wait(30) == 0
        assert time.monotonic() - began < 15


@needs_mpi
@pytest.mark.jobs
def test_a_frozen_launcher_is_ended_by_a_signal_to_its_parent(tmp_path, nothing_left):
    with start(script(tmp_path, FROZEN + WAITING), 3, tmp_path) as process:
        assert process.stdout.readline() == b"up\n"
        os.kill(launcher_of(process), signal.SIGSTOP)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
        assert time.monotonic() - began < 12


def test_threads_of_a_job():
    assert launch.thread_environment(1) == launch.thread_environment("auto") == {}
    assert launch.thread_environment(4)["OPENBLAS_NUM_THREADS"] == "4"
