"""``codedla bench``: what it measures, what it concludes, and what it refuses."""

from __future__ import annotations

import json
import os

import pytest

from codedla.cli.main import main
from codedla.cli.measure import CASES, Measurement, new_figures
from codedla.cli.verdict import Case, Figures, slow_ranks, table, verdict
from codedla.engine.stragglers import parse_fault
from codedla.errors import VerificationFailed
from codedla.measured.speeds import load
from codedla.mpi.launch import command, find_launcher
from codedla.pools.serial import SerialPool

LAUNCHER = find_launcher()
on_ranks = pytest.mark.skipif(LAUNCHER is None, reason="no mpirun on this machine")


def figures(uncoded=(1.0, 5.0), coded=(1.5, 1.6), numpy=4.0, flops=(10.0, 10.0, 9.5)) -> Figures:
    """Figures of three runs each, with these medians."""

    def case(name, options, times):
        healthy, slow = times
        runs = (0.9, 1.0, 1.2)
        return Case(
            name, options, "code", "", [healthy * r for r in runs], [slow * r for r in runs]
        )

    return Figures(
        size=1000,
        n_workers=3,
        threads=1,
        slow_rank=1,
        factor=5.0,
        cases=[
            case("uncoded", "--code uncoded", uncoded),
            case("tolerate 1", "--tolerate 1", coded),
            Case("tolerate 9", "--tolerate 9", impossible="too few workers"),
        ],
        matvec=case("round of A @ x", "", (1e-3, 2e-3)),
        numpy=[numpy],
        numpy_matvec=[5e-4],
        numpy_threads=2,
        flops={rank: 1e9 * speed for rank, speed in enumerate(flops, 1)},
        bandwidth_out=2e9,
        bandwidth_in=1e9,
        latency=1e-4,
        bytes=4e8,
    )


# ---------------------------------------------------------------- what the figures mean


def test_what_redundancy_costs_and_buys():
    said = " ".join(verdict(figures()))
    assert "tolerate 1 takes 1.50 times as long as uncoded" in said
    assert "uncoded takes 5.00 times its healthy time, tolerate 1 1.07 times" in said


@pytest.mark.parametrize(
    ("uncoded", "coded", "advice"),
    [
        # 0.5 s lost when all are well, 3.4 s won when not: worth it in 0.5 / 3.9 = 13 % of cases.
        ((1.0, 5.0), (1.5, 1.6), "Use tolerate 1 (--tolerate 1) where more than 13% of"),
        ((1.0, 5.0), (1.02, 1.1), "Use tolerate 1 (--tolerate 1): it costs next to nothing"),
        ((1.0, 1.6), (1.5, 1.5), "Use --code uncoded as long as all ranks are well"),
        ((1.0, 1.4), (1.5, 1.6), "Use --code uncoded for products of this size"),
    ],
)
def test_which_code_to_use(uncoded, coded, advice):
    assert sum(text.startswith(advice) for text in verdict(figures(uncoded, coded))) == 1


def test_the_share_of_slow_products_that_pays():
    (text,) = [t for t in verdict(figures((1.0, 1.6), (1.5, 1.5))) if "all ranks are well;" in t]
    assert "more than 83% of the products" in text  # 0.5 lost, 0.1 won


def test_whether_to_distribute_at_all():
    fast = " ".join(verdict(figures(numpy=0.5)))
    assert "NumPy on the master alone is 2 times as fast as uncoded" in fast
    slow = " ".join(verdict(figures(numpy=4.0)))
    assert "Uncoded is 4 times as fast as NumPy on the master alone" in slow
    # 0.4 GB at 2 GB/s out and 1 GB/s in: 4/3 GB/s, 0.3 s of 1 s.
    assert "about 30% of the uncoded time" in slow


