"""Pods of Kubernetes: what their states mean."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from fenchel.deploy.launch.launchers.pod import State


def pod(phase: str = "Running", removed: datetime | None = None, **state: Any) -> Any:
    """Return a pod as the client of Kubernetes does, with a container in some state or without one."""
    whole = dict.fromkeys(("running", "waiting", "terminated")) | state
    containers = [SimpleNamespace(state=SimpleNamespace(**whole))] if state else None
    unmet = SimpleNamespace(status="False", message="0/3 nodes are available")
    status = SimpleNamespace(phase=phase, container_statuses=containers, conditions=[unmet])
    return SimpleNamespace(status=status, metadata=SimpleNamespace(deletion_timestamp=removed))


NOW = datetime.now(UTC)
RUNNING = SimpleNamespace()
WAITING = SimpleNamespace(reason="ImagePullBackOff", message="no such image")

STATES = {
    "no node has room": (pod("Pending"), State(waits="Pending: 0/3 nodes are available")),
    "its image is missing": (pod(waiting=WAITING), State(waits="ImagePullBackOff: no such image")),
    "it runs": (pod(running=RUNNING), State()),
    "it is being removed": (pod(running=RUNNING, removed=NOW + timedelta(hours=1)), State()),
    "its node does not answer": (pod(running=RUNNING, removed=NOW - timedelta(minutes=5)), State(ended=True)),
    "it has ended": (pod(terminated=SimpleNamespace(message="0\n")), State(ended=True, message="0\n")),
    "it was killed": (pod(terminated=SimpleNamespace(message=None)), State(ended=True)),
    "it was evicted": (pod("Failed"), State(ended=True)),
}


@pytest.mark.parametrize("case", STATES)
def test_the_state_of_a_pod_is_what_its_container_does(case: str) -> None:
    given, expected = STATES[case]
    assert State.of(given) == expected
