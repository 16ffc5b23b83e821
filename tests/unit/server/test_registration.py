"""Who may take part: the right version, its own name, and after the run has begun only where it admits somebody."""

from __future__ import annotations

import asyncio

import pytest

from fenchel.common.errors import IdentityInUseError, JoinRefusedError, RunStoppedError
from fenchel.common.version import PROTOCOL
from fenchel.fleet.client_record import ClientRecord
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.membership import registration as module
from fenchel.server.membership.registration import Registration
from tests.messages import raises

SETTLE = 0.02
PATIENCE = 30.0


def request(client: str, instance: bytes = b"first", protocol: int = PROTOCOL) -> pb.JoinRequest:
    return pb.JoinRequest(protocol=protocol, client=client, instance=instance, software="fenchel 9")


def connected(client: str) -> ClientRecord:
    return ClientRecord(client, queue=asyncio.Queue())


async def joined(registration: Registration, *clients: str) -> list[pb.Assignment | None]:
    return await asyncio.gather(*(registration.join(request(client)) for client in clients))


async def test_places_follow_the_order_of_ids_whatever_the_order_of_joining() -> None:
    registration = Registration(3, SETTLE)
    places = await joined(registration, "c", "a", "b")
    assert [(place.index, place.clients) for place in places if place] == [(2, 3), (0, 3), (1, 3)]
    assert await registration.completed(1.0) == ["a", "b", "c"]


async def test_a_client_whose_fleet_is_not_complete_is_told_to_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.01)
    registration = Registration(2, SETTLE)
    assert await joined(registration, "a") == [None]
    assert await joined(registration, "a") == [None]
    assert len(registration.instances) == 1
    place, again = await joined(registration, "b", "a")
    assert place
    assert again
    assert (place.index, again.index) == (1, 0)


async def test_a_client_whose_process_has_ended_makes_room_and_keeps_its_place_in_a_complete_fleet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.01)
    registration = Registration(2, SETTLE)
    await joined(registration, "a")
    leaving = request("a")
    leaving.withdrawn = "DataError"
    other = request("a", b"another process")
    other.withdrawn = "DataError"
    assert not registration.withdraw(other)
    assert registration.names == ["a"]
    polling = asyncio.create_task(registration.join(request("a")))
    await asyncio.sleep(0)
    assert registration.withdraw(leaving)
    assert not registration.names
    assert await joined(registration, "b") == [None]
    assert registration.joined == 1
    assert await polling is None
    place, _ = await joined(registration, "a", "b")
    assert place
    assert registration.withdraw(leaving)
    assert registration.names == ["a", "b"]
    assert registration.withdrawn == {"a": "DataError"}
    await registration.join(request("a", b"second"))
    assert not registration.withdrawn
    assert not registration.withdraw(leaving), "of the process before"


async def test_a_client_that_withdraws_while_its_call_waits_has_no_place_in_the_fleet_of_others() -> None:
    registration = Registration(2, SETTLE)
    polling = asyncio.create_task(registration.join(request("a")))
    await asyncio.sleep(0)
    leaving = request("a")
    leaving.withdrawn = "DataError"
    assert registration.withdraw(leaving)
    await joined(registration, "b", "c")
    assert await polling is None
    assert await registration.completed(1.0) == ["b", "c"]


async def test_a_client_that_comes_and_ends_again_and_again_does_not_keep_an_open_fleet_waiting() -> None:
    registration = Registration(None, 10 * SETTLE)
    completing = asyncio.create_task(registration.completed(PATIENCE))
    joining = [asyncio.create_task(registration.join(request(client))) for client in ("a", "b")]
    leaving = request("b")
    leaving.withdrawn = "DataError"
    while not completing.done():
        await asyncio.sleep(SETTLE)
        registration.withdraw(leaving)
        joining.append(asyncio.create_task(registration.join(request("b"))))
    assert set(await completing) >= {"a"}
    await asyncio.gather(*joining, return_exceptions=True)


async def test_a_late_joiner_that_ends_keeps_its_process_known() -> None:
    registration = Registration(1, SETTLE, late_joiners="admit")
    await joined(registration, "a", "b")
    leaving = request("b")
    leaving.withdrawn = "DataError"
    assert registration.withdraw(leaving)
    assert registration.instances["b"] == b"first"
    assert registration.is_late("b")
    assert registration.names == ["a"]


