"""A server that asks for evaluations which its run does not have: exact losses tell the samples."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.client.connection import Connection
from fenchel.client.evaluation import most_evaluations
from fenchel.client.joining import Participant
from fenchel.client.local_data import OwnFile
from fenchel.client.session import Session
from fenchel.common.objectives.score_groups import LEVELS
from fenchel.common.settings.run import validate
from fenchel.common.wire.phases import EVALUATE
from fenchel.proto import fenchel_pb2 as pb
from tests.unit.client.tally import handled, values_of

FEATURES = 3
SAMPLES = np.array([[1.5, -0.25, 2.0], [0.5, 3.0, -1.0]])
LABELS = np.array([1, 0])
COLUMNS = [f"x{column}" for column in range(FEATURES)]
SETTINGS: dict[str, Any] = {
    "rounds": 4,
    "clients": 1,
    "data": {"name": "own", "classes": ["ill", "well"]},
    "objective": {"kind": "logistic"},
    "algorithm": {"name": "fedavg", "local_steps": 1, "batch_size": 1, "batches": "epoch"},
}
PRIVATE = {"mechanism": "batch", "clip": 0.5, "noise_multiplier": 2.0}
COLUMNS_OF_ALL = {"data": SETTINGS["data"] | {"columns": COLUMNS}, "algorithm": {"name": "hybrid-fedavg"}}


def joined(folder: Path, held: int = FEATURES, **changes: Any) -> Session:
    """Return the session of a client with a file of its own, in a run that a server shows it."""
    path = folder / "north.csv"
    rows = [[*map(str, row[:held]), ("ill", "well")[label]] for row, label in zip(SAMPLES, LABELS, strict=True)]
    path.write_text("\n".join(",".join(row) for row in [[*COLUMNS[:held], "label"], *rows]) + "\n")
    who = Participant(name="north", server="localhost:1", local_data=OwnFile(path), state_folder=folder / "state")
    assignment = pb.Assignment(index=0, clients=1)
    reply = pb.JoinReply(run="run", settings=json.dumps(SETTINGS | changes), assignment=assignment)
    return Connection(who, ThreadPoolExecutor(1))._ready(reply).session


def reply_to(session: Session, sequence: int, model: Any, t: int = 1) -> pb.Reply:
    answer = handled(session, EVALUATE, sequence, 0, kind=pb.INSPECT, t=t, model=np.asarray(model, float))
    assert (answer.body is None) == bool(answer.head.failure)
    return answer.head


def test_exact_losses_tell_a_server_the_sum_of_labels_times_features(tmp_path: Path) -> None:
    """Why a client must not answer: this is the attack, in a run whose settings have clients evaluate."""
    session, step, losses = joined(tmp_path, evaluation={"clients": True}), 1e-6, []
    for sequence, sign in enumerate([1, -1], 1):
        model = sign * step * np.eye(FEATURES)[0]
        loss = values_of(handled(session, EVALUATE, sequence, 0, kind=pb.INSPECT, model=model))["loss_sum"]
        assert isinstance(loss, float)
        losses.append(loss)
    signs = 2 * LABELS - 1
    assert (losses[1] - losses[0]) / step == pytest.approx(float(signs @ SAMPLES[:, 0]), rel=1e-6)


@pytest.mark.parametrize(
    ("held", "changes"),
    [
        (FEATURES, {"evaluation": {"clients": False}}),
        (FEATURES, {"differential_privacy": PRIVATE}),
        (2, COLUMNS_OF_ALL),
        (FEATURES, COLUMNS_OF_ALL),
    ],
    ids=["evaluation.clients: false", "differential privacy", "features are split", "values are split"],
)
def test_a_client_evaluates_no_model_where_the_settings_have_it_evaluate_none(
    held: int, changes: dict[str, Any], tmp_path: Path
) -> None:
    session = joined(tmp_path, held, **changes)
    for t, scale in enumerate([0.0, 1e-6, 1.0]):
        assert "evaluates no models in this run" in reply_to(session, t + 1, np.full(held, scale), t).failure


def test_a_client_answers_no_more_evaluations_than_its_run_can_need(tmp_path: Path) -> None:
    session, most = joined(tmp_path), most_evaluations(validate(SETTINGS))
    assert most == 2 * (4 + 1) + 20
    for sequence in range(1, most + 1):
        assert not reply_to(session, sequence, np.full(FEATURES, sequence)).failure
    assert not reply_to(session, most, np.full(FEATURES, most)).failure, "the same instruction again is no new one"
    assert "answers no more" in reply_to(session, most + 1, np.zeros(FEATURES), t=2).failure
    assert "answers no more" in reply_to(joined(tmp_path), most + 2, np.zeros(FEATURES)).failure, "a new start"


@pytest.mark.parametrize(
    ("rounds", "evaluation", "due", "looks"),
    [
        (4, {}, 5, 1),
        (10, {"every": 3}, 4 + 1, 1),  # after rounds 3, 6, 9 and the last
        (10, {"every": 100}, 1 + 1, 1),
        (4, {"histograms": 5}, 5, 1 + LEVELS),
    ],
)
def test_a_run_can_be_evaluated_twice_and_resumed_twenty_times(
    rounds: int, evaluation: dict[str, Any], due: int, looks: int
) -> None:
    settings = validate(SETTINGS | {"rounds": rounds, "evaluation": evaluation})
    assert most_evaluations(settings) == (2 * due + 20) * looks
