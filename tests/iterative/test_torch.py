"""PyTorch modules trained on coded gradients: as they are without workers."""

import copy
import subprocess
import sys

import numpy as np
import pytest

import codedla
from codedla.engine.stragglers import parse_fault
from codedla.errors import UsageError

torch = pytest.importorskip("torch", reason="the bridge needs PyTorch (codedla[torch])")

nn = torch.nn
DataLoader, TensorDataset = torch.utils.data.DataLoader, torch.utils.data.TensorDataset


@pytest.fixture
def data():
    torch.manual_seed(811)
    return torch.randn(90, 6), torch.randint(0, 3, (90,))


def net(dtype=torch.float32):
    torch.manual_seed(99)
    return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(
        dtype
    )


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "LBFGS"])
def test_training_is_that_of_one_process(data, optimizer):
    X, y = data[0].double(), data[1]
    alone, coded = net(torch.float64), net(torch.float64)
    loss = nn.CrossEntropyLoss()

    def train(module, backward):
        step = getattr(torch.optim, optimizer)(module.parameters(), lr=0.05)

        def closure():
            step.zero_grad()
            return backward()

        return [float(torch.as_tensor(step.step(closure)).detach()) for _ in range(6)]

    def plain():
        value = loss(alone(X.clone()), y)
        value.backward()
        return value

    with (
        codedla.SerialPool(6, [parse_fault("delay:2:1"), parse_fault("delay:5:1")]) as pool,
        codedla.CodedModule(coded, loss, (X, y), pool=pool, stragglers=2) as bridge,
    ):
        np.testing.assert_allclose(train(coded, bridge.backward), train(alone, plain), rtol=1e-7)
        assert set(bridge.gradient.stragglers) == {2, 5}
    for one, two in zip(alone.parameters(), coded.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-8)


def test_a_loader_gives_batches(data):
    loader = DataLoader(TensorDataset(*data), batch_size=20)
    module = net()
    with (
        codedla.SerialPool(4) as pool,
        codedla.CodedModule(module, nn.functional.cross_entropy, loader, pool=pool) as bridge,
    ):
        assert bridge.batches == 5
        assert sorted(bridge.shuffled(3)) == list(range(5))
        assert list(bridge.shuffled(3)) == list(bridge.shuffled(3))
        losses = [bridge.backward(k) for k in range(5)]
        rows = [bridge.gradient.rows((k, 5)) for k in range(5)]
        assert sum(rows) == 90
        assert np.dot(losses, rows) / 90 == pytest.approx(bridge.backward(), rel=1e-5)
        assert next(module.parameters()).grad.dtype == torch.float32


def test_sums_frozen_parameters_and_several_inputs(data):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(6, 1), nn.Linear(6, 1)
            self.idle = nn.Parameter(torch.ones(2))
            self.right.weight.requires_grad_(False)

        def forward(self, a, b):
            return self.left(a) + self.right(b)

    X, target = data[0], data[0].sum(1, keepdim=True)
    module = Two()
    alone = copy.deepcopy(module)
    loss = nn.MSELoss(reduction="sum")
    loss(alone(X, X + 1), target).backward()
    with (
        codedla.SerialPool(3) as pool,
        codedla.CodedModule(module, loss, (X, X + 1, target), pool=pool) as bridge,
    ):
        bridge.backward()
    torch.testing.assert_close(module.left.weight.grad, alone.left.weight.grad / 90)
    torch.testing.assert_close(module.right.bias.grad, alone.right.bias.grad / 90)
    assert module.right.weight.grad is None
    assert not module.idle.grad.any()


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from ()


@pytest.mark.parametrize(
    ("module", "data", "more", "words"),
    [
        (nn.ReLU(), None, {}, "with parameters"),
        (nn.Sequential(nn.Linear(6, 3), nn.Dropout()), None, {}, "Dropout '1' in training mode"),
        (nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), None, {}, "BatchNorm1d '1'"),
        (nn.Linear(6, 3, dtype=torch.complex64), None, {}, "must be real"),
        (nn.Linear(6, 3), (torch.ones(3),), {}, "inputs and a target"),
        (nn.Linear(6, 3), DataLoader(Endless()), {"batches": 2}, "must have a length"),
        (nn.Linear(6, 3), DataLoader(torch.ones(4, 6)), {}, "inputs and a target"),
        (nn.Linear(6, 3), None, {"reduction": "none"}, "the mean or the sum"),
        (nn.Linear(6, 3), None, {"batches": 91}, "1 to 90 batches"),
    ],
)
def test_what_cannot_be_coded_is_refused(module, data, more, words):
    data = data if data is not None else (torch.ones(90, 6), torch.zeros(90, dtype=torch.int64))
    with codedla.SerialPool(3) as pool, pytest.raises(UsageError, match=words):
        codedla.CodedModule(module, nn.functional.cross_entropy, data, pool=pool, **more)


def test_dropout_that_is_switched_off_is_no_chance(data):
    module = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5).eval(), nn.Dropout(0.0))
    with (
        codedla.SerialPool(3) as pool,
        codedla.CodedModule(module, nn.functional.cross_entropy, data, pool=pool) as bridge,
    ):
        assert bridge.backward() > 0


def test_without_torch_the_extra_is_named():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import codedla\n"
        "try: codedla.CodedModule\n"
        "except codedla.UsageError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "codedla[torch]" in done.stdout
