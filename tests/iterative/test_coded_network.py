"""A network trained on coded weights is the plain network, whoever is late, lost or wrong."""

import itertools

import numpy as np
import pytest

import codedla
from codedla.codes.locate import locate
from codedla.engine.stragglers import parse_fault
from codedla.engine.updates import catch_up
from codedla.errors import CodedlaWarning, NotDecodable, UsageError, VerificationFailed
from codedla.iterative.coded_network_matrix import codes_for
from codedla.views import Unreadable


class Plain:
    """The same network in plain NumPy, samples as columns."""

    def __init__(self, weights, activation, loss, rate):
        self.weights = [(w.copy(), b.copy()) for w, b in weights]
        self.activation, self.loss, self.rate = activation, loss, rate

    def outputs(self, X):
        values = [X.T]
        for place, (w, b) in enumerate(self.weights):
            s = w @ values[-1] + b[:, None]
            if place < len(self.weights) - 1:
                s = {
                    "relu": lambda s: np.maximum(s, 0),
                    "tanh": np.tanh,
                    "logistic": lambda s: 1 / (1 + np.exp(-s)),
                }[self.activation](s)
            values.append(s)
        return values

    def step(self, X, y):
        *values, s = self.outputs(X)
        if self.loss == "squares":
            loss, delta = 0.5 * np.sum((s - y.T) ** 2) / len(X), s - y.T
        else:
            p = np.exp(s - s.max(axis=0)) / np.exp(s - s.max(axis=0)).sum(axis=0)
            loss = -np.mean(np.log(p[y, np.arange(len(y))]))
            delta = p - np.eye(len(p))[:, y]
        for place in range(len(self.weights) - 1, -1, -1):
            w, b = self.weights[place]
            x = values[place]
            back = w.T @ delta
            w -= self.rate / len(X) * delta @ x.T
            b -= self.rate / len(X) * delta.sum(axis=1)
            slope = {
                "relu": lambda x: (x > 0).astype(float),
                "tanh": lambda x: 1 - x**2,
                "logistic": lambda x: x * (1 - x),
            }[self.activation](x)
            delta = back * slope
        return loss


def problem(sizes, loss="softmax", samples=90, seed=3):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((samples, sizes[0]))
    if loss == "squares":
        return X, np.tanh(X @ rng.standard_normal((sizes[0], sizes[-1])))
    return X, np.argmax(X @ rng.standard_normal((sizes[0], sizes[-1])), axis=1)


def train(pool, sizes, steps, *, meddle=None, activation="relu", loss="softmax", **options):
    """Train coded and plain side by side; return the network's tally and the largest difference."""
    X, y = problem(sizes, loss)
    net = codedla.CodedNetwork(
        sizes, pool=pool, activation=activation, loss=loss, rate=0.05, **options
    )
    with net:
        plain = Plain(net.weights(), activation, loss, 0.05)
        rng = np.random.default_rng(8)
        for step in range(steps):
            if meddle is not None:
                meddle(step)
            rows = rng.choice(len(X), 8 + step % 3, replace=False)
            assert net.step(X[rows], y[rows]) == pytest.approx(
                plain.step(X[rows], y[rows]), rel=1e-9
            )
        off = max(
            np.linalg.norm(got - due) / np.linalg.norm(due)
            for pair, other in zip(net.weights(), plain.weights, strict=True)
            for got, due in zip(pair, other, strict=True)
        )
        tally = net.tally
    assert not pool._resident, "closing frees the workers' memory"
    return tally, off


def patterns():
    """Delays of a new random order of the workers in every round."""
    return lambda rng, n: rng.permutation(n).astype(float)


@pytest.mark.parametrize(
    ("sizes", "blocks", "options"),
    [
        ((7, 5, 3), (2, 2), {}),
        ((7, 11, 3), (3, 2), {"activation": "tanh"}),
        ((5, 9, 1), (2, 3), {"loss": "squares"}),
        ((6, 4), (2, 2), {}),
        ((13, 1, 6, 2), (1, 3), {"activation": "logistic", "loss": "squares"}),
        ((7, 5, 3), (2, 2), {"nodes": "unity"}),
        ((7, 5, 3), (4, 1), {"checkpoint": 3, "reencode": 7}),
    ],
)
def test_it_is_the_plain_network_for_every_pattern_of_survivors(sizes, blocks, options):
    with codedla.SimulatedPool(12, delays=patterns(), seed=5) as pool:
        tally, off = train(pool, sizes, 40, blocks=blocks, **options)
    assert off < 1e-9
    # Who answers changes from round to round, so that most workers have something to catch up on.
    assert tally.replayed + tally.regenerated > 20
    assert not tally.lost


