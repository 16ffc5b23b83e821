"""Federations that leave no process behind."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.federation import Federation
from tests.cluster.onlooker import Onlooker, onlooker

MakeFederation = Callable[..., Any]


@pytest.fixture(scope="session", autouse=True)
def hear_interrupts() -> None:
    """Let processes take Ctrl-C as a terminal's do: what a shell runs in the background inherits deafness.

    Here and not between fork and exec of each process: code there makes Python fork, in place of
    vfork, and gRPC's own threads in the test's process do not survive that.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Onlooker]:
    """Where processes that are started meanwhile send their traces."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    with onlooker() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.collector)
        yield found


@pytest.fixture
def federate(tmp_path: Path) -> Iterator[MakeFederation]:
    """Return a function that makes a federation of some settings."""
    made: list[Federation] = []

    def make(
        settings: Mapping[str, Any],
        allow: str | None = None,
        kind: type[Federation] = Federation,
        folder: Path = tmp_path,
        **more: Any,
    ) -> Any:
        made.append(kind(folder, settings, allow, **more))
        return made[-1]

    yield make
    for federation in made:
        federation.end()
