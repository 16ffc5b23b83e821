"""A session begins its algorithm with the secrets that it needs, and in no case without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fenchel.client.session import Session
from fenchel.common.errors import SettingsError
from fenchel.common.settings.run import RunSettings
from fenchel.common.wire.phases import OFFER, SEAL
from fenchel.common.wire.values import Value, Values
from fenchel.keys.secret_exchange import SecretExchange
from fenchel.keys.shared import Secrets
from fenchel.proto import fenchel_pb2 as pb
from tests.conftest import MakeSettings
from tests.messages import raises
from tests.unit.client.identities import identities
from tests.unit.client.tally import handled, holding, values_of

VAULT = "tests.cluster.vault:Vault"
BITS = 512
SECRETS = Secrets.generate(BITS, for_tests=True)


def settings(make: MakeSettings, source: str, bits: int = BITS) -> RunSettings:
    return make(algorithm={"name": VAULT, "bits": bits}, objective={"kind": "logistic"}, secrets={"source": source})


def asked(session: Session, phase: str, kind: pb.Kind.ValueType = pb.ASK, **values: Value) -> Values | str:
    """What a session replies; a failure is a text."""
    answer = handled(session, phase, 1, 0, kind=kind, **values)  # type: ignore[arg-type]
    session._last = None  # the next instruction of the test has the same number
    return answer.head.failure if answer.body is None else values_of(answer)


def test_an_algorithm_gets_the_secrets_that_its_client_was_given(make_settings: MakeSettings) -> None:
    session = Session("client-0", settings(make_settings, "file"), holding(), allowed=[VAULT], secrets=SECRETS)
    reply = asked(session, "prove")
    assert not isinstance(reply, str)
    assert reply["fingerprint"] == SECRETS.private_key.public.fingerprint


@pytest.mark.parametrize(
    ("source", "bits", "secrets"), [("file", BITS, None), ("file", 3072, SECRETS), ("sealed", BITS, None)]
)
def test_a_client_without_the_secrets_or_the_certificate_that_it_needs_is_told_what_to_do(
    make_settings: MakeSettings, source: str, bits: int, secrets: Secrets | None
) -> None:
    with raises(SettingsError):
        Session(
            "client-0",
            settings(make_settings, source, bits),
            holding(),
            journal_folder=None,
            allowed=[VAULT],
            secrets=secrets,
        )


def test_an_exchange_that_nobody_expects_is_refused(make_settings: MakeSettings) -> None:
    """A server cannot have a client that was given its secrets seal others, or these, for anybody."""
    session = Session("client-0", settings(make_settings, "file"), holding(), allowed=[VAULT], secrets=SECRETS)
    for phase in (OFFER, SEAL):
        assert "does not know" in str(asked(session, phase, pb.INSPECT))


def test_the_algorithm_begins_when_the_secrets_have_come_and_at_once_after_a_restart(
    make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Secrets, "generate", lambda *_: SECRETS)
    identity = identities(tmp_path / "certs", ["client-0"])["client-0"]

    def started() -> Session:
        secret_exchange = SecretExchange("run-1", identity, BITS, folder=tmp_path / "state")
        return Session(
            "client-0",
            settings(make_settings, "sealed"),
            holding(),
            journal_folder=None,
            allowed=[VAULT],
            secret_exchange=secret_exchange,
        )

    session = started()
    assert session.hello().stateless
    assert "has no secrets of this run" in str(asked(session, "prove"))
    assert not isinstance(asked(session, OFFER, pb.INSPECT), str)
    assert "has no secrets of this run" in str(asked(session, "prove"))
    assert not isinstance(asked(session, SEAL, pb.INSPECT), str)
    first = asked(session, "prove")
    again = asked(started(), "prove")
    assert not isinstance(first, str)
    assert not isinstance(again, str)
    assert np.array_equal(np.asarray(first["proof"]), np.asarray(again["proof"]))
    session.end()
    assert list((tmp_path / "state").iterdir()) == []
    assert "has no secrets of this run" in str(asked(started(), "prove"))