def test_shares_are_sent_once_and_updates_after_that():
    sizes = (400, 60, 10)
    with codedla.SerialPool(6) as pool:
        supplied = []
        fetch = pool.fetch

        def counting(worker, operand):
            if operand.key and (worker, operand.key) not in pool._resident:
                supplied.append(worker)
            return fetch(worker, operand)

        pool.fetch = counting
        _, off = train(pool, sizes, 30, blocks=(2, 2), tolerate=0)
    assert off < 1e-9
    # Five workers forward and one more backward; a share and its age for each of two layers.
    assert len(supplied) <= 2 * 2 * 6


def test_losses_in_the_middle_are_made_up_for():
    faults = [parse_fault("kill:2:0.04"), parse_fault("kill:5:0.07"), parse_fault("hang:6:0.1")]
    with (
        codedla.SimulatedPool(8, faults=faults, seed=2) as pool,
        pytest.warns(CodedlaWarning, match="was lost"),
    ):
        # Five are left where six are needed backward: others take over the lost shares.
        tally, off = train(pool, (9, 7, 3), 60, blocks=(2, 2))
    assert sorted(tally.lost) == [2, 5, 6]
    assert off < 1e-9


def test_damaged_shares_are_found_named_and_made_again():
    with codedla.SimulatedPool(10, delays=patterns(), seed=1) as pool:
        rng = np.random.default_rng(4)
        damaged = []

        def meddle(step):
            if step % 5 == 4:
                chosen = [place for place, held in pool._resident.items() if held.dtype != int]
                place = chosen[rng.integers(len(chosen))]
                pool._resident[place] += rng.standard_normal(pool._resident[place].shape)
                damaged.append(place[0] + 1)

        with pytest.warns(CodedlaWarning, match="answered wrongly"):
            tally, off = train(pool, (9, 7, 3), 40, blocks=(2, 2), correct=2, meddle=meddle)
    assert off < 1e-9
    assert tally.wrong
    assert set(tally.wrong) <= set(damaged)
    assert tally.regenerated >= sum(tally.wrong.values())


@pytest.mark.parametrize("kind", ["entry", "nan", "scale", "stale"])
def test_a_liar_is_named_and_then_not_asked_any_more(kind):
    with (
        codedla.SerialPool(9, faults=[parse_fault(f"corrupt:3:1:{kind}")]) as pool,
        pytest.warns(CodedlaWarning, match="rank 3 answered wrongly"),
    ):
        tally, off = train(pool, (9, 7, 3), 20, blocks=(2, 2), correct=1)
    assert off < 1e-9
    assert tally.wrong == {3: 3}


def test_too_many_errors_raise_and_the_step_is_not_taken():
    X, y = problem((9, 7, 3))
    with codedla.SerialPool(8) as pool:
        options = {"blocks": (2, 2), "tolerate": 0, "correct": 1}
        with codedla.CodedNetwork((9, 7, 3), pool=pool, **options) as net:
            net.fit(X, y, epochs=1)
            before, steps = net.weights(), net.steps
            held = [(place, a.copy()) for place, a in pool._resident.items() if a.ndim == 2]
            rng = np.random.default_rng(0)
            for (worker, _), share in pool._resident.items():
                if worker < 5 and share.dtype != int:
                    share += rng.standard_normal(share.shape)
            with pytest.raises(VerificationFailed):
                net.step(X, y)
            assert net.steps == steps
            for place, share in held:
                pool._resident[place][...] = share
            for (w, b), (old_w, old_b) in zip(net.weights(), before, strict=True):
                np.testing.assert_allclose(w, old_w, atol=1e-12)
                np.testing.assert_allclose(b, old_b, atol=1e-12)


def test_too_few_workers_left_raise():
    faults = [parse_fault(f"kill:{rank}:0") for rank in range(1, 7)]
    with (
        codedla.SimulatedPool(6, faults=faults) as pool,
        codedla.CodedNetwork((5, 3), pool=pool, tolerate=0) as net,
        pytest.raises(NotDecodable),
    ):
        net.predict(np.ones((1, 5)))


