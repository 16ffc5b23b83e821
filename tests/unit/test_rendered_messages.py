"""Rendered messages: the text that people read when they make one of the most frequent mistakes.

Other tests look at the types and attributes of errors. Here each mistake is made for real, and all texts are
compared with ``messages.txt``, so that a change of words is seen as a change of that file.
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import os
import textwrap
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.client.count_file import write_count
from fenchel.client.joining import Participant, session_of
from fenchel.client.local_data import DataProvider, LocalData, OwnShard
from fenchel.client.privacy.budget import Budget
from fenchel.client.privacy.ledger import Ledger
from fenchel.client.privacy.policy import Policy, load_policy
from fenchel.client.session import Session
from fenchel.client.trust_limits import TrustLimits
from fenchel.common.accounting.accountant import Release
from fenchel.common.data.files import read_file
from fenchel.common.data.limits import DataLimits
from fenchel.common.data.own_file import load_own
from fenchel.common.data.partition import partition
from fenchel.common.data.shard import Shard
from fenchel.common.errors import FenchelError
from fenchel.common.settings.data import DataSettings
from fenchel.common.settings.run import load, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.storage.store import write_private
from fenchel.common.tls.credentials import Credentials
from fenchel.common.version import PROTOCOL
from fenchel.deploy.certificates.keys import make_keys, read_public, refuse_private_keys
from fenchel.deploy.certificates.making import make_all, make_server
from fenchel.deploy.certificates.pairs import check_pair
from fenchel.fleet.client_record import ClientRecord
from fenchel.keys.shared import Secrets
from fenchel.proto import fenchel_pb2 as pb
from fenchel.report.run import Run
from fenchel.server import checkpoint
from fenchel.server.coordinator import open_resumed
from fenchel.server.membership.registration import Registration

GOLDEN = Path(__file__).with_name("messages.txt")
WRITE = "FENCHEL_WRITE_MESSAGES"
"""Environment variable that has the golden file written anew."""

SETTINGS: dict[str, Any] = {
    "name": "small",
    "rounds": 2,
    "clients": 3,
    "data": {"name": "digits"},
    "objective": {"kind": "softmax", "l2": 0.001},
    "algorithm": {"name": "fedavg", "local_steps": 1, "step_size": 0.5},
}
BINARY = {"data": {"name": "breast_cancer"}, "objective": {"kind": "logistic", "l2": 0.01}}
HYFDCA = BINARY | {"algorithm": {"name": "hyfdca", "encryption": {"key_bits": 512}}, "evaluation": {"clients": False}}
OWN = {"data": {"name": "own", "classes": [0, 1]}, "objective": {"kind": "logistic", "l2": 0.01}}
NOISE = {"mechanism": "batch", "noise_multiplier": 1.0, "clip": 1.0}

SHARD = Shard(np.zeros((20, 3)), np.arange(20) % 2, classes=2, total_features=3, samples_held=np.arange(20))


@dataclass
class State:
    """State of an algorithm on the server."""

    round: int = 0


def check(**sections: Any) -> object:
    """Validate the settings of a run, with these sections in place of some."""
    return validate(SETTINGS | sections)


def read(folder: Path, text: str | None, *overrides: str) -> object:
    """Read a settings file with this text; ``None``: there is none."""
    path = folder / "run.yaml"
    if text is not None:
        path.write_text(text)
    return load(path, overrides)


def table(folder: Path, name: str, text: str, label: str | None = None, **options: Any) -> object:
    """Read a data file with this text."""
    (folder / name).write_text(text)
    return read_file(folder / name, label=label, **options)


def own(folder: Path, name: str, text: str, label: str | None, identifier: str) -> object:
    """Read a client's own file with sample identifiers."""
    (folder / name).write_text(text)
    return load_own(
        folder / name,
        DataSettings.model_validate({"name": "own"}),
        label=label,
        identifier=identifier,
        dtype=np.float64,
    )


def bomb(folder: Path) -> object:
    """Read an archive of 16 kB that holds an array of 16 MB."""
    np.savez_compressed(folder / "scans.npz", X=np.zeros((4000, 500)), y=np.zeros(4000))
    return read_file(folder / "scans.npz", limits=DataLimits(bytes=1_000_000))


