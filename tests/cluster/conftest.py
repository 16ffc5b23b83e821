"""Federations that leave no process behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.federation import Federation

MakeFederation = Callable[..., Federation]


@pytest.fixture
def federate(tmp_path: Path) -> Iterator[MakeFederation]:
    """Return a function that makes a federation of some settings."""
    made: list[Federation] = []

    def make(settings: Mapping[str, Any], allow: str | None = None) -> Federation:
        federation = Federation(tmp_path, settings, allow)
        made.append(federation)
        return federation

    yield make
    for federation in made:
        federation.end()