async def test_an_open_fleet_is_complete_when_nobody_new_has_come_for_a_while() -> None:
    registration = Registration(None, SETTLE)
    completing = asyncio.create_task(registration.completed(30.0))
    places = await joined(registration, "b", "a")
    assert [place.clients for place in places if place] == [2, 2]
    assert await completing == ["a", "b"]


async def test_an_open_fleet_of_nobody_is_never_complete() -> None:
    with raises(RunStoppedError):
        await Registration(None, SETTLE).completed(0.1)


async def test_a_fleet_that_stays_incomplete_stops_the_run_and_names_who_is_there() -> None:
    registration = Registration(2, SETTLE)
    waiting = asyncio.create_task(joined(registration, "a"))
    with raises(RunStoppedError):
        await registration.completed(0.05)
    waiting.cancel()


async def test_a_stranger_is_refused_once_the_run_has_begun() -> None:
    registration = Registration(1, SETTLE)
    await joined(registration, "a")
    with raises(JoinRefusedError):
        await registration.join(request("b"))
    assert (await joined(registration, "a")) != [None]


async def test_a_name_that_is_connected_belongs_to_the_process_that_uses_it() -> None:
    registration = Registration(1, SETTLE)
    await joined(registration, "a")
    with raises(IdentityInUseError):
        await registration.join(request("a", b"second"), member=connected("a"))
    assert registration.instances["a"] == b"first"
    # The server has not noticed that its stream broke.
    assert await registration.join(request("a"), member=connected("a"))


async def test_a_client_that_was_started_anew_takes_its_place_again() -> None:
    registration = Registration(1, SETTLE)
    await joined(registration, "a")
    assert await registration.join(request("a", b"second"))
    assert registration.instances["a"] == b"second"


async def test_a_resumed_run_knows_its_clients_and_takes_nobody_else() -> None:
    registration = Registration(None, SETTLE, names=("b", "a"))
    assert registration.expected == 2
    assert await registration.completed(1.0) == ["a", "b"]
    place = await registration.join(request("b", b"new"))
    assert place
    assert (place.index, place.clients) == (1, 2)
    with raises(JoinRefusedError):
        await registration.join(request("c"))


async def test_a_run_that_admits_late_joiners_gives_them_a_place_and_does_not_count_them_as_founders() -> None:
    registration = Registration(2, SETTLE, late_joiners="admit")
    assert not registration.is_late("c")
    await joined(registration, "c", "a")
    (place,) = await joined(registration, "b")
    assert place
    assert (place.index, place.clients) == (1, 3)
    assert registration.is_late("b")
    assert not registration.is_late("a")
    assert not registration.is_late("nobody")
    assert await registration.completed(1.0) == ["a", "c"]
    (again,) = await joined(registration, "c")
    assert again
    assert (again.index, again.clients) == (1, 2)


async def test_a_late_joiner_is_who_it_was_and_hears_that_the_run_is_over() -> None:
    registration = Registration(None, SETTLE, names=("a",), late_joiners="admit")
    assert await registration.join(request("b"))
    with raises(IdentityInUseError):
        await registration.join(request("b", b"second"), member=connected("b"))
    registration.end("the run is over")
    with raises(JoinRefusedError):
        await registration.join(request("c"))
    assert await registration.join(request("b"), member=ClientRecord("b"))  # for its farewell


async def test_a_run_that_is_over_refuses_everybody_and_says_so() -> None:
    registration = Registration(2, SETTLE)
    waiting = asyncio.create_task(joined(registration, "a"))
    for _ in range(3):
        await asyncio.sleep(0)  # it waits for the others now
    registration.end("the run is over")
    with raises(JoinRefusedError):
        await waiting


async def test_what_a_client_calls_its_software_forges_no_line() -> None:
    stranger = request("a", protocol=PROTOCOL + 1)
    stranger.software = "\x1b]0;owned\x07\nround 7  all is well" + "x" * 200
    with raises(JoinRefusedError) as caught:
        await Registration(1, SETTLE).join(stranger)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
