"""Models of chosen rounds in the run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fenchel
from fenchel.common.errors import CheckpointError, SettingsError
from fenchel.common.settings.run import validate
from tests.messages import raises

SETTINGS: dict[str, Any] = {
    "rounds": 7,
    "clients": 2,
    "data": {"name": "breast_cancer", "scale": "standard"},
    "objective": {"kind": "logistic", "l2": 0.1},
    "algorithm": {"name": "fedavg", "step_size": 0.1, "local_epochs": 1},
    "keep_models": {"every": 3},
}


def test_the_models_of_the_rounds_that_are_named_are_kept(tmp_path: Path) -> None:
    run = fenchel.up(SETTINGS, in_process=True, runs=tmp_path)
    assert run.kept_rounds == (3, 6)
    for t in (3, 6):
        short = fenchel.up(SETTINGS | {"rounds": t, "keep_models": None}, in_process=True, runs=tmp_path)
        assert run.model_of(t).tobytes() == short.model.tobytes()
        assert short.kept_rounds == ()
    assert not np.array_equal(run.model_of(6), run.model)
    with raises(CheckpointError):
        run.model_of(7)
    (run.path / "models" / "round-000003.npz").write_bytes(b"PK")
    with raises(CheckpointError, source=str(run.path / "models" / "round-000003.npz")):
        run.model_of(3)


def test_a_resumed_run_keeps_them_too(tmp_path: Path) -> None:
    class Stop(fenchel.Observer):
        def round_ended(self, row: Any) -> None:
            if row["round"] == 4:
                raise fenchel.FenchelError("enough")

    with pytest.raises(fenchel.FenchelError):
        fenchel.up(SETTINGS | {"checkpoint": {"every": 1}}, in_process=True, runs=tmp_path, observer=Stop())
    (folder,) = tmp_path.iterdir()
    whole = fenchel.up(SETTINGS, in_process=True, runs=tmp_path / "whole")
    resumed = fenchel.up(resume=folder, in_process=True)
    for t in (3, 6):
        assert resumed.model_of(t).tobytes() == whole.model_of(t).tobytes()


def test_a_model_that_clients_hide_cannot_be_kept() -> None:
    hyfdca = {"name": "hyfdca", "protect_primal": True}
    settings = SETTINGS | {"algorithm": hyfdca, "objective": {"kind": "hinge", "l2": 0.1}}
    validate(settings | {"keep_models": None})
    with raises(SettingsError) as refused:
        validate(settings)
    assert "keep_models" in str(refused.value)
