"""What is secret is at no moment readable by others, and no kill and no loss of power leaves a wrong half of it.

The calls of everything that writes secrets are recorded with the widest umask that there is; a file counts as
secret from the call on that makes it, before there is a byte in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.client.evaluation import EVALUATIONS, AnsweredEvaluations
from fenchel.client.journal import Journal
from fenchel.client.privacy.ledger import LEDGER, Account, Ledger
from fenchel.client.privacy.randomness import PrivateRandomness
from fenchel.common.accounting.accountant import Release
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.tls.credentials import Credentials
from fenchel.common.wire.phases import OFFER
from fenchel.deploy.certificates.keys import CLIENTS, SERVER, make_keys
from fenchel.deploy.certificates.making import make_all, renew
from fenchel.deploy.certificates.revocation import revoke
from fenchel.fleet.client_record import ClientRecord
from fenchel.keys.identity import Identity
from fenchel.keys.secret_exchange import SecretExchange
from fenchel.keys.shared import Secrets
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server import checkpoint as checkpoints
from fenchel.server.rounds import save_model
from tests.faults.power import Named, Node, Opened, Recording, Wrote, recording
from tests.faults.test_power import Model, try_everything, try_kills

SECRETS = Secrets.generate(512, for_tests=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder in which whatever may be read by everybody is."""
    (root := tmp_path / "disk").mkdir()
    before = os.umask(0)
    yield root
    os.umask(before)


def identity(root: Path) -> Identity:
    certificates = root.with_name("certs")
    if not certificates.exists():
        make_all(certificates, ["localhost"], ["a"])
    return Identity("a", Credentials.load(certificates / "a"))


def offer(secret_exchange: SecretExchange) -> bytes:
    public = secret_exchange.answer(OFFER, {})["public_key"]
    assert isinstance(public, np.ndarray)
    return public.tobytes()


def write_checkpoints(root: Path) -> None:
    folder = RunFolder.create(root, "run")
    for t in range(3):
        member = ClientRecord("a", shard=pb.ShardDescription(samples=3))
        taken = checkpoints.take("run", t, 0, Model(np.ones(3)), {"a": member})
        checkpoints.save(folder, taken, sync=t == 2)
    checkpoints.renew(folder, taken, sync=False)


def write_journal(root: Path) -> None:
    journal = Journal(Model(np.zeros(1)), root / "state" / "run-1" / "a")
    for sequence in (1, 2, 2):
        journal.record(sequence, Model(np.ones(2)), {"dual": np.ones(3)})


def write_ledger(root: Path) -> None:
    ledger = Ledger(root / "state" / "run-1" / "a" / LEDGER, "a")
    ledger.begin()
    for number in range(3):
        ledger.charge(bytes([number]) * 32, number, Release(1.0, 1.0))


def write_policy_ledger(root: Path) -> None:
    policy = Account("a", "run-1", "sha256:same", root / "ledgers" / "a" / "ledger", None).opened(None, 1e-5)
    ledger = Ledger(None, "a", policy=policy)
    for number in range(3):
        ledger.charge(bytes([number]) * 32, number, Release(1.0, 1.0))


def count_evaluations(root: Path) -> None:
    answered = AnsweredEvaluations(9, root / "state" / "run-1" / "a" / EVALUATIONS)
    for _ in range(3):
        answered.add()


def write_exchange(root: Path) -> None:
    secret_exchange = SecretExchange("run-1", identity(root), 512, folder=root / "state" / "a")
    secret_exchange.answer(OFFER, {})
    secret_exchange._keep(SECRETS)


def write_certificates(root: Path) -> None:
    make_all(root / "certs", ["localhost"], ["a", "b"])
    renew(root / "certs" / "authority", root / "certs" / "a")
    revoke(root / "certs" / "authority", names=["b"])


STATE: dict[str, Callable[[Path], Any]] = {
    "a client's journal": write_journal,
    "a client's ledger": write_ledger,
    "the ledger of all runs": write_policy_ledger,
    "the number of evaluations": count_evaluations,
    "the secret that noise follows from": lambda root: PrivateRandomness.kept_in(root / "state" / "a"),
    "the files of a key pair": lambda root: make_keys(root / "journals" / "keys", 2048),
    "the exchange of secrets": write_exchange,
}
"""What lies in folders that others have no business in."""