def announced(folder: Path) -> object:
    """Read an archive whose header announces more numbers than it holds."""
    np.save(folder / "X.npy", np.zeros((2, 3)))
    with zipfile.ZipFile(folder / "scans.npz", "w") as archive:
        archive.writestr("X.npy", (folder / "X.npy").read_bytes().replace(b"(2, 3)", b"(9, 9)"))
    return read_file(folder / "scans.npz")


def join(sections: dict[str, Any], data: DataProvider | None = None, *, run: str = "run-1", **given: Any) -> Session:
    """Join a run with these settings, as a client that was started with what is given."""
    reply = pb.JoinReply(
        run=run, settings=validate(SETTINGS | sections).to_json(), assignment=pb.Assignment(index=0, clients=3)
    )
    return session_of(Participant(name="north", local_data=data or LocalData(), **given), reply)


def foreign_code() -> object:
    """Join a run of an algorithm that is not part of Fenchel."""
    settings = validate(SETTINGS).to_json().replace("fedavg", "elsewhere.method:Method")
    return TrustLimits().settings(settings, None)


def pair(folder: Path, part: str) -> None:
    """Check the certificate of a client together with the key or authority of another federation."""
    for name in ("ours", "theirs"):
        make_all(folder / name, [], ["north"])
    ours, theirs = (Credentials.load(folder / name / "north") for name in ("ours", "theirs"))
    check_pair(dataclasses.replace(ours, **{part: getattr(theirs, part)}))


def without_key(folder: Path) -> object:
    """Load the certificate of a client whose key was not copied."""
    make_all(folder, [], ["north"])
    (folder / "north" / "key.pem").unlink()
    return Credentials.load(folder / "north")


def again(folder: Path) -> None:
    """Make certificates twice in the same folder."""
    for _ in range(2):
        make_all(folder, [], ["north"])


def port(folder: Path) -> None:
    """Make a server's certificate for an address in place of a host."""
    make_all(folder, [], ["north"])
    make_server(folder / "authority", folder / "other", ["coordinator.example.org:7443"])


def secrets(folder: Path) -> Path:
    """Return a file with secrets of clients."""
    write_private(folder / "clients.secret", Secrets.generate(512, for_tests=True).to_text().encode())
    return folder / "clients.secret"


def shared(folder: Path) -> object:
    """Load secrets that other users of the machine may read."""
    path = secrets(folder)
    path.chmod(0o644)
    return Secrets.load(path)


def policy(folder: Path, text: str) -> object:
    """Read a client's policy."""
    (folder / "policy.yaml").write_text(text)
    return load_policy(folder / "policy.yaml")


def ledger(folder: Path, *, sent: int = 0, lines: slice = slice(None)) -> None:
    """Open a privacy ledger of two uploads, of which only some lines are left."""
    path, release = folder / "ledger.jsonl", Release(2.0)
    first = Ledger(path, "run 7, client north")
    for t in range(2):
        first.charge(bytes([t]) * 32, t, release)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[lines]))
    write_count(folder / "count", sent)
    again = Ledger(path, "run 7, client north", budget=Budget(2.0), count=folder / "count")
    again.charge(bytes([9]) * 32, 2, release)


def saved(folder: Path, run: str = "run-1", *, damaged: bool = False) -> RunFolder:
    """Return a run folder with one checkpoint."""
    found = RunFolder(folder / "run-1")
    found.checkpoint.parent.mkdir(parents=True)
    checkpoint.save(found, checkpoint.take(run, 4, 0, State(), {}), sync=False)
    if damaged:
        content = found.checkpoint.read_bytes()
        found.checkpoint.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    return found


def divide(samples: int, clients: int, features: int = 7, **kind: Any) -> object:
    """Divide samples of ten classes among clients."""
    settings = DataSettings.model_validate({"name": "digits", "partition": kind})
    assert settings.partition is not None
    return partition(np.arange(samples) % 10, clients, 0, settings.partition, features=features)


def register(*requests: pb.JoinRequest, connected: bool = False) -> None:
    """Let clients register one after the other, for a run of one client."""

    async def in_turn() -> None:
        registration = Registration(1, 0.1)
        member = ClientRecord("north", queue=asyncio.Queue()) if connected else None
        for request in requests:
            await registration.join(request, member=member)

    asyncio.run(in_turn())


