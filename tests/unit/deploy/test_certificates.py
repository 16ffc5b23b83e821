"""Certificates: strict verifiers and gRPC accept the right ones and refuse the others; keys stay private."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import shutil
import ssl
import stat
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID as EKU
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from fenchel.common.errors import CredentialError, RevokedError, SettingsError
from fenchel.common.tls.credentials import CLAIMS, Credentials
from fenchel.common.tls.revocation import check_not_revoked, read_revoked
from fenchel.deploy.certificates import validity
from fenchel.deploy.certificates.authority import AUTHORITY_KEY, make_authority
from fenchel.deploy.certificates.claims import claim
from fenchel.deploy.certificates.description import common_name, describe
from fenchel.deploy.certificates.issued import ISSUED, issued, note
from fenchel.deploy.certificates.making import make_all, make_client, make_monitor, make_server, renew
from fenchel.deploy.certificates.pairs import check_pair
from fenchel.deploy.certificates.revocation import revoke
from fenchel.deploy.cli.main import application
from tests.messages import raises

HOST = "coordinator.example.org"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_all(folder, [HOST, "192.0.2.7"], ["north", "south"])
    return folder


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign")
    make_all(folder, [HOST], ["north"])
    return folder


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


async def answer(server: Credentials, channel: grpc.ChannelCredentials, name: str = "") -> str:
    """Connect for real; return "" if the server answers, else why not."""
    listening = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), listening)
    port = listening.add_secure_port("127.0.0.1:0", server.for_server())
    await listening.start()
    options = (("grpc.ssl_target_name_override", name),) if name else ()
    try:
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", channel, options=options) as dialled:
            check = dialled.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
            await check(health_pb2.HealthCheckRequest(), timeout=10)
    except grpc.aio.AioRpcError as error:
        return error.details() or error.code().name
    finally:
        await listening.stop(None)
    return ""


# What is made


def test_one_call_lays_out_a_folder_for_each_side_and_the_authoritys_key_is_in_one_of_them_only(made: Path) -> None:
    leaf = ("authority.pem", "certificate.pem", "key.pem")
    expected = {f"{who}/{name}" for who in ("server", "north", "south") for name in leaf}
    assert files(made) == expected | {
        "authority/authority.pem",
        "authority/authority-key.pem",
        "authority/issued.jsonl",
    }
    key = (made / "authority" / AUTHORITY_KEY).read_bytes()
    assert [path for path in made.rglob("*.pem") if path.read_bytes() == key] == [made / "authority" / AUTHORITY_KEY]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_the_owner_can_read_keys_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        make_all(tmp_path / "certs", [], ["north"])
    finally:
        os.umask(before)
    for name in ("authority", "server", "north"):
        assert stat.S_IMODE((tmp_path / "certs" / name).stat().st_mode) == 0o700
    keys = list(tmp_path.rglob("*key.pem"))
    assert len(keys) == 3
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}


def test_a_strict_verifier_accepts_each_certificate_for_its_side_and_its_hosts_only(made: Path) -> None:
    policy = PolicyBuilder().store(Store([certificate(made / "authority" / "authority.pem")]))
    leaf = certificate(made / "server" / "certificate.pem")
    for host in (HOST, "localhost"):
        policy.build_server_verifier(x509.DNSName(host)).verify(leaf, [])
    with pytest.raises(VerificationError):
        policy.build_server_verifier(x509.DNSName("other.example.org")).verify(leaf, [])
    policy.build_client_verifier().verify(certificate(made / "north" / "certificate.pem"), [])
    with pytest.raises(VerificationError):
        policy.build_client_verifier().verify(leaf, [])


def test_a_description_names_subject_hosts_expiry_and_the_authority_on_which_both_sides_agree(
    made: Path, foreign: Path, tmp_path: Path
) -> None:
    server, client = describe(made / "server"), describe(made / "north")
    assert server["hosts"] == [HOST, "192.0.2.7", "localhost", "127.0.0.1", "::1"]
    assert (server["role"], client["role"], client["subject"]) == ("server", "client", "north")
    assert common_name(Credentials.load(made / "north")) == "north"
    assert server["authority_sha256"] == client["authority_sha256"] != describe(foreign / "north")["authority_sha256"]
    assert client["expires"] > client["starts"]
    shutil.copytree(made / "north", tmp_path / "north")
    with (tmp_path / "north" / "authority.pem").open("ab") as file:  # as during a rotation of the authority
        file.write((foreign / "north" / "authority.pem").read_bytes())
    both = [describe(folder / "north")["authority_sha256"] for folder in (made, foreign)]
    assert describe(tmp_path / "north")["authority_sha256"] == ", ".join(both)
    authority = describe(made / "authority")
    assert (authority["role"], authority["subject"]) == ("authority", "Fenchel authority")
    assert authority["expires"] > client["expires"]


def test_a_monitors_certificate_says_so_and_stays_one_when_it_is_renewed(tmp_path: Path) -> None:
    make_authority(tmp_path / "authority", "ours")
    make_monitor(tmp_path / "authority", tmp_path / "watch", "watch")
    before = describe(tmp_path / "watch")
    renew(tmp_path / "authority", tmp_path / "watch")
    after = describe(tmp_path / "watch")
    assert (after["role"], after["subject"]) == (before["role"], before["subject"]) == ("monitor", "watch")
    assert after["serial"] != before["serial"]


def test_a_leaf_does_not_outlive_its_authority(tmp_path: Path) -> None:
    make_authority(tmp_path / "authority", "brief", days=2)
    make_client(tmp_path / "authority", tmp_path / "north", "north", days=100)
    assert describe(tmp_path / "north")["expires"] == describe(tmp_path / "authority")["expires"]


def test_nothing_is_overwritten_without_force_and_what_is_missing_can_be_added(tmp_path: Path) -> None:
    make_all(tmp_path, [], ["north"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.pem")}
    with raises(SettingsError, file="authority.pem"):
        make_all(tmp_path, [], ["north"])
    with raises(SettingsError, file="authority.pem"):
        make_client(tmp_path / "authority", tmp_path / "north", "north")
    make_client(tmp_path / "authority", tmp_path / "south", "south")
    assert {path: path.read_bytes() for path in before} == before
    check_pair(Credentials.load(tmp_path / "south"))
    make_client(tmp_path / "authority", tmp_path / "north", "north", force=True)
    assert (tmp_path / "north" / "key.pem").read_bytes() != before[tmp_path / "north" / "key.pem"]
    check_pair(Credentials.load(tmp_path / "north"))


@pytest.mark.parametrize("host", ["", "http://a", "a:7443", "a b", "-a.org", "a..b", "*", "a.*.org", "x" * 300])
def test_a_host_that_is_neither_a_name_nor_an_address_is_refused(tmp_path: Path, host: str) -> None:
    make_authority(tmp_path / "authority", "a")
    with raises(SettingsError):
        make_server(tmp_path / "authority", tmp_path / "server", [host])
    assert not (tmp_path / "server").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a b", "x" * 65, "ü", "-a", "authority", "server"])
def test_a_client_name_that_cannot_be_a_folder_or_a_common_name_is_refused_before_anything_is_made(
    tmp_path: Path, name: str
) -> None:
    with raises(SettingsError):
        make_all(tmp_path / "certs", [], [name])
    assert not (tmp_path / "certs").exists()


def test_names_lifetimes_and_folders_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with raises(SettingsError):
        make_all(tmp_path, [], ["north", "north"])
    for days in (0, 40000):
        with raises(SettingsError):
            make_authority(tmp_path, "a", days=days)
    (tmp_path / "file").write_text("")
    with raises(CredentialError, file="authority"):
        make_authority(tmp_path / "file" / "authority", "a")


def test_an_authority_signs_with_its_own_key_while_it_is_valid(
    tmp_path: Path, made: Path, foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with raises(CredentialError, file="authority-key.pem"):
        make_client(made / "north", tmp_path / "x", "x")
    for folder, name in ((made, "authority.pem"), (foreign, AUTHORITY_KEY)):
        (tmp_path / name).write_bytes((folder / "authority" / name).read_bytes())
    with raises(CredentialError):
        make_client(tmp_path, tmp_path / "x", "x")
    later = validity.now() + timedelta(days=4000)
    monkeypatch.setattr(validity, "now", lambda: later)
    with raises(CredentialError):
        make_client(made / "authority", tmp_path / "x", "x")


# Whether what a folder holds fits together


def test_a_certificate_that_names_an_extension_twice_is_damaged(tmp_path: Path, made: Path) -> None:
    shutil.copytree(made / "server", tmp_path / "server")
    path = tmp_path / "server" / "certificate.pem"
    content = x509.load_pem_x509_certificate(path.read_bytes()).public_bytes(serialization.Encoding.DER)
    key_usage, basic_constraints = bytes.fromhex("0603551d0f"), bytes.fromhex("0603551d13")
    assert key_usage in content
    twice = content.replace(basic_constraints, key_usage)
    path.write_text(ssl.DER_cert_to_PEM_cert(twice))
    with raises(CredentialError, file="certificate.pem"):
        describe(tmp_path / "server")


def test_certificate_key_and_an_authority_must_fit(made: Path, foreign: Path) -> None:
    for name in ("server", "north", "south"):
        check_pair(Credentials.load(made / name))
    north, south, other = (Credentials.load(folder) for folder in (made / "north", made / "south", foreign / "north"))
    check_pair(dataclasses.replace(north, authority=other.authority + north.authority))
    for wrong in (dataclasses.replace(north, key=south.key), dataclasses.replace(north, authority=other.authority)):
        with raises(CredentialError):
            check_pair(wrong)


def test_a_certificate_serves_the_side_that_it_was_made_for(made: Path) -> None:
    server, north = Credentials.load(made / "server"), Credentials.load(made / "north")
    check_pair(server, "server")
    check_pair(north, "client")
    with raises(CredentialError):
        check_pair(server, "client")
    with raises(CredentialError):
        check_pair(north, "server")


@pytest.mark.parametrize("usage", [None, [EKU.ANY_EXTENDED_KEY_USAGE], [EKU.SERVER_AUTH, EKU.CLIENT_AUTH]])
def test_a_certificate_of_another_authority_may_serve_both_sides(made: Path, usage: list[Any] | None) -> None:
    authority = x509.load_pem_x509_certificate((made / "authority" / "authority.pem").read_bytes())
    signing = serialization.load_pem_private_key((made / "authority" / AUTHORITY_KEY).read_bytes(), None)
    north = Credentials.load(made / "north")
    old = x509.load_pem_x509_certificate(north.certificate)
    building = (
        x509.CertificateBuilder(authority.subject, old.subject, old.public_key(), 7)
        .not_valid_before(old.not_valid_before_utc)
        .not_valid_after(old.not_valid_after_utc)
    )
    if usage is not None:
        building = building.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
    signed = building.sign(signing, SHA256())  # type: ignore[arg-type]
    pem = signed.public_bytes(serialization.Encoding.PEM)
    check_pair(dataclasses.replace(north, certificate=pem), "server")
    check_pair(dataclasses.replace(north, certificate=pem), "client")


@pytest.mark.parametrize("days", [500, -1])
def test_a_certificate_is_refused_after_its_time_and_before_it(
    made: Path, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    then = validity.now() + timedelta(days=days)
    monkeypatch.setattr(validity, "now", lambda: then)
    with raises(CredentialError):
        check_pair(Credentials.load(made / "north"))


@pytest.mark.parametrize("part", ["authority", "certificate", "key"])
def test_damaged_pem_is_an_error_for_people(made: Path, part: str) -> None:
    north = Credentials.load(made / "north")
    damaged = getattr(north, part).replace(b"M", b"!", 3)
    with raises(CredentialError):
        check_pair(dataclasses.replace(north, **{part: damaged}))


# Whether gRPC accepts it


async def test_both_sides_of_one_authority_connect(made: Path) -> None:
    server, client = Credentials.load(made / "server"), Credentials.load(made / "north")
    assert await answer(server, client.for_channel()) == ""
    assert await answer(server, client.for_channel(), HOST) == ""
    assert "Hostname Verification" in await answer(server, client.for_channel(), "other.example.org")


async def test_who_has_no_certificate_of_the_authority_is_not_trusted(made: Path, foreign: Path) -> None:
    server, client = Credentials.load(made / "server"), Credentials.load(foreign / "north")
    assert "CERTIFICATE_VERIFY_FAILED" in await answer(server, client.for_channel())
    trusting = dataclasses.replace(client, authority=server.authority)
    assert await answer(server, trusting.for_channel()) != ""
    assert await answer(server, grpc.ssl_channel_credentials(server.authority)) != ""


async def test_a_client_cannot_pose_as_the_server_nor_the_server_as_a_client(made: Path) -> None:
    server, client = Credentials.load(made / "server"), Credentials.load(made / "north")
    assert "purpose" in await answer(client, client.for_channel())
    assert await answer(server, server.for_channel()) != ""


# Claims


def test_each_holder_gets_the_lowest_free_identity_and_the_same_one_again(tmp_path: Path) -> None:
    make_all(tmp_path, [], ["client-000", "client-001", "client-002"])
    before = files(tmp_path)
    assert [claim(tmp_path, holder) for holder in "cab"] == ["client-000", "client-001", "client-002"]
    assert claim(tmp_path, "a") == "client-001"
    with raises(SettingsError):
        claim(tmp_path, "d")
    assert files(tmp_path) - before == {f"{CLAIMS}/client-{number:03d}" for number in range(3)}


def test_a_monitors_certificate_beside_those_of_clients_is_not_claimed(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "pool")
    make_monitor(tmp_path / "pool" / "authority", tmp_path / "pool" / "monitor", "monitor")
    assert [claim(tmp_path / "pool", holder) for holder in ("a", "b")] == ["north", "south"]
    with raises(SettingsError):
        claim(tmp_path / "pool", "c")


def test_a_folder_without_identities_is_no_pool(tmp_path: Path) -> None:
    with raises(SettingsError):
        claim(tmp_path, "a")
    with raises(CredentialError, file="claims"):
        claim(tmp_path / "missing", "a")


def test_processes_that_claim_at_the_same_time_never_get_the_same_identity(tmp_path: Path) -> None:
    number = 60
    for index in range(number):
        identity = tmp_path / f"client-{index:03d}"
        identity.mkdir()
        (identity / "key.pem").touch()
    holders = [f"holder-{index}" for index in range(number)]
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as processes:
        names = list(processes.map(partial(claim, tmp_path), holders))
    assert len(set(names)) == number
    for holder, name in zip(holders, names, strict=True):
        assert (tmp_path / CLAIMS / name).read_text() == holder
    assert len(list((tmp_path / CLAIMS).iterdir())) == number


def test_a_list_of_revoked_certificates_goes_only_where_certificates_are(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "made")
    words = ["certs", "revoke", "--authority", str(tmp_path / "made" / "authority"), "--name", "north"]
    with raises(SettingsError, key=f"--to {tmp_path / 'nowhere'}"):
        application()([*words, "--to", str(tmp_path / "nowhere")], standalone_mode=False)
    assert not (tmp_path / "nowhere").exists()
    assert not (tmp_path / "made" / "authority" / "revoked.pem").exists()
    application()([*words, "--to", str(tmp_path / "made" / "server")], standalone_mode=False)
    assert (tmp_path / "made" / "server" / "revoked.pem").exists()


def test_a_copied_list_of_one_authority_leaves_that_of_another_in_force(
    made: Path, foreign: Path, tmp_path: Path
) -> None:
    """As while an authority is replaced: both have the same name, and the server trusts both."""
    for name, source in (("old", made), ("new", foreign)):
        shutil.copytree(source, tmp_path / name)
    server = tmp_path / "old" / "server"
    both = [(tmp_path / name / "authority" / "authority.pem").read_bytes() for name in ("old", "new")]

    def revoke_north(name: str) -> None:
        words = ["certs", "revoke", "--authority", str(tmp_path / name / "authority"), "--name", "north"]
        application()([*words, "--to", str(server)], standalone_mode=False)

    with raises(SettingsError, source=server / "authority.pem"):
        revoke_north("new")
    assert not (server / "revoked.pem").exists()
    assert not (tmp_path / "new" / "authority" / "revoked.pem").exists()
    (server / "authority.pem").write_bytes(b"".join(both))
    for name in ("old", "new", "old"):
        revoke_north(name)
    for name in ("old", "new"):
        with raises(RevokedError, owner="north"):
            check_not_revoked((tmp_path / name / "north" / "certificate.pem").read_bytes(), server)
        check_not_revoked((tmp_path / name / "server" / "certificate.pem").read_bytes(), server)
    assert (server / "revoked.pem").read_bytes().count(b"BEGIN") == 2


def note_often(folder: Path, number: int) -> None:
    """Record the same certificate as often."""
    noted = certificate(folder / "authority.pem")
    for _ in range(number):
        note(folder, noted)


def test_commands_that_sign_at_the_same_time_record_every_certificate(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "authority", tmp_path / "authority")
    (tmp_path / "authority" / ISSUED).unlink()
    workers, number = 4, 100
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as processes:
        list(processes.map(partial(note_often, tmp_path / "authority"), [number] * workers))
    assert len(issued(tmp_path / "authority")) == workers * number


def revoke_each(folder: Path, serials: range) -> None:
    """Revoke certificates one by one."""
    for serial in serials:
        revoke(folder, serials=[serial])


def test_commands_that_revoke_at_the_same_time_keep_every_entry(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "authority", tmp_path / "authority")
    serials = [range(first, first + 8) for first in (1, 101, 201, 301)]
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as processes:
        list(processes.map(partial(revoke_each, tmp_path / "authority"), serials))
    assert {serial for _, serial in read_revoked(tmp_path / "authority")} == {each for part in serials for each in part}
