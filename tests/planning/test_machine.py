"""What a machine is: checks, files, and the measurement of this one."""

import json
import math

import pytest

import codedla
from codedla.errors import UsageError
from codedla.planning import Machine
from codedla.planning.calibration import calibrate


def test_saved_figures_are_read_again(tmp_path):
    machine = Machine(flops=1e9, bandwidth=math.inf, ranks_per_host=4, cores=1.5)
    machine.save(tmp_path / "m.json")
    assert Machine.load(tmp_path / "m.json") == machine
    json.loads((tmp_path / "m.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize("name", ["flops", "bandwidth", "cores", "overhead", "storage"])
@pytest.mark.parametrize("value", [-1.0, math.nan, "fast", True])
def test_impossible_figures_are_refused(name, value):
    with pytest.raises(UsageError, match=f"a machine's {name} must be"):
        Machine(**{name: value})


def test_some_may_be_zero():
    assert Machine(latency=0.0, overhead=0).latency == 0.0
    with pytest.raises(UsageError, match="positive number"):
        Machine(flops=0.0)
    with pytest.raises(UsageError, match="whole number"):
        Machine(ranks_per_host=1.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no", "which is not JSON"),
        ("[]", "schema 'codedla.machine/1'"),
        ('{"flops": 1e9}', "schema 'codedla.machine/1'"),
        ('{"schema": "codedla.machine/1", "speed": 1}', "has speed, too"),
        ('{"schema": "codedla.machine/1", "flops": "x"}', "a machine's flops must be"),
    ],
)
def test_other_files_are_refused(tmp_path, text, words):
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        Machine.load(tmp_path / "m.json")
    assert words in str(caught.value)
    with pytest.raises(UsageError, match="No such file"):
        Machine.load(tmp_path / "none.json")


def test_this_machine_is_measured():
    machine = calibrate()
    assumed = Machine()
    assert 1e8 < machine.flops < 1e12
    assert all(1e7 < x < 1e12 for x in (machine.copy, machine.encode, machine.scan))
    assert (machine.bandwidth, machine.latency) == (assumed.bandwidth, assumed.latency)


def test_a_pool_of_one_worker_is_measured(monkeypatch):
    monkeypatch.setattr("codedla.planning.calibration._REPEATS", 1)
    with codedla.SerialPool(1) as pool:
        machine = calibrate(pool, ranks_per_host=2)
    assert machine.source == "measured with 1 workers"
    assert machine.cores == 1.0


def test_a_pool_is_measured(monkeypatch):
    monkeypatch.setattr("codedla.planning.calibration._REPEATS", 1)
    with codedla.SerialPool(3) as pool:
        apart = calibrate(pool)
        together = calibrate(pool, ranks_per_host=4)
    assert math.isfinite(apart.bandwidth)
    assert together.bandwidth == math.inf
    # One after the other: three workers are no faster than one.
    assert 1.0 <= together.cores < 2.0
    assert 0 < together.overhead < 0.1
    assert together.source == "measured with 3 workers"