def test_ranks_that_are_slow_are_named():
    assert slow_ranks({1: 10.0, 2: 10.0, 3: 8.4}) == []
    assert slow_ranks({1: 10.0, 2: 7.0, 3: 10.0, 4: 2.0, 5: 10.0}) == [2, 4]
    assert slow_ranks({1: 1.0}) == []
    said = " ".join(verdict(figures(flops=(10.0, 5.0, 10.0))))
    assert "Slow beside the median rank: rank 2 (50%)" in said
    assert "--tolerate 1 does not wait for it" in said
    assert "No rank is more than 20 % slower" in " ".join(verdict(figures()))


def test_one_worker_can_do_nobody_elses_work():
    lonely = figures()
    lonely.cases = lonely.cases[:1]
    said = " ".join(verdict(lonely))
    assert "With one worker there is nobody" in said
    assert "Start at least two workers" in said


def test_figures_that_are_worth_little_say_so():
    assert not any("turn" in text or "rough" in text for text in verdict(figures()))
    few = figures()
    few.cases[0].healthy, few.cases[0].slow = [1.0], [5.0]
    few.cases[1].healthy, few.cases[1].slow = [1.5], [1.6]
    assert any(text.startswith("A single turn says little") for text in verdict(few))
    rough = figures()
    rough.cases[0].healthy = [1.0, 1.5, 1.6]
    assert any("took from 1 to 1.6 s" in text for text in verdict(rough))


def test_the_table():
    text = table(figures())
    lines = text.splitlines()
    assert lines[0].split() == ["healthy", "rank", "1", "slow", "code"]
    assert lines[1].split()[:4] == ["NumPy,", "master", "4", "s"]
    assert lines[2].split() == ["uncoded", "1", "s", "1.00", "5", "s", "5.00", "code"]
    assert "not possible: too few workers" in lines[4]
    assert "2 GB/s from the master, 1 GB/s to it; smallest round 0.1 ms" in text
    assert "Gflop/s of rank 1: 10, 2: 10, 3: 9.5" in text


# ---------------------------------------------------------------- measuring


def test_stages_take_turns_and_fill_everything_in():
    found, steps = new_figures(96, 4, 1, 1, 5.0), []
    measurement = Measurement(found, 2, 60.0, 1, lambda: steps.append(1))
    for _ in range(4):
        with SerialPool(4) as pool:
            measurement.stage(pool)
    assert len(steps) == Measurement.steps(found, 2)
    assert [case.name for case in found.possible] == [name for name, _, _ in CASES]
    for case in [*found.cases, found.matvec]:
        assert (len(case.healthy), len(case.slow)) == (2, 2), case.name
        assert case.code
    assert sorted(found.flops) == [1, 2, 3, 4]
    assert min(found.bandwidth_out, found.bandwidth_in, found.latency) > 0
    assert found.bytes >= 96 * 96 * 8
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["schema"] == "codedla.bench/1"
    assert document["medians"]["uncoded"]["slow"] > 0


def test_no_turn_is_begun_when_time_is_up():
    found = new_figures(64, 2, 1, 1, 5.0)
    measurement = Measurement(found, 3, 0.0, 1)
    for _ in range(6):
        with SerialPool(2) as pool:
            measurement.stage(pool)
    assert (len(found.cases[0].healthy), len(found.cases[0].slow)) == (1, 1)


def test_what_few_workers_cannot_do_is_said():
    found = new_figures(64, 1, 1, 1, 5.0)
    assert found.cases[0].impossible == ""
    assert all("at least one worker must answer" in c.impossible for c in found.cases[-2:])


def test_a_wrong_product_is_no_figure():
    measurement = Measurement(new_figures(64, 2, 1, 1, 5.0), 1, 60.0, 1)
    with (
        SerialPool(2, faults=[parse_fault("corrupt:1:1.0:flip")]) as pool,
        pytest.raises(VerificationFailed, match="must agree with NumPy's"),
    ):
        measurement.stage(pool)


