"""``codedla pagerank``: files of all kinds in, ranks out, one line for what is wrong."""

from __future__ import annotations

import csv
import gzip
import json

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

import codedla
from codedla import UsageError
from codedla.cli.graphs import check_graph, load_graph
from codedla.mpi.launch import find_launcher

EDGES = np.array([[30, 7], [30, 9], [7, 9], [9, 30], [100, 9], [100, 30], [9, 5], [30, 7]])
TEXT = "# Directed graph\n# FromNodeId\tToNodeId\n" + "".join(f"{a}\t{b}\n" for a, b in EDGES)

jobs = pytest.mark.jobs
launched = pytest.mark.skipif(find_launcher() is None, reason="no mpirun on this machine")


def links(graph):
    coo = graph.links.tocoo()
    return {
        (int(graph.nodes[i]), int(graph.nodes[j])): value
        for i, j, value in zip(coo.row, coo.col, coo.data, strict=True)
    }


@pytest.fixture
def expected():
    with codedla.SerialPool(2) as pool:
        found = codedla.pagerank(EDGES, pool=pool, tol=1e-12)
    return dict(zip(found.nodes.tolist(), found.ranks, strict=True))


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain.txt", TEXT),
        ("more columns.txt", "\n".join(f"{a} {b} 17 0.5" for a, b in EDGES)),
        ("comma.csv", "# from,to\n" + "\n".join(f"{a},{b}" for a, b in EDGES)),
        ("konect", "% directed\n\n" + "\n".join(f" {a}  {b} " for a, b in EDGES)),
        ("zipped.txt.gz", TEXT),
    ],
)
def test_edge_lists(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    check_graph(str(path))
    assert links(load_graph(str(path))) == {tuple(edge): 1.0 for edge in EDGES.tolist()}


@pytest.mark.parametrize("comment", [b"\xef\xbb\xbf", b"# Gr\xe4ph\n", "# Gräph\n".encode()])
def test_text_of_any_encoding(tmp_path, comment):
    path = tmp_path / "edges.txt"
    path.write_bytes(comment + b"1 2\n2 1\n")
    check_graph(str(path))
    assert links(load_graph(str(path))) == {(1, 2): 1.0, (2, 1): 1.0}


def test_matrices_and_arrays(tmp_path):
    A = sp.coo_array(([2.0, 1.0, 3.0], ([0, 1, 3], [1, 0, 2])), shape=(5, 5))
    sp.save_npz(tmp_path / "a.npz", A.tocsr())
    scipy.io.mmwrite(tmp_path / "a.mtx", A)
    np.save(tmp_path / "a.npy", EDGES)
    from_zero, from_one = (load_graph(str(tmp_path / name)) for name in ("a.npz", "a.mtx"))
    assert links(from_zero) == {(0, 1): 2.0, (1, 0): 1.0, (3, 2): 3.0}
    assert links(from_one) == {(1, 2): 2.0, (2, 1): 1.0, (4, 3): 3.0}
    assert from_one.nodes.tolist() == [1, 2, 3, 4, 5]
    assert links(load_graph(str(tmp_path / "a.npy"))) == {tuple(e): 1.0 for e in EDGES.tolist()}


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("none.txt", None, "an existing file"),
        ("words.txt", b"alice bob\n", "two integer ids.*line 1: 'alice bob'.*begin it with #"),
        (
            "header.csv",
            b"# x\n\nsource,target\n1,2\n",
            "line 3: 'source,target'.* a header, remove",
        ),
        ("later.txt", b"1 2\nalice bob\n", r"line 2: 'alice bob'\); convert it, or"),
        ("one.txt", b"# x\n1 2\n3\n", "two integer ids.*line 3: '3'"),
        ("real.txt", b"1.5 2\n", "two integer ids"),
        ("late.txt", b"1 2\n" * 1500 + b"1 x\n", "two integer ids.*row 1500"),
        ("empty.txt", b"", "got no links"),
        ("comments.txt", b"# nothing\n", "got no links"),
        ("cut.txt.gz", gzip.compress(TEXT.encode() * 9)[:-12], "complete, readable file"),
        ("not.txt.gz", b"1 2\n", "complete, readable file"),
        ("binary.txt", bytes(range(128, 256)), "must be text.* got .*which is not text; name"),
        ("zeros.txt", bytes(100), "must be text"),
        ("wide.txt", "1 2\n".encode("utf-16"), "must be text"),
        ("archive.txt", gzip.compress(b"1 2\n"), "must be text.* with the ending .gz"),
        ("huge.txt", b"1 99999999999999999999\n", "two integer ids"),
    ],
)
def test_files_that_are_no_graphs(tmp_path, name, data, message):
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(UsageError, match=message):
        check_graph(str(path))
        load_graph(str(path))


