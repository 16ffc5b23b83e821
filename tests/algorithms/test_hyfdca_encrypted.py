"""HyFDCA under encryption computes what it computes without, and the server sees nothing else of the data."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import gmpy2
import numpy as np
import pytest

from fenchel.algorithms.hyfdca.client import HyFDCAClient
from fenchel.algorithms.hyfdca.server import HyFDCA
from fenchel.algorithms.hyfdca.settings import HyFDCASettings, picked_units
from fenchel.common.arrays import Indices, Vector
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.public_key import Backend
from fenchel.common.crypto.vector import CipherVector
from fenchel.common.data.shard import Shard
from fenchel.common.settings.run import RunSettings
from fenchel.common.wire.values import SparseVector, Values
from fenchel.fleet.fleet import Fleet
from fenchel.keys.shared import Secrets
from tests.algorithms.hybrid import (
    CIPHERTEXT_BYTES,
    Laboratory,
    Message,
    Run,
    distance,
    hybrid_settings,
    shards_of,
    split,
)
from tests.ifma_kernel import in_use
from tests.slow import rest_slow

# The same numbers


@pytest.mark.parametrize(
    ("algorithm", "loss"),
    rest_slow(
        [
            ({"preset": "linesearch", "protect_primal": True}, "hinge"),
            ({"preset": "linesearch", "protect_primal": True}, "logistic"),
            ({"preset": "exact", "picks": 8, "protect_primal": True}, "squared"),
            ({"preset": "exact", "picks": 8, "picking": "common", "messages": "sparse"}, "logistic"),
            ({"preset": "exact", "picks": 8, "messages": "sparse"}, "hinge"),
            ({"preset": "safe", "averaging": "pickers"}, "squared"),
        ],
        2,
    ),
)
def test_every_way_of_working_is_the_same_encrypted(
    algorithm: dict[str, Any], loss: str, laboratory: Laboratory
) -> None:
    encrypted = laboratory.run(hybrid_settings(12, loss=loss, l2=0.1, **algorithm))
    clear = algorithm | {"privacy": "none", "protect_primal": False}
    if algorithm.get("picking") == "common":
        clear["block"] = int(encrypted.state("client-000")["sizes"].max())  # whole blocks are picked
    plain = laboratory.run(hybrid_settings(12, loss=loss, l2=0.1, **clear))
    assert distance(encrypted.duals, plain.duals) <= 1e-9
    assert np.abs(encrypted.model - plain.model).max() <= 1e-9
    assert np.abs(plain.model).max() > 0.1


@dataclasses.dataclass
class Rounded:
    """HyFDCA (preset exact, hinge) on whole numbers: Algorithm 1 with everybody, written for one machine.

    Each number that the clients would encrypt is a whole multiple of 2^-f here, and sums of such are exact.
    """

    settings: RunSettings
    shards: Mapping[str, Shard]
    orders: Mapping[str, Indices]
    fraction_bits: int

    def whole(self, values: Vector) -> Indices:
        whole: Indices = np.rint(values * 2.0**self.fraction_bits).astype(np.int64)
        return whole

    def real(self, values: Indices) -> Vector:
        return values * 2.0**-self.fraction_bits

    def run(self) -> tuple[dict[str, Vector], Vector]:
        """Return alpha_k of each client in the order of its rows, and w."""
        shards, settings = self.shards, self.settings.algorithm
        assert isinstance(settings, HyFDCASettings)
        l2 = self.settings.objective.l2
        x = {client: np.asarray(shard.features) for client, shard in shards.items()}
        rows = {client: shard.samples_held for client, shard in shards.items()}
        count = 1 + max(int(held.max()) for held in rows.values())
        holders = np.bincount(np.concatenate(list(rows.values())), minlength=count)
        samples = int(np.count_nonzero(holders))
        norms = np.zeros(count, np.int64)
        for client in shards:
            norms[rows[client]] += self.whole(np.einsum("ij,ij->i", x[client], x[client]))
        dual = np.zeros(count, np.int64)
        w = np.zeros(next(iter(shards.values())).total_features)
        for t in range(1, self.settings.rounds + 1):
            scores = np.zeros(count, np.int64)
            for client, shard in shards.items():
                scores[rows[client]] += self.whole(shard.features @ w[shard.features_held])
            changes = {}
            for client, shard in shards.items():
                order = self.orders[client]
                units = picked_units(settings, self.settings.seed, client, t, np.zeros_like(order), [15])
                picked = order[units]
                here = rows[client][picked]
                y = np.where(shard.labels[picked] == 1, 1.0, -1.0)
                alpha, z, q = (self.real(dual[here]), self.real(scores[here]), self.real(norms[here]) / (l2 * samples))
                best = y * np.clip(y * (alpha + (y - z) / q), 0, 1)
                changes[client] = here, self.whole(1.0 / holders[here] * (best - alpha))
            for here, change in changes.values():
                dual[here] += change
            w = np.zeros_like(w)
            for client in sorted(shards):
                shard = shards[client]
                w[shard.features_held] += shard.features.T @ self.real(dual[rows[client]])
            w /= l2 * samples
        return {client: self.real(dual[rows[client]]) for client in shards}, w


@pytest.mark.parametrize("fraction_bits", [20, 40])
def test_an_encrypted_run_is_one_of_whole_numbers_to_the_last_bit(fraction_bits: int, laboratory: Laboratory) -> None:
    encryption = {"fraction_bits": fraction_bits}
    settings = hybrid_settings(20, samples=150, preset="exact", picks=15, encryption=encryption)
    run = laboratory.run(settings)
    orders = {client: run.state(client)["order"] for client in run.clients}
    duals, model = Rounded(settings, shards_of(settings), orders, fraction_bits).run()
    for client in run.clients:
        np.testing.assert_array_equal(run.duals[client], duals[client])
    np.testing.assert_array_equal(run.model, model)


@pytest.mark.slow
@pytest.mark.parametrize("way", [{"preset": "linesearch"}, {"preset": "exact", "picks": 8, "protect_primal": True}])
def test_other_code_in_place_of_gmp_changes_no_bit(way: dict[str, Any], laboratory: Laboratory) -> None:
    """And each reads whatever the clients sent in a run of another."""
    pytest.importorskip("phe", reason="phe is not installed")
    chosen: dict[Backend, dict[str, str]] = {
        "gmp": {"backend": "gmp"},
        "ifma": {"backend": "ifma"},
        "phe": {"implementation": "phe"},
    }
    with in_use("emulated"):
        runs = {name: laboratory.run(hybrid_settings(3, encryption=those, **way)) for name, those in chosen.items()}
    for run in runs.values():
        np.testing.assert_array_equal(run.model, runs["gmp"].model)
    opened = {}
    readers: dict[Backend, Backend] = {"gmp": "phe", "ifma": "gmp", "phe": "gmp"}
    for name, other in readers.items():
        cipher = laboratory.secrets.cipher(other)
        opened[name] = {
            (each.client, each.phase, each.round, what): cipher.decrypt(CipherVector.from_wire(value, cipher.public))
            for each in runs[name].up()
            for what, value in each.values.items()
            if isinstance(value, Ciphertexts)
        }
    for each in opened.values():
        assert each.keys() == opened["gmp"].keys() != set()
        for place, values in each.items():
            np.testing.assert_array_equal(values, opened["gmp"][place])


# What the server sees

PRIVATE = {
    "line search": hybrid_settings(4),
    "exact": hybrid_settings(4, preset="exact", picks=8),
    "sparse": hybrid_settings(4, preset="exact", picks=8, messages="sparse", picking="common"),
    "protected": hybrid_settings(4, preset="exact", picks=8, protect_primal=True),
    "protected line search": hybrid_settings(4, protect_primal=True),
    "logistic": hybrid_settings(4, loss="logistic"),
    "half of the clients": hybrid_settings(6, preset="exact", participation={"sampler": {"kind": "fixed", "size": 2}}),
    "ragged": hybrid_settings(4, layout="ragged"),
}
SETUP = {"samples", "labels", "features", "cells", "key", "norm_bits", "target_bits", "long_rows"}
"""What clients say in the beginning: pseudonyms, indices, the public key, orders of magnitude."""
REVEALED = 32
"""Sums over all clients that the server may know: never more of them at once than the line search tries."""


def size(value: Any) -> int:
    return int(np.size(value))


def is_real(value: Any) -> bool:
    if isinstance(value, SparseVector):
        return True
    return isinstance(value, float) or (isinstance(value, np.ndarray) and value.dtype.kind == "f")


@pytest.fixture(scope="module", params=PRIVATE)
def overheard(request: pytest.FixtureRequest, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run, with all that was said in it."""
    return Laboratory(tmp_path_factory.mktemp("overheard"), secrets).run(PRIVATE[request.param])


