"""Numbers that clients report, and that steer everybody: absurd ones are refused by the client's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fenchel.algorithms.auc.staged import StagedClient
from fenchel.algorithms.feddcd.feddcd import DualAscentClient
from fenchel.common.errors import PayloadError
from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.wire.values import Values
from fenchel.testing import Federation
from tests.messages import raises


def run(tmp_path: Path, algorithm: dict[str, Any], objective: dict[str, Any]) -> None:
    settings = validate(
        {
            "rounds": 2,
            "clients": 3,
            "data": {"name": "breast_cancer", "scale": "standard"},
            "objective": objective,
            "algorithm": algorithm,
        }
    )
    Federation(settings, RunFolder.create(tmp_path, "run")).run()


@pytest.mark.parametrize("counts", [(0, 0), (152, 153), (152, -1), (7, 3)])
def test_counts_that_contradict_the_description_are_refused_by_the_clients_name(
    counts: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = StagedClient.count

    def count(self: StagedClient) -> Values:
        if self.client != "client-001":
            return honest(self)
        return {"samples": counts[0], "positives": counts[1]}

    count.answers_phase = "count"  # type: ignore[attr-defined]
    monkeypatch.setattr(StagedClient, "count", count)
    with raises(PayloadError):
        run(tmp_path, {"name": "codasca"}, {"kind": "binary"})


@pytest.mark.parametrize("samples", [-200, 0, 100_000])
def test_a_number_of_samples_that_contradicts_the_description_gives_nobody_weight(
    samples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = DualAscentClient.describe

    def describe(self: DualAscentClient) -> Values:
        return {**honest(self), "samples": samples} if self.client == "client-001" else honest(self)

    describe.answers_phase = "describe"  # type: ignore[attr-defined]
    monkeypatch.setattr(DualAscentClient, "describe", describe)
    with raises(PayloadError):
        run(tmp_path, {"name": "feddcd"}, {"kind": "softmax", "l2": 0.1})
