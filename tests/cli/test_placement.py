"""What is wrong with where ranks run, and that nothing is wrong with a good placement."""

from __future__ import annotations

import pytest

from codedla.cli.placement import numbers, oversubscribed, seat, troubles

AVX = ["avx", "avx2", "fma"]


def rank(number, cores, threads=1, **other):
    blas = {"api": "openblas", "version": "0.3", "architecture": "Haswell", "threads": threads}
    blas["architecture"] = other.pop("kernel", "Haswell")
    plain = {
        "rank": number,
        "host": "node1",
        "cores": list(cores),
        "present": 16,
        "physical": len(list(cores)),
        "quota": None,
        "load": 1.0,
        "blas": blas,
        "flags": AVX,
        "vendor": "GenuineIntel",
    }
    return plain | other


def everywhere(count, cores, threads=1, **other):
    return [rank(number, cores, threads, **other) for number in range(count)]


CASES = {
    "one core each": ([rank(r, [r]) for r in range(5)], []),
    "as many workers as cores": (everywhere(17, range(16)), []),
    "threads fill the cores": (everywhere(5, range(16), 4), []),
    "two hosts": ([rank(0, [0]), rank(1, [1]), rank(2, [0], host="node2")], []),
    "all on one core": (
        everywhere(4, [0]),
        [("ranks 0-3 on node1 are all bound to core 0", "--bind-to none")],
    ),
    "too many threads": (
        everywhere(9, range(2), 2),
        [("8 workers with up to 2 BLAS threads on 2 cores of node1", "--threads auto")],
    ),
    "too many workers": (
        everywhere(9, range(2)),
        [("8 workers share 2 cores of node1", "at most one worker per core")],
    ),
    "threads on a narrow binding": (
        [rank(0, [0], 4), rank(1, [1], 4), *(rank(r, range(8, 16)) for r in range(2, 6))],
        [("ranks 1 on node1 have more BLAS threads (4) than cores they are bound to (1)", "PE=4")],
    ),
    "idle cores": (
        everywhere(5, range(16)),
        [
            (
                "4 workers with 4 BLAS threads in all on node1 leave 11 of 16 cores idle",
                "--threads auto",
            )
        ],
    ),
    "hardware threads": (
        everywhere(17, range(16), physical=8),
        [("16 threads on 8 cores of node1, each with 2 hardware threads", "nomultithread")],
    ),
    "a container's share": (
        everywhere(17, range(16), quota=2.0),
        [("get the time of 2.0 cores for 16 BLAS threads", "more CPU")],
    ),
    "other work": (
        [rank(r, [r], load=40.0) for r in range(5)],
        [("host node1 is busy with other work: a load of 40 on 16 cores", "--exclusive")],
    ),
    "old kernel": (
        [rank(r, [r], kernel="Prescott") for r in range(3)],
        [("its Prescott kernel on ranks 0-2, whose processors can do avx2", "CORETYPE=Haswell")],
    ),
    "old kernel on a newer processor": (
        [rank(r, [r], kernel="Nehalem", flags=[*AVX, "avx512f", "avx512bw"]) for r in range(3)],
        [("avx2 and avx512f", "OPENBLAS_CORETYPE=SkylakeX")],
    ),
    "old kernel on an old processor": (
        [rank(r, [r], kernel="Nehalem", flags=["avx"]) for r in range(3)],
        [],
    ),
    "kernels of two kinds": (
        [rank(0, [0]), rank(1, [1]), rank(2, [0], host="node2", kernel="Zen")],
        [("Haswell on ranks 0-1, Zen on ranks 2", "nodes of one kind")],
    ),
    "no BLAS": (
        [rank(0, [0]), rank(1, [1], blas=None)],
        [("the BLAS of ranks 1 is not recognised", "OMP_NUM_THREADS=1")],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_troubles(name):
    ranks, expected = CASES[name]
    found = troubles(ranks)
    assert len(found) == len(expected), found
    for trouble, (text, cure) in zip(found, expected, strict=True):
        assert text in trouble.text
        assert cure in trouble.cure


def test_workers_that_take_turns():
    assert not oversubscribed(everywhere(17, range(16)))
    assert oversubscribed(everywhere(18, range(16)))
    assert oversubscribed([rank(0, [0]), rank(1, [1]), rank(2, [1])])
    assert not oversubscribed([rank(0, [0]), rank(1, [0]), rank(2, [0], host="node2")])


def test_where_a_rank_runs():
    assert seat(rank(3, range(16), 2)) == (
        "on node1, 16 of 16 cores (not bound), 2 BLAS threads, openblas 0.3 Haswell"
    )
    assert "1 of 16 cores (bound to 5), 1 BLAS thread," in seat(rank(3, [5]))
    assert "BLAS not recognised" in seat(rank(3, [5], blas=None))


def test_numbers():
    assert numbers([3, 1, 2, 7]) == "1-3, 7"
    assert numbers([]) == ""
