"""The report is one JSON document of the schema ``codedla.report/1``."""

from __future__ import annotations

import dataclasses
import json

import jsonschema
import numpy as np
import pytest

import codedla
from codedla.engine.report import Report
from codedla.engine.round import Event
from codedla.engine.stragglers import parse_fault

RANK = {"type": "integer", "minimum": 1}
RANKS = {"type": "array", "items": RANK, "uniqueItems": True}
SECONDS = {"type": "number", "minimum": 0}
COUNT = {"type": "integer", "minimum": 0}
SHAPE = {"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2}


def closed(properties, required=None):
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(properties) if required is None else required,
        "additionalProperties": False,
    }


KINDS = ["reply", "lost", "silent", "back", "wrong", "redispatched", "error", "deadline"]
SCHEMA = closed(
    {
        "schema": {"const": "codedla.report/1"},
        "operation": {"enum": ["matmul", "matvec"]},
        "code": {"type": "string", "minLength": 1},
        "grid": {"type": "string", "pattern": r"^\d+x\d+(x\d+)?$"},
        "reason": {"type": "string"},
        "n_workers": RANK,
        "threshold": RANK,
        "shapes": closed({"A": SHAPE, "B": SHAPE, "C": SHAPE}),
        "dtype": {"type": "string"},
        "responders": RANKS,
        "stragglers": RANKS,
        "lost": {"type": "array", "items": closed({"rank": RANK, "reason": {"type": "string"}})},
        "redispatched": RANKS,
        "wrong": RANKS,
        "times": closed(
            dict.fromkeys(
                ["encode", "send", "wait", "decode", "after_threshold", "total"], SECONDS
            ),
            required=[],
        ),
        "bytes": closed({"sent": COUNT, "received": COUNT}, required=[]),
        "amplification": {"type": ["number", "null"], "minimum": 0},
        "error_estimate": {"type": ["number", "null"], "minimum": 0},
        "verified": {"enum": ["off", "freivalds", "locate"]},
        "warnings": {"type": "array", "items": {"type": "string"}},
        "versions": closed({name: {"type": "string"} for name in ("codedla", "numpy", "python")}),
        "events": {
            "type": "array",
            "items": closed(
                {
                    "t": SECONDS,
                    "kind": {"enum": KINDS},
                    "rank": RANK,
                    "note": {"type": "string"},
                },
                required=["t", "kind"],
            ),
        },
    }
)

A, B = np.arange(30.0).reshape(6, 5), np.arange(20.0).reshape(5, 4)
FAULTS = [parse_fault("kill:2:0"), parse_fault("delay:3:9")]
POOLS = {
    "serial": lambda: codedla.SerialPool(7, faults=FAULTS),
    "simulated": lambda: codedla.SimulatedPool(7, faults=FAULTS, seed=30013),
}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("verify", ["off", "freivalds"])
@pytest.mark.parametrize("code", ["auto", "khatri-rao", "polynomial", "matdot", "replication"])
def test_schema(pool, verify, code):
    with POOLS[pool]() as workers:
        _, report = codedla.matmul(
            A, B, pool=workers, code=code, tolerate=2, verify=verify, return_report=True
        )
    data = json.loads(report.to_json())
    jsonschema.validate(data, SCHEMA)
    assert data == report.to_dict()
    assert data["shapes"] == {"A": [6, 5], "B": [5, 4], "C": [6, 4]}
    assert data["lost"] == [{"rank": 2, "reason": data["lost"][0]["reason"]}]
    assert 3 in data["stragglers"] or 3 in data["responders"]
    assert len(data["responders"]) + len(data["stragglers"]) + 1 <= 7
    assert [e["rank"] for e in data["events"] if e["kind"] == "reply"] == data["responders"]
    assert data["verified"] == verify
    assert "rank 2 was lost" in data["warnings"][-1]
    assert data["error_estimate"] < 1e-12


@pytest.mark.parametrize("shape", [(0, 5), (6, 0)])
def test_schema_of_an_empty_product(shape):
    with codedla.SerialPool(3) as pool:
        _, report = codedla.matmul(
            np.empty(shape), np.empty((shape[1], 4)), pool=pool, return_report=True
        )
    jsonschema.validate(json.loads(report.to_json()), SCHEMA)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_schema_without_an_error_estimate(bad):
    with codedla.SerialPool(3) as pool:
        _, report = codedla.matmul(np.full((2, 2), bad), np.eye(2), pool=pool, return_report=True)
    jsonschema.validate(json.loads(report.to_json()), SCHEMA)
    assert report.error_estimate is None
    assert "error estimate unknown" in report.summary()


def test_three_lines_for_a_person():
    with POOLS["serial"]() as workers:
        _, report = codedla.matmul(A, B, pool=workers, code="mds", tolerate=2, return_report=True)
    what, who, when = report.summary().splitlines()
    assert f"matmul by code {report.code}" in what
    assert f"needs any {report.threshold} of 7 workers" in what
    assert "answered: ranks 1, 4, 5" in who
    assert "late: 3" in who
    assert "lost: 2" in who
    assert "error estimate" in when
    whole = Report("matmul", "uncoded", 2, 2, {}, "int64", error_estimate=0.0)
    assert "error estimate exact" in whole.summary()
    assert "late: none; lost: none" in whole.summary()
    twice = dataclasses.replace(whole, responders=[1, 2], stragglers=[2, 3])
    assert "answered: ranks 1, 2; late: 3; late at times: 2; lost: none" in twice.summary()


def test_events_name_ranks():
    assert Event(0.25, "reply", 0).to_dict() == {"t": 0.25, "kind": "reply", "rank": 1}
    assert Event(1.0, "deadline", -1, "x").to_dict() == {"t": 1.0, "kind": "deadline", "note": "x"}