def test_all_that_reaches_the_server_is_ciphertexts_and_what_it_may_know(overheard: Run, secrets: Secrets) -> None:
    protects = getattr(overheard.settings.algorithm, "protect_primal", False)
    key = secrets.private_key.public
    fresh: Counter[bytes] = Counter()
    for message in overheard.up():
        for name, value in message.values.items():
            where = f"{message.phase}: {name}"
            if isinstance(value, Ciphertexts):
                vector = CipherVector.from_wire(value, key)
                assert value.additions == 1, where
                assert all(gmpy2.gcd(each, key.n) == 1 for each in vector.ciphertexts), where
                fresh.update(split(value))
            elif is_real(value):
                if name == "contribution":
                    assert not protects, where
                elif name == "model":
                    assert message.phase == "release", where
                else:
                    assert (name, size(value) <= REVEALED) == ("figures", True), where
            else:
                assert name in SETUP, where
                assert message.phase in ("introduce", "take_norms"), where
    assert set(fresh.values()) == {1}, "no two are equal, though many values are zero"
    assert (1).to_bytes(CIPHERTEXT_BYTES, "big") not in fresh


def test_identifiers_reach_the_server_as_keyed_pseudonyms_only(overheard: Run) -> None:
    own = shards_of(overheard.settings)
    names = {message.client: message.values["samples"] for message in overheard.up("introduce")}
    for client, samples in names.items():
        assert isinstance(samples, np.ndarray)
        assert samples.shape == (own[client].samples, 32)
        assert len(np.unique(samples)) > 200, "bytes without a pattern"
    # The same rows have the same names, by which the server aligns them.
    np.testing.assert_array_equal(names["client-000"], names["client-002"])


