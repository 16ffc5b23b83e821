"""What tests of commands and pages share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def nobody_lingers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close dashboards at once, without waiting for their readers."""
    monkeypatch.setattr("fenchel.deploy.monitoring.dashboard._LINGER", 0.1)
