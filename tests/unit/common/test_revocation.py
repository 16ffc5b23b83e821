"""Which certificates count: what was revoked, by whom, and what a folder holds now."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from cryptography import x509

from fenchel.common.errors import CredentialError, RevokedError, SettingsError
from fenchel.common.tls.credentials import Credentials
from fenchel.common.tls.revocation import REVOKED, Revocations, read_revoked
from fenchel.deploy.certificates.description import describe
from fenchel.deploy.certificates.issued import issued
from fenchel.deploy.certificates.making import make_all, make_client, renew
from fenchel.deploy.certificates.revocation import copy_list, revoke
from tests.messages import raises


@pytest.fixture
def made(tmp_path: Path) -> Path:
    make_all(tmp_path / "certs", ["localhost"], ["north", "south"])
    return tmp_path / "certs"


def pem(folder: Path) -> bytes:
    return (folder / "certificate.pem").read_bytes()


def publish(made: Path) -> None:
    """Bring the list from the authority to the server."""
    (made / "server" / REVOKED).write_bytes((made / "authority" / REVOKED).read_bytes())


def test_what_is_revoked_is_refused_from_then_on_and_nothing_else_is(made: Path) -> None:
    revocations = Revocations(made / "server")
    revocations.check(pem(made / "north"))
    assert not revocations.refresh()
    revoke(made / "authority", names=["north"])
    publish(made)
    assert revocations.refresh()
    restarted = Revocations(made / "server")
    for each in (revocations, restarted):
        with raises(RevokedError, owner="north", serial=describe(made / "north")["serial"]):
            each.check(pem(made / "north"))
        each.check(pem(made / "south"))
        with raises(RevokedError):
            each.check(b"no certificate")


def test_a_name_gets_a_new_certificate_after_all_of_its_old_ones_were_revoked(made: Path) -> None:
    first = pem(made / "north")
    renew(made / "authority", made / "north")
    second = pem(made / "north")
    assert [each.name for each in issued(made / "authority")].count("north") == 2
    assert len(revoke(made / "authority", names=["north"])) == 2
    assert revoke(made / "authority", names=["north"]) == []
    make_client(made / "authority", made / "north", "north", force=True)
    publish(made)
    revocations = Revocations(made / "server")
    for each in (first, second):
        with raises(RevokedError):
            revocations.check(each)
    revocations.check(pem(made / "north"))


def test_the_list_is_one_that_others_can_read(made: Path) -> None:
    north = x509.load_pem_x509_certificate(pem(made / "north"))
    revoke(made / "authority", names=["north"])
    revoke(made / "authority", serials=[4242])
    found = x509.load_pem_x509_crl((made / "authority" / REVOKED).read_bytes())
    authority = x509.load_pem_x509_certificate((made / "authority/authority.pem").read_bytes())
    assert found.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    assert {each.serial_number for each in found} == {north.serial_number, 4242}
    assert found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 2


def test_a_list_of_somebody_else_is_refused(made: Path, tmp_path: Path) -> None:
    make_all(tmp_path / "others", ["localhost"], ["north"])
    revoke(tmp_path / "others/authority", names=["north"])
    (made / "server" / REVOKED).write_bytes((tmp_path / "others/authority" / REVOKED).read_bytes())
    with raises(CredentialError, file="revoked.pem"):
        read_revoked(made / "server")
    # With the certificates of both authorities beside it, it counts, for their certificates only.
    authorities = b"".join((each / "authority/authority.pem").read_bytes() for each in (made, tmp_path / "others"))
    (made / "server/authority.pem").write_bytes(authorities)
    revocations = Revocations(made / "server")
    with raises(RevokedError):
        revocations.check(pem(tmp_path / "others/north"))
    revocations.check(pem(made / "north"))


@pytest.mark.parametrize("damage", ["first cut off", "second cut off", "second garbled"])
def test_of_two_lists_none_may_be_damaged(damage: str, made: Path, tmp_path: Path) -> None:
    make_all(tmp_path / "others", ["localhost"], ["north"])
    places = made, tmp_path / "others"
    for place in places:
        revoke(place / "authority", names=["north"])
    authorities = b"".join((each / "authority/authority.pem").read_bytes() for each in places)
    (made / "server/authority.pem").write_bytes(authorities)
    first, second = ((each / "authority" / REVOKED).read_bytes() for each in places)
    (made / "server" / REVOKED).write_bytes(first + second)
    assert len(read_revoked(made / "server")) == 2
    damaged = {
        "first cut off": first[:-60] + second,
        "second cut off": first + second[:-60],
        "second garbled": first + second[:100] + second[120:],
    }
    (made / "server" / REVOKED).write_bytes(damaged[damage])
    with raises(CredentialError, file="revoked.pem"):
        read_revoked(made / "server")
    with raises(CredentialError, file="revoked.pem"):
        copy_list(made / "authority", made / "server")  # it would drop the list of the other authority


@pytest.mark.parametrize("damage", [b"", b"-----BEGIN X509 CRL-----\nMIIB\n-----END X509 CRL-----\n", None])
def test_a_list_that_is_damaged_later_revokes_no_less_than_before(
    damage: bytes | None, made: Path, caplog: pytest.LogCaptureFixture
) -> None:
    revoke(made / "authority", names=["north"])
    publish(made)
    revocations = Revocations(made / "server")
    caplog.set_level(logging.ERROR, "fenchel.server")
    if damage is None:
        (made / "server" / REVOKED).unlink()
    else:
        (made / "server" / REVOKED).write_bytes(damage)
        with raises(CredentialError, file="revoked.pem"):
            read_revoked(made / "server")
    assert not revocations.refresh()
    with raises(RevokedError):
        revocations.check(pem(made / "north"))


def test_a_name_that_was_never_issued_cannot_be_revoked(made: Path) -> None:
    with raises(SettingsError, file="issued.jsonl"):
        revoke(made / "authority", names=["nroth"])
    assert not (made / "authority" / REVOKED).exists()


def test_credentials_are_taken_up_when_they_are_whole_and_fit(made: Path) -> None:
    old = Credentials.load(made / "north")
    assert old.renewed() is old
    kept = (made / "north/key.pem").read_bytes()
    renew(made / "authority", made / "north")
    key = (made / "north/key.pem").read_bytes()
    for half in (kept, b"", key[:100]):  # the moments in which only some of the files are there
        (made / "north/key.pem").write_bytes(half)
        assert old.renewed() is old
    (made / "north/key.pem").unlink()
    assert old.renewed() is old
    (made / "north/key.pem").write_bytes(key)
    new = old.renewed()
    assert new == Credentials.load(made / "north") != old
    assert new.renewed() is new
    assert "PRIVATE" not in repr(new)
