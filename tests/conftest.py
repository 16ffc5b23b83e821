"""What all tests share."""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, settings

# As in the processes of a federation. Linear algebra reads it when NumPy is imported, which Fenchel does below.
os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

from fenchel.common.settings.run import RunSettings, validate
from fenchel.deploy.launch import grpc_engine

grpc_engine.choose()  # as in every process of a federation, whatever a test imports first
gc.disable()  # until the tests are collected, which makes a million objects that all stay

# Tests start processes by the hundred. What one of them, or an earlier run, has compiled, the next need not compile.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
# Whoever runs the tests runs the same examples, so a failure is about what was changed.
settings.register_profile("repeat", settings.get_profile("explore"), derandomize=True, max_examples=30)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))


SKIPS = Path(__file__).with_name("skips.txt")
"""What may be skipped in CI: a regular expression for a reason a line, and after a tab why CI cannot do better."""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a run in CI fail where a test was skipped for a reason that is not on the list."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not os.environ.get("CI") or hasattr(session.config, "workerinput"):
        return
    known = [line.partition("\t")[0] for line in SKIPS.read_text().splitlines()]
    reasons = {str(report.longrepr[2]) for report in reporter.stats.get("skipped", ())}
    for reason in sorted(reason for reason in reasons if not any(re.search(each, reason) for each in known)):
        reporter.write_line(f"skipped, and not in {SKIPS.name}: {reason}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that start processes and may take longest, so that none of them is left at the end."""

    def order(item: pytest.Item) -> tuple[bool, float]:
        timeout = item.get_closest_marker("timeout")
        return item.get_closest_marker("cluster") is None, -timeout.args[0] if timeout else 0.0

    items.sort(key=order)


def pytest_collection_finish() -> None:
    """Collect garbage again, less often, and without the collected tests, which a search would visit each time."""
    gc.freeze()
    gc.set_threshold(20_000)  # searches take a twentieth of the time of tests otherwise
    gc.enable()


MakeSettings: TypeAlias = Callable[..., RunSettings]


@pytest.fixture
def program_log() -> Iterator[logging.Logger]:
    """Fenchel's logger as a program has it that has set nothing, whatever commands ran in this process before."""
    logger = logging.getLogger("fenchel")
    before = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.NOTSET)
    yield logger
    logger.handlers, logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


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
