"""``codedla solve``: systems in files, on real ranks; its parts without any."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

import codedla
from codedla.cli.checkpoint import Checkpoint
from codedla.cli.files import inspect
from codedla.cli.krylov import METHODS, Krylov, not_reached
from codedla.cli.main import build_parser, main
from codedla.cli.system import _check, _method, _solve
from codedla.engine.stragglers import Delays, parse_fault
from codedla.errors import NotDecodable, UsageError
from codedla.mpi.launch import find_launcher

RNG = np.random.default_rng(40993)
N = 80
GENERAL = RNG.standard_normal((N, N)) / 9 + 3 * np.eye(N)
SPD = GENERAL @ GENERAL.T
SPD = (SPD + SPD.T) / 2
TALL = RNG.standard_normal((N, 30))
B = RNG.standard_normal(N)
SYSTEMS = {"cg": SPD, "minres": SPD, "gmres": GENERAL, "lsqr": TALL, "lsmr": TALL}

needs_mpi = pytest.mark.skipif(find_launcher() is None, reason="no mpirun on this machine")


@pytest.fixture
def system(tmp_path):
    """``A.npy``, ``S.npy`` (positive definite), ``T.npy`` (tall) and ``b.npy``."""
    for name, array in (("A", GENERAL), ("S", SPD), ("T", TALL), ("b", B)):
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path


# -- the iteration ---------------------------------------------------------------------------------


# SciPy's minres is for real matrices.
@pytest.mark.parametrize(
    ("method", "dtype"),
    [(m, d) for m in METHODS for d in ("f8", "c16") if (m, d) != ("minres", "c16")],
)
def test_methods(method, dtype):
    a, b = SYSTEMS[method].astype(dtype), B.astype(dtype)
    if dtype == "c16":
        b = b * (1 + 2j)
    said = []
    faults = [parse_fault("delay:2:0.1"), parse_fault("delay:5:0.1")]
    with (
        codedla.SimulatedPool(8, Delays("exp", (1e-3,)), faults) as pool,
        codedla.aslinearoperator(a, pool=pool) as op,
    ):
        krylov = Krylov(op, b, method=method, rtol=1e-11, maxiter=500, show=said.append)
        krylov._shown = 0  # speak at once
        assert krylov.run()
        assert krylov.reason == ""
        assert 0 < krylov.iterations <= op.totals.rounds
    np.testing.assert_allclose(krylov.x, np.linalg.lstsq(a, b)[0], rtol=1e-8, atol=1e-10)
    assert "late ranks:" in said[0]
    if method in ("cg", "minres", "gmres"):
        assert krylov.residual <= 1e-11


@pytest.mark.parametrize("method", METHODS)
def test_iterations_are_limited_and_resumed(method):
    a = SYSTEMS[method]
    saved = []
    with codedla.SerialPool(5) as pool, codedla.aslinearoperator(a, pool=pool) as op:

        def krylov(maxiter):
            return Krylov(
                op,
                B,
                method=method,
                rtol=1e-10,
                maxiter=maxiter,
                restart=3,
                save=lambda x, n: saved.append((n, x.copy())),
                every=0.0,
            )

        first = krylov(6)
        assert not first.run()
        assert first.iterations == 6
        assert "--maxiter" in first.reason
        assert "after 6 iterations" in str(not_reached(first, "x.npy"))
        count, x = saved[-1]
        assert count == 6
        np.testing.assert_array_equal(x, first.x)
        second = krylov(500)
        assert second.run(x)
    np.testing.assert_allclose(second.x, np.linalg.lstsq(a, B)[0], rtol=1e-7, atol=1e-9)


def test_nothing_to_do_and_nothing_to_be_done():
    with codedla.SerialPool(5) as pool, codedla.aslinearoperator(SPD, pool=pool) as op:
        zero = Krylov(op, np.zeros(N), method="cg", rtol=1e-9, maxiter=9)
        assert zero.run(np.ones(N))
        assert not zero.x.any()
        exact = Krylov(op, B, method="cg", rtol=1e-18, maxiter=9999)
        assert not exact.run()
        assert "does not get smaller" in exact.reason
        assert exact.residual < 1e-13
        late = Krylov(op, B, method="cg", rtol=1e-9, maxiter=99, timeout=1e-9)
        with pytest.raises(NotDecodable, match="not reached in 1e-09 s"):
            late.run()


def test_a_method_that_breaks_down_says_so():
    a = np.diag([1e200, 1.0, -1e200])
    with codedla.SerialPool(3) as pool, codedla.aslinearoperator(a, pool=pool) as op:
        krylov = Krylov(op, np.full(3, 1e150), method="cg", rtol=1e-9, maxiter=50)
        with np.errstate(all="ignore"):
            assert not krylov.run()
    assert "broke down" in krylov.reason


# -- checkpoints -----------------------------------------------------------------------------------


def test_checkpoints(tmp_path):
    path = tmp_path / "state"
    point = Checkpoint(path, "solve", {"A": [1, 2], "b": "x"})
    assert point.load() is None
    point.save(7, x=np.arange(3.0))
    count, arrays = point.load()
    assert count == 7
    np.testing.assert_array_equal(arrays["x"], np.arange(3.0))
    assert [p.name for p in tmp_path.iterdir()] == ["state"]
    with pytest.raises(UsageError, match="or they have changed: A;"):
        Checkpoint(path, "solve", {"A": [1, 3], "b": "x"}).load()
    with pytest.raises(UsageError, match="of codedla solve, not train"):
        Checkpoint(path, "train", {"A": [1, 2], "b": "x"}).load()
    with pytest.raises(UsageError, match=r"must not exist yet.*--resume goes on from it"):
        point.check(resume=False, force=False)
    point.check(resume=True, force=False)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:60], whole.replace(b"c\0\0\0o", b"d\0\0\0o")):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match="complete and undamaged"):
            point.load()
        point.check(resume=False, force=True)
    point.remove()
    assert not path.exists()


@pytest.mark.parametrize("name", ["no/state", "file/state", "/proc/state", "/dev/null", "n" * 300])
def test_a_checkpoint_needs_a_place(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="a file in a directory") as raised:
        Checkpoint(Path(name), "solve").check(resume=False, force=True)
    assert "\n" not in str(raised.value)


def users_files():
    """Files that are no checkpoints, by name."""
    arrays, facts = io.BytesIO(), io.BytesIO()
    np.savez(arrays, X=B)
    np.savez(facts, facts=B)
    array = io.BytesIO()
    np.save(array, B)
    return {
        "b.npy": array.getvalue(),
        "data.npz": arrays.getvalue(),
        "facts.npz": facts.getvalue(),
        "text": b"nonsense",
        "empty": b"",
    }


@pytest.mark.parametrize("name", list(users_files()))
@pytest.mark.parametrize("command", ["solve A.npy b.npy", "pagerank A.npy", "train A.npz"])
def test_a_users_file_is_no_checkpoint(tmp_path, monkeypatch, capsys, command, name):
    """It is not replaced, with --force either, and nobody is told to remove it."""
    monkeypatch.chdir(tmp_path)
    np.save("A.npy", np.array([[0, 1], [1, 0]]))
    np.save("b.npy", np.ones(2))
    np.savez("A.npz", X=np.eye(3), y=np.arange(3))
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / name
    path.write_bytes(users_files()[name])
    output = {"s": "x.npy", "p": "r.csv", "t": "m.npz"}[command[0]]
    line = [*command.split(), "-o", output, "--ranks", "3", "--checkpoint", str(path)]
    for more in ([], ["--resume"], ["--force"], ["--resume", "--force"]):
        assert main([*line, *more]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert "which is none" in said
        assert "another name" in said
        assert "remove" not in said
        assert "--force" not in said
        assert "protocol" not in said
    assert path.read_bytes() == users_files()[name]


# -- the command -----------------------------------------------------------------------------------


def words(text):
    """The words of a command line."""
    return text.split()


@pytest.mark.jobs
@needs_mpi
def test_a_solution_with_a_late_rank(program, system):
    answer = program(
        *words("solve S.npy b.npy -o x.npy --assume spd --ranks 5 --inject delay:2:0.2"),
        *words("--report r.json --rtol 1e-11 --checkpoint c"),
    )
    assert (answer.code, answer.err) == (0, "")
    assert "solved by cg in" in answer.out
    assert "late: rank 2 in most of them" in answer.out
    np.testing.assert_allclose(np.load(system / "x.npy"), np.linalg.solve(SPD, B), rtol=1e-8)
    report = json.loads((system / "r.json").read_text())
    assert report["converged"]
    assert report["residual"] <= 1e-11
    assert report["stragglers"]["2"] > 0.9 * report["rounds"]
    assert report["seconds"] < 0.2 * report["rounds"] / 2, "nobody waits for it"
    assert report["last_round"]["schema"] == "codedla.report/1"
    assert not (system / "c").exists()


@pytest.mark.jobs
@needs_mpi
def test_not_converged_then_resumed(program, system):
    again = words("solve A.npy b.npy -o x.npy --ranks 4 --checkpoint c --restart 5")
    answer = program(*again, "--maxiter", 5, "--json")
    assert answer.code == 1
    assert len(answer.error_lines) == 1
    assert "did not reach --rtol 1e-08" in answer.error_lines[0]
    assert "x as it is has been written to x.npy" in answer.error_lines[0]
    assert not json.loads(answer.out)["converged"]
    first = np.load(system / "x.npy")
    assert 0 < np.linalg.norm(GENERAL @ first - B) < np.linalg.norm(B)
    answer = program(*again, "--resume")
    assert answer.code == 0, answer.err
    assert answer.err == "codedla: going on from iteration 5 in c\n"
    assert ", 5 before: residual" in answer.out
    np.testing.assert_allclose(np.load(system / "x.npy"), np.linalg.solve(GENERAL, B), rtol=1e-6)


@pytest.mark.jobs
@needs_mpi
def test_another_method_goes_on_and_says_so(program, system):
    """What has been reached is a start for any method; minres gave it up for want of --maxiter."""
    again = words("solve S.npy b.npy -o x.npy --ranks 4 --checkpoint c --rtol 1e-11 --json")
    answer = program(*again, *words("--assume symmetric --maxiter 4"))
    assert answer.code == 1
    (error,) = answer.error_lines
    assert "minres did not reach" in error
    assert "--method cg or --assume spd if A is positive definite" in error
    assert "the iterate in c is safe" in answer.err
    assert json.loads(answer.out)["earlier_methods"] == []
    answer = program(*again, *words("--assume spd --maxiter 3 --resume"))
    assert answer.code == 1
    assert "going on from iteration 4 in c, by cg, minres before" in answer.err
    answer = program(*again, *words("--method gmres --resume"))
    assert answer.code == 0, answer.err
    assert answer.err == "codedla: going on from iteration 7 in c, by gmres, minres, cg before\n"
    report = json.loads(answer.out)
    assert (report["earlier_iterations"], report["method"]) == (7, "gmres")
    assert report["earlier_methods"] == ["minres", "cg"]
    np.testing.assert_allclose(np.load(system / "x.npy"), np.linalg.solve(SPD, B), rtol=1e-8)


@pytest.mark.jobs
@needs_mpi
def test_ctrl_c_keeps_the_checkpoint(interrupted, system):
    # Rows of one size: what the decoding may lose of small ones would be a warning.
    turn = np.linalg.qr(RNG.standard_normal((300, 300)))[0]
    hard = (turn * np.logspace(0, 8, 300)) @ turn.T
    np.save(system / "H.npy", (hard + hard.T) / 2)
    np.save(system / "c.npy", np.ones(300))
    answer = interrupted(
        *words("solve H.npy c.npy -o x.npy --ranks 4 --assume spd --rtol 1e-300"),
        *words("--maxiter 100000000 --checkpoint c --checkpoint-every 0.1"),
        *(f"--inject=delay:{rank}:0.01" for rank in (1, 2, 3)),
        when="c",
    )
    assert (answer.code, answer.out) == (130, "")
    assert answer.err.splitlines()[-1] == (
        "codedla: interrupted; the iterate in c is safe: the same command with --resume goes on"
    )
    assert answer.err.count("\n") == 1
    found = {"A.npy", "H.npy", "S.npy", "T.npy", "b.npy", "c", "c.npy"}
    assert {path.name for path in system.iterdir()} == found


@pytest.mark.jobs
@needs_mpi
def test_least_squares_of_a_sparse_file_with_one_set_of_shares(program, system):
    thin = np.where(abs(TALL) > 0.7, TALL, 0)
    sp.save_npz(system / "T.npz", sp.csr_array(thin))
    np.save(system / "column.npy", B[:, None])
    answer = program(
        *words("solve T.npz column.npy -o x.npy --ranks 5 --adjoint shared --rtol 1e-12")
    )
    assert answer.code == 0, answer.err
    assert "solved by lsqr" in answer.out
    x = np.load(system / "x.npy")
    assert x.shape == (30, 1)
    np.testing.assert_allclose(x[:, 0], np.linalg.lstsq(thin, B)[0], rtol=1e-8, atol=1e-10)


def test_auto_takes_what_a_file_says(system):
    scipy.io.mmwrite(system / "S.mtx", sp.coo_array(SPD), symmetry="symmetric")
    scipy.io.mmwrite(system / "H.mtx", sp.coo_array(SPD * (1 + 0j)), symmetry="hermitian")
    for name, more, expected in (
        ("S.mtx", (), "minres"),
        ("H.mtx", (), "gmres"),
        ("H.mtx", ("--assume", "spd"), "cg"),
        ("S.npy", (), "gmres"),
        ("S.npy", ("--assume", "spd"), "cg"),
        ("S.npy", ("--assume", "symmetric"), "minres"),
        ("T.npy", (), "lsqr"),
        ("T.npy", ("--method", "lsmr"), "lsmr"),
    ):
        path = str(system / name)
        args = build_parser().parse_args(["solve", path, "b", "-o", "x.npy", *more])
        assert _method(args, inspect(path, "A")) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("A.npy b.npy -o x.npy", "a solver needs a master and at least one worker"),
        ("A.npy none.npy -o x.npy --ranks 3", "operand b must be an existing file"),
        ("A.npy A.npy -o x.npy --ranks 3", "b must be one vector; got shape (80, 80)"),
        ("T.npy short.npy -o x.npy --ranks 3", "b must have as many entries as A has rows"),
        ("b.npy b.npy -o x.npy --ranks 3", "A must be a matrix with rows and columns"),
        ("T.npy b.npy -o x.npy --ranks 3 --method cg", "is for square matrices; got 80x30"),
        ("A.npy b.npy -o x.npy --ranks 3 --code nope", "unknown code 'nope'"),
        ("A.npy b.npy -o x.npy --ranks 3 --tolerate 2", "tolerate"),
        ("A.npy b.npy -o b.npy --ranks 3 --force", "the solution needs a file of its own"),
        ("A.npy b.npy -o b.npy --ranks 3", "an output must not exist yet"),
        ("A.npy b.npy -o x.txt --ranks 3", "outputs are .npy or FILE.h5:/dataset"),
        ("A.npy b.npy -o x.npy --ranks 3 --checkpoint x.npy", "a checkpoint needs a file"),
        ("A.npy b.npy -o x.npy --ranks 3 --resume", "name it with --checkpoint"),
        ("A.npy b.npy -o x.npy --ranks 3 --inject delay:3:1", "must name a worker rank, 1 to 2"),
        ("A.npy b.npy -o x.npy --ranks 3 --rtol 0", "must be positive"),
        ("A.npy b.npy -o x.npy --ranks 3 --method qmr", "invalid choice"),
        ("A.npy b.npy -o x.npy --ranks 3 --methd cg", "--methd cg (perhaps --method); see codedla"),
        ("A.npy b.npy c.npy -o x.npy --ranks 3", "arguments: c.npy; see codedla solve --help"),
        ("A.npy b.npy -o /proc/x.npy --ranks 3", "an output's directory must be writable"),
        ("A.npy b.npy -o b.npy/x.npy --ranks 3", "an output's directory must exist"),
        ("A.npy b.npy -o x.npy --report /dev/null --force --ranks 3", "an ordinary file"),
        (
            "A.npy b.npy -o x.npy --ranks 3 --checkpoint-every 5",
            "got --checkpoint-every 5 alone; name a file with --checkpoint, or leave it out",
        ),
        (
            "A.npy b.npy -o x.npy --ranks 3 --method cg --restart 5",
            "--restart is of gmres; got --restart 5 with --method cg; leave it out, or take --meth",
        ),
        (
            "A.npy b.npy -o x.npy --ranks 3 --assume symmetric --restart 20",
            "got --restart 20 with minres, which auto takes here; leave it out",
        ),
        (
            "A.npy b.npy -o x.npy --ranks 3 --adjoint separate",
            "--adjoint is of lsqr and lsmr; got --adjoint separate with gmres, which auto takes",
        ),
        ("T.npy b.npy -o x.npy --ranks 3 --restart 5", "with lsqr, which auto takes here"),
        ("A.npy b.npy -o x.npy --ranks 3 --method minres --adjoint shared", "--adjoint shared"),
        ("T.npy b.npy -o x.npy --ranks 3 --assume spd", "--assume spd is for square matrices"),
        ("S.npy b.npy -o x.npy --ranks 3 --assume general --method cg", "got --assume general"),
    ],
)
def test_bad_usage_is_one_line(system, monkeypatch, capsys, line, message):
    np.save(system / "short.npy", B[:7])
    monkeypatch.chdir(system)
    assert main(["solve", *words(line)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_what_only_the_entries_show_is_said_before_anybody_computes(system, monkeypatch):
    monkeypatch.chdir(system)
    spoilt = B.copy()
    spoilt[7] = np.nan
    np.save("nan.npy", spoilt)
    for line, message in (
        (["A.npy", "b.npy", "--method", "cg"], "is for symmetric .* A.npy is none, "),
        (["A.npy", "nan.npy"], "a system must be finite"),
        (
            ["A.npy", "b.npy", "--adjoint", "shared", "--code", "mds", "--method", "lsqr"],
            "those of",
        ),
    ):
        args = build_parser().parse_args(["solve", *line, "-o", "x.npy", "--ranks", "4"])
        pool = codedla.SerialPool(3)
        pool.run = None
        with pool, pytest.raises(UsageError, match=message):
            _solve(args, _check(args, None), pool)
    assert not (system / "x.npy").exists()
