"""A server that lays a client's entries out as it likes: the client refuses before it takes memory or decrypts."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from fenchel.algorithms.client_half import ClientContext
from fenchel.algorithms.hyfdca.client import HyFDCAClient
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.residues.gmp import GmpResidues
from fenchel.common.crypto.vector import CipherVector
from fenchel.common.errors import EncryptionError, FenchelError, PayloadError, SettingsError
from fenchel.common.objectives.factory import build_objective
from fenchel.keys.shared import Secrets
from tests.algorithms.hybrid import KEY_BITS, Laboratory, Run, hybrid_settings, shards_of
from tests.messages import raises

CLIENT = "client-000"
MEMORY = 1 << 20
"""Bytes: a few times what the honest alignment takes."""

Alignment: TypeAlias = dict[str, Any]
Change: TypeAlias = Callable[[Alignment], dict[str, Any]]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Secrets]:
    """A run with an encrypted model, in which the server did as it should."""
    secrets = Secrets.generate(KEY_BITS, for_tests=True)
    laboratory = Laboratory(tmp_path_factory.mktemp("honest"), secrets)
    return laboratory.run(hybrid_settings(1, samples=100, protect_primal=True)), secrets


def late_joiner(honest: tuple[Run, Secrets], **place: Any) -> HyFDCAClient:
    """Return a client that has not been aligned yet."""
    run, secrets = honest
    settings, shard = run.settings, shards_of(run.settings)[CLIENT]
    client = HyFDCAClient(
        ClientContext(
            client=CLIENT,
            seed=settings.seed,
            settings=settings.algorithm,
            objective=build_objective(settings.objective, shard),
            shard=shard,
            secrets=secrets,
            **place,
        )
    )
    client.state = client.initial_state()
    return client


def alignment(honest: tuple[Run, Secrets]) -> Alignment:
    """Return what the honest server told the client."""
    (message,) = (each for each in honest[0].down("align") if each.client == CLIENT)
    return dict(message.values)


def layout(name: str, place: int, value: int) -> Change:
    """Another number in a layout."""

    def changed(told: Alignment) -> dict[str, Any]:
        numbers = told[f"{name}_layout"].copy()
        numbers[place] = value
        return {f"{name}_layout": numbers}

    return changed


def entry(name: str, value: int) -> Change:
    """Another first entry of an array."""

    def changed(told: Alignment) -> dict[str, Any]:
        array = told[name].copy()
        array[0] = value
        return {name: array}

    return changed


SLOT_BITS, FRACTION_BITS, SLOTS = 0, 1, 2
HOSTILE: dict[str, Change] = {
    "slots without end": lambda told: {
        name: np.array([told[name][0], told[name][1], 1 << 26, told[name][3]])
        for name in ("score_layout", "dual_layout", "norm_layout")
    },
    "slots of norms without end": layout("norm", SLOTS, 1 << 26),
    "slots of figures without end": layout("figure", SLOTS, 1 << 26),
    "slots of features without end": layout("primal", SLOTS, 1 << 26),
    "slots of scores alone": layout("score", SLOTS, 1),
    "no slots": layout("dual", SLOTS, 0),
    "slots that are too wide": layout("dual", SLOT_BITS, 1001),
    "another precision": layout("dual", FRACTION_BITS, 0),
    "another precision of figures": layout("figure", FRACTION_BITS, 40),
    "half a layout": lambda told: {"dual_layout": told["dual_layout"][:2]},
    "a sample twice": lambda told: entry("order", int(told["order"][1]))(told),
    "a sample that it does not have": entry("order", 10**12),
    "a negative sample": entry("order", -1),
    "fewer samples": lambda told: {"order": told["order"][:-1]},
    "a matrix of samples": lambda told: {"order": told["order"].reshape(2, -1)},
    "a block without samples": entry("sizes", 0),
    "a block with a negative number of samples": entry("sizes", -(1 << 62)),
    "a block without end": entry("sizes", 1 << 40),
    "blocks whose sum overflows": lambda told: {"sizes": np.full(4, 1 << 62)},
    "a million blocks": lambda told: {"sizes": np.ones(1_000_000, np.int64)},
    "samples one by one": lambda told: {"sizes": np.ones_like(told["order"]), "groups": np.zeros_like(told["order"])},
    "no holder": entry("holders", 0),
    "holders of other samples": lambda told: {"holders": told["holders"][1:]},
    "groups out of order": entry("groups", 1 << 40),
    "a negative group": entry("groups", -1),
    "picks where none were agreed on": lambda told: {"quotas": np.array([1])},
    "fewer samples than its own": lambda told: {"samples": 1},
    "no dual variables": lambda told: {"largest_dual": 0.0},
    "a feature twice": lambda told: entry("feature_order", int(told["feature_order"][1]))(told),
    "no features": lambda told: {"feature_order": told["feature_order"][:0]},
    "a block without features": entry("feature_sizes", 0),
    "a feature without a holder": entry("feature_holders", 0),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_alignment_is_refused_before_memory_is_taken(name: str, honest: tuple[Run, Secrets]) -> None:
    told = alignment(honest)
    hostile = told | HOSTILE[name](told)
    client = late_joiner(honest)
    client.answer("introduce", 0, {})  # what is computed once is there
    tracemalloc.start()
    try:
        with raises((PayloadError, EncryptionError)):
            client.answer("align", 0, hostile)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()
    assert len(client.state.dual) == 0, "nothing of it was taken in"


def test_the_honest_alignment_is_taken(honest: tuple[Run, Secrets]) -> None:
    client = late_joiner(honest)
    assert set(client.answer("align", 0, alignment(honest))) == {"norms"}
    assert len(client.state.dual) == client.shard.samples


def test_a_vector_beyond_the_largest_message_is_refused(honest: tuple[Run, Secrets]) -> None:
    with raises(SettingsError):
        late_joiner(honest, message_bytes=100).answer("align", 0, alignment(honest))


@pytest.mark.parametrize("blocks", [[0, 0], [1, 0], [-1], [10**9], [[0]]])
@pytest.mark.parametrize("phase", ["inner_product", "aggregate", "propose"])
def test_blocks_that_the_client_does_not_have_are_refused(phase: str, blocks: Any, honest: tuple[Run, Secrets]) -> None:
    client = late_joiner(honest)
    client.answer("align", 0, alignment(honest))
    (message, *_) = (each for each in honest[0].down("propose") if each.client == CLIENT)
    (scores, *_) = (each for each in honest[0].down("inner_product") if each.client == CLIENT)
    values = {
        "inner_product": {"primal": scores.values["primal"]},
        "aggregate": {"dual": message.values["change"]},
        "propose": {"change": message.values["change"]},
    }[phase]
    with raises(PayloadError):
        client.answer(phase, 1, {**values, "blocks": np.array(blocks)})


def test_no_more_sums_are_opened_at_once_than_the_phases_have(honest: tuple[Run, Secrets]) -> None:
    client = late_joiner(honest)
    client.answer("align", 0, alignment(honest))
    (message, *_) = honest[0].down("reveal")
    cipher = honest[1].cipher()
    figures = message.values["figures"]
    assert isinstance(figures, Ciphertexts)
    for count in (1, 30, 1000, 1 << 40):
        blocks = -(-min(count, 1000) // figures.layout.slots)
        many = cipher.encrypt(np.zeros(blocks * figures.layout.slots), figures.layout).to_wire()
        with raises(PayloadError):
            client.answer("reveal", 1, {"figures": many, "count": count})
    assert set(client.answer("reveal", 1, dict(message.values))) == {"figures"}


def test_values_of_another_layout_are_not_opened_as_figures(honest: tuple[Run, Secrets]) -> None:
    client = late_joiner(honest)
    client.answer("align", 0, alignment(honest))
    (message, *_) = honest[0].down("reveal")
    figures = message.values["figures"]
    assert isinstance(figures, Ciphertexts)
    told = figures.layout
    other = Layout(told.slot_bits, told.fraction_bits - 1, told.slots, told.value_bits)
    cipher = honest[1].cipher()
    relaid = cipher.encrypt(np.zeros(told.slots), other).to_wire()
    with raises(PayloadError):
        client.answer("reveal", 1, {"figures": relaid, "count": 2})


def test_the_server_is_not_told_which_slot_overflowed(honest: tuple[Run, Secrets]) -> None:
    """Else it could find a value by adding numbers of its choice until a slot overflows."""
    client = late_joiner(honest)
    client.answer("align", 0, alignment(honest))
    (message, *_) = (each for each in honest[0].down("propose") if each.client == CLIENT)
    change = message.values["change"]
    assert isinstance(change, Ciphertexts)
    key, told = honest[1].private_key.public, []
    for slot in (0, 3):
        vector = CipherVector.from_wire(change, key)
        beyond = 1 << (change.layout.slot_bits * slot + change.layout.slot_bits - 1)
        first, *others = vector.ciphertexts
        changed = GmpResidues.of(key, [first * (1 + key.n * beyond) % key.n_squared, *others])
        vector = CipherVector(key, vector.layout, len(vector), vector.additions, changed)
        with raises(FenchelError) as caught:
            client.answer("propose", 1, {"change": vector.to_wire()})
        told.append(str(caught.value))
    assert told[0] == told[1]


def test_a_multiple_of_n_is_refused_in_every_phase_that_decrypts(honest: tuple[Run, Secrets]) -> None:
    client = late_joiner(honest)
    key, tried = honest[1].private_key.public, set()
    client.answer("align", 0, alignment(honest))
    for message in honest[0].down():
        for name, value in message.values.items():
            if message.client != CLIENT or not isinstance(value, Ciphertexts):
                continue
            width = value.ciphertext_bytes
            data = key.n.to_bytes(width, "big") + bytes(value.data)[width:]
            hostile = Ciphertexts(value.key_id, value.layout, value.count, value.additions, width, data)
            with raises(PayloadError):
                client.answer(message.phase, message.round, {**message.values, name: hostile})
            tried.add(message.phase)
    assert {"take_norms", "inner_product", "change_dual", "propose", "curvature", "release"} <= tried
