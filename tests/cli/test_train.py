"""``codedla train``: labelled data of all formats, on real ranks; what it refuses without any."""

from __future__ import annotations

import gzip
import json
import struct

import numpy as np
import pytest

import codedla
from codedla.cli.datasets import load_data
from codedla.cli.main import main
from codedla.errors import UsageError
from codedla.iterative.descent import Descent, ScaledNet
from codedla.iterative.mlp import MLP
from codedla.mpi.launch import find_launcher

needs_mpi = pytest.mark.skipif(find_launcher() is None, reason="no mpirun on this machine")
RNG = np.random.default_rng(77003)
CENTRES = 40 * RNG.standard_normal((3, 6)) + 128
Y = RNG.integers(0, 3, 240)
X = np.clip(CENTRES[Y] + 12 * RNG.standard_normal((240, 6)), 0, 255).astype(np.uint8)


def idx(array, code=8):
    return struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The same data in all formats, in the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").write_bytes(idx(X.reshape(-1, 2, 3)))
    (tmp_path / "images.gz").write_bytes(gzip.compress(idx(X.reshape(-1, 2, 3))))
    (tmp_path / "labels.gz").write_bytes(gzip.compress(idx(Y.astype(np.uint8))))
    np.savez(tmp_path / "data.npz", X=X, y=Y)
    rows = [f"{','.join(map(str, x))},c{y}" for x, y in zip(X, Y, strict=True)]
    (tmp_path / "data.csv").write_text("\n".join(["a,b,c,d,e,f,kind", *rows]) + "\n")
    turned = [f"{y};{x}".replace(";", ",") for y, x in zip(Y, X[:, 0], strict=True)]
    (tmp_path / "turned.txt").write_text("\n".join(turned))
    return tmp_path


# -- data ------------------------------------------------------------------------------------------


def test_formats_give_the_same_data(files):
    for words in (("images", "labels.gz"), ("images.gz", "labels.gz"), ("data.npz",)):
        data = load_data(*words)
        assert np.array_equal(data.X, X)
        assert data.X.dtype == np.uint8
        assert np.array_equal(data.y, Y)
        assert data.classes.tolist() == [0, 1, 2]
    for label in (None, "kind", "7"):
        data = load_data("data.csv", label=label)
        assert np.array_equal(data.X, X)
        assert np.array_equal(data.y, Y)
        assert data.classes.tolist() == ["c0", "c1", "c2"]
    data = load_data("turned.txt", label="1")
    assert np.array_equal(data.classes[data.y], Y)
    assert np.array_equal(data.X[:, 0], X[:, 0])