# ---------------------------------------------------------------- wrong usage


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "needs a master and at least one worker"),
        (("--ranks", 3, "-o", "r.txt"), "ranks go to .csv or .npy"),
        (("--ranks", 3, "-o", "g.csv"), "must not exist yet"),
        (("--ranks", 3, "--damping", 1), "must be from 0 up to"),
        (("--ranks", 3, "--personalize", "x"), "integer ids, separated by commas"),
        (("--ranks", 3, "--erasures", 0.3), "--erasures 0.3 is for decoding from any replies"),
        (("--ranks", 3, "--weight", 2, "--round-deadline", 1), "--weight 2 and --round-deadline 1"),
        (
            ("--ranks", 5, "--decode", "substitute", "--weight", 99),
            "--weight is at most the number of blocks, 2 with 4 workers; got 99; use a smaller",
        ),
        (("--ranks", 5, "--decode", "stale", "--weight", 2), "got --weight 2 with --decode stale"),
        (("--ranks", 5, "--decode", "stale", "--blocks", 9), "--blocks are at most one a worker"),
        (("--ranks", 5, "--decode", "substitute", "--tolerate", 4), "--tolerate is below the 4"),
        (("--ranks", 5, "--decod", "stale"), "(perhaps --decode); see codedla pagerank --help"),
        (("--ranks", 3, "--checkpoint-every", 5), "got --checkpoint-every 5 alone"),
        (("--ranks", 3, "-o", "/proc/r.csv"), "an output's directory must be writable"),
        (("--ranks", 3, "-o", "g.csv/r.csv"), "an output's directory must exist"),
        (("--ranks", 3, "--checkpoint", "/proc/c"), "in a directory that can be written to"),
        (("--ranks", 3, "--decode", "substitute", "--code", "mds"), "got --code"),
        (("--ranks", 3, "--decode", "stale", "--blocks", "2x2"), "got --blocks 2x2"),
        (("--ranks", 3, "--resume"), "name it with --checkpoint"),
        (("--ranks", 3, "--checkpoint", "none/c"), "a checkpoint must be a file"),
        (("--ranks", 3, "--report", "r.csv"), "are different files"),
        (("--ranks", 3, "--inject", "kill:9:1"), "must name a worker rank"),
    ],
)
def test_wrong_usage_is_one_line(program, tmp_path, words, message):
    (tmp_path / "g.csv").write_text(TEXT)
    output = () if "-o" in words else ("-o", "r.csv")
    done = program("pagerank", "g.csv", *output, *words)
    assert done.code == 2
    assert len(done.error_lines) == len(done.err.splitlines()) == 1
    assert message in done.err
    assert not (tmp_path / "r.csv").exists()


# ---------------------------------------------------------------- on ranks


