"""All clients come to the same secrets, whoever is killed; and what is not from a client, for this run, is refused."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from fenchel.common.errors import CheckpointError, CredentialError, LostStateError, PayloadError, StorageError
from fenchel.common.tls.credentials import Credentials
from fenchel.common.tls.revocation import REVOKED
from fenchel.common.wire.phases import ACCEPT, ACCEPTED, OFFER, OFFERED, SEAL, sealed_for
from fenchel.common.wire.schema import check
from fenchel.common.wire.values import Value, Values
from fenchel.deploy.certificates.making import make_monitor
from fenchel.deploy.certificates.revocation import revoke
from fenchel.keys.identity import Identity
from fenchel.keys.sealing import seal
from fenchel.keys.secret_exchange import SecretExchange
from fenchel.keys.shared import Secrets
from tests.messages import raises
from tests.unit.client.identities import identities

Make: TypeAlias = Callable[..., SecretExchange]

BITS = 512
NAMES = ["east", "north", "south"]
MAKER, OTHERS = "east", ["north", "south"]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    return identities(tmp_path_factory.mktemp("certs") / "ours", NAMES)


@pytest.fixture(scope="module", autouse=True)
def quick_keys() -> Iterator[None]:
    """Keys of a length that tests can afford; all else is as in a run."""
    real = Secrets.generate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Secrets, "generate", lambda bits, maker: real(bits, maker, for_tests=True))
        yield


@pytest.fixture
def make(known: dict[str, Identity], tmp_path: Path) -> Make:
    """A client's part; one made after another of the same name finds what that one kept."""

    def made(name: str, run: str = "run-1", *, kept: bool = True, **options: object) -> SecretExchange:
        folder = tmp_path / run / name if kept else None
        return SecretExchange(run, known[name], BITS, folder=folder, **options)  # type: ignore[arg-type]

    return made


def offers(*parts: tuple[str, SecretExchange]) -> dict[str, Value]:
    """What the server hands to the designated client."""
    collected: dict[str, Value] = {}
    for name, part in parts:
        offer = part.answer(OFFER, {})
        check(offer, OFFERED, client=name)
        collected |= {f"{name}/{item}": value for item, value in offer.items()}
    return collected


def parcel(sealed: Values, name: str, sender: str = MAKER) -> dict[str, Value]:
    """What the server hands to one of the others."""
    return {
        "sender": sender,
        "certificate": sealed["certificate"],
        "box": sealed[f"{name}/box"],
        "signature": sealed[f"{name}/signature"],
    }


def text(part: SecretExchange) -> str:
    assert part.secrets is not None
    return part.secrets.to_text()


@pytest.mark.parametrize("kept", [True, False])
def test_all_clients_come_to_the_same_secrets(make: Make, kept: bool) -> None:
    parts = {name: make(name, kept=kept) for name in NAMES}
    sealed = parts[MAKER].answer(SEAL, offers(*((name, parts[name]) for name in OTHERS)))
    check(sealed, sealed_for(OTHERS), client=MAKER)
    for name in OTHERS:
        accepted = parts[name].answer(ACCEPT, parcel(sealed, name))
        check(accepted, ACCEPTED, client=name)
        assert accepted["fingerprint"] == sealed["fingerprint"]
    assert len({text(part) for part in parts.values()}) == 1


def test_nothing_that_passes_through_the_server_holds_the_secrets(make: Make) -> None:
    parts = {name: make(name) for name in NAMES}
    offered = offers(*((name, parts[name]) for name in OTHERS))
    sealed = parts[MAKER].answer(SEAL, offered)
    accepted = [parts[name].answer(ACCEPT, parcel(sealed, name)) for name in OTHERS]
    passed = b"".join(
        value.tobytes() if isinstance(value, np.ndarray) else str(value).encode()
        for values in (offered, sealed, *accepted)
        for value in values.values()
    )
    secrets = parts[MAKER].secrets
    assert secrets is not None
    for number in (secrets.private_key.p, secrets.private_key.q):
        assert f"{number:x}".encode() not in passed
        assert number.to_bytes(32, "big") not in passed
    assert secrets.alignment_key not in passed
    assert secrets.alignment_key.hex().encode() not in passed


