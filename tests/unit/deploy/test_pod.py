"""Pods of Kubernetes: what their states mean, and what becomes of those that are lost."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from fenchel.common.errors import UnreachableError
from fenchel.deploy.launch.launchers import pod as module
from fenchel.deploy.launch.launchers.pod import Cluster, Pod, State
from tests.messages import raises

RUNNING = SimpleNamespace()
WAITING = SimpleNamespace(reason="ImagePullBackOff", message="no such image")


def pod(phase: str = "Running", removed: datetime | None = None, **state: Any) -> Any:
    """Return a pod as the client of Kubernetes does, with a container in some state or without one."""
    whole = dict.fromkeys(("running", "waiting", "terminated")) | state
    mesh = SimpleNamespace(name="proxy", state=SimpleNamespace(running=RUNNING, waiting=None, terminated=None))
    containers = [mesh, SimpleNamespace(name="client", state=SimpleNamespace(**whole))] if state else None
    unmet = SimpleNamespace(status="False", message="0/3 nodes are available")
    status = SimpleNamespace(phase=phase, container_statuses=containers, conditions=[unmet])
    return SimpleNamespace(status=status, metadata=SimpleNamespace(deletion_timestamp=removed))


STATES = {
    "no node has room": (pod("Pending"), State(waits="Pending: 0/3 nodes are available")),
    "its image is missing": (pod(waiting=WAITING), State(waits="ImagePullBackOff: no such image")),
    "it runs": (pod(running=RUNNING), State()),
    "it is being removed": (pod(running=RUNNING, removed=datetime.now(UTC)), State(removed=True)),
    "it has ended": (pod(terminated=SimpleNamespace(message="0\n")), State(ended=True, message="0\n")),
    "it was killed": (pod(terminated=SimpleNamespace(message=None)), State(ended=True)),
    "it was evicted": (pod("Failed"), State(ended=True)),
}


@pytest.mark.parametrize("case", STATES)
def test_the_state_of_a_pod_is_what_its_container_does(case: str) -> None:
    given, expected = STATES[case]
    assert State.of(given) == expected


class Core:
    """Interface of a cluster whose answers are given; an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = iter(answers)

    def list_namespaced_pod(self, *_: Any, **__: Any) -> Any:
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(items=answer)

    def delete_collection_namespaced_secret(self, *_: Any, **__: Any) -> None:
        pass

    def delete_collection_namespaced_pod(self, *_: Any, grace_period_seconds: int, **__: Any) -> None:
        self.grace = grace_period_seconds


def states(*answers: Any) -> list[State]:
    """Return what a pod is found to be, by one answer of its cluster after another."""
    one = Pod(Cluster(Core(*answers), "default"), {"metadata": {"name": "a"}})
    return [one._state() for _ in answers]


def test_a_pod_stays_what_it_was_while_its_cluster_does_not_answer() -> None:
    broken = OSError("no answer")
    waiting = State(waits="ImagePullBackOff: no such image")
    assert states(broken)[0].waits
    found = states([pod(waiting=WAITING)], broken, [pod(running=RUNNING)], broken)
    assert found == [waiting, waiting, State(), State()]
    assert states([]) == [State(ended=True)]


def test_a_pod_whose_removal_no_node_confirms_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    removed = [pod(running=RUNNING, removed=datetime(1970, 1, 1, tzinfo=UTC))]  # by a clock that is not to count
    assert states(removed, removed) == [State(removed=True)] * 2
    monkeypatch.setattr(module, "_LOST", -1.0)
    assert states(removed, removed) == [State(removed=True), State(ended=True)]


def test_pods_of_nodes_that_do_not_answer_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kubernetes", reason="kubernetes is not installed")
    monkeypatch.setattr(module, "_LOST", 0.05)
    monkeypatch.setattr(module, "_POLLING", 0.1)
    core = Core(["a pod"], [])
    Cluster(core, "default").clean("a=b")
    assert core.grace == 0
    with raises(UnreachableError):
        Cluster(Core(["a pod"], ["a pod"]), "default").clean("a=b")
