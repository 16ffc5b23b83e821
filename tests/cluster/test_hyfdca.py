"""HyFDCA between real processes: what lies in a server's memory, and what a kill does."""

from __future__ import annotations

import asyncio
import csv
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from fenchel.common.arrays import Vector
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.public_key import Implementation
from fenchel.common.crypto.vector import CipherVector
from fenchel.common.settings.run import validate
from fenchel.common.storage import store
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.wire.values import Value
from fenchel.deploy.certificates.keys import make_keys
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.keys.shared import Secrets
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import Federation, digest
from tests.slow import rest_slow

pytestmark = pytest.mark.cluster

Words: TypeAlias = NDArray[np.uint64]

KEY_BITS = 2048
SAMPLES, FEATURES = 60, 8
NAMES = ["client-000", "client-001", "client-002", "client-003"]
COLUMNS = [f"x{column}" for column in range(FEATURES)]


class Hospitals(Federation):
    """Clients that share secrets, and bring files of their own if there are any."""

    def client_words(self, name: str) -> list[str]:
        words = [*super().client_words(name), "--secrets", str(self.folder / "keys/clients.secret")]
        file = self.folder / f"{name}.csv"
        return words + (["--data", str(file), "--id", "patient"] if file.exists() else [])


def settings(rounds: int, data: Mapping[str, Any], loss: str, **algorithm: Any) -> dict[str, Any]:
    return {
        "name": "hospitals",
        "seed": 3,
        "rounds": rounds,
        "clients": len(NAMES),
        "data": dict(data),
        "objective": {"kind": loss, "l2": 0.01},
        "algorithm": {"name": "hyfdca", "encryption": {"key_bits": KEY_BITS}, **algorithm},
        "secrets": {"source": "file"},
        "evaluation": {"server": False, "clients": False},
    }


# Memory


def write_files(folder: Path) -> tuple[Vector, Vector]:
    """Give each client a file with half of the patients and half of the columns; return rows and labels."""
    chance = np.random.default_rng(8)
    rows = chance.standard_normal((SAMPLES, FEATURES))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    labels = np.sign(rows @ chance.standard_normal(FEATURES) + 0.2 * chance.standard_normal(SAMPLES))
    for place, name in enumerate(NAMES):
        patients, columns = halves(place)
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["patient", *(COLUMNS[column] for column in columns), "label"])
            for patient in patients:
                values = [repr(float(rows[patient, column])) for column in columns]
                writer.writerow([identifier(patient), *values, "ill" if labels[patient] > 0 else "well"])
    return rows, labels


def halves(place: int) -> tuple[range, range]:
    """Patients and columns of a client."""
    patients, columns = SAMPLES // 2, FEATURES // 2
    first, left = place % 2 * patients, place // 2 * columns
    return range(first, first + patients), range(left, left + columns)


def identifier(patient: int) -> str:
    return f"patient-{patient * 7919:07d}"


def memory(pid: int) -> Iterator[bytes]:
    """Yield all memory that a process may have written: its heap, its stacks, its data segments."""
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", 0) as file:
        for line in maps:
            span, rights, *rest = line.split()
            if not rights.startswith("rw") or rest[-1] in ("[vvar]", "[vsyscall]"):
                continue
            start, stop = (int(end, 16) for end in span.split("-"))
            file.seek(start)
            try:
                yield file.read(stop - start)
            except OSError:
                continue  # memory of a device


def found(pid: int, patterns: Mapping[str, list[bytes]]) -> dict[str, int]:
    """Return how many patterns of each kind occur in a process."""
    wanted = {pattern: kind for kind, each in patterns.items() for pattern in each}
    starts = np.unique([np.frombuffer(pattern[:8], "<u8")[0] for pattern in wanted])
    seen: set[bytes] = set()
    for region in memory(pid):
        places = occurring(region, starts)
        for pattern in wanted.keys() - seen:
            if any(pattern in region[begin : end + len(pattern)] for begin, end in places.get(pattern[:8], ())):
                seen.add(pattern)
    return {kind: sum(pattern in seen for pattern in each) for kind, each in patterns.items()}