@jobs
@launched
def test_ranks_report_and_top(program, tmp_path, expected):
    (tmp_path / "g.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    done = program(
        "pagerank", "g.txt.gz", "-o", "r.csv", "--ranks", 4, "--report", "r.json", "--tol", 1e-12
    )
    assert (done.code, done.err) == (0, "")
    assert "pagerank of 5 nodes and 7 links, decoding exact" in done.out
    with (tmp_path / "r.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    ranks = {int(row["id"]): float(row["rank"]) for row in rows}
    assert list(ranks.values()) == sorted(ranks.values(), reverse=True)
    assert ranks == pytest.approx(expected, abs=1e-10)
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["schema"] == "codedla.iteration/1"
    assert (report["nodes"], report["links"], report["converged"]) == (5, 7, True)
    assert report["last_round"]["n_workers"] == 3
    again = program("pagerank", "g.txt.gz", "-o", "r.npy", "--ranks", 4, "--top", 2, "-q")
    assert (again.code, again.out, again.err) == (0, "", "")
    best = np.load(tmp_path / "r.npy")
    assert best["id"].tolist() == [int(row["id"]) for row in rows[:2]]
    assert not list(tmp_path.glob(".*.part"))


@jobs
@launched
def test_a_drill_with_missing_replies_and_a_preference(program, tmp_path):
    (tmp_path / "g.txt").write_text(TEXT)
    done = program(
        *("pagerank", "g.txt", "-o", "r.npy", "--ranks", 6, "--decode", "substitute"),
        *("--erasures", 0.3, "--personalize", "100,7", "--damping", 0.5, "--seed", 3, "--json"),
    )
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert (report["decode"], report["converged"]) == ("substitute", True)
    with codedla.SerialPool(2) as pool:
        found = codedla.pagerank(EDGES, pool=pool, damping=0.5, personalization=[100, 7], tol=1e-12)
    got = np.load(tmp_path / "r.npy")
    assert dict(got.tolist()) == pytest.approx(dict(found.top()), abs=1e-8)


@jobs
@launched
def test_ranks_that_did_not_settle_are_written_and_gone_on_from(program, tmp_path, expected):
    (tmp_path / "g.txt").write_text(TEXT)
    command = (
        "pagerank",
        "g.txt",
        "-o",
        "r.csv",
        "--ranks",
        3,
        "--checkpoint",
        "c",
        "--tol",
        1e-12,
    )
    done = program(*command, "--rounds", 4)
    assert done.code == 1
    error, kept = done.err.splitlines()
    assert "did not settle in 4 rounds" in error
    assert kept == "codedla: the iterate in c is safe: the same command with --resume goes on"
    assert (tmp_path / "r.csv").exists()
    assert (tmp_path / "c").exists()
    changed = program(*command, "--resume", "--force", "--damping", 0.5)
    assert changed.code == 2
    assert "damping" in changed.error_lines[0]
    few = program(*command, "--resume", "--force", "--rounds", 4)
    assert few.code == 2
    assert "counts those of earlier runs" in few.error_lines[0]
    rest = program(*command, "--resume", "--force", "--json")
    assert rest.code == 0, rest.err
    assert "going on from round 4" in rest.err
    report = json.loads(rest.out)
    assert report["rounds_in_all"] == report["rounds"] + 4
    assert not (tmp_path / "c").exists()
    rows = list(csv.DictReader((tmp_path / "r.csv").read_text().splitlines()))
    ranks = {int(row["id"]): float(row["rank"]) for row in rows}
    assert ranks == pytest.approx(expected, abs=1e-10)


@jobs
@launched
def test_an_unknown_id_and_a_time_out(program, tmp_path):
    (tmp_path / "g.txt").write_text(TEXT)
    done = program("pagerank", "g.txt", "-o", "r.csv", "--ranks", 3, "--personalize", "31")
    assert done.code == 2
    assert "got 31, which no link has" in done.error_lines[0]
    slow = ("--timeout", 0.001, "--tol", 1e-300, "--checkpoint", "c")
    late = program("pagerank", "g.txt", "-o", "r.csv", "--ranks", 3, *slow)
    assert late.code == 3
    assert "did not settle within 0.001 s" in late.error_lines[0]
    assert (tmp_path / "c").exists()
    assert not (tmp_path / "r.csv").exists()


@jobs
@launched
def test_one_round_is_one(program, tmp_path):
    (tmp_path / "g.txt").write_text("1 2\n")
    done = program("pagerank", "g.txt", "-o", "r.csv", "--ranks", 3, "--tol", 10)
    assert done.code == 0, done
    assert "of 2 nodes and 1 link, decoding exact: 1 round, last change" in done.out
    done = program("pagerank", "g.txt", "-o", "s.csv", "--ranks", 3, "--rounds", 1)
    assert "did not settle in 1 round:" in done.error_lines[0]


@jobs
@launched
def test_ctrl_c_keeps_the_checkpoint(interrupted, tmp_path):
    (tmp_path / "g.txt").write_text(TEXT)
    words = "pagerank g.txt -o r.csv --ranks 4 --tol 1e-300 --rounds 1000000000 --checkpoint c"
    slow = [f"--inject=delay:{rank}:0.05" for rank in (1, 2, 3)]
    done = interrupted(*words.split(), *slow, "--checkpoint-every", 0.1, when="c")
    assert (done.code, done.out) == (130, "")
    assert done.err == (
        "codedla: interrupted; the iterate in c is safe: the same command with --resume goes on\n"
    )
    assert {path.name for path in tmp_path.iterdir()} == {"g.txt", "c"}
