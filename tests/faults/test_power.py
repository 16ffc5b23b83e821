"""The machine loses its power at any moment: what was promised is there afterwards, or what is damaged is said.

Every state that a disk may be in is laid out and opened by the code that reads it after a restart
(:mod:`tests.faults.power` says which states these are). A kill is tried at the same moments: there the
operating system lives on, and all that was written is there.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fenchel.client.journal import Journal
from fenchel.client.privacy.ledger import LEDGER, POLICY_LEDGER, Account, Ledger
from fenchel.client.session import Session
from fenchel.common.accounting.accountant import Release
from fenchel.common.arrays import Vector
from fenchel.common.errors import CheckpointError, CredentialError, LostStateError
from fenchel.common.storage import store
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.tls.credentials import Credentials
from fenchel.common.tls.revocation import read_revoked
from fenchel.common.wire.values import Values
from fenchel.deploy.certificates.description import describe
from fenchel.deploy.certificates.issued import issued
from fenchel.deploy.certificates.making import make_all, make_client, renew
from fenchel.deploy.certificates.pairs import check_pair
from fenchel.deploy.certificates.revocation import revoke
from fenchel.deploy.cli.certs import revoke as revoke_by_command
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.fleet.client_record import ClientRecord
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server import checkpoint as checkpoints
from fenchel.server.checkpoint import Checkpoint
from tests.conftest import MakeSettings
from tests.faults.power import Recording, Tree, lay_out, recording
from tests.messages import raises
from tests.unit.client.tally import NAME, add, holding

Read = Callable[[Path, list[Any]], None]
"""Opens what is left in a folder, and checks it against what was promised."""


def try_everything(found: Recording, read: Read, draws: int | None = None) -> int:
    """Have everything read that a loss of power may leave, at any moment; return how many states these are.

    Where these are too many, ``draws`` of each moment are tried.
    """
    numbers, chance = itertools.count(), random.Random(1)
    seen: set[tuple[str, int]] = set()
    for prefix in range(len(found.calls) + 1):
        promises = found.promises(prefix)
        left: Iterable[Tree] = found.after_power(prefix)
        if draws is not None:
            left = (tree for _ in range(draws) for tree in found.after_power(prefix, chance))
        for tree in left:
            about = hashlib.sha256(repr(sorted(tree.items())).encode()).hexdigest(), len(promises)
            if about not in seen:
                seen.add(about)
                read(lay_out(tree, found.root.parent / f"power-{next(numbers)}"), promises)
    return len(seen)


def try_kills(found: Recording, read: Read) -> None:
    """Have read what a kill leaves, at any moment."""
    for prefix in range(len(found.calls) + 1):
        read(lay_out(found.after_kill(prefix), found.root.parent / f"kill-{prefix}"), found.promises(prefix))


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder whose power may go."""
    (folder := tmp_path / "disk").mkdir()
    return folder


# The model


def trees(found: Recording) -> set[frozenset[tuple[str, bytes | None]]]:
    return {frozenset((str(path), content) for path, content in tree.items())
            for tree in found.after_power(len(found.calls))}  # fmt: skip


def test_bytes_that_were_not_synced_may_be_there_torn_or_gone(tmp_path: Path) -> None:
    with recording(tmp_path) as found:
        (tmp_path / "x").write_bytes(b"abcd")
    contents = (b"", b"abcd", b"ab", b"\0\0\0\0", b"\0\0cd")
    assert trees(found) == {frozenset(), *(frozenset({("x", content)}) for content in contents)}