WRITERS: dict[str, Callable[[Path], Any]] = STATE | {
    "checkpoints": write_checkpoints,
    "a model that clients have encrypted": lambda root: save_model(
        root / "model.npz", {"model": np.ones(3)}, private=True
    ),
    "certificates and their keys": write_certificates,
}
PUBLIC = {f"{SERVER} {SERVER}.new"}


def widest(found: Recording, *, folders: bool = False) -> dict[str, int]:
    """Return the widest rights that each file, or folder, ever had, by all of the names that it had."""
    names: dict[Node, set[str]] = {}
    modes: dict[Node, int] = {}
    for call in found.calls:
        if isinstance(call, Named):
            for _, name, node in call.names:
                if node is not None and node.is_folder == folders:
                    names.setdefault(node, set()).add(name)
        elif isinstance(call, Opened):
            modes[call.node] = modes.get(call.node, 0) | call.mode
    return {" ".join(sorted(known)): modes[node] for node, known in names.items()}


@pytest.mark.parametrize("what", WRITERS)
def test_a_secret_file_is_its_owners_from_the_first_call_on(what: str, disk: Path) -> None:
    with recording(disk) as found:
        WRITERS[what](disk)
    assert any(isinstance(call, Wrote) for call in found.calls)
    rights = {names: mode for names, mode in widest(found).items() if names not in PUBLIC}
    assert rights
    assert set(rights.values()) == {0o600}, {names: f"{mode:04o}" for names, mode in rights.items()}


@pytest.mark.parametrize("mask", [0o000, 0o022])
@pytest.mark.parametrize("what", STATE)
def test_each_folder_of_state_is_its_owners_from_the_first_call_on(what: str, mask: int, disk: Path) -> None:
    os.umask(mask)
    with recording(disk) as found:
        STATE[what](disk)
    rights = widest(found, folders=True)
    assert len(rights) >= 2
    assert set(rights.values()) == {0o700}, {names: f"{mode:04o}" for names, mode in rights.items()}


def test_a_file_that_is_closed_to_others_too_late_is_found_out(disk: Path) -> None:
    with recording(disk) as found:
        (disk / "key").write_text("secret")
        (disk / "key").chmod(0o600)
    assert widest(found) == {"key": 0o666}


def test_keys_that_are_replaced_are_the_old_or_the_new_at_every_moment(disk: Path) -> None:
    make_keys(disk, 2048)
    before = Secrets.load(disk / CLIENTS)

    def read(root: Path, promises: list[Any]) -> None:
        found = Secrets.load(root / CLIENTS)
        assert found in (promises or [before, after])

    with recording(disk) as found:
        make_keys(disk, 2048, force=True)
        after = Secrets.load(disk / CLIENTS)
        found.promise(after)
    assert try_everything(found, read) >= 5
    try_kills(found, read)


def test_the_secret_of_the_noise_stays_the_same(disk: Path) -> None:
    def read(root: Path, promises: list[Any]) -> None:
        secret = PrivateRandomness.kept_in(root / "state" / "a").secret
        assert promises in ([], [secret])
        assert PrivateRandomness.kept_in(root / "state" / "a").secret == secret

    with recording(disk) as found:
        found.promise(PrivateRandomness.kept_in(disk / "state" / "a").secret)
    assert try_everything(found, read) >= 5
    try_kills(found, read)


def test_an_exchange_goes_on_after_a_kill_and_after_the_loss_of_power(disk: Path) -> None:
    """The key that was offered is there until the secrets are, and then the secrets."""
    me = identity(disk)

    def read(root: Path, promises: list[Any]) -> None:
        secret_exchange = SecretExchange("run-1", me, 512, folder=root / "state" / "a")
        if "kept" in promises:
            assert secret_exchange.secrets == SECRETS
            return
        offered = [promise for promise in promises if isinstance(promise, bytes)]
        if offered and secret_exchange.secrets is None:
            assert offer(secret_exchange) == offered[0]
        secret_exchange._keep(SECRETS)
        assert SecretExchange("run-1", me, 512, folder=root / "state" / "a").secrets == SECRETS

    with recording(disk) as found:
        secret_exchange = SecretExchange("run-1", me, 512, folder=disk / "state" / "a")
        found.promise(offer(secret_exchange))
        secret_exchange._keep(SECRETS)
        found.promise("kept")
    assert try_everything(found, read) > 10
    try_kills(found, read)