def test_random_errors_up_to_all_spares_but_one_are_told():
    code = codes_for(8, (2, 2), "chebyshev")["whole"]
    rng = np.random.default_rng(6)
    blocks = rng.standard_normal((4, 3, 2))
    right = np.einsum("wk,krc->wrc", code.generator, blocks)
    for wrong in itertools.combinations(range(8), 3):
        replies = right.copy()
        replies[list(wrong)] += rng.standard_normal((3, 3, 2))
        found = locate(code, range(8), list(replies), rng=rng, independent=True)
        assert (found.wrong, found.certain) == (wrong, True)
        # Against workers that could have agreed on something nothing can be claimed.
        assert not locate(code, range(8), list(replies), rng=rng).certain
    replies = right + rng.standard_normal(right.shape)
    assert not locate(code, range(8), list(replies), rng=rng, independent=True).certain


def test_an_update_is_applied_once_and_a_gap_is_seen():
    rng = np.random.default_rng(2)
    share, d, x = rng.standard_normal((5, 4)), rng.standard_normal((5, 6)), np.ones((4, 6))
    start, age, looks = share.copy(), np.array([[10]]), []
    for first, last in ((0, 3), (0, 3), (1, 5), (5, 6), (2, 4)):
        piece = slice(first, last)
        catch_up(share, age, d[:, piece], x[:, piece], 10 + first, looks.append)
    np.testing.assert_allclose(share, start + d @ x.T, atol=1e-14)
    assert age[0, 0] == 16
    assert looks and not any(looks)
    with pytest.raises(Unreadable, match="has seen 16"):
        catch_up(share, age, d, x, 17, looks.append)


def test_real_points_are_taken_while_they_keep_enough_digits():
    for workers, blocks, field in ((8, (2, 2), "real"), (22, (3, 4), "complex")):
        with (
            codedla.SerialPool(workers) as pool,
            codedla.CodedNetwork((8, 6), pool=pool, blocks=blocks) as net,
        ):
            assert net.codes[0]["whole"].field == field


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layers": (5,)}, "sizes of input and output"),
        ({"layers": (5, 0)}, "a layer's size"),
        ({"blocks": (3, 3)}, "are 16 workers"),
        ({"blocks": 4}, "blocks of a network"),
        ({"correct": 1, "blocks": (2, 2)}, "use 10 ranks"),
        ({"tolerate": 8}, "workers for blocks"),
        ({"activation": "step"}, "activation"),
        ({"loss": "hinge"}, "loss"),
        ({"rate": 0}, "rate"),
        ({"nodes": "equispaced"}, "nodes"),
        ({"weights": [(np.ones((3, 4)), np.ones(3))]}, "weights of layers"),
    ],
)
def test_arguments_are_checked(options, words):
    with codedla.SerialPool(8) as pool, pytest.raises(UsageError, match=words):
        codedla.CodedNetwork(**{"layers": (5, 3), "pool": pool, **options})


def test_data_are_checked():
    with codedla.SerialPool(4) as pool, codedla.CodedNetwork((5, 3), pool=pool) as net:
        X, y = np.ones((4, 5)), np.zeros(4, int)
        for bad_x, bad_y, words in (
            (X[:, :4], y, "rows of 5 numbers"),
            (X, y + 3, "classes are numbered 0 to 2"),
            (X, y[:3], "as many rows"),
            (X, np.ones((4, 2)), "rows of 3 numbers"),
            (X * np.nan, y, "finite"),
            (X * 1j, y, "real numbers"),
        ):
            with pytest.raises(UsageError, match=words):
                net.step(bad_x, bad_y)
        net.close()
        with pytest.raises(codedla.PoolClosed):
            net.predict(X)


def test_a_rate_that_is_too_large_is_said_before_the_weights_are_spoilt():
    rng = np.random.default_rng(77)
    X, y = rng.standard_normal((12, 3)), np.arange(12) % 2
    words = {"layers": (3, 4, 2), "rate": 1e160}
    with codedla.SerialPool(5) as pool, codedla.CodedNetwork(**words, pool=pool) as net:
        with np.errstate(all="ignore"), pytest.raises(UsageError, match="use a smaller one"):
            net.fit(X, y, epochs=20)
        taken = net.steps
        with np.errstate(all="ignore"), pytest.raises(UsageError, match=f"after {taken} steps"):
            net.step(X, y)


@pytest.mark.parametrize("timeout", [0, -1.0, np.nan, "soon"])
def test_timeouts_are_checked(timeout):
    with codedla.SerialPool(5) as pool, codedla.CodedNetwork((3, 2), pool=pool) as net:
        for call in (net.predict, lambda X, **words: net.step(X, [0, 1], **words)):
            with pytest.raises(UsageError, match="timeout must be"):
                call(np.ones((2, 3)), timeout=timeout)
