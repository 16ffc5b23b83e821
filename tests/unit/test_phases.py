"""What the settings of an algorithm say of its phases is true of its two halves."""

from __future__ import annotations

import inspect

import pytest

from fenchel.algorithms.client_half import ClientAlgorithm, answers
from fenchel.algorithms.registry import client_half
from fenchel.common.arrays import Vector
from fenchel.common.errors import SettingsError
from fenchel.common.settings import registry
from fenchel.common.settings.algorithm import AlgorithmSettings
from fenchel.common.settings.registry import algorithm_settings, asked_phases, builtin_settings, keeps_no_state
from fenchel.common.settings.run import validate
from tests.algorithms.balance import NAME as BALANCE
from tests.messages import raises
from tests.unit.common.test_settings import GOOD


def test_the_phases_that_a_server_knows_without_the_client_half_are_those_that_it_answers() -> None:
    """The halves of HyFDCA lie apart, so its settings say the phases that the server asks."""
    found = set()
    for _, function in inspect.getmembers(client_half("hyfdca"), inspect.isfunction):
        phase = getattr(function, "answers_phase", None)
        if phase is not None and function.__annotations__["return"] != "None":
            found.add(phase)
    assert set(algorithm_settings("hyfdca").phases) == found


@pytest.mark.parametrize("name", [*builtin_settings(), BALANCE])
def test_whether_clients_keep_a_state_is_known_without_their_word(name: str) -> None:
    settings = algorithm_settings(name).model_construct(name=name)
    assert keeps_no_state(settings) == client_half(name, [name]).stateless()


def test_the_phases_of_an_algorithm_from_outside_are_those_of_its_client_half() -> None:
    settings = validate(GOOD | {"algorithm": {"name": BALANCE}})
    assert asked_phases(settings.algorithm) == ("propose", "show")


def test_a_handler_without_annotation_may_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client(ClientAlgorithm):
        @answers("solve")
        def solve(self, model):  # type: ignore[no-untyped-def]
            return {"model": model}

        @answers("keep")
        def keep(self, model: Vector) -> None: ...

    monkeypatch.setattr(registry, "half", lambda name, side: Client)
    assert asked_phases(AlgorithmSettings.model_construct(name="own:Own")) == ("solve",)


@pytest.mark.parametrize(
    ("algorithm", "phase"), [("fedavg", "trian"), ("fedavg", "evaluate"), ("drdm", "moon"), (BALANCE, "propse")]
)
def test_a_phase_that_nobody_asks_is_refused_with_those_that_there_are(algorithm: str, phase: str) -> None:
    participation = {"phases": {phase: {"deadline": 5.0}}}
    with raises(SettingsError, source="settings"):
        validate(GOOD | {"algorithm": {"name": algorithm}, "participation": participation})


def test_terms_of_phases_are_accepted_and_their_values_checked() -> None:
    phases = {"train": {"deadline": 600.0}, "fenchel.evaluate": {"min_replies": 2}}
    settings = validate(GOOD | {"participation": {"phases": phases}})
    assert settings.participation.phases["train"].deadline == 600.0
    assert settings.participation.phases["train"].min_replies is None
    with raises(SettingsError, source="settings"):
        validate(GOOD | {"participation": {"phases": {"train": {"min_replies": 5}}}})
    with raises(SettingsError, key="participation.phases.train.deadline", source="settings"):
        validate(GOOD | {"participation": {"phases": {"train": {"deadline": 0}}}})
    with raises(SettingsError, key="participation.phases.train.dead_line", source="settings"):
        validate(GOOD | {"participation": {"phases": {"train": {"dead_line": 1}}}})