@pytest.mark.parametrize("name", ["line search", "exact", "protected line search", "half of the clients"])
def test_all_that_the_server_keeps_is_ciphertexts_and_what_it_may_know(
    name: str, laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = HyFDCA.round
    servers: set[HyFDCA] = set()
    shards = shards_of(PRIVATE[name])
    allowed = {"model", "contributions"} if "protected" not in name else {"model"}
    seen: Counter[str] = Counter()

    async def do_round(self: HyFDCA, t: int) -> None:
        await go_on(self, t)
        servers.add(self)
        for path, thing in reachable(vars(self), "server"):
            if is_real(thing) and size(thing) > 1:
                seen[path.split("/")[2]] += 1
                assert path.startswith(tuple(f"server/state/{each}" for each in allowed)), path
                assert "protected" not in name or not np.any(thing), "the model is not known before the end"
            elif isinstance(thing, np.ndarray) and thing.ndim == 1 and thing.dtype.kind in "iub":
                for shard in shards.values():
                    assert not np.array_equal(thing, shard.labels), path

    monkeypatch.setattr(HyFDCA, "round", do_round)
    laboratory.run(PRIVATE[name])
    (server,) = servers
    assert set(seen) == allowed, "so the search finds what there is"
    stored = dict(reachable(server.state, "state"))
    vectors = [each for each in stored.values() if isinstance(each, Ciphertexts | CipherVector)]
    assert len(vectors) >= 4, "inner products of four clients"


def reachable(thing: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield all that hangs on an object, with the way to it; other participants are not looked into."""
    if isinstance(thing, Fleet):
        thing = [call for member in thing.members.values() for call in member.outstanding.values()]
    yield path, thing
    if isinstance(thing, Mapping):
        parts: dict[Any, Any] = dict(thing)
    elif isinstance(thing, list | tuple | set):
        parts = dict(enumerate(thing))
    elif isinstance(thing, CipherVector):
        parts = {}
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        parts = {each.name: getattr(thing, each.name) for each in dataclasses.fields(thing)}
        parts |= getattr(thing, "__dict__", {})  # what was computed and kept
    else:
        parts = {}
    for name, part in parts.items():
        yield from reachable(part, f"{path}/{name}")


# What clients see

OF_SAMPLES = ("norms", "scores", "dual", "change")
"""Vectors over a client's samples that come from the server."""


def test_a_client_is_sent_its_own_entries_only(overheard: Run) -> None:
    run, settings = overheard, overheard.settings.algorithm
    assert isinstance(settings, HyFDCASettings)
    shards = shards_of(run.settings)
    sent: dict[str, set[bytes]] = {client: set() for client in run.clients}
    for message in run.down():
        blocks = len(run.state(message.client)["sizes"])
        for kind, value in message.values.items():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                assert kind == "primal", f"{message.phase}: {kind}"
                assert value.shape == (shards[message.client].features.shape[1],)
            elif isinstance(value, Ciphertexts) and kind in OF_SAMPLES and message.phase != "curvature":
                sent[message.client].update(split(value))
                own = message.values.get("blocks")
                asked = len(own) if isinstance(own, np.ndarray) else blocks
                if message.phase == "change_dual" and settings.messages == "sparse":
                    asked = len(picks_of(run, message))
                assert len(split(value)) == asked
    nothing = {(1).to_bytes(CIPHERTEXT_BYTES, "big")}  # zeros that everybody has
    assert not sent["client-000"] & sent["client-001"] - nothing, "they have no sample in common"
    assert not sent["client-002"] & sent["client-003"] - nothing
    if run.settings.participation.sampler.kind == "all" and settings.layout == "rectangular":
        assert sent["client-000"] == sent["client-002"], "they have all samples in common"


def picks_of(run: Run, message: Message) -> Indices:
    state, settings = run.state(message.client), run.settings
    assert isinstance(settings.algorithm, HyFDCASettings)
    quotas = state["quotas"].tolist()
    return picked_units(settings.algorithm, settings.seed, message.client, message.round, state["groups"], quotas)


@pytest.mark.slow  # make test-all
@pytest.mark.parametrize("picking", ["common", "independent"])
def test_zeros_travel_like_everything_else(picking: str, laboratory: Laboratory) -> None:
    # Late in a run most picked duals stay at an end of their interval: their change is zero.
    settings = hybrid_settings(30, l2=0.1, preset="exact", picks=6, picking=picking, messages="sparse")
    run = laboratory.run(settings)
    cipher = laboratory.secrets.cipher()
    key = laboratory.secrets.private_key.public
    zeros = nonzeros = 0
    for message in run.up("change_dual"):
        change = message.values["change"]
        assert isinstance(change, Ciphertexts)
        picked = picks_of(run, message)
        assert len(split(change)) == len(picked)
        values = cipher.decrypt(CipherVector.from_wire(change, key)).reshape(len(picked), -1)
        still = ~values.any(axis=1)
        zeros, nonzeros = zeros + int(still.sum()), nonzeros + int((~still).sum())
    assert zeros > 20, "or this test shows nothing"
    assert nonzeros > 20


# What it costs


@dataclasses.dataclass
class Ledger:
    """Ciphertexts made and opened, by client and phase; multiplications on the server."""

    encryptions: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    decryptions: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    additions: int = 0

    def of(self, phase: str) -> tuple[set[int], set[int]]:
        """Return the different numbers of encryptions and decryptions of clients in a phase."""
        clients = {client for client, each in self.encryptions if each == phase}
        made = {self.encryptions[client, phase] for client in clients}
        return made, {self.decryptions[client, phase] for client in clients}


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Counts while a run goes on."""
    ledger = Ledger()
    answer, add_at = HyFDCAClient.answer, CipherVector.add_at

    def counted(self: HyFDCAClient, phase: str, t: int, values: Values, *, finite: bool = False) -> Values:
        meter = self.meter
        assert meter is not None
        before = dataclasses.replace(meter)
        reply = answer(self, phase, t, values, finite=finite)
        ledger.encryptions[self.client, phase] += meter.encryptions - before.encryptions
        ledger.decryptions[self.client, phase] += meter.decryptions - before.decryptions
        return reply

    def added(self: CipherVector, indices: Any, other: CipherVector) -> None:
        ledger.additions += sum(number != 1 for number in self.take(indices).ciphertexts)
        add_at(self, indices, other)

    monkeypatch.setattr(HyFDCAClient, "answer", counted)
    monkeypatch.setattr(CipherVector, "add_at", added)
    return ledger


ROUNDS = 4


def test_dense_messages_cost_what_the_formulas_say(laboratory: Laboratory, ledger: Ledger) -> None:
    """Section 7, dense, complete participation, S = 1, unmonitored; b ciphertexts hold a client's N_k values.

    Setup: b encryptions and decryptions. A round: (S+1) b of each: inner products and changes up, sums and
    alpha_0 down. Additions: S (Q-1) + Q for each of the (N/N_k) b = K b blocks of the grid, but to the zeros
    that alpha_0 begins with, nothing is added.
    """
    run = laboratory.run(hybrid_settings(ROUNDS, preset="exact", picks=8, monitor=0))
    b, K, Q = len(run.state("client-000")["sizes"]), 2, 2
    assert b > 1
    assert {len(run.state(client)["sizes"]) for client in run.clients} == {b}
    assert ledger.of("align") == ({b}, {0})
    assert ledger.of("take_norms") == ({0}, {b})
    assert ledger.of("inner_product") == ({ROUNDS * b}, {0})
    assert ledger.of("change_dual") == ({ROUNDS * b}, {ROUNDS * b})
    assert ledger.of("aggregate") == ({0}, {ROUNDS * b})
    blocks = K * b
    setup, first = (Q - 1) * blocks, blocks
    assert ledger.additions == setup + ROUNDS * ((Q - 1) + Q) * blocks - first
    assert sizes(run.up()) == sum(ledger.encryptions.values()) * CIPHERTEXT_BYTES
    assert sizes(run.down()) == sum(ledger.decryptions.values()) * CIPHERTEXT_BYTES


def test_sparse_messages_cost_what_the_formulas_say(laboratory: Laboratory, ledger: Ledger) -> None:
    """Section 7, sparse: a round takes |U_k| + h_k encryptions, and as many decryptions.

    Additions: sum(|B_i| - 1) over U, and h_k for each client, but for the zeros that alpha_0 begins with.

    Inner products go up for the union of all picks and come back for the own ones, changes the other way round.
    With common picks U_k is D_k.
    """
    for picking in ("common", "independent"):
        ledger.encryptions.clear()
        ledger.decryptions.clear()
        ledger.additions = 0
        run = laboratory.run(
            hybrid_settings(ROUNDS, preset="exact", picks=6, picking=picking, messages="sparse", monitor=0)
        )
        picked = {(m.client, m.round): picks_of(run, m) for m in run.up("change_dual")}
        partner = {"client-000": "client-002", "client-001": "client-003"}
        partner |= {other: one for one, other in partner.items()}
        for client in run.clients:
            h = sum(len(picked[client, t]) for t in range(1, ROUNDS + 1))
            union = sum(len(np.union1d(picked[client, t], picked[partner[client], t])) for t in range(1, ROUNDS + 1))
            assert h == union if picking == "common" else h < union
            assert ledger.encryptions[client, "inner_product"] == union
            assert ledger.encryptions[client, "change_dual"] == h
            assert ledger.decryptions[client, "change_dual"] == h
            assert ledger.decryptions[client, "aggregate"] == union
        setup = sum(len(run.state(client)["sizes"]) for client in ("client-000", "client-001"))
        unions = touched = 0
        for one, other in (("client-000", "client-002"), ("client-001", "client-003")):
            both = [np.union1d(picked[one, t], picked[other, t]) for t in range(1, ROUNDS + 1)]
            unions += sum(map(len, both))
            touched += len(np.unique(np.concatenate(both)))
        assert ledger.additions == setup + unions + sum(map(len, picked.values())) - touched
        assert sizes(run.up("change_dual")) == CIPHERTEXT_BYTES * sum(map(len, picked.values()))
        assert sizes(run.down("aggregate")) == sizes(run.up("inner_product"))


def test_line_search_and_monitor_cost_a_few_ciphertexts_more(laboratory: Laboratory, ledger: Ledger) -> None:
    """A round: as many vectors as without (delta goes down in place of alpha_0), and the scalars.

    Up: one ciphertext of the line search's two terms, one of the two monitored figures. Down: the sum of the
    figures to everybody, who all open it; the sum of the terms to one client. At the end of the run the inner
    products and the figures once more.
    """
    run = laboratory.run(hybrid_settings(ROUNDS))
    b = len(run.state("client-000")["sizes"])
    assert ledger.of("inner_product") == ({(ROUNDS + 1) * b}, {0})
    assert ledger.of("change_dual") == ({ROUNDS * (b + 1)}, {ROUNDS * b})
    assert ledger.of("propose") == ({ROUNDS}, {ROUNDS * (b + 1)})
    assert ledger.of("step") == ({0}, {0})
    assert ledger.of("figures") == ({1}, {b})
    reveals = {client: n for (client, phase), n in ledger.decryptions.items() if phase == "reveal"}
    assert reveals == {"client-000": ROUNDS + 1}
    assert sizes(run.up()) == sum(ledger.encryptions.values()) * CIPHERTEXT_BYTES


def test_a_protected_model_costs_a_vector_of_features_a_round(laboratory: Laboratory, ledger: Ledger) -> None:
    """Section 7: |M_k| values encrypted and decrypted for each PrimalAggregation, here packed; c ciphertexts."""
    run = laboratory.run(hybrid_settings(ROUNDS, preset="exact", picks=8, protect_primal=True, monitor=0))
    c = len(run.state("client-000")["feature_sizes"])
    assert c > 1
    assert ledger.of("aggregate")[0] == {ROUNDS * c}
    assert ledger.of("inner_product")[1] == {ROUNDS * c}, "w comes with the question for inner products"
    assert ledger.of("release") == ({0}, {c})


def sizes(messages: Iterator[Message]) -> int:
    """Bytes of the ciphertexts in some messages."""
    return sum(
        len(value.data) for message in messages for value in message.values.values() if isinstance(value, Ciphertexts)
    )
