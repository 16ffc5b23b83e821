"""Step sizes of local steps, round by round."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from fenchel.algorithms.fedavg import FedAvgSettings
from fenchel.common.errors import SettingsError
from fenchel.common.settings.run import RunSettings, validate
from tests.messages import raises


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        ({}, [0.9] * 7),
        ({"step_decay": "inverse"}, [0.9 / t for t in range(1, 8)]),
        ({"step_decay": "inverse-sqrt"}, [0.9 / t**0.5 for t in range(1, 8)]),
        ({"step_decay": "stages", "stage_rounds": 3}, [0.9, 0.9, 0.9, 0.3, 0.3, 0.3, 0.1]),
        ({"step_decay": "stages", "stage_rounds": 2, "decay": 2.0}, [0.9, 0.9, 0.45, 0.45, 0.225, 0.225, 0.1125]),
    ],
)
def test_step_sizes_fall_as_the_settings_say(keys: dict[str, Any], steps: list[float]) -> None:
    settings = FedAvgSettings(step_size=0.9, **keys)
    assert [settings.step_size_at(t) for t in range(1, 8)] == pytest.approx(steps, rel=1e-15)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"step_decay": "stages"}, "stage_rounds"),
        ({"stage_rounds": 3}, "step_decay: stages"),
        ({"step_decay": "inverse", "decay": 2.0}, "leave decay out"),
        ({"step_decay": "stages", "stage_rounds": 3, "decay": 0.5}, "greater than or equal to 1"),
    ],
)
def test_stages_are_given_whole_or_not_at_all(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        FedAvgSettings(**keys)


def run_of(rounds: int, **keys: Any) -> RunSettings:
    """Return the settings of a run whose stages have one round."""
    algorithm = {"name": "fedavg", "step_decay": "stages", "stage_rounds": 1, **keys}
    data, objective = {"name": "digits"}, {"kind": "softmax"}
    return validate({"rounds": rounds, "clients": 2, "data": data, "objective": objective, "algorithm": algorithm})


@pytest.mark.parametrize("factor", [1e200, 1e60, 1e9])
def test_stages_in_which_nothing_moves_are_refused_with_the_settings(factor: float) -> None:
    with raises(SettingsError, source="settings"):
        run_of(7, decay=factor)


@pytest.mark.parametrize(("rounds", "keys"), [(70, {}), (1, {"decay": 1e200}), (7, {"decay": 1e6})])
def test_as_many_stages_as_have_a_step_size_may_be_done(rounds: int, keys: dict[str, Any]) -> None:
    settings = run_of(rounds, **keys)
    assert isinstance(settings.algorithm, FedAvgSettings)
    assert settings.algorithm.step_size_at(rounds) > 2.0**-126