# Killed and started again


@pytest.mark.parametrize("killed_after", range(4))
def test_whoever_is_killed_comes_to_the_same_secrets(make: Make, killed_after: int) -> None:
    """At each step the client that acts is killed once before its answer arrives, and does it again."""
    parts = {name: make(name) for name in NAMES}
    fingerprints = []

    def answer(step: int, name: str, phase: str, values: Values) -> Values:
        reply = parts[name].answer(phase, values)
        if step == killed_after:
            parts[name] = make(name)
            reply = parts[name].answer(phase, values)
        if "fingerprint" in reply:
            fingerprints.append(reply["fingerprint"])
        return reply

    first = answer(0, "north", OFFER, {})
    offered = {f"north/{item}": value for item, value in first.items()} | offers(("south", parts["south"]))
    sealed = answer(1, MAKER, SEAL, offered)
    answer(2, "north", ACCEPT, parcel(sealed, "north"))
    answer(3, "south", ACCEPT, parcel(sealed, "south"))
    assert len(fingerprints) == 3
    assert len(set(fingerprints)) == 1
    assert len({text(part) for part in parts.values()}) == 1
    assert len({text(make(name)) for name in NAMES}) == 1


def test_a_box_that_was_sealed_before_the_maker_was_killed_still_counts(make: Make) -> None:
    north, south = make("north"), make("south")
    offered = offers(("north", north), ("south", south))
    before = make(MAKER).answer(SEAL, offered)
    again = make(MAKER).answer(SEAL, offered)
    north.answer(ACCEPT, parcel(before, "north"))
    south.answer(ACCEPT, parcel(again, "south"))
    assert text(north) == text(south)


