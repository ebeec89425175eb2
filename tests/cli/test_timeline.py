"""``--trace`` and ``--timeline``: checked before the run, written whole, readable."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from codedla.cli import timeline
from codedla.cli.timeline import COLOURS, check_outputs, draw, write_timeline, write_trace
from codedla.engine.report import Report
from codedla.engine.round import Event, Span
from codedla.engine.timeline import lay_out
from codedla.errors import UsageError
from codedla.mpi.launch import find_launcher

ROOT = Path(__file__).parents[2]


def story(n_ranks, panels=1):
    """Reports in which rank 2 is late, rank 3 dies, and rank 1 takes over its share."""
    rng = np.random.default_rng(16180)
    reports = []
    for panel in range(panels):
        spans, events = [], []
        for worker in range(n_ranks - 1):
            sent = 0.01 * worker + 0.01
            spans += [
                Span(-1, "encode", sent - 0.01, sent, worker),
                Span(-1, "send", sent, sent + 0.03, worker),
                Span(worker, "receive", sent, sent + 0.03, worker),
            ]
            if worker == 2:
                continue
            done = sent + 0.03 + (3.0 if worker == 1 else rng.uniform(0.3, 0.5))
            spans.append(Span(worker, "compute", sent + 0.03, done, worker))
            if worker != 1:
                spans += [
                    Span(worker, "reply", done, done + 0.02, worker),
                    Span(-1, "check", done + 0.02, done + 0.025, worker),
                    Span(-1, "fold", done + 0.025, done + 0.03, worker),
                ]
                events.append(Event(done + 0.02, "reply", worker))
        if n_ranks > 3:
            events += [Event(0.5, "lost", 2, "killed"), Event(0.9, "redispatched", 0)]
            spans += [Span(2, "lost", 0.5, 1.5, 2), Span(0, "compute", 0.9, 1.4, 2)]
        spans.append(Span(-1, "decode", 1.5, 1.6))
        reports.append(
            Report(
                "matmul",
                "khatri-rao",
                n_ranks - 1,
                n_ranks - 2,
                {},
                "float64",
                grid="2x1x3",
                stragglers=[2],
                lost={3: "killed"} if n_ranks > 3 else {},
                spans=spans,
                events=events,
                began=100.0 + 2.0 * panel,
                times={"total": 1.6, "after_threshold": 0.1},
            )
        )
    return reports


# ---------------------------------------------------------------- before the run


def options(folder, trace=None, picture=None, **more):
    values = {"a": "A.npy", "b": "B.npy", "output": "C.npy", "report": None, "force": False}
    values |= {"trace": trace, "timeline": picture} | more
    for name in ("a", "b", "output", "report", "trace", "timeline"):
        if values[name] is not None:
            values[name] = str(folder / values[name])
    return argparse.Namespace(**values)


@pytest.mark.parametrize("picture", [None, "t.png", "t.svg", "t.pdf", "T.PNG"])
@pytest.mark.parametrize("trace", [None, "t.json"])
def test_good_outputs(tmp_path, trace, picture):
    if picture is not None:
        pytest.importorskip("matplotlib")
    check_outputs(options(tmp_path, trace, picture))
    assert list(tmp_path.iterdir()) == []


BAD = {
    "suffix of a trace": (("t.txt", None), {}, "--trace must end in .json; got .*t.txt"),
    "suffix of a picture": ((None, "t.jpg"), {}, "--timeline must end in .png or .svg or .pdf"),
    "no suffix": ((None, "t"), {}, "--timeline must end in"),
    "no directory": (("no/t.json", None), {}, "directory must exist"),
    "a directory": (("d.json", None), {}, "must be a file"),
    "exists": (("old.json", None), {}, "must not exist yet.*--force"),
    "picture exists": ((None, "old.png"), {}, "must not exist yet.*--force"),
    "the report": (
        ("t.json", None),
        {"report": "t.json"},
        "--trace needs a file of its own; got .*t.json, which is also --report",
    ),
    "an operand": (("old.json", None), {"a": "old.json", "force": True}, "also operand A"),
    "behind a link": (("link.json", None), {"b": "old.json", "force": True}, "the other operand"),
    "the product": (
        (None, "old.png"),
        {"output": "old.png", "force": True},
        "--timeline needs .* also the product",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_outputs(tmp_path, case):
    (trace, picture), more, message = BAD[case]
    (tmp_path / "old.json").write_text("old")
    (tmp_path / "old.png").write_text("old")
    (tmp_path / "d.json").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "old.json")
    with pytest.raises(UsageError, match=message):
        check_outputs(options(tmp_path, trace, picture, **more))


def test_forced_outputs_may_exist(tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("t.json", "t.png"):
        (tmp_path / name).write_text("old")
    check_outputs(options(tmp_path, "t.json", "t.png", force=True))


def test_no_matplotlib_is_said_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"t.png needs the package matplotlib.*codedla\[plot\]"):
        check_outputs(options(tmp_path, None, "t.png"))
    check_outputs(options(tmp_path, "t.json"))


def test_matplotlib_is_loaded_for_pictures_only(tmp_path):
    code = (
        "import sys, pathlib; from codedla.cli.timeline import write_trace; "
        "write_trace(pathlib.Path(sys.argv[1]), []); print('matplotlib' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "t.json"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "False\n"
    assert (tmp_path / "t.json").exists()


# ---------------------------------------------------------------- after the run


def test_a_trace_is_written_whole(tmp_path):
    path = tmp_path / "t.json"
    path.write_text("old")
    write_trace(path, story(9, panels=2), hosts={4: "node4"})
    data = json.loads(path.read_text())
    names = {
        e["pid"]: e["args"]["name"] for e in data["traceEvents"] if e["name"] == "process_name"
    }
    assert names[0] == "rank 0, master"
    assert names[4] == "rank 4 on node4"
    assert len(names) == 9
    computed = [e for e in data["traceEvents"] if e["name"] == "compute"]
    assert len(computed) == 2 * 8
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


@pytest.mark.parametrize(("n_ranks", "panels"), [(3, 1), (9, 5), (64, 2)])
def test_a_picture(tmp_path, n_ranks, panels):
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    path = tmp_path / "t.png"
    write_timeline(path, story(n_ranks, panels))
    image = imread(path)
    tall, wide = image.shape[:2]
    assert wide == 1320
    # A lane per rank, tall enough for its label, and bounded.
    assert 33 * n_ranks < tall < 33 * n_ranks + 300
    for kind in ("encode", "send", "compute", "reply", "decode"):
        colour = np.array([int(COLOURS[kind][i : i + 2], 16) / 255 for i in (1, 3, 5)])
        there = np.abs(image[..., :3] - colour).max(axis=2) < 0.01
        assert there.sum() > 100, kind
    assert [p.name for p in tmp_path.iterdir()] == ["t.png"]


@pytest.mark.parametrize(
    ("suffix", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF"), ("PNG", b"\x89P")]
)
def test_other_formats(tmp_path, suffix, start):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"t.{suffix}"
    write_timeline(path, story(4))
    content = path.read_bytes()
    assert content.startswith(start)
    if suffix == "svg":
        assert b"</svg>" in content


def test_a_picture_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    path = tmp_path / "t.png"
    path.write_text("old")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_timeline(path, story(4))
    assert [p.name for p in tmp_path.iterdir()] == ["t.png"]
    assert path.read_text() == "old"


@pytest.fixture
def drawn():
    pytest.importorskip("matplotlib")

    def read(reports):
        figure = draw(lay_out(reports))
        (axes,) = figure.axes
        (legend,) = figure.legends
        labels = [text.get_text() for text in axes.get_yticklabels()]
        return axes, labels, [text.get_text() for text in legend.get_texts()]

    return read


def test_lanes_legend_and_title(drawn):
    axes, labels, legend = drawn(story(6, panels=2))
    assert labels == ["master", "rank 1", "rank 2 (late)", "rank 3 (lost)", "rank 4", "rank 5"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1] == 0.0, "the master on top"
    assert legend == [
        "encode",
        "send",
        "receive",
        "compute",
        "a share of another rank",
        "reply",
        "check",
        "fold",
        "decode",
        "lost or not answering",
        "lost",
        "takes over a share",
        "replies suffice",
    ]
    title = axes.get_title(loc="left")
    assert title == "matmul, code khatri-rao, grid 2x1x3, 5 workers, 2 panels: 5.05 s"
    assert axes.get_xlabel() == "seconds"


def test_a_quiet_run_has_a_short_legend(drawn):
    quiet = Report("matvec", "mds", 2, 2, {}, "float64", spans=[Span(0, "compute", 0.0, 1.0, 0)])
    _, labels, legend = drawn([quiet])
    assert labels == ["master", "rank 1", "rank 2"]
    assert legend == ["compute"]


def test_the_line_is_where_the_replies_sufficed(drawn):
    axes, _, _ = drawn(story(5, panels=2))
    lines = [
        path.vertices[:, 0].tolist()
        for collection in axes.collections
        if "LineCollection" in type(collection).__name__
        for path in collection.get_paths()
    ]
    assert np.allclose(lines, [[1.5, 1.5], [3.5, 3.5]])


def test_kinds_unknown_here_are_drawn_and_named(drawn):
    odd = Report("matmul", "mds", 2, 2, {}, "f8", spans=[Span(0, "swap", 0.0, 1.0)])
    assert drawn([odd])[2] == ["swap"]


def test_thousands_of_ranks_are_cut_but_not_their_losses():
    pytest.importorskip("matplotlib")
    spans = [Span(w, "compute", 0.0, 1.0, w) for w in range(5000)]
    many = Report("matmul", "mds", 5000, 4990, {}, "f8", spans=spans, lost={4321: "killed"})
    figure = draw(lay_out([many]))
    (axes,) = figure.axes
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert len(labels) == 130
    assert labels[-1] == "rank 4321 (lost)"
    assert "4871 more ranks are not drawn" in axes.get_xlabel()
    assert figure.get_figheight() == 24.0


def test_nothing_to_draw(tmp_path):
    pytest.importorskip("matplotlib")
    write_timeline(tmp_path / "t.png", [])
    write_timeline(tmp_path / "u.png", Report("matmul", "mds", 2, 2, {}, "f8"))
    assert (tmp_path / "t.png").stat().st_size > 1000


# ---------------------------------------------------------------- on real ranks

LAUNCHER = find_launcher()


@pytest.mark.jobs
@pytest.mark.skipif(LAUNCHER is None, reason="no mpirun on this machine")
def test_both_from_a_job(program, matrices, tmp_path):
    pytest.importorskip("matplotlib")
    done = program(
        *("matmul", "A.npy", "B.npy", "-o", "C.npy", "--ranks", 5, "--panel-rows", 15),
        *("--trace", "t.json", "--timeline", "t.png", "--inject", "delay:2:0.3"),
        timeout=60,
    )
    assert done.code == 0, done.err
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["A.npy", "B.npy", "C.npy", "t.json", "t.png"]
    )
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    timed = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if "ts" in e]
    rounds = [e for e in timed if e.get("cat") == "round"]
    assert [e["args"]["panel"] for e in rounds] == [1, 2]
    assert rounds[0]["ts"] + rounds[0]["dur"] <= rounds[1]["ts"]
    computed = {e["pid"] for e in timed if e["name"] == "compute"}
    assert computed >= {1, 3, 4}
    assert {e["name"] for e in timed if e["pid"] == 0} >= {"encode", "send", "decode"}
    # Clocks are aligned: nobody replies to a round before it begins, or after the last one ends.
    end = max(e["ts"] + e["dur"] for e in rounds)
    replies = [e for e in timed if e["ph"] == "X" and e["pid"] in (1, 3, 4)]
    assert all(-1000 < e["ts"] <= e["ts"] + e["dur"] < end + 1000 for e in replies)


@pytest.mark.jobs
@pytest.mark.skipif(LAUNCHER is None, reason="no mpirun on this machine")
def test_bad_outputs_end_the_program_before_a_job_begins(program, matrices, tmp_path):
    words = ("matmul", "A.npy", "B.npy", "-o", "C.npy", "--ranks", 3)
    done = program(*words, "--timeline", "t.jpg", timeout=60)
    assert done.code == 2
    assert done.error_lines == [done.err.strip()]
    assert "--timeline must end in .png or .svg or .pdf" in done.err
    assert not (tmp_path / "C.npy").exists()


# ---------------------------------------------------------------- colours

# What eyes without one kind of cones see (Machado, Oliveira, Fernandes 2009), in linear RGB.
EYES = {
    "full colour": np.eye(3),
    "no red cones": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "no green cones": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "no blue cones": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}


def lab(colour, eyes):
    """CIE L*a*b* of a hexadecimal sRGB colour as these eyes see it."""
    srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(eyes @ linear, 0.0, 1.0)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ linear / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eyes", EYES)
def test_colours_can_be_told_apart(eyes):
    seen = {kind: lab(colour, EYES[eyes]) for kind, colour in COLOURS.items()}
    near = {
        pair: float(np.linalg.norm(seen[pair[0]] - seen[pair[1]]))
        for pair in itertools.combinations(seen, 2)
    }
    pair = min(near, key=near.get)
    assert near[pair] > 15, (pair, near[pair])


def test_red_and_green_of_the_same_brightness_would_not_pass():
    eyes = EYES["no green cones"]
    assert np.linalg.norm(lab("#B85C00", eyes) - lab("#7A7A00", eyes)) < 10


def test_every_sign_has_a_meaning():
    labels = {}
    for sign in timeline._SIGNS.values():
        labels.setdefault((sign.marker, sign.fill), set()).add(sign.label)
    assert all(len(meanings) == 1 for meanings in labels.values())
