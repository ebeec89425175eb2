"""PyTorch modules trained on coded derivatives of their linear layers."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import codedla
from codedla.engine.stragglers import Delays, parse_fault
from codedla.errors import UsageError

torch = pytest.importorskip("torch", reason="the bridge needs PyTorch (codedla[torch])")

from codedla.iterative.lwpd_blocks import CodedDerivative, Layout, batch_rows  # noqa: E402
from codedla.iterative.torch_layers import LinearLayers  # noqa: E402

nn = torch.nn
F64 = np.dtype("float64")


class Branches(nn.Module):
    """A layer that is called twice, by name, and a layer on several vectors of a row."""

    def __init__(self):
        super().__init__()
        self.twice, self.many = nn.Linear(6, 6), nn.Linear(3, 2, bias=False)
        self.last = nn.Linear(10, 4)

    def forward(self, x):
        h = torch.sigmoid(self.twice(input=self.twice(x).relu()))
        return self.last(torch.cat([h, self.many(x.reshape(-1, 2, 3)).flatten(1)], 1))


def sequential():
    return nn.Sequential(
        nn.Linear(6, 7), nn.ReLU(inplace=True), nn.Linear(7, 5, bias=False), nn.Tanh(),
        nn.LayerNorm(5, elementwise_affine=False), nn.Linear(5, 4),
    )  # fmt: skip


def frozen():
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    return nn.Sequential(module[0].requires_grad_(False), *module[1:], nn.Dropout().eval())


MODULES = {
    "sequential": sequential,
    "branches": Branches,
    "frozen": frozen,
    "one layer": lambda: nn.Linear(6, 4),
}


@pytest.fixture(params=MODULES)
def module(request):
    torch.manual_seed(5)
    return MODULES[request.param]()


def data(rows=240):
    """Four classes that a small network can tell apart."""
    rng = np.random.default_rng(90313)
    y = rng.integers(0, 4, rows)
    return 3 * rng.standard_normal((4, 6))[y] + rng.standard_normal((rows, 6)), y


def descent(module, X, y, steps, rate, batch):
    """Torch's own training on the same batches."""
    module = copy.deepcopy(module).double()
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=rate)
    for version in range(steps):
        rows = batch_rows(version, len(X), batch, 0)
        optimizer.zero_grad()
        scores = module(torch.tensor(X[rows]))
        nn.functional.cross_entropy(scores, torch.tensor(y[rows])).backward()
        optimizer.step()
    return module


@pytest.mark.parametrize("k", [1, 3, 8])
def test_combinations_are_those_of_autograd(module, k):
    X, y = data(9)
    network = LinearLayers(module, 6, F64)
    layout, theta = Layout(network.layers_shapes, k), network.start(0, F64)
    double = copy.deepcopy(module).double()
    loss = nn.functional.cross_entropy(
        double(torch.tensor(X)), torch.tensor(y), reduction="sum"
    )  # fmt: skip
    loss.backward()
    slopes = [p.grad.numpy().T.ravel() for p in double.parameters() if p.requires_grad]
    # Parameters are registered in the order of the layers here.
    blocks = layout.gather(np.concatenate(slopes))
    found, factors = network.backward_factors(theta, X, y)
    assert found == pytest.approx(float(loss.detach()))
    codeword = np.random.default_rng(k).standard_normal(k)
    np.testing.assert_allclose(layout.combine(codeword, factors), codeword @ blocks, atol=1e-9)


def test_a_worker_makes_its_own_of_what_it_is_sent(module):
    X, y = data(40)
    network = LinearLayers(module, 6, F64)
    here = CodedDerivative(network, 2, 20, 0, 1.0)
    operands = np.array([[0.6, -0.8]]), X, y[None, :], np.append(network.start(0, F64), 1.0)[None]
    expected = here(*operands)
    sent = pickle.dumps(here)
    np.testing.assert_array_equal(pickle.loads(sent)(*operands), expected)
    large = LinearLayers(nn.Sequential(nn.Linear(6, 5000), nn.Linear(5000, 4)), 6, F64)
    assert len(pickle.dumps(large)) < 5_000, "parameters travel with every version, not with it"


@pytest.mark.parametrize("update", ["peel", "least-squares"])
def test_decoded_training_is_that_of_torch(module, update):
    X, y = data()
    expected = descent(module, X, y, 30, 0.3, 60)
    faults = [parse_fault("slow:2:20"), parse_fault("kill:5:0.02")]
    pool = codedla.SimulatedPool(8, Delays("exp", (0.002,)), faults, seed=4)
    options = {"blocks": 4, "rate": 0.3, "batch": 60, "dtype": F64, "update": update}
    with pool, codedla.LWPD(module, X, y, pool=pool, **options) as lwpd:
        lwpd.run(30)
        accuracy = lwpd.accuracy(X, y)
    for one, two in zip(module.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        scores = module(torch.tensor(X, dtype=torch.float32))
    assert accuracy == pytest.approx(float((scores.argmax(1).numpy() == y).mean()), abs=0.01)


def test_immediate_steps_train_a_module_with_its_own_parameters_at_first():
    X, y = data()
    torch.manual_seed(2)
    module = sequential()
    before = copy.deepcopy(module.state_dict())
    with (
        codedla.SimulatedPool(8, Delays("exp", (0.002,)), seed=1) as pool,
        codedla.LWPD(module, X, y, pool=pool, rate=0.2, batch=60) as lwpd,
    ):
        np.testing.assert_array_equal(lwpd.theta[:42], before["0.weight"].numpy().T.ravel())
        lwpd.run(600, lambda step: step.version == 500)
        assert lwpd.accuracy(X, y) > 0.95
        np.testing.assert_array_equal(
            lwpd.theta[:42], module.state_dict()["0.weight"].numpy().T.ravel()
        )
        assert module[0].weight.dtype == torch.float32
        assert module[0].weight.requires_grad
        assert not torch.equal(before["0.weight"], module[0].weight)


class Otherwise(nn.Module):
    """A layer whose weights are also used without calling it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return self.layer(x) @ self.layer.weight


def tied():
    module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    module[1].weight = module[0].weight
    return module


def half_frozen():
    module = nn.Linear(6, 4)
    module.bias.requires_grad_(False)
    return module


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (nn.ReLU, "with parameters to be trained"),
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout()), "Dropout '1'"),
        (lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 4)), "got 0.weight, 0.bias"),
        (half_frozen, "got weight"),
        (tied, "got shared ones"),
        (Otherwise, "'layer', which is also used otherwise"),
        (lambda: nn.Linear(5, 4), "matrices of 6 columns"),
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.Flatten(0)), "for 3 rows"),
        (lambda: nn.Linear(6, 3), "a class from 0 to 2"),
    ],
)
def test_modules_that_cannot_be(make, words):
    with codedla.SerialPool(3) as pool, pytest.raises(UsageError, match=words):
        codedla.LWPD(make(), *data(), pool=pool)