def test_features_are_scaled_where_they_are(files):
    bytes_, numbers = load_data("data.npz"), load_data("data.csv")
    for data, low, high in ((bytes_, 0.0, 1.0), (numbers, -6.0, 6.0)):
        shift, scale = data.scaling(200)
        seen = ScaledNet(MLP((6, 3)), shift, scale).inputs(data.X)
        assert seen.dtype == np.float32
        assert low <= seen.min() < seen.max() <= high
    np.testing.assert_allclose(seen[:200].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(seen[:200].std(axis=0), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("short.gz", gzip.compress(idx(X))[:-30], "complete"),
        ("half", idx(X)[:-5], "its header says"),
        ("noise", b"hello, world", "data are IDX files"),
        ("bad.npz", b"PK", "complete"),
    ],
)
def test_damaged_data_are_one_line(files, name, content, words):
    (files / name).write_bytes(content)
    labels = "labels.gz" if "." not in name or name.endswith(".gz") else None
    with pytest.raises(UsageError, match=words):
        load_data(name, labels)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a,b\n1,2\nx,3\n", "got 'x' in line 3, column 1 ('a') of t.csv; give a number or drop"),
        (b"a,b,c\n1,,2\n3,4,5\n", "got an empty cell in line 2, column 2 ('b') of t.csv"),
        (b"a,b\n1,2\n\n,3\n", "got an empty cell in line 4, column 1 ('a') of t.csv"),
        (b"a,b\n1,2\n3,4\n,\n", "got an empty cell in line 4, column 1"),
        (b"a,b\n1,2\nnan,3\n", "must be finite numbers; got 'nan' in line 3, column 1 ('a')"),
        (b"a,b\n1e999,2\n3,3\n", "got '1e999' in line 2, column 1 ('a')"),
        (b"1,2,3\n4,x,5\n", "got 'x' in line 2, column 2 of t.csv"),
        (b"0,1,label\n4,7,x\n5,6,y\n", ""),
        (b"0,one,kind\n4,7,x\n5,6,y\n", "got 'one' in line 1, column 2 of t.csv; names of columns"),
        (b"a,b\n1,2\n3,\n", "every row has a label; got an empty cell in line 3 of t.csv"),
        (b"a,b\n1,2\n1,2,3\n", "got 3 in line 3 of t.csv, not 2; correct that line"),
        (b"a,b\n1,2\n1\n", "got 1 in line 3 of t.csv, not 2"),
        (b'a,b\n"1\n",2\n1,2,3\n', "got 3 in line 4 of t.csv, not 2"),
        (b"a;b\n1;2\n3;4\n", "got one column in t.csv; write commas"),
        (b"a,b\n1,2\n3,\xe9\n", "text in UTF-8; got byte 0xe9 in line 3 of t.csv; convert it"),
        (b"a,b\n1,nan\n3,4\n", "labels must be finite"),
        (b"a,b\n1,2\n3,2\n", "a classifier needs two classes; got 2 alone; check t.csv"),
        (b"a,b\n1,x\n3,x\n", "a classifier needs two classes; got 'x' alone; check t.csv"),
        (b"a,b\n", "a table has rows of data; got none in t.csv"),
        (b"", "a table has rows of data; got none in t.csv"),
    ],
)
def test_what_is_wrong_in_a_table_is_named_by_its_place(files, content, words):
    (files / "t.csv").write_bytes(content)
    if not words:
        assert load_data("t.csv").X.tolist() == [[4, 7], [5, 6]]
        return
    with pytest.raises(UsageError) as raised:
        load_data("t.csv")
    assert words in str(raised.value)
    assert "fetch" not in str(raised.value)


def test_long_numbers_as_labels_stay_apart(files):
    (files / "long.csv").write_text(
        "1,9007199254740992\n2,9007199254740993\n3,100000000000000000000\n"
    )
    assert sorted(load_data("long.csv").y.tolist()) == [0, 1, 2]


def test_what_is_no_number_in_other_files(files):
    np.savez("objects.npz", X=np.array([[1], ["a"]], dtype=object), y=np.arange(2))
    with pytest.raises(UsageError, match=r"got Python objects in objects\.npz"):
        load_data("objects.npz")
    np.savez("words.npz", X=np.array([["1"], ["a"]]), y=np.arange(2))
    with pytest.raises(UsageError, match="features must be real numbers; got <U1 in"):
        load_data("words.npz")
    np.savez("one.npz", X=np.eye(2), y=np.array(["x", "x"]))
    with pytest.raises(UsageError, match=r"got 'x' alone; check one\.npz"):
        load_data("one.npz")
    with pytest.raises(UsageError, match=r"two IDX files; got data\.csv, which is none"):
        load_data("images", "data.csv")


# -- the descent -----------------------------------------------------------------------------------


def test_a_descent_goes_on_as_it_would_have_gone():
    net = ScaledNet(MLP((6, 5, 3)), np.zeros(6), np.full(6, 255.0))
    start = net.net.start(3)
    with (
        codedla.SerialPool(4) as pool,
        codedla.CodedGradient(net, (X, Y), pool=pool) as gradient,
    ):
        whole = Descent(start, 0.1, batches=4, seed=5)
        ends = list(whole.run(gradient, 11))
        assert [place + 1 for place, end in enumerate(ends) if end] == [4, 8]
        first = Descent(start, 0.1, batches=4, seed=5)
        list(first.run(gradient, 6))
        second = Descent(first.theta, 0.1, 4, 5, velocity=first.velocity, rounds=6)
        list(second.run(gradient, 11))
    assert np.array_equal(second.theta, whole.theta)
    assert first.losses + second.losses == whole.losses
    assert whole.losses[-1] < whole.losses[0]


