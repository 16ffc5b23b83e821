"""The server relays the exchange of secrets: each client gets its own box, and they must agree in the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from fenchel.common.errors import RevokedError, RunStoppedError, SettingsError, TooFewRepliesError
from fenchel.common.wire.phases import ACCEPT, OFFER, SEAL
from fenchel.common.wire.schema import Expectation, check
from fenchel.common.wire.values import Value, Values
from fenchel.fleet.fleet import Fleet
from fenchel.server.membership.secret_exchange import share_secrets
from tests.messages import raises


def array(text: str) -> Value:
    return np.frombuffer(text.ljust(32, ".").encode(), np.uint8)


@dataclass
class Relayed:
    """Stands for a fleet: answers each client's phase as a client would, and notes what each was given."""

    clients: tuple[str, ...] = ("east", "north", "south")
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    failing: Mapping[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str, Values]] = field(default_factory=list)

    def all(self) -> Relayed:
        return self

    def only(self, chosen: Callable[[str], bool]) -> Relayed:
        return Relayed(tuple(filter(chosen, self.clients)), self.fingerprints, self.failing, self.asked)

    async def inspect(self, phase: str, *, returns: Expectation, **values: Value) -> dict[str, Values]:
        (client,) = self.clients
        self.asked.append((client, phase, values))
        if phase in self.failing.get(client, ""):
            raise TooFewRepliesError("phase: 0 of 1 clients answered", failures={client: "its disk is full"})
        reply: dict[str, Any] = {"fingerprint": self.fingerprints.get(client, "same")}
        if phase == OFFER:
            reply = {"public_key": array(client), "certificate": client, "signature": array(client)}
        if phase == SEAL:
            recipients = {name.partition("/")[0] for name in values}
            reply["certificate"] = client
            for name in recipients:
                reply |= {f"{name}/box": array(f"for {name}"), f"{name}/signature": array(f"{client} {name}")}
        check(reply, returns, client=client)
        return {client: reply}


def relay(fleet: Relayed) -> Fleet:
    return cast(Fleet, fleet)


async def test_each_client_gets_its_own_box_from_the_designated_one() -> None:
    fleet = Relayed()
    assert await share_secrets(relay(fleet), "north") == "same"
    phases = [(client, phase) for client, phase, _ in fleet.asked]
    assert phases == [("east", OFFER), ("south", OFFER), ("north", SEAL), ("east", ACCEPT), ("south", ACCEPT)]
    offered = fleet.asked[2][2]
    assert {name.partition("/")[0] for name in offered} == {"east", "south"}
    for client, _, parcel in fleet.asked[3:]:
        assert set(parcel) == {"sender", "certificate", "box", "signature"}
        assert (parcel["sender"], parcel["certificate"]) == ("north", "north")
        assert np.array_equal(np.asarray(parcel["box"]), np.asarray(array(f"for {client}")))
        assert np.array_equal(np.asarray(parcel["signature"]), np.asarray(array(f"north {client}")))


async def test_the_first_by_id_makes_the_secrets_if_nobody_else_is_named() -> None:
    fleet = Relayed()
    await share_secrets(relay(fleet))
    assert [client for client, phase, _ in fleet.asked if phase == SEAL] == ["east"]


async def test_one_client_needs_no_box() -> None:
    fleet = Relayed(("east",))
    assert await share_secrets(relay(fleet)) == "same"
    assert [(client, phase, dict(values)) for client, phase, values in fleet.asked] == [("east", SEAL, {})]


def revoked(certificate: bytes) -> Callable[[bytes], None]:
    def check(pem: bytes) -> None:
        if pem == certificate:
            raise RevokedError("it was revoked")

    return check


async def test_what_a_revoked_client_offers_is_not_passed_on() -> None:
    fleet = Relayed()
    with raises(RunStoppedError):
        await share_secrets(relay(fleet), "north", revoked(b"south"))
    assert {phase for _, phase, _ in fleet.asked} == {OFFER}


async def test_what_a_revoked_client_sealed_is_not_passed_on() -> None:
    fleet = Relayed()
    with raises(RunStoppedError):
        await share_secrets(relay(fleet), "north", revoked(b"north"))
    assert {phase for _, phase, _ in fleet.asked} == {OFFER, SEAL}


async def test_a_run_does_not_begin_with_clients_that_disagree() -> None:
    with raises(RunStoppedError):
        await share_secrets(relay(Relayed(fingerprints={"south": "another"})))


@pytest.mark.parametrize(("client", "phase"), [("south", OFFER), ("east", SEAL), ("north", ACCEPT)])
async def test_a_run_does_not_begin_without_one_of_them(client: str, phase: str) -> None:
    with raises(RunStoppedError):
        await share_secrets(relay(Relayed(failing={client: phase})))


async def test_a_designated_client_that_is_not_there_is_named() -> None:
    with raises(SettingsError, key="secrets.designated"):
        await share_secrets(relay(Relayed()), "west")