@pytest.mark.parametrize("settled", [False, True])
def test_a_file_in_a_new_folder_goes_with_its_folder(tmp_path: Path, settled: bool) -> None:
    with recording(tmp_path) as found:
        (tmp_path / "new").mkdir()
        with (tmp_path / "new/x").open("wb") as file:
            file.write(b"abcd")
            file.flush()
            os.fsync(file.fileno())
        if settled:
            store.settle(tmp_path / "new")
        else:
            descriptor = os.open(tmp_path / "new", os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
    whole = frozenset({("new", None), ("new/x", b"abcd")})
    assert trees(found) == ({whole} if settled else {frozenset(), whole})


def test_a_file_that_is_replaced_before_it_was_synced_may_be_empty(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"old")
    with recording(tmp_path) as found:
        (tmp_path / "x.new").write_bytes(b"new")
        (tmp_path / "x.new").replace(tmp_path / "x")
    left = trees(found)
    assert frozenset({("x", b"old")}) in left
    assert frozenset({("x", b"new")}) in left
    assert frozenset({("x", b"")}) in left
    assert frozenset({("x", b"old"), ("x.new", b"\0\0\0")}) in left


def test_what_was_not_recorded_is_noticed(tmp_path: Path) -> None:
    def unseen() -> None:
        with recording(tmp_path):
            subprocess.run(["sh", "-c", f"echo x > {tmp_path}/y"], check=True)

    with pytest.raises(AssertionError):
        unseen()


# Checkpoints


@dataclass
class Model:
    values: Vector


def taken(epoch: int, t: int) -> Checkpoint:
    member = ClientRecord("a", base=t, shard=pb.ShardDescription(samples=3))
    return checkpoints.take("run", t, epoch, Model(values_of(epoch, t)), {"a": member})


def values_of(epoch: int, t: int) -> Vector:
    return np.array([float(epoch), float(t), 1 / (1 + t + 100 * epoch)])


def run_until_resumed(found: Recording, *, sync: bool) -> None:
    """Do what a server does to its checkpoints; promised is what a checkpoint is the last of, by epoch and round."""
    folder = RunFolder.create(found.root / "runs", "run")
    for t in range(3):
        checkpoints.save(folder, taken(0, t), sync=sync)
        found.promise((0, t))
    resume(found, folder, sync=sync)


def resume(found: Recording, folder: RunFolder, *, sync: bool) -> None:
    """Go on as a server does that is started again, for a round; a new epoch is synced in any case."""
    last = checkpoints.newest(folder)
    epoch = last.epoch + 1
    checkpoints.renew(folder, taken(epoch, last.round), sync=True)
    found.promise((epoch, last.round))
    checkpoints.save(folder, taken(epoch, last.round + 1), sync=sync)
    found.promise((epoch, last.round + 1))


def folders(root: Path) -> list[RunFolder]:
    return [RunFolder(path.parent) for path in root.glob("runs/*/checkpoint")]


def check_whole(found: Checkpoint) -> None:
    """Check that a checkpoint is one that was taken: of a round, and with the values of that round."""
    base = found.members["a"]["base"]
    values = found.state(Model).values
    epochs = [epoch for epoch in range(9) if np.array_equal(values, values_of(epoch, found.round))]
    assert base == found.round
    assert epochs, f"round {found.round} with the values of another"


def read_checkpoint(root: Path, promises: list[Any]) -> None:
    """Resume, with what was promised or more."""
    if not promises:
        for folder in folders(root):
            read_any_checkpoint(folder)
        return
    (folder,) = folders(root)
    found = checkpoints.newest(folder)
    check_whole(found)
    assert found.round >= max(t for _, t in promises)
    assert found.epoch >= max(epoch for epoch, _ in promises), "numbers would be given out twice"
    if (0, 1) in promises:
        before = checkpoints.load(folder.previous_checkpoint)
        check_whole(before)
        assert before.round >= found.round - 2
        assert checkpoints.before_last(folder).epoch >= max(epoch for epoch, _ in promises)


def read_any_checkpoint(folder: RunFolder) -> int | None:
    """Resume, or hear why not; return the epoch that would be gone on from."""
    try:
        found = checkpoints.newest(folder)
    except CheckpointError as error:
        assert str(folder.path) in str(error)
        return None
    check_whole(found)
    return found.epoch


def test_a_synced_checkpoint_survives_the_loss_of_power(disk: Path) -> None:
    with recording(disk) as found:
        run_until_resumed(found, sync=True)
    assert len(found.promises(len(found.calls))) == 5
    assert try_everything(found, read_checkpoint) > 50
    try_kills(found, read_checkpoint)


@pytest.mark.slow  # make test-all
@given(places=st.lists(st.integers(0, 10_000), min_size=1, max_size=4), chance=st.randoms())
@settings(max_examples=60)
def test_power_may_go_again_and_again(
    places: list[int], chance: random.Random, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A run is resumed from what the last loss left, and the power goes again at any moment of that."""
    folder = tmp_path_factory.mktemp("again")
    (root := folder / "disk").mkdir()
    with recording(root) as found:
        run_until_resumed(found, sync=True)
    promises: list[Any] = []
    for number, place in enumerate(places):
        prefix = place % (len(found.calls) + 1)
        (tree,) = found.after_power(prefix, chance)
        promises += found.promises(prefix)
        root = lay_out(tree, folder / f"disk-{number}")
        read_checkpoint(lay_out(tree, folder / f"read-{number}"), promises)
        if not promises:
            return
        with recording(root) as found:
            resume(found, *folders(root), sync=True)
    (tree,) = found.after_power(len(found.calls), chance)
    read_checkpoint(lay_out(tree, folder / "at-last"), promises + found.promises(len(found.calls)))


@pytest.mark.slow
def test_without_sync_a_checkpoint_is_an_earlier_one_whole_or_refused(disk: Path) -> None:
    def read(root: Path, promises: list[Any]) -> None:
        begun = max((epoch for epoch, _ in promises), default=0)
        for folder in folders(root):
            epoch = read_any_checkpoint(folder)
            assert epoch is None or epoch >= begun, "numbers would be given out twice"

    with recording(disk) as found:
        run_until_resumed(found, sync=False)
    assert try_everything(found, read, draws=100) > 200


async def test_a_server_that_is_started_again_syncs_its_new_epoch_whatever_the_settings_say(
    tmp_path: Path, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journals of clients know instructions by their numbers: one that is used again gets the old reply."""
    folder = RunFolder.create(tmp_path, "run")
    await run_in_process(make_settings(rounds=2), folder)
    written: list[tuple[int, bool]] = []
    write = store.write

    def noted(path: Path, values: Values, *, previous: Path | None = None, sync: bool = False) -> None:
        write(path, values, previous=previous, sync=sync)
        if path in (folder.checkpoint, folder.previous_checkpoint):
            written.append((checkpoints.load(path).round, sync))

    monkeypatch.setattr(store, "write", noted)
    await run_in_process(make_settings(rounds=4), folder, resume=checkpoints.newest(folder))
    renewed = [t for t, sync in written if sync]
    assert renewed
    assert max(renewed) <= 2
    assert all(not sync for t, sync in written if t > 2)
    assert checkpoints.load(folder.checkpoint).epoch == 1


def test_without_sync_something_can_be_lost(disk: Path) -> None:
    """Or the tests above would show nothing."""
    with recording(disk) as found:
        checkpoints.save(RunFolder.create(disk / "runs", "run"), taken(0, 1), sync=False)
        found.promise((0, 1))
    with pytest.raises((CheckpointError, ValueError)):
        try_everything(found, read_checkpoint)


# Journals

FIRST = Model(np.zeros(2))


def reply_of(sequence: int) -> Values:
    return {"gradient": np.full(5, sequence / 7), "samples": sequence}


def answer(found: Recording, *, sync: bool) -> None:
    """Do what a client does to its journal; promised are the replies that were sent and are not forgotten."""
    folder = found.root / "state" / "run-1" / "a"
    journal = Journal(FIRST, folder, sync=sync)
    for sequence in range(1, 6):
        if sequence == 5:
            journal = Journal(FIRST, folder, sync=sync)  # it has been started again
        journal.forget(sequence - 2, sequence - 1, sequence)
        found.promise(("forgotten", sequence - 2))
        journal.record(sequence, Model(np.full(3, float(sequence))), reply_of(sequence))
        found.promise(("sent", sequence))


def read_journal(root: Path, promises: list[Any], *, sync: bool = True) -> None:
    """Open a journal: it has all that was promised, and whatever it has is right."""
    journal = Journal(FIRST, root / "state" / "run-1" / "a")
    reach = max((sequence for what, sequence in promises if what == "forgotten"), default=0)
    sent = {sequence for what, sequence in promises if what == "sent" and sequence > reach}
    if sync:
        assert sent <= set(journal.snapshots), "a reply was sent, and the journal does not know"
    for sequence in range(1, 6):
        reply = journal.reply_to(sequence)
        if reply is None:
            with raises(LostStateError):
                journal.state_after(sequence)
            continue
        np.testing.assert_array_equal(journal.state_after(sequence).values, np.full(3, float(sequence)))
        np.testing.assert_array_equal(reply["gradient"], reply_of(sequence)["gradient"])
        assert reply["samples"] == sequence


def test_a_synced_journal_knows_every_reply_that_was_sent(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    with recording(disk) as found:
        answer(found, sync=True)
    assert try_everything(found, read_journal) > 50
    try_kills(found, read_journal)
    assert not caplog.records, "nothing was damaged"


@pytest.mark.slow  # make test-all
def test_without_sync_a_journal_says_what_is_damaged_and_knows_nothing_wrong(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with recording(disk) as found:
        answer(found, sync=False)
    assert try_everything(found, partial(read_journal, sync=False), draws=100) > 500
    assert any("cannot return to its state after instruction" in text for text in caplog.messages)


def test_a_client_gives_the_reply_again_that_it_sent_before_the_power_went(
    disk: Path, make_settings: MakeSettings
) -> None:
    """A whole session, whose settings ask for it: what has left it is in every state of its disk from then on."""
    settings = make_settings(algorithm={"name": NAME}, objective={"kind": "logistic"}, checkpoint={"sync": True})

    def begun(folder: Path) -> Session:
        return Session("a", settings, holding(), journal_folder=folder / "run-1" / "a", allowed=(NAME,))

    def read(folder: Path, promises: list[Any]) -> None:
        session = begun(folder)
        assert {sequence for sequence, _ in promises} <= set(session.hello().snapshots)
        for sequence, total in promises:
            assert add(session, float(sequence), sequence, base=sequence - 1) == total
        after = len(promises) + 1  # perhaps handled already, and not yet answered
        assert add(session, float(after), sequence=after, base=after - 1) == sum(range(after + 1))

    with recording(disk) as found:
        session = begun(disk)
        for sequence in (1, 2, 3):
            found.promise((sequence, add(session, float(sequence), sequence, base=sequence - 1)))
    assert try_everything(found, read) > 20
    try_kills(found, read)


# Ledgers

RELEASE = Release(1.5, 0.5)


def charge(found: Recording) -> None:
    folder = found.root / "state" / "run-1" / "a"
    ledger = Ledger(folder / "ledger", "a", count=folder / "count")
    ledger.begin()
    for number in range(1, 4):
        ledger.charge(bytes([number]) * 32, number, RELEASE)
        found.promise(number)
    again = Ledger(folder / "ledger", "a", count=folder / "count")
    again.charge(bytes([4]) * 32, 4, RELEASE)
    found.promise(4)


def read_ledger(root: Path, promises: list[Any]) -> None:
    """Open a ledger: all that has left is charged, or the ledger is refused."""
    path = root / "state" / "run-1" / "a" / "ledger"
    charged = len(promises)
    try:
        ledger = Ledger(path, "a", count=path.with_name("count"))
    except CheckpointError as error:
        assert str(path) in str(error)
        return
    assert charged <= ledger.uploads <= charged + 1
    assert not charged or ledger.releases == {RELEASE: ledger.uploads}
    ledger.charge(b"\x09" * 32, 9, RELEASE)
    assert Ledger(path, "a").uploads == ledger.uploads


def test_a_ledger_has_all_that_left_or_is_refused(disk: Path) -> None:
    with recording(disk) as found:
        charge(found)
    assert try_everything(found, read_ledger) > 20

    def read_after_a_kill(root: Path, promises: list[Any]) -> None:
        read_ledger(root, promises)
        Ledger(root / "state" / "run-1" / "a" / "ledger", "a")  # it can be gone on with

    try_kills(found, read_after_a_kill)


def account_in(root: Path) -> Account:
    state = root / "state"
    return Account("a", "run-1", "its data", state / POLICY_LEDGER, state)


def charge_policy(found: Recording) -> None:
    account = account_in(found.root)
    for start in (0, 2):  # it is started again once
        policy = account.opened(None, 1e-5)
        assert policy is not None
        folder = found.root / "state" / "run-1" / "a"
        ledger = Ledger(folder / LEDGER, "a", policy=policy)
        ledger.begin()
        for number in range(start, start + 2):
            ledger.charge(bytes([number]) * 32, number, RELEASE)
            found.promise(number)


def read_policy(root: Path, promises: list[Any]) -> None:
    """Open the ledgers of a client with a policy: all that has left counts, and nothing sound is refused."""
    policy = account_in(root).opened(None, 1e-5)
    assert policy is not None
    assert len(promises) <= policy.uploads <= len(promises) + 1
    ledger = Ledger(root / "state" / "run-1" / "a" / LEDGER, "a", policy=policy)
    ledger.charge(b"\x09" * 32, 9, RELEASE)
    assert ledger.uploads == policy.uploads


def test_a_kill_between_two_ledgers_loses_no_charge(disk: Path) -> None:
    with recording(disk) as found:
        charge_policy(found)
    try_kills(found, read_policy)


# Settings


def settle_settings(found: Recording) -> None:
    folder = found.root / "runs" / "run-1"
    folder.mkdir(parents=True)
    for text in ("rounds: 5\n" * 300, "rounds: 6\n" * 300):  # a server that is resumed writes them again
        store.write_text(folder / "settings.yaml", text, sync=True)
        found.promise(text)


def read_settings(root: Path, promises: list[Any]) -> None:
    path = root / "runs" / "run-1" / "settings.yaml"
    written = path.read_text() if path.exists() else None
    assert written in (promises[-1] if promises else None, "rounds: 5\n" * 300, "rounds: 6\n" * 300)
    assert written is not None or not promises
    assert len(promises) < 2 or written == promises[-1]


def test_the_settings_of_a_run_are_the_old_or_the_new_ones(disk: Path) -> None:
    with recording(disk) as found:
        settle_settings(found)
    assert try_everything(found, read_settings) > 5
    try_kills(found, read_settings)


# Certificates


def certify(found: Recording) -> None:
    """Make certificates, revoke and renew: promised is what the commands have said."""
    authority = found.root / "certs" / "authority"
    make_client(authority, found.root / "certs" / "c", "c")
    found.promise("made")
    (serial,) = revoke(authority, names=["a"])
    found.promise(("revoked", serial))
    renew(authority, found.root / "certs" / "b")
    found.promise(("renewed", Credentials.load(found.root / "certs" / "b")))
    (serial,) = revoke(authority, names=["c"])
    found.promise(("revoked", serial))


def read_certificates(root: Path, promises: list[Any]) -> None:
    authority = root / "certs" / "authority"
    said: dict[str, Any] = dict(promise for promise in promises if isinstance(promise, tuple))
    serials = {promise[1] for promise in promises if promise[0] == "revoked"}
    assert serials <= {serial for _, serial in read_revoked(authority)}, "what was revoked is accepted again"
    try:
        known = {each.serial for each in issued(authority)}
    except CredentialError as error:  # zeros in the middle of a line
        assert Path(error.source).name == "issued.jsonl"
        assert b"\0" in (authority / "issued.jsonl").read_bytes()
        return
    if "renewed" in said:
        assert Credentials.load(root / "certs" / "b") == said["renewed"]
    for name in "bc":
        try:
            check_pair(Credentials.load(root / "certs" / name))
        except CredentialError:
            assert name == "c" or "renewed" not in said, "b had a new pair, and now it has none"
        else:
            assert int(describe(root / "certs" / name)["serial"], 16) in known, "it cannot be revoked by its name"


def test_a_list_that_was_copied_for_the_server_stays_there(disk: Path) -> None:
    authority, server = disk / "certs" / "authority", disk / "certs" / "server"
    make_all(disk / "certs", ["localhost"], ["a", "b"])
    revoke_by_command(authority, names=["a"], to=[server])
    with recording(disk) as found:
        revoke_by_command(authority, names=["b"], to=[server])
        found.promise("copied")

    def read_copy(left: Path, promises: list[Any]) -> None:
        revoked = read_revoked(left / "certs" / "server")
        assert len(revoked) == 2 if promises else len(revoked) in (1, 2), "what was revoked is accepted again"

    assert try_everything(found, read_copy) > 5
    try_kills(found, read_copy)


@pytest.mark.slow  # make test-all
def test_what_was_revoked_stays_so_and_who_was_certified_can_be_revoked(disk: Path) -> None:
    make_all(disk / "certs", ["localhost"], ["a", "b"])
    with recording(disk) as found:
        certify(found)
    assert try_everything(found, read_certificates, draws=40) > 20
    try_kills(found, read_certificates)