def test_the_picture():
    pytest.importorskip("matplotlib")
    from codedla.cli.picture import draw_bench

    assert draw_bench(figures()).startswith(b"\x89PNG\r\n")


# ---------------------------------------------------------------- the command


BAD = {
    "no ranks": ([], "a master and at least one worker"),
    "one rank": (["--ranks", "1"], "got 1 rank"),
    "no number": (["--ranks", "many"], "--ranks"),
    "no size": (["--ranks", "3", "--size", "0"], "--size"),
    "fewer rows than workers": (["--ranks", "9", "--size", "7"], "every worker needs a row"),
    "no memory": (["--ranks", "3", "--size", "10000000"], "must fit into memory"),
    "no repeats": (["--ranks", "3", "--repeats", "0"], "--repeats"),
    "faster": (["--ranks", "3", "--slow", "0.5"], "at least 1"),
    "no fault": (["--ranks", "3", "--inject", "sleepy:1"], "sleepy"),
    "no such rank": (["--ranks", "3", "--inject", "slow:7:2"], "7"),
    "threads": (["--ranks", "3", "--threads", "0"], "--threads"),
    "no picture": (["--ranks", "3", "--png", "b.pdf"], "must end in .png"),
    "no folder": (["--ranks", "3", "--png", "nowhere/b.png"], "nowhere"),
    "nowhere to save": (["--ranks", "3", "--save"], "CODEDLA_SPEEDS"),
    "no operands": (["A.npy", "--ranks", "3"], "A.npy"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_code_2(name, capsys, monkeypatch, tmp_path):
    for variable in list(os.environ):
        if variable.startswith(("OMPI_", "PMI_", "PMIX_", "SLURM_")):
            monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CODEDLA_SPEEDS", "")
    words, said = BAD[name]
    assert main(["bench", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("codedla: error:")
    assert said in line


@on_ranks
def test_on_ranks_with_everything(program, tmp_path):
    pytest.importorskip("matplotlib")
    speeds = tmp_path / "mine" / "speeds.json"
    words = ("--ranks", 4, "--size", 96, "--repeats", 1, "--inject", "slow:3:9")
    done = program(
        *("bench", *words, "--json", "--save", "--png", "b.png"), CODEDLA_SPEEDS=str(speeds)
    )
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["n_workers"] == 3
    assert document["slow_ranks"] == [3]
    assert any("rank 3" in text for text in document["verdict"])
    assert len(document["ranks"]) == 4
    assert all(len(c["healthy"]) == len(c["slow"]) == 1 for c in document["cases"])
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
    assert load(speeds).flops > 0
    planned = program("plan", "--shape", "100x100x100", "--ranks", 4, CODEDLA_SPEEDS=str(speeds))
    assert "(measured on " in planned.out
    again = program("bench", "--ranks", 4, "--png", "b.png")
    assert again.code == 2
    assert "--force" in again.error_lines[0]


@on_ranks
def test_under_a_launcher_it_speaks_in_words(program):
    line = tuple(command(LAUNCHER, 3, []))
    done = program("bench", "--size", 64, "--repeats", 1, before=line)
    assert done.code == 0, done.err
    assert "64 x 64 float64 on 3 ranks, 1 thread each; medians of 1 turn;" in done.out
    assert "- When all ranks are well, replicated takes" in done.out


@on_ranks
def test_bad_input_under_a_launcher_ends_all_ranks(program):
    line = tuple(command(LAUNCHER, 3, []))
    done = program("bench", "--size", 1, before=line, timeout=60)
    assert done.code == 2
    assert "every worker needs a row" in done.error_lines[0]


@on_ranks
def test_a_lost_rank_ends_the_bench_with_a_message(program):
    words = ("--ranks", 3, "--size", 400, "--repeats", 9, "--inject", "kill:2:0.5")
    done = program("bench", *words, timeout=90)
    assert done.code == 1, done.err
    assert "rank 2 " in done.error_lines[0]
