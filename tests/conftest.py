"""What all tests share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, settings

from fenchel.common.settings.run import RunSettings, validate
from fenchel.deploy.launch import grpc_engine

grpc_engine.choose()  # as in every process of a federation, whatever a test imports first

# Tests start processes by the hundred. What one of them, or an earlier run, has compiled, the next need not compile.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
# Whoever runs the tests runs the same examples, so a failure is about what was changed.
settings.register_profile("repeat", settings.get_profile("explore"), derandomize=True, max_examples=30)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))


MakeSettings: TypeAlias = Callable[..., RunSettings]


@pytest.fixture(scope="session")
def make_settings() -> MakeSettings:
    """Settings of a small run; keywords replace whole sections."""

    def make(**sections: Any) -> RunSettings:
        basis: dict[str, Any] = {
            "name": "small",
            "seed": 7,
            "rounds": 2,
            "clients": 3,
            "data": {"name": "digits", "samples": 120, "scale": "unit-interval"},
            "objective": {"kind": "softmax", "l2": 1e-3},
            "algorithm": {"name": "fedavg", "local_steps": 1, "batch_size": None, "step_size": 0.5},
        }
        return validate(basis | sections)

    return make