def hello(client: str, instance: bytes = b"1", protocol: int = PROTOCOL) -> pb.JoinRequest:
    """Return a client's request to join."""
    return pb.JoinRequest(protocol=protocol, client=client, instance=instance, software="fenchel 9")


GRID = {"kind": "grid", "sample_groups": 1, "feature_groups": 3}
LABELLED = "age,dose,outcome\n30,1.5,well\n40,high,ill\n"

MISTAKES: dict[str, Callable[[Path], object]] = {
    # Settings
    "A misspelt key": lambda _: check(rouds=3),
    "A key that stands in the wrong section": lambda _: check(participation={"size": 3}),
    "Words in place of a number": lambda _: check(rounds="many"),
    "A number out of range": lambda _: check(objective={"kind": "softmax", "l2": -1}),
    "A word that is not one of those allowed": lambda _: check(participation={"on_lost_state": "wait"}),
    "Several mistakes at once": lambda _: check(rounds=0, sead=7),
    "--set without a value": lambda folder: read(folder, "rounds: 3", "rounds"),
    "--set of a key below one that is no section": lambda folder: read(folder, "rounds: 3", "rounds.more=3"),
    "A settings file that is not there": lambda folder: read(folder, None),
    "A settings file that is not YAML": lambda folder: read(folder, "rounds: [1, 2"),
    "A settings file that holds a list": lambda folder: read(folder, "- rounds"),
    # Settings that contradict each other
    "Both numbers of local work": lambda _: check(algorithm={"name": "fedavg", "local_steps": 1, "local_epochs": 1}),
    "More replies needed than there are clients": lambda _: check(participation={"min_replies": 5}),
    "A term that the algorithm cannot treat": lambda _: check(
        **BINARY | {"objective": {"kind": "logistic", "l2": 0.01, "regularizer": {"kind": "l1", "weight": 0.1}}},
        algorithm={"name": "feddcd"},
    ),
    "Features divided for an algorithm of whole samples": lambda _: check(data={"name": "digits", "partition": GRID}),
    "Privacy where clients tell exact losses": lambda _: check(
        differential_privacy=NOISE, evaluation={"clients": True}
    ),
    "Terms of a phase that the algorithm has not": lambda _: check(participation={"phases": {"trian": {}}}),
    # Data files
    "A cell that is no number": lambda folder: table(folder, "patients.csv", LABELLED),
    "An empty cell": lambda folder: table(folder, "patients.csv", LABELLED.replace("high", "")),
    "A missing column of labels": lambda folder: table(folder, "patients.csv", LABELLED, "result"),
    "Indices of LIBSVM out of order": lambda folder: table(folder, "patients.libsvm", "+1 7:2 3:3\n"),
    "An archive that takes more memory than the limit": bomb,
    "An archive whose header announces too much": announced,
    "More features than the limit": lambda folder: table(
        folder, "patients.csv", LABELLED.replace("high", "2"), limits=DataLimits(1)
    ),
    "The label as identifier": lambda folder: own(folder, "patients.csv", LABELLED, "outcome", "outcome"),
    "A named column of a file without names": lambda folder: table(folder, "patients.svm", "1 1:1\n", "outcome"),
    "The same sample twice": lambda folder: own(folder, "patients.csv", "id,a,y\np,1,0\np,2,1\n", "y", "id"),
    # Partitions
    "Fewer samples than clients": lambda _: divide(9, 10, kind="iid"),
    "Too few classes for all samples": lambda _: divide(100, 3, kind="classes", per_client=1),
    "A grid of another number of clients": lambda _: divide(100, 5, kind="grid", sample_groups=2, feature_groups=3),
    "Quadrants of what is no image": lambda _: divide(
        100, 4, kind="grid", sample_groups=1, feature_groups=4, layout="quadrants"
    ),
    # Certificates
    "A certificate of another authority": lambda folder: pair(folder, "authority"),
    "A key of another certificate": lambda folder: pair(folder, "key"),
    "A certificate without its key": without_key,
    "Certificates that are there already": again,
    "A host with a port": port,
    # Keys
    "A key that is too short": lambda folder: make_keys(folder / "keys", 1024),
    "A key of odd length": lambda folder: make_keys(folder / "keys", 2049),
    "A private key in place of the public one": lambda folder: read_public(secrets(folder)),
    "A server with the clients' private key": lambda folder: refuse_private_keys(
        None, {"FENCHEL_SECRETS": str(secrets(folder))}
    ),
    "Secrets that others may read": shared,
    "Secrets that are not there": lambda folder: Secrets.load(folder / "clients.secret"),
    # Trust limits
    "Code from outside": lambda _: foreign_code(),
    "A file of this machine": lambda _: join({"data": {"file": "/srv/patients.csv"}}),
    "A data set that is not public": lambda _: join({"data": {"name": "patients"}}),
    "A data set in place of the client's own data": lambda _: join({}, OwnShard(SHARD)),
    "Messages above the limit": lambda _: join({"network": {"max_message_bytes": 9 << 30}}),
    "A model above the limit": lambda _: join(OWN | {"objective": {"kind": "mlp", "hidden": 10**10}}, OwnShard(SHARD)),
    "Scores of groups that are too small": lambda _: join(OWN | {"evaluation": {"histograms": 2}}, OwnShard(SHARD)),
    "No encryption for a client with peers": lambda _: join({}, peers={"south"}),
    "Weak encryption for a client with peers": lambda _: join(HYFDCA, peers={"south"}),
    "Another run than before": lambda _: TrustLimits().check_same("run-1", "run-2", "north"),
    "A run whose id leads elsewhere": lambda _: join({}, run="../../etc"),
    # Privacy
    "A run without noise for a policy of noise": lambda _: join(BINARY, policy=Policy()),
    "A run with less noise than the policy wants": lambda _: join(
        BINARY | {"differential_privacy": NOISE}, policy=Policy(minimum_noise_multiplier=2.0)
    ),
    "A run without encryption for a policy of encryption": lambda _: join(
        BINARY | {"evaluation": {"clients": False}}, policy=Policy(encryption="required")
    ),
    "A misspelt key of a policy": lambda folder: policy(folder, "maximum_epsilom: 5"),
    "A budget that is spent": ledger,
    "A privacy ledger that was edited": lambda folder: ledger(folder, lines=slice(None, None, 2)),
    "An old copy of a privacy ledger": lambda folder: ledger(folder, sent=2, lines=slice(2)),
    # Runs
    "A damaged checkpoint": lambda folder: open_resumed(saved(folder, damaged=True)),
    "A checkpoint of another run": lambda folder: open_resumed(saved(folder, "run-2")),
    "A run that never saved": lambda folder: open_resumed(RunFolder(folder / "run-1")),
    "A folder that is no run": lambda folder: Run(folder),
    "Two clients of one name": lambda _: register(hello("north"), hello("north", b"2"), connected=True),
    "A client that comes after the start": lambda _: register(hello("north"), hello("south")),
    "A client of another version": lambda _: register(hello("north", protocol=PROTOCOL + 1)),
}
"""What makes each mistake, given an empty folder, by its heading in the golden file."""


def rendered(heading: str, folder: Path) -> str:
    """Return a paragraph of the golden file: the heading of a mistake, and the text of the error that it ends with."""
    folder.mkdir()
    try:
        MISTAKES[heading](folder)
    except FenchelError as error:
        text = str(error).replace(f"{folder}/", "…/").replace(str(folder), "…")
        return f"{heading}\n{textwrap.indent(text, '    ')}\n"
    pytest.fail(f"{heading}: no error")


def test_the_most_frequent_mistakes_have_the_texts_of_the_golden_file(tmp_path: Path) -> None:
    found = "\n".join(rendered(heading, tmp_path / str(number)) for number, heading in enumerate(MISTAKES))
    if os.environ.get(WRITE):
        GOLDEN.write_text(found, encoding="utf-8")
    known = GOLDEN.read_text(encoding="utf-8").splitlines()
    difference = "\n".join(difflib.unified_diff(known, found.splitlines(), GOLDEN.name, "found", lineterm=""))
    assert not difference, f"where the new texts are right, write the file anew with {WRITE}=1\n{difference}"
