"""Every command without a product, every error line that is found before MPI starts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from codedla.cli.main import COMMANDS, build_parser, main
from codedla.cli.options import parse_blocks, parse_shape
from codedla.errors import UsageError


@pytest.fixture(autouse=True)
def plain_shell(monkeypatch):
    """No test is taken for a rank of the job that may be running the tests."""
    for name in list(os.environ):
        foreign = name.startswith(("OMPI_", "PMI_", "PMIX_", "SLURM_", "CODEDLA_"))
        if foreign and name != "CODEDLA_SPEEDS":
            monkeypatch.delenv(name)


# ---------------------------------------------------------------- help and version


@pytest.mark.parametrize("command", [module.NAME for module in COMMANDS])
def test_help_of_every_command_has_examples(command, capsys):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "examples:\n" in text
    assert f"codedla {command}" in text


def test_every_option_has_a_help_text():
    parser = build_parser()
    (commands,) = (a for a in parser._actions if hasattr(a, "choices") and a.choices)
    for name, command in commands.choices.items():
        for action in command._actions:
            assert action.help, f"{name} {action.option_strings or action.dest}"


def test_help_lists_every_fault(capsys):
    from codedla.engine.stragglers import FAULTS

    assert main(["matmul", "--help"]) == 0
    text = capsys.readouterr().out
    for kind in FAULTS:
        assert f"\n  {kind}:" in text


@pytest.mark.parametrize("name", ["matmul", "matvec"])
def test_verify_has_the_choices_of_the_library(name):
    from codedla.linalg.product import VERIFY

    commands = next(a for a in build_parser()._actions if a.dest == "command")
    (verify,) = (a for a in commands.choices[name]._actions if a.dest == "verify")
    assert set(verify.choices) == set(VERIFY)


def test_main_help_names_commands_and_exit_codes(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for module in COMMANDS:
        assert module.NAME in text
    assert "exit codes: 0 done" in text


def test_version(capsys):
    import codedla

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"codedla {codedla.__version__}\n"


def test_help_loads_neither_mpi_nor_numpy():
    code = (
        "import sys; from codedla.cli.main import main; main(['matmul', '--help']); "
        "sys.exit(bool({'mpi4py.MPI', 'numpy', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0


def test_only_the_first_rank_speaks(capsys, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert main(["codes"]) == 0
    assert main(["--help"]) == 0
    assert main(["matmul"]) == 0  # the code of the first rank is 2
    assert main(["matmul", "A.npy", "B.npy", "-o", "C.npy", "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    command = f"'{sys.executable}' -m codedla codes --json | head -c 5"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert len(done.stdout) == 5


# ---------------------------------------------------------------- small readers


@pytest.mark.parametrize(
    ("text", "blocks"), [("4", 4), ("2x2", (2, 2)), ("2x3x4", (2, 3, 4)), ("10x1", (10, 1))]
)
def test_blocks(text, blocks):
    assert parse_blocks(text) == blocks


@pytest.mark.parametrize("text", ["", "x", "2x", "0", "2x0", "-1", "2,2", "1x1x1x1", "2X2"])
def test_bad_blocks(text):
    with pytest.raises(UsageError, match="--blocks must be"):
        parse_blocks(text)


def test_shape():
    assert parse_shape("4x5x6") == (4, 5, 6)
    assert parse_shape("4x5") == (4, 5, 1)
    for text in ("4", "4x5x6x7", "ax5", ""):
        with pytest.raises(UsageError, match="--shape must be"):
            parse_shape(text)


# ---------------------------------------------------------------- codes and plan


def test_codes_json(capsys):
    assert main(["codes", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    wanted = {
        "name",
        "operation",
        "threshold",
        "field",
        "systematic",
        "approximate",
        "citation",
        "weakness",
    }
    assert {"uncoded", "mds", "polynomial"} <= {row["name"] for row in rows}
    for row in rows:
        assert wanted <= set(row)
        assert all(row[key] not in ("", None) for key in wanted)


def test_codes_table_and_one_code(capsys):
    assert main(["codes"]) == 0
    table = capsys.readouterr().out
    assert table.splitlines()[0].split()[:2] == ["name", "operation"]
    assert main(["codes", "polynomial"]) == 0
    text = capsys.readouterr().out
    assert "citation" in text
    assert "weakness" in text
    assert max(map(len, text.splitlines())) <= 100


def test_plan_from_shapes(capsys):
    assert main(["plan", "--shape", "4000x4000x4000", "--workers", "8", "--json"]) == 0
    by_workers = json.loads(capsys.readouterr().out)
    assert main(["plan", "--shape", "4000x4000x4000", "--ranks", "9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == by_workers
    assert by_workers["n_workers"] == 8
    assert by_workers["tolerates"] >= 2
    assert main(["plan", "--shape", "4000x4000x4000", "--ranks", "9"]) == 0
    assert f"any {by_workers['threshold']} of " in capsys.readouterr().out
    assert main(["plan", "--shape", "400x400x400", "--ranks", "9", "--speculate", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["speculate"] is True


def test_plan_from_files(matrices, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["A.npy", "B.npy", "--ranks", "5", "--code", "polynomial", "--blocks", "2x1", "--json"]
    assert main(["plan", *words]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["shape"], plan["grid"], plan["threshold"]) == ([30, 20, 10], [2, 1, 1], 2)


def test_dry_run_prints_the_plan_and_writes_nothing(matrices, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["matmul", "A.npy", "B.npy", "-o", "C.npy", "--ranks", "6", "--dry-run"]
    assert main(words) == 0
    assert "needs" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_workers"] == 5
    assert sorted(p.name for p in tmp_path.iterdir()) == ["A.npy", "B.npy"]


# ---------------------------------------------------------------- doctor


def test_doctor(capsys):
    assert main(["doctor", "--no-probe", "--json"]) in (0, 1)
    document = json.loads(capsys.readouterr().out)
    found = {finding["name"]: finding for finding in document["findings"]}
    assert document["schema"] == "codedla.doctor/1"
    assert {"versions", "kernels", "BLAS", "cores", "memory", "shared memory", "launcher"} <= set(
        found
    )
    assert all(finding["state"] in ("ok", "warn", "fail", "info") for finding in found.values())
    assert found["cores"]["data"]["allowed"] == len(os.sched_getaffinity(0))
    for finding in found.values():
        assert finding["cure"] or finding["state"] in ("ok", "info")


def test_doctor_without_mpi(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "fail  launcher         neither mpirun nor mpiexec was found" in text
    assert "-> pip install" in text


def test_doctor_says_why_the_probe_failed(capsys, monkeypatch, tmp_path):
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho 'There are not enough slots' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("CODEDLA_MPIRUN", str(program))
    assert main(["doctor"]) == 1
    assert "ended with code 1: There are not enough slots" in capsys.readouterr().out


def test_doctor_recognises_a_launcher_of_another_mpi(capsys, monkeypatch, tmp_path):
    program = tmp_path / "mpirun"
    program.write_text('#!/bin/sh\necho \'{"size": 1, "library": "X", "ranks": []}\'\n')
    program.chmod(0o755)
    monkeypatch.setenv("CODEDLA_MPIRUN", str(program))
    assert main(["doctor"]) == 1
    assert "each found itself alone" in capsys.readouterr().out


# ---------------------------------------------------------------- bad input: one line, code 2

RANKS = ["--ranks", "6"]
GOOD = ["A.npy", "B.npy", "-o", "C.npy"]

BAD = {
    "nothing": ([], "required"),
    "unknown command": (["multiply"], "invalid choice"),
    "unknown option": (["matmul", *GOOD, *RANKS, "--colour"], "unrecognized arguments"),
    "no output": (["matmul", "A.npy", "B.npy", *RANKS], "-o/--output"),
    "not a number": (["matmul", *GOOD, "--ranks", "many"], "invalid whole number value: 'many'"),
    "negative": (["matmul", *GOOD, *RANKS, "--timeout", "-1"], "must be positive"),
    "one rank": (["matmul", *GOOD], "a product needs a master and at least one worker; got 1 rank"),
    "one rank asked": (["matmul", *GOOD, "--ranks", "1"], "got 1 rank; add --ranks 5"),
    "inner dimensions": (
        ["matmul", "A.npy", "A.npy", "-o", "C.npy", *RANKS],
        "columns of A = rows of B; got A 30x20 in A.npy and B 30x20 in A.npy",
    ),
    "transposed": (
        ["matmul", "A.npy", "Bt.npy", "-o", "C.npy", *RANKS],
        "it would fit transposed",
    ),
    "vector length": (
        ["matvec", "A.npy", "v.npy", "-o", "C.npy", *RANKS],
        "x must have as many entries as A has columns; got A 30x20 in A.npy and x 30 in v.npy",
    ),
    "missing file": (
        ["matmul", "A.npy", "none.npy", "-o", "C.npy", *RANKS],
        "operand B must be an existing file; got 'none.npy'; check the path",
    ),
    "not a matrix": (
        ["matmul", "v.npy", "B.npy", "-o", "C.npy", *RANKS],
        "operand A must be a matrix (2 dimensions); got shape (30,)",
    ),
    "three dimensions": (
        ["matmul", "A.npy", "cube.npy", "-o", "C.npy", *RANKS],
        "operand B must be a matrix",
    ),
    "vector for matrix": (
        ["matmul", "A.npy", "v.npy", "-o", "C.npy", *RANKS],
        "use codedla matvec",
    ),
    "objects": (
        ["matmul", "object.npy", "B.npy", "-o", "C.npy", *RANKS],
        "must hold numbers; got dtype object",
    ),
    "truncated": (
        ["matmul", "short.npy", "B.npy", "-o", "C.npy", *RANKS],
        "must be complete; got short.npy with 400 of",
    ),
    "format": (
        ["matmul", "A.txt", "B.npy", "-o", "C.npy", *RANKS],
        "operands are .npy, .npz",
    ),
    "too many blocks": (["matmul", *GOOD, *RANKS, "--blocks", "4x4"], "worker"),
    "bad blocks": (["matmul", *GOOD, *RANKS, "--blocks", "two"], "--blocks must be"),
    "too much tolerance": (["matmul", *GOOD, *RANKS, "--tolerate", "5"], "4"),
    "unknown code": (["matmul", *GOOD, *RANKS, "--code", "magic"], "uncoded"),
    "unknown name": (["codes", "magic"], "uncoded"),
    "output exists": (
        ["matmul", "A.npy", "B.npy", "-o", "old.npy", *RANKS],
        "an output must not exist yet; got old.npy; give --force",
    ),
    "report exists": (
        ["matmul", *GOOD, *RANKS, "--report", "old.npy"],
        "an output must not exist yet; got old.npy; give --force",
    ),
    "no directory": (
        ["matmul", "A.npy", "B.npy", "-o", "no/C.npy", *RANKS],
        "directory must exist; got 'no'",
    ),
    "not writable": (
        ["matmul", "A.npy", "B.npy", "-o", "/proc/C.npy", *RANKS],
        "directory must be writable; got '/proc'",
    ),
    "output format": (
        ["matmul", "A.npy", "B.npy", "-o", "C.csv", *RANKS],
        "outputs are .npy or FILE.h5:/dataset",
    ),
    "unknown fault": (["matmul", *GOOD, *RANKS, "--inject", "sleep:1:1"], "delay"),
    "fault of the master": (["matmul", *GOOD, *RANKS, "--inject", "delay:0:1"], "RANK 1, 2"),
    "fault of nobody": (
        ["matmul", *GOOD, *RANKS, "--inject", "delay:6:1"],
        "must name a worker rank, 1 to 5; got 'delay:6:1'",
    ),
    "plan of nothing": (["plan", "--ranks", "4"], "two operands or --shape"),
    "plan of both": (["plan", "A.npy", "B.npy", "--shape", "2x2x2", "--ranks", "4"], "not both"),
    "plan for nobody": (["plan", "A.npy", "B.npy"], "--ranks --workers"),
    "plan of no type": (
        ["plan", "--shape", "2x2x2", "--ranks", "4", "--dtype", "float65"],
        "--dtype must be a NumPy type; got 'float65'",
    ),
    "plan of two types": (
        ["plan", "--shape", "2x2x2", "--ranks", "4", "--dtype", "f8,f4"],
        "operands must be bool",
    ),
    "more ranks than can be": (["matmul", *GOOD, "--ranks", "99999999999"], "at most 20000"),
    "more blocks than can be": (["matmul", *GOOD, *RANKS, "--blocks", "9" * 20], "at most"),
    "report over the product": (
        ["matmul", *GOOD, *RANKS, "--report", "./C.npy"],
        "a report needs a file of its own",
    ),
    "report over an operand": (
        ["matmul", *GOOD, *RANKS, "--report", "A.npy", "--force"],
        "a report needs a file of its own",
    ),
    "product over an operand": (
        ["matmul", "A.npy", "B.npy", "-o", "./A.npy", *RANKS, "--force"],
        "a product needs a place of its own",
    ),
    "product over an operand in HDF5": (
        ["matmul", "AB.h5:/A", "AB.h5:/B", "-o", "./AB.h5:A", *RANKS, "--force"],
        "a product needs a place of its own",
    ),
    "product without a name": (
        ["matmul", "A.npy", "B.npy", "-o", ".", *RANKS],
        "an output must be a file; got the directory '.'",
    ),
    "pipe": (["matmul", "pipe.npy", "B.npy", "-o", "C.npy", *RANKS], "must be an ordinary file"),
    "name too long": (
        ["matmul", "A.npy", "B.npy", "-o", "x" * 300 + ".npy", *RANKS],
        "must have a possible name",
    ),
    "demo with too few ranks": (["demo", "--ranks", "3"], "give 4 or more"),
}


@pytest.fixture
def inputs(matrices, tmp_path, monkeypatch):
    b = matrices[1]
    np.save(tmp_path / "Bt.npy", b.T)
    np.save(tmp_path / "v.npy", np.ones(30))
    np.save(tmp_path / "cube.npy", np.ones((20, 2, 2)))
    np.save(tmp_path / "object.npy", np.full((30, 20), None), allow_pickle=True)
    (tmp_path / "short.npy").write_bytes((tmp_path / "A.npy").read_bytes()[:400])
    (tmp_path / "old.npy").write_text("old")
    (tmp_path / "A.txt").write_text("1 2")
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "AB.h5", "w") as file:
        file["A"], file["B"] = matrices
    os.mkfifo(tmp_path / "pipe.npy")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_code_2(inputs, capsys, case):
    words, message = BAD[case]
    before = sorted(p.name for p in inputs.iterdir())
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("codedla: error: ")
    assert message in line
    assert sorted(p.name for p in inputs.iterdir()) == before


def test_no_mpi_is_one_line_too(inputs, capsys, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(inputs / "python"))
    monkeypatch.setenv("PATH", str(inputs))
    assert main(["matmul", *GOOD, *RANKS]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "starting 6 ranks needs mpirun or mpiexec" in line
    assert "pip install" in line


def test_ranks_must_agree_with_the_launcher(inputs, capsys, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    assert main(["matmul", *GOOD, "--ranks", "5"]) == 2
    assert "got --ranks 5 in a job of 1 ranks" in capsys.readouterr().err
    assert main(["matmul", *GOOD]) == 2
    assert "got 1 rank" in capsys.readouterr().err


def test_the_demo_data_is_packaged():
    from importlib import resources

    folder = resources.files("codedla.data")
    assert "CC BY 4.0" in folder.joinpath("README.md").read_text()
    with folder.joinpath("digits.npz").open("rb") as file, np.load(file) as digits:
        assert digits["images"].shape == (1797, 64)
        assert digits["images"].dtype == digits["labels"].dtype == np.uint8
        assert digits["images"].max() == 16


def test_a_plan_is_explained(program):
    answer = program("plan", "--shape", "400x300x200", "--ranks", 9, "--explain")
    assert (answer.code, answer.err) == (0, "")
    assert "chosen: " in answer.out and "times the predicted time" in answer.out
    assert re.search(
        r"^khatri-rao +3x2 +6 +2 +8\.04 Mflop +\S+ KiB +\S+ MiB ", answer.out, re.MULTILINE
    )
    answer = program("plan", "--shape", "400x300x200", "--ranks", 9, "--explain", "--json")
    rows = json.loads(answer.out)["candidates"]
    assert rows[0]["verdict"].startswith("chosen")
    assert {"threshold", "memory_worker", "flops_worker", "bytes", "worst_amplification"} <= set(
        rows[0]
    )


def test_memory_is_a_size(program):
    words = ("plan", "--shape", "400x300x200", "--ranks", 9)
    assert program(*words, "--memory", "1.5GiB").code == 0
    refused = program(*words, "--memory", "10K")
    assert refused.code == 2 and "worker's memory, more than the 10.0 KiB allowed" in refused.err
    assert "takes less; allow more, or use more workers or a smaller tolerate" in refused.err
    for size in ("much", "0", "-1", "3X"):
        refused = program(*words, f"--memory={size}")
        assert refused.code == 2 and "must be a size like 512M" in refused.err
