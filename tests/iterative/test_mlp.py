"""The perceptron's gradients against differences, and its factors against its gradients."""

import numpy as np
import pytest

from codedla.errors import UsageError
from codedla.iterative.mlp import MLP


@pytest.mark.parametrize("sizes", [(5, 3), (5, 7, 3), (4, 6, 5, 2), (5, 40, 3), (6, 33)])
def test_gradients_agree_with_differences(sizes):
    rng = np.random.default_rng(17)
    net = MLP(sizes)
    theta = net.start(5) + 0.1 * rng.standard_normal(net.n_parameters)
    X, y = rng.standard_normal((11, sizes[0])), rng.integers(0, sizes[-1], 11)
    _, gradient = net.loss_and_grad(theta, X, y)
    step = 1e-6
    for place in rng.permutation(net.n_parameters)[:25]:
        unit = np.zeros(net.n_parameters)
        unit[place] = step
        up, down = (net.loss_and_grad(t, X, y)[0] for t in (theta + unit, theta - unit))
        assert gradient[place] == pytest.approx((up - down) / (2 * step), abs=1e-6)


def test_losses_and_gradients_are_sums_over_the_rows():
    rng = np.random.default_rng(23)
    net = MLP((6, 4, 3))
    theta, X, y = net.start(1), rng.standard_normal((9, 6)), rng.integers(0, 3, 9)
    whole = net.loss_and_grad(theta, X, y)
    parts = [net.loss_and_grad(theta, X[rows], y[rows]) for rows in (slice(0, 4), slice(4, 9))]
    assert whole[0] == pytest.approx(sum(loss for loss, _ in parts))
    np.testing.assert_allclose(whole[1], sum(gradient for _, gradient in parts), atol=1e-12)


def test_scores_far_from_zero_do_not_overflow():
    net = MLP((2, 2))
    loss, gradient = net.loss_and_grad(np.full(6, 1e6), np.ones((1, 2)), np.array([0]))
    assert loss == pytest.approx(np.log(2))
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("sizes", [(3,), (3, 0), ()])
def test_sizes_are_checked(sizes):
    with pytest.raises(UsageError, match="inputs and outputs"):
        MLP(sizes)