def test_what_is_kept_only_its_owner_can_read(make: Make, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        north = make("north")
        sealed = make(MAKER).answer(SEAL, offers(("north", north)))
        (key,) = (tmp_path / "run-1/north").iterdir()
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        north.answer(ACCEPT, parcel(sealed, "north"))
        (secret,) = (tmp_path / "run-1/north").iterdir()  # the key that opened the box is gone
        assert secret != key
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    finally:
        os.umask(old)
    north.forget()
    assert list((tmp_path / "run-1/north").iterdir()) == []


def test_a_half_written_file_of_a_killed_client_is_in_nobodys_way(make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "run-1/north"
    folder.mkdir(parents=True)
    (folder / "exchange.key.new").write_bytes(b"half")
    (folder / "clients.secret.new").write_bytes(b"half")
    north = make("north")
    north.answer(ACCEPT, parcel(make(MAKER).answer(SEAL, offers(("north", north))), "north"))
    assert text(make("north")) == text(north)


def test_a_damaged_key_is_named(make: Make, tmp_path: Path) -> None:
    make("north").answer(OFFER, {})
    (tmp_path / "run-1/north/exchange.key").write_bytes(b"short")
    with raises(CheckpointError, file="exchange.key"):
        make("north")


def test_a_client_whose_folder_is_gone_says_so(make: Make, tmp_path: Path) -> None:
    sealed = make(MAKER).answer(SEAL, offers(("north", make("north"))))
    (tmp_path / "run-1/north/exchange.key").unlink()
    with raises(LostStateError) as refusal:
        make("north").answer(ACCEPT, parcel(sealed, "north"))
    assert str(tmp_path) not in str(refusal.value), "the server is told this text"


def test_what_cannot_be_removed_at_the_end_is_named(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    north = make("north")
    north.answer(OFFER, {})

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "unlink", refuse)
    with raises(StorageError, file="exchange.key"):
        north.forget()
    monkeypatch.undo()
    north.forget()
    monkeypatch.setattr(Path, "unlink", refuse)
    north.forget()  # nothing is left to remove


# Hostile


def test_an_offer_that_no_client_of_this_run_made_is_refused(
    make: Make, known: dict[str, Identity], tmp_path: Path
) -> None:
    """The last one is the server's own key in a client's offer, to be able to open the box."""
    foreign = SecretExchange("run-1", identities(tmp_path / "theirs", ["north"])["north"], BITS)
    server = SecretExchange("run-1", known["server"], BITS)
    offered = offers(("north", make("north")))
    for wrong in (
        offers(("north", make("north", "run-2"))),
        {name.replace("north", "south"): value for name, value in offered.items()},
        offers(("fenchel server", server)),
        offers(("north", foreign)),
        offered | {"north/public_key": make("south").answer(OFFER, {})["public_key"]},
    ):
        maker = make(MAKER)
        with raises(CredentialError):
            maker.answer(SEAL, wrong)
        assert maker.secrets is None, "nothing is made before all offers are checked"


def test_a_box_of_another_run_is_refused(make: Make, tmp_path: Path) -> None:
    """Even where the client offered the same key twice, which it never does by itself."""
    first = make("north", "run-1")
    sealed = make(MAKER, "run-1").answer(SEAL, offers(("north", first)))
    (tmp_path / "run-2/north").mkdir(parents=True)
    (tmp_path / "run-1/north/exchange.key").rename(tmp_path / "run-2/north/exchange.key")
    second = make("north", "run-2")
    with raises(CredentialError):
        second.answer(ACCEPT, parcel(sealed, "north"))
    assert second.secrets is None


def test_a_box_that_no_client_of_this_run_sealed_for_this_one_is_refused(
    make: Make, known: dict[str, Identity], tmp_path: Path
) -> None:
    theirs = {
        name: SecretExchange("run-1", identity, BITS)
        for name, identity in identities(tmp_path / "theirs", NAMES).items()
    }
    north, south = make("north"), make("south")
    offered = offers(("north", north), ("south", south))
    of_server = SecretExchange("run-1", known["server"], BITS).answer(SEAL, offered)
    sealed = make(MAKER).answer(SEAL, offered)
    sent = parcel(sealed, "north")
    changed = []
    for item in ("box", "signature"):
        content = np.array(sent[item])
        content[len(content) // 2] ^= 1
        changed.append(sent | {item: content})
    for wrong in (
        parcel(of_server, "north", "fenchel server"),
        # A foreign maker would seal only for its own, so its box for north is made with north's foreign key.
        parcel(theirs[MAKER].answer(SEAL, offers(("north", theirs["north"]))), "north"),
        parcel(sealed, "south"),
        *changed,
    ):
        with raises(CredentialError):
            north.answer(ACCEPT, wrong)
        assert north.secrets is None
    assert north.answer(ACCEPT, sent)["fingerprint"], "the true one is still accepted"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{}", "größer".encode()])
def test_a_box_of_a_client_that_holds_no_secrets_is_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    north, maker = make("north"), make(MAKER)
    monkeypatch.setattr("fenchel.keys.secret_exchange.seal", lambda message, *rest: seal(content, *rest))
    sealed = maker.answer(SEAL, offers(("north", north)))
    with raises(CredentialError):
        north.answer(ACCEPT, parcel(sealed, "north"))
    assert north.secrets is None


@pytest.mark.parametrize("bits", [BITS // 2, 2 * BITS])
def test_a_key_of_another_length_than_the_settings_have_is_refused(
    make: Make, known: dict[str, Identity], bits: int
) -> None:
    """A server that gives the maker other settings could break a short key."""
    north, maker = make("north"), SecretExchange("run-1", known[MAKER], bits)
    sealed = maker.answer(SEAL, offers(("north", north)))
    with raises(CredentialError):
        north.answer(ACCEPT, parcel(sealed, "north"))
    assert north.secrets is None


@pytest.mark.parametrize("role", ["monitor", "revoked"])
def test_nothing_is_sealed_for_a_monitor_or_a_revoked_client_that_the_server_puts_among_the_clients(
    role: str, make: Make, known: dict[str, Identity], tmp_path: Path
) -> None:
    certificates = tmp_path / "certs"
    ours = identities(certificates, NAMES)
    if role == "monitor":
        make_monitor(certificates / "authority", certificates / "south", "south", force=True)
        ours["south"] = Identity("south", Credentials.load(certificates / "south"))
    else:
        revoke(certificates / "authority", names=["south"])
        for name in (MAKER, "north"):
            shutil.copy(certificates / "authority" / REVOKED, certificates / name)
    maker, north, south = (SecretExchange("run-1", ours[name], BITS) for name in NAMES)
    with raises(CredentialError):
        maker.answer(SEAL, offers(("north", north), ("south", south)))
    assert maker.secrets is None
    # Nor are secrets taken from it.
    sealed = south.answer(SEAL, offers(("north", north)))
    with raises(CredentialError):
        north.answer(ACCEPT, parcel(sealed, "north", sender="south"))
    assert north.secrets is None
    maker.answer(SEAL, offers(("north", north)))


def test_only_the_designated_client_makes_the_secrets(make: Make) -> None:
    with raises(CredentialError):
        make(MAKER, designated="south").answer(SEAL, {})
    north = make("north", designated="south")
    sealed = make(MAKER).answer(SEAL, offers(("north", north)))
    with raises(CredentialError):
        north.answer(ACCEPT, parcel(sealed, "north"))


def test_the_key_is_made_by_the_implementation_of_the_run(make: Make) -> None:
    pytest.importorskip("phe", reason="phe is not installed")
    ours, theirs = make(MAKER, run="ours"), make(MAKER, run="theirs", implementation="phe")
    for part in (ours, theirs):
        part.answer(SEAL, {})
    assert ours.secrets is not None
    assert theirs.secrets is not None
    assert ours.secrets.private_key.p_factors
    assert not theirs.secrets.private_key.p_factors  # which phe does not know


def test_secrets_are_shared_with_named_peers_only(make: Make) -> None:
    north, south = make("north", peers=["south"]), make("south")
    offered = offers(("north", north), ("south", south))
    with raises(CredentialError):
        make(MAKER, peers=["south"]).answer(SEAL, offered)
    sealed = make(MAKER, peers=["north", "south"]).answer(SEAL, offered)
    with raises(CredentialError):
        north.answer(ACCEPT, parcel(sealed, "north"))
    assert north.secrets is None


def test_secrets_that_are_there_are_never_replaced(make: Make) -> None:
    north = make("north")
    sealed = make(MAKER).answer(SEAL, offers(("north", north)))
    north.answer(ACCEPT, parcel(sealed, "north"))
    before = text(north)
    other = make("south").answer(SEAL, offers(("north", north)))
    assert north.answer(ACCEPT, parcel(other, "north", "south"))["fingerprint"] == sealed["fingerprint"]
    assert text(north) == text(make("north")) == before


@pytest.mark.parametrize(
    ("phase", "values"),
    [
        (OFFER, {"surplus": 1}),
        (SEAL, {"north/public_key": np.zeros(32, np.uint8)}),
        (SEAL, {"nobody": 1}),
        (SEAL, {"north/public_key": np.zeros(31, np.uint8), "north/certificate": "", "north/signature": ""}),
        (ACCEPT, {}),
        (ACCEPT, {"sender": 1, "certificate": "", "box": np.zeros(9, np.uint8), "signature": ""}),
    ],
)
def test_values_of_another_form_are_refused(make: Make, phase: str, values: Values) -> None:
    with raises(PayloadError):
        make("north").answer(phase, values)
