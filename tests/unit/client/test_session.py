"""A session handles every instruction exactly once, whatever the network and the process do."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from fenchel.client.session import ClientData, Session
from fenchel.common import errors
from fenchel.common.crypto.meter import CipherMeter
from fenchel.common.data.shard import Shard
from fenchel.common.errors import BudgetSpentError, CheckpointError, FenchelError, SettingsError, StorageError
from fenchel.common.objectives.linear import LinearObjective
from fenchel.common.objectives.metrics import Metrics
from fenchel.common.objectives.ranking import Ranking
from fenchel.common.objectives.score_groups import BINS, NO_PLACES, PARTS, Places, edges_of, samples_in
from fenchel.common.wire.outline import Received, outline
from fenchel.common.wire.payload import encode
from fenchel.common.wire.phases import EVALUATE, EVALUATION, LEVELS, grouped_in
from fenchel.common.wire.schema import check
from fenchel.common.wire.values import Values
from fenchel.proto import fenchel_pb2 as pb
from tests.conftest import MakeSettings
from tests.messages import raises
from tests.unit.client.tally import NAME, TallyClient, add, handled, holding, values_of

ABOUT_THE_RUN = {  # and what others sent: the server reads these texts
    *(errors.WireError, errors.PayloadError, errors.PhaseError, errors.SettingsError, errors.MissingDependencyError),
    *(errors.DivergedError, errors.NotFiniteError, errors.OutOfRangeError),
    *(errors.CredentialError, errors.RevokedError, errors.LostStateError, errors.EncryptionError),
    errors.PrivacyBudgetError,
}
MakeSession: TypeAlias = Callable[..., Session]


@pytest.fixture
def make_session(make_settings: MakeSettings, tmp_path: Path) -> MakeSession:
    """A session; one made after another finds its journal."""

    def make(name: str = NAME, allowed: Collection[str] = (NAME,), **sections: Any) -> Session:
        settings = make_settings(algorithm={"name": name}, objective={"kind": "logistic"}, **sections)
        return Session("client-0", settings, holding(), journal_folder=tmp_path / "journal", allowed=allowed)

    TallyClient.computed.clear()
    return make


@pytest.fixture
def session(make_session: MakeSession) -> Session:
    return make_session()


def double(session: Session, sequence: int, base: int) -> None:
    assert values_of(handled(session, "double", sequence, base, kind=pb.TELL)) == {}


@pytest.mark.parametrize("restart", [False, True])
def test_a_repeated_instruction_gets_the_same_bytes_without_being_computed_again(
    make_session: MakeSession, restart: bool
) -> None:
    session = make_session()
    add(session, 1.0, sequence=1, base=0)
    first = handled(session, "add", 2, 1, amount=2.0)
    session = make_session() if restart else session
    TallyClient.computed.clear()
    again = handled(session, "add", 2, 1, amount=2.0)
    assert TallyClient.computed == []
    assert first.body is not None
    assert again.body is not None
    assert (again.body.payload, again.body.content()) == (first.body.payload, first.body.content())


@pytest.mark.parametrize("restart", [False, True])
def test_an_answer_that_was_not_counted_is_undone(make_session: MakeSession, restart: bool) -> None:
    session = make_session()
    add(session, 1.0, sequence=1, base=0)
    add(session, 100.0, sequence=2, base=1)
    session = make_session() if restart else session
    assert add(session, 2.0, sequence=3, base=1) == 3.0
    assert add(session, 5.0, sequence=4, base=0) == 5.0


@pytest.mark.parametrize("restarts", range(5))
def test_a_restart_at_any_moment_changes_nothing(make_session: MakeSession, restarts: int) -> None:
    session = make_session()
    steps: list[Callable[[Session], object]] = [
        lambda session: add(session, 1.0, sequence=1, base=0),
        lambda session: double(session, sequence=2, base=1),
        lambda session: add(session, 100.0, sequence=3, base=2),
        lambda session: double(session, sequence=4, base=2),
        lambda session: add(session, 0.5, sequence=5, base=4, low_water_mark=2),
    ]
    for place, step in enumerate(steps):
        if place == restarts:
            session = make_session()
        last = step(session)
    assert last == 4.5
    assert session.hello().snapshots == [2, 4, 5]


@pytest.mark.parametrize(
    ("phase", "kind", "told"),
    [
        ("stumble", pb.ASK, "an unexpected ArithmeticError; see the client's log"),
        ("stumble", pb.TELL, "an unexpected ArithmeticError; see the client's log"),
        ("misfit", pb.ASK, "has dtype complex128"),
        ("talkative", pb.TELL, "is one-way (tell), but its handler"),
        ("unknown", pb.ASK, "has no handler of phase 'unknown'"),
        ("add", pb.ASK, r"takes the values \['amount'\], but received \[\]"),
        ("nothing.of.this", pb.INSPECT, "does not know"),
        (EVALUATE, pb.INSPECT, "takes an array named 'model'"),
    ],
)
@pytest.mark.parametrize("folder", [True, False])
def test_a_failure_is_told_and_leaves_no_trace(
    make_settings: MakeSettings, tmp_path: Path, folder: bool, phase: str, kind: pb.Kind.ValueType, told: str
) -> None:
    settings = make_settings(algorithm={"name": NAME}, objective={"kind": "logistic"})
    session = Session(
        "client-0", settings, holding(), journal_folder=tmp_path / "journal" if folder else None, allowed=[NAME]
    )
    add(session, 1.0, sequence=1, base=0)
    for _ in range(2):
        answer = handled(session, phase, 2, 1, kind=kind)
        assert answer.body is None
        assert told.replace("\\", "") in answer.head.failure
    assert session.hello().snapshots == [1]
    assert add(session, 2.0, sequence=3, base=1) == 3.0


@pytest.mark.parametrize("shown", [True, False])
def test_the_text_of_an_error_is_shown_to_nobody_but_the_author_of_the_code(
    shown: bool, make_settings: MakeSettings, caplog: pytest.LogCaptureFixture
) -> None:
    settings = make_settings(algorithm={"name": NAME}, objective={"kind": "logistic"})
    handled(Session("client-0", settings, holding(), allowed=[NAME], shows_errors=shown), "stumble", 1, 0)
    assert "in stumble" in caplog.text
    assert ("ArithmeticError: the step was too long" in caplog.text) == shown
    assert ("in handle" in caplog.text) != shown, "an author needs none of Fenchel's own lines"


@pytest.mark.parametrize("shown", [True, False])
def test_the_text_of_an_error_in_a_library_is_shown_likewise(
    shown: bool, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(TallyClient, "answer", json.loads)  # which is given no text
    settings = make_settings(algorithm={"name": NAME}, objective={"kind": "logistic"})
    handled(Session("client-0", settings, holding(), allowed=[NAME], shows_errors=shown), "add", 1, 0, amount=1.0)
    assert "TypeError" in caplog.text
    assert ("loads() takes 1 positional argument" in caplog.text) == shown


KINDS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, FenchelError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_server_hears_no_words_about_the_files_of_a_client(
    session: Session, kind: type[FenchelError], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object, **named: object) -> Values:
        raise kind("/home/clinic/state: is not what it was")

    monkeypatch.setattr(TallyClient, "answer", fail)
    if issubclass(kind, StorageError | CheckpointError):
        with raises(kind):
            handled(session, "add", 1, 0, amount=1.0)
        return
    head = handled(session, "add", 1, 0, amount=1.0).head
    told = head.failure
    assert head.diverged is (kind in (errors.DivergedError, errors.NotFiniteError))
    assert "/home/clinic/state: is not what it was" in caplog.text
    assert head.spent == (kind is BudgetSpentError)
    if kind is BudgetSpentError:
        assert told == "its privacy budget is spent"
    elif kind in ABOUT_THE_RUN:
        assert told == "/home/clinic/state: is not what it was"
    else:
        assert told == f"a {kind.__name__}; see the client's log"


def test_a_value_that_is_not_finite_is_told_as_a_sign_of_divergence(session: Session) -> None:
    assert handled(session, "add", 1, 0, amount=float("nan")).head.diverged
    refused = handled(session, "add", 2, 0, amount="1").head
    assert refused.failure
    assert not refused.diverged


def test_a_folder_that_becomes_read_only_stops_the_client(
    make_session: MakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = make_session()
    for sequence in (1, 2):
        add(session, 1.0, sequence=sequence, base=sequence - 1)

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with raises(StorageError, file="00000000000000000001.state"):
            handled(session, "add", 3, 2, low_water_mark=2, amount=1.0)
        with raises(StorageError, file="00000000000000000002.state"):
            handled(session, "add", 3, 1, amount=1.0)  # whose base says that the second did not count
    assert session.hello().snapshots == [1, 2]
    assert add(make_session(), 1.0, sequence=3, base=2, low_water_mark=2) == 3.0


def test_a_body_that_cannot_be_decoded_is_a_failure(session: Session) -> None:
    encoded = encode({"amount": np.ones(3)})
    instruction = pb.Instruction(payload=encoded.descriptor, phase="add", kind=pb.ASK, sequence=1)
    answer = session.handle(instruction, Received(outline(encoded.descriptor, 1 << 20), encoded.joined()[:-8]))
    assert "of the message have" in answer.head.failure


@pytest.mark.parametrize("restart", [False, True])
def test_a_client_whose_answers_never_count_keeps_only_the_last(
    make_session: MakeSession, tmp_path: Path, restart: bool
) -> None:
    session = make_session()
    add(session, 1.0, sequence=1, base=0)
    double(session, sequence=2, base=1)
    for late in range(3, 103):
        assert add(session, 100.0, sequence=late, base=2, low_water_mark=1) == 102.0
        assert session.hello().snapshots == [1, 2, late]
        if restart and late % 25 == 0:
            session = make_session()
    assert len(list((tmp_path / "journal").iterdir())) == 3
    assert add(session, 0.5, sequence=103, base=2, low_water_mark=1) == 2.5
    assert add(session, 0.5, sequence=1 << 32, base=1) == 1.5, "the server went back to an older checkpoint"


@pytest.mark.parametrize("least", [None, 1])
def test_evaluation_returns_sums_and_changes_nothing(make_session: MakeSession, least: int | None) -> None:
    session = make_session(evaluation={"histograms": least})
    add(session, 1.0, sequence=1, base=0)
    answer = values_of(handled(session, EVALUATE, 2, 1, kind=pb.INSPECT, model=np.array([0.5, -0.5])))
    check(answer, {**EVALUATION, **(grouped_in(BINS) if least else {})}, client="client-0")
    assert (answer["samples"], answer["holdout_samples"]) == (4, 0)
    assert session.hello().snapshots == [1]
    assert add(session, 2.0, sequence=3, base=1) == 3.0


def test_further_places_on_the_line_of_scores_divide_the_groups(make_session: MakeSession) -> None:
    session = make_session(evaluation={"histograms": 1})
    places, model = np.linspace(-0.1, 0.1, PARTS - 1)[None], np.array([0.5, -0.5])

    def check_groups(answer: Values, places: Places) -> None:
        bins = edges_of(BINS, places).size + 1
        check(answer, {**EVALUATION, **grouped_in(bins), **(LEVELS if len(places) else {})}, client="client-0")
        groups = [answer[name] for name in ("positives", "negatives")]
        assert sum(samples_in(each) for each in groups if isinstance(each, np.ndarray)) == 4

    plain = values_of(handled(session, EVALUATE, 2, 1, kind=pb.INSPECT, model=model))
    check_groups(plain, NO_PLACES)
    finer = values_of(handled(session, EVALUATE, 3, 1, kind=pb.INSPECT, model=model, places=places))
    check_groups(finer, places)
    assert ("levels" in plain, finer["levels"]) == (False, 1)


@pytest.mark.parametrize(
    "places", [np.zeros(30), np.zeros((9, PARTS - 1)), np.full((1, PARTS - 1), np.nan), np.zeros((1, 31), int), 1.0]
)
def test_places_that_divide_no_line_are_refused(places: Any, make_session: MakeSession) -> None:
    session = make_session(evaluation={"histograms": 1})
    reply = handled(session, EVALUATE, 2, 1, kind=pb.INSPECT, model=np.zeros(2), places=places)
    assert reply.body is None
    assert reply.head.failure


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_scores_that_are_not_finite_are_told_in_no_group(
    broken: float, make_session: MakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = make_session(evaluation={"histograms": 1})
    ranking = Ranking(np.array([0.0, 1.0, broken, 2.0]), np.array([True, False, True, False]))
    monkeypatch.setattr(LinearObjective, "judge", lambda self, w: (Metrics(1.0, 1, 4), ranking))
    answer = values_of(handled(session, EVALUATE, 1, 0, kind=pb.INSPECT, model=np.zeros(2)))
    for name in grouped_in(BINS):
        groups = answer[name]
        assert isinstance(groups, np.ndarray)
        assert groups.shape == (0, 3)
    assert answer["samples"] == 4


def test_a_client_that_holds_some_features_evaluates_no_model(make_settings: MakeSettings) -> None:
    shard = holding().shard
    part = ClientData(Shard(shard.features, shard.labels, 2, 5, shard.samples_held, np.array([1, 4])))
    settings = make_settings(algorithm={"name": "hybrid-fedavg"}, objective={"kind": "logistic"})
    for dimension in (2, 5):
        reply = handled(Session("client-0", settings, part), EVALUATE, 1, 0, kind=pb.INSPECT, model=np.zeros(dimension))
        assert "evaluates no models in this run" in reply.head.failure


def test_a_model_of_another_shape_is_not_evaluated(session: Session) -> None:
    reply = handled(session, EVALUATE, 1, 0, kind=pb.INSPECT, model=np.zeros(5))
    assert "expected (2,)" in reply.head.failure


def test_an_algorithm_without_state_writes_no_journal(make_settings: MakeSettings, tmp_path: Path) -> None:
    settings = make_settings(objective={"kind": "logistic"})
    session = Session("client-0", settings, holding(), journal_folder=tmp_path / "journal")
    model = np.zeros(2)
    trained = handled(session, "train", 1, 0, model=model)
    assert values_of(trained)["samples"] == 4
    assert handled(session, "train", 1, 0, model=model) is trained
    hello = session.hello()
    assert hello.stateless
    assert list(hello.snapshots) == []
    assert list(tmp_path.iterdir()) == []
    assert model.tolist() == [0.0, 0.0]


def test_code_from_outside_runs_only_where_a_person_allowed_it(make_session: MakeSession) -> None:
    with raises(SettingsError, key="algorithm.name"):
        make_session(allowed=())
    with raises(SettingsError, key="algorithm.name"):
        make_session(allowed=("tests.unit.client.tally:Other",))
    make_session(allowed=(NAME,))


def test_an_objective_from_outside_runs_only_where_a_person_allowed_it(make_settings: MakeSettings) -> None:
    settings = make_settings(objective={"kind": "own", "name": "tests.unit.client.tally:Elsewhere"})
    with raises(SettingsError, key="algorithm.name"):
        Session("client-0", settings, holding())


def test_each_reply_has_what_was_encrypted_for_it_apart_from_the_computation(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    millisecond, meter, answer = 1_000_000, CipherMeter(), TallyClient.answer

    def encrypting(*given: Any, **named: Any) -> Values:
        time.sleep(0.03)
        meter.encryptions += 2
        meter.encryption_ns += 10 * millisecond
        meter.decryptions += 3
        meter.decryption_ns += 15 * millisecond
        return answer(*given, **named)

    plain = handled(session, "add", 1, 0, amount=1.0).head.timing
    assert (plain.encrypt_ns, plain.decrypt_ns, plain.encryptions, plain.decryptions) == (0, 0, 0, 0)
    monkeypatch.setattr(TallyClient, "answer", encrypting)
    monkeypatch.setattr(TallyClient, "meter", property(lambda _: meter))
    for sequence in (2, 3):
        timing = handled(session, "add", sequence, sequence - 1, amount=1.0).head.timing
        assert (timing.encryptions, timing.decryptions) == (2, 3)
        assert (timing.encrypt_ns, timing.decrypt_ns) == (10 * millisecond, 15 * millisecond)
        assert timing.compute_ns >= 5 * millisecond  # 30 were spent, at least