# -- the program -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("nothing.npz -o m.npz --ranks 3", "must be an existing file"),
        ("images -o m.npz --ranks 3", "IDX images need their labels"),
        ("data.npz labels.gz -o m.npz --ranks 3", "hold their labels"),
        ("data.npz -o m.npz --ranks 3 --label 2", "--label is for CSV"),
        ("data.npz -o m.npz", "needs a master and at least one worker"),
        ("data.npz -o m.npy --ranks 3", "a model goes to .npz"),
        ("data.npz -o data.npz --ranks 3", "must not exist yet"),
        ("data.npz -o data.npz --ranks 3 --force", "are different files"),
        ("data.npz -o m.npz --ranks 3 --scheme magic", "scheme must be one of"),
        ("data.npz -o m.npz --ranks 3 --stragglers 2", "more than 2 workers"),
        ("data.npz -o m.npz --ranks 6 --robust krum", "equal standing"),
        ("data.npz -o m.npz --ranks 3 --model logistic --hidden 5,6", "got --hidden 5,6; use"),
        ("data.npz -o m.npz --ranks 3 --scheme magic", "--scheme must be one of cyclic, "),
        (
            "data.npz -o m.npz --ranks 3 --scheme uncoded --stragglers 1",
            "--stragglers 1; use --",
        ),
        ("data.npz -o m.npz --ranks 6 --scheme bibd", "or --scheme expander"),
        ("data.npz -o m.npz --ranks 6 --robust krum", "--robust krum compares"),
        (
            "data.npz -o m.npz --ranks 6 --robust majority",
            "got --scheme cyclic; use --scheme fractional, or --robust locate",
        ),
        ("data.npz -o m.npz --ranks 6 --robust vote", "--robust must be one of majority, locate"),
        (
            "data.npz -o m.npz --ranks 6 --errors 2",
            "--errors are found by a robust method; got --errors 2 without one; add --robust loc",
        ),
        ("data.npz -o m.npz --ranks 5 --scheme fractional --stragglers 2", "or --scheme cyclic"),
        ("data.csv -o m.npz --ranks 3 --checkpoint-every 5", "got --checkpoint-every 5 alone"),
        (
            "data.csv -o m.npz --ranks 3 --learning 5",
            "(perhaps --learning-rate); see codedla",
        ),
        ("data.csv -o /proc/m.npz --ranks 3", "an output's directory must be writable"),
        ("data.csv -o data.npz/m.npz --ranks 3", "an output's directory must exist"),
        ("data.csv -o m.npz --ranks 3 --checkpoint /proc/c", "in a directory that can be written"),
        ("data.npz -o m.npz --ranks 3 --hidden 5,x", "list of whole numbers"),
        ("data.npz -o m.npz --ranks 3 --epochs 2 --iterations 3", "leave one out"),
        ("data.npz -o m.npz --ranks 3 --validation 1", "not including, 1"),
        ("data.npz -o m.npz --ranks 3 --resume", "name it with --checkpoint"),
        ("data.npz -o m.npz --ranks 3 --checkpoint data.csv", "must not exist yet"),
        ("data.npz -o nowhere/m.npz --ranks 3", "directory"),
        ("data.npz -o m.npz --ranks 3 --inject delay:9:1", "worker rank, 1 to 2"),
    ],
)
def test_errors_are_one_line_before_any_rank_works(files, capsys, words, said):
    assert main(["train", *words.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("codedla: error: ")
    assert said in line
    assert "='" not in line, "these are words of Python"


def test_an_unknown_column_of_labels_has_a_cure(files):
    with pytest.raises(UsageError) as raised:
        load_data("data.csv", label="species")
    assert str(raised.value) == (
        "--label must be a column of data.csv, which has a, b, c, d, e, f, kind; got 'species'; "
        "give one of these names, or a number from 1 to 7"
    )
    with pytest.raises(UsageError, match="which has columns 1 to 2; got '3'; give a number from"):
        load_data("turned.txt", label="3")
    names = ",".join(f"p{place}" for place in range(700))
    (files / "wide.csv").write_text(f"{names}\n{'1,' * 699}2\n")
    with pytest.raises(UsageError, match=r"p11 and 688 more; got 'x'; give .* 1 to 700$"):
        load_data("wide.csv", label="x")


@pytest.mark.jobs
@needs_mpi
def test_it_trains_with_a_late_rank_and_is_gone_on_with(files, program):
    words = ["train", "images.gz", "labels.gz", "--ranks", 4, "--hidden", "8", "--batch", 40]
    words += ["--learning-rate", 0.1, "--inject", "delay:2:0.2"]
    done = program(*words, "-o", "a.npz", "--epochs", 12, "--report", "r.json")
    assert done.code == 0, done
    assert "accuracy" in done.out
    report = json.loads((files / "r.json").read_text())
    assert report["stragglers"]["2"] > 30
    assert report["rounds"] == 12 * report["batches"] == report["epochs"][-1]["round"]
    assert report["epochs"][-1]["loss"] < report["epochs"][0]["loss"]
    assert report["epochs"][-1]["accuracy"] > 0.9

    model = np.load(files / "a.npz")
    net = MLP(model["sizes"])
    found = net.predict(model["theta"], (X - model["shift"]) / model["scale"])
    assert np.mean(model["classes"][found] == Y) > 0.9

    more = ["--iterations", 60, "--checkpoint", "c.ckpt"]
    stopped = program(*words, "-o", "b.npz", *more, "--timeout", 0.001)
    assert stopped.code == 3, stopped
    assert "training did not end within 0.001 s" in stopped.error_lines[0]
    assert not (files / "b.npz").exists()
    again = program(*words, "-o", "b.npz", *more, "--resume")
    assert again.code == 0, again
    assert "going on from round 1 in c.ckpt" in again.err
    assert not (files / "c.ckpt").exists()
    np.testing.assert_allclose(np.load(files / "b.npz")["theta"], model["theta"], atol=1e-2)


@pytest.mark.jobs
@needs_mpi
@pytest.mark.parametrize("rate", [1e30, 1e300])
def test_a_rate_that_is_too_large_is_said(files, program, rate):
    done = program(
        "train", "data.csv", "-o", "m.npz", "--ranks", 3, "--learning-rate", rate, "--hidden", 4
    )
    assert done.code == 1, done
    assert done.err.splitlines() == done.error_lines
    assert "use a smaller one" in done.error_lines[0]
    assert not (files / "m.npz").exists()


@pytest.mark.jobs
@needs_mpi
def test_one_round_is_one_and_other_options_are_named(files, program):
    words = ["train", "data.npz", "--ranks", 3, "-o", "m.npz"]
    done = program(*words, "--iterations", 1)
    assert done.code == 0, done
    assert " 1 round, " in done.out
    words += ["--force", "--checkpoint", "c"]
    stopped = program(*words, "--iterations", 50, "--timeout", 1e-6)
    assert stopped.code == 3, stopped
    assert stopped.err.splitlines()[1:] == [
        "codedla: the state in c is safe: the same command with --resume goes on"
    ]
    for more in (["--learning-rate", 0.2], ["--hidden", 4], ["--batch", 40], ["--seed", 5]):
        again = program(*words, "--iterations", 50, "--resume", *more)
        assert again.code == 2
        (error,) = again.error_lines
        name = {"--hidden": "sizes", "--batch": "batches"}.get(more[0], more[0][2:])
        assert f"changed: {name.replace('-', ' ')}; use those, or begin again with another" in error
    again = program(*words, "--iterations", 50, "--resume", "--scheme", "uncoded")
    assert again.code == 0, "how it is coded may change"
    assert "going on from round 1 in c" in again.err


@pytest.mark.jobs
@needs_mpi
def test_ctrl_c_keeps_the_checkpoint(interrupted, files):
    before = {path.name for path in files.iterdir()}
    words = "train data.npz -o m.npz --ranks 4 --iterations 100000000 --checkpoint c"
    done = interrupted(*words.split(), "--checkpoint-every", 0.1, when="c")
    assert (done.code, done.out) == (130, "")
    assert done.err == (
        "codedla: interrupted; the state in c is safe: the same command with --resume goes on\n"
    )
    assert {path.name for path in files.iterdir()} - before == {"c"}
