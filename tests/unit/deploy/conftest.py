"""What tests of commands and pages share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from fenchel.deploy.launch.logs import log_to_terminal


@pytest.fixture(autouse=True)
def nobody_lingers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close dashboards at once, without waiting for their readers."""
    monkeypatch.setattr("fenchel.deploy.monitoring.dashboard._LINGER", 0.1)


@pytest.fixture
def terminal_log() -> Iterator[None]:
    """Log warnings to the terminal as the command line does, and put back what was."""
    logger = logging.getLogger("fenchel")
    before = logger.handlers, logger.level, logger.propagate
    log_to_terminal(logging.WARNING)
    yield
    logger.handlers, logger.level, logger.propagate = before