def occurring(region: bytes, words: Words) -> dict[bytes, list[tuple[int, int]]]:
    """Return which 8-byte words begin at any place of a piece of memory, and between which places.

    This is one pass, however many words there are. A search for a pattern of which words are frequent takes much
    longer, and is left to the places.
    """
    mixer, shift = np.uint64(0x9E3779B97F4A7C15), np.uint64(48)
    possible = np.zeros(1 << 16, np.bool_)
    possible[words * mixer >> shift] = True
    hits: dict[bytes, list[tuple[int, int]]] = {}
    for offset in range(min(8, len(region) - 7)):
        here = np.frombuffer(region, "<u8", (len(region) - offset) // 8, offset)
        for start in range(0, len(here), 1 << 16):
            piece = here[start : start + (1 << 16)]
            if not piece.any():
                continue  # as most of what was never used
            likely = piece[possible[piece * mixer >> shift]]
            begin = offset + 8 * start
            for word in np.intersect1d(likely, words):
                hits.setdefault(word.tobytes(), []).append((begin, begin + piece.nbytes))
    return hits


def numbers(values: Vector, count: int = 8) -> list[bytes]:
    """The bytes of some numbers that nothing else looks like: as they are, and as fixed-point integers."""
    rich = [value for value in values.tolist() if len(set(np.float64(value).tobytes())) >= 6][:count]
    assert len(rich) == count
    return [np.float64(value).tobytes() for value in rich]


def whole(values: Vector, count: int = 8) -> list[bytes]:
    """The bytes of the 64-bit integers that some numbers are encrypted as."""
    scaled = np.rint(np.asarray(values) * 2.0**40).astype(np.int64)
    return [each.tobytes() for each in scaled if len(set(each.tobytes())) >= 6][:count]


def key_traces(secrets: Secrets) -> list[bytes]:
    """Forms that the primes of a key could have in memory."""
    traces = [secrets.alignment_key]
    for prime in (secrets.private_key.p, secrets.private_key.q):
        size = (prime.bit_length() + 7) // 8
        digits = [(prime >> shift) & (1 << 30) - 1 for shift in range(0, prime.bit_length(), 30)]
        traces += [prime.to_bytes(size, "big"), prime.to_bytes(size, "little"), f"{prime:x}".encode()]
        traces.append(np.array(digits, "<u4").tobytes())  # as Python keeps it
    return traces


@contextmanager
def halted(*pids: int) -> Iterator[None]:
    """Stop processes for a while."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(0.2)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def journal(federation: Federation, name: str) -> list[dict[str, Value]]:
    """What a client has written down, in order."""
    folder = federation.folder / "state" / name / federation.run_folder.name / name
    return [store.read(path) for path in sorted(folder.glob("*.state"))]


def array(value: Value) -> Vector:
    assert isinstance(value, np.ndarray)
    return value


@pytest.mark.slow  # make test-all
@pytest.mark.timeout(300)
def test_the_memory_of_a_server_holds_nothing_that_clients_hide(federate: MakeFederation, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", KEY_BITS)
    secrets = Secrets.load(tmp_path / "keys/clients.secret")
    rows, labels = write_files(tmp_path)
    data = {"name": "own", "classes": ["well", "ill"], "columns": COLUMNS}
    federation = federate(settings(5000, data, "squared", preset="safe"), kind=Hospitals)
    federation.start()
    federation.wait_for_round(8)
    assert federation.server is not None
    server, client = federation.server.pid, federation.clients["client-000"].pid
    try:
        next(memory(server))
    except PermissionError:
        pytest.skip("this system lets nobody read another process's memory")
    with halted(server, *(each.pid for each in federation.clients.values())):
        kept = {name: journal(federation, name) for name in NAMES}
        patterns = traces(kept, secrets, rows, labels)
        hidden = found(server, patterns)
        known = found(client, patterns)
        files = [path for path in federation.run_folder.rglob("*") if path.is_file()]
        contents = b"".join(path.read_bytes() for path in files)
    allowed = {"contributions", "ciphertexts"}
    assert {kind for kind, hits in hidden.items() if hits} == allowed, hidden
    # The same search finds all of it where it may be.
    assert {kind for kind, hits in known.items() if hits} >= {
        "duals",
        "labels",
        "rows",
        "identifiers",
        "key",
        "contributions",
    }, known
    assert [kind for kind in set(patterns) - allowed if any(each in contents for each in patterns[kind])] == []


def traces(
    kept: Mapping[str, list[dict[str, Value]]], secrets: Secrets, rows: Vector, labels: Vector
) -> dict[str, list[bytes]]:
    """What to look for, by what it is."""
    cipher = secrets.cipher()
    public = secrets.private_key.public
    last = kept["client-000"][-1]
    aligned = labels[: SAMPLES // 2][array(last["state/order"])]
    duals = [array(entry["state/dual"]) for entry in kept["client-000"][-8:]]
    shares: dict[str, Vector] = {}
    ciphertexts: list[bytes] = []
    for name, entries in kept.items():
        sent = [entry["reply/share"] for entry in entries if "reply/share" in entry]
        assert sent, "no round is written down"
        assert isinstance(sent[-1], Ciphertexts)
        shares[name] = cipher.decrypt(CipherVector.from_wire(sent[-1], public))
        ciphertexts += [bytes(each.data)[:64] for each in sent[-4:] if isinstance(each, Ciphertexts)]
    contributions = np.concatenate(
        [
            array(entry["reply/contribution"])
            for entries in kept.values()
            for entry in entries[-8:]
            if "reply/contribution" in entry
        ]
    )
    products = shares["client-000"][: SAMPLES // 2]
    sums = (shares["client-000"] + shares["client-002"])[: SAMPLES // 2]
    return {
        "duals": numbers(duals[-1]) + numbers(duals[0]),
        "duals as integers": whole(duals[-1]),
        "inner products": numbers(products) + numbers(sums),
        "inner products as integers": whole(products) + whole(sums),
        "labels": [
            each.astype(kind).tobytes()
            for each in (labels[: SAMPLES // 2], aligned)
            for kind in (np.float64, np.int64, np.int8)
        ]
        + [(labels[: SAMPLES // 2] > 0).astype(np.int64).tobytes()],
        "rows": numbers(rows[: SAMPLES // 2, 0]),
        "identifiers": [identifier(patient).encode() for patient in range(1, 6)],
        "key": key_traces(secrets),
        "contributions": numbers(contributions, 16),
        "ciphertexts": ciphertexts,
    }


# Kills


BREAST_CANCER = {
    "name": "breast_cancer",
    "samples": 80,
    "classes": ["malignant", "benign"],
    "scale": ["standard", "unit-rows"],
    "partition": {"kind": "grid", "sample_groups": 2, "feature_groups": 2},
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("implementation", rest_slow(["fenchel", "phe"], 1))
def test_kills_do_not_change_a_bit_of_an_encrypted_run(
    federate: MakeFederation, tmp_path: Path, implementation: Implementation
) -> None:
    make_keys(tmp_path / "keys", KEY_BITS, implementation)
    chosen = settings(24, BREAST_CANCER, "hinge")
    encryption = {"key_bits": KEY_BITS, "implementation": implementation}
    federation = federate(chosen | {"algorithm": chosen["algorithm"] | {"encryption": encryption}}, kind=Hospitals)
    federation.start()
    for t, who in ((5, "client-001"), (8, "server"), (11, "client-003")):
        federation.wait_for_round(t)
        assert federation.kill(who) == -signal.SIGKILL, "the run ended before all kills: give it more rounds"
        federation.restart(who)
    run = federation.finish(patience=240)
    # The reference has another key, and Fenchel's own code: a model does not depend on them.
    reference = RunFolder.create(tmp_path / "reference", "undisturbed")
    asyncio.run(run_in_process(validate(chosen), reference))
    assert digest(run / "model.npz") == digest(reference.model)
