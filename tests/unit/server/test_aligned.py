"""The server computes the same with ciphertexts, which it cannot read, as with numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fenchel.algorithms.hyfdca.aligned import Accumulator, Stored, Vectors
from fenchel.algorithms.hyfdca.alignment import Alignment, HeldEntries
from fenchel.algorithms.hyfdca.client_vectors import Encrypted
from fenchel.algorithms.hyfdca.settings import entries_of
from fenchel.common.arrays import Indices, Vector
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.vector import CipherVector
from fenchel.common.errors import EncryptionError, PayloadError
from fenchel.common.wire.schema import check
from fenchel.common.wire.values import Value
from fenchel.keys.paillier.cipher import Paillier
from fenchel.keys.paillier.key import generate
from fenchel.keys.paillier.owner import key_owner
from tests.messages import raises
from tests.unit.server.test_alignment import aligned, grid, hybrids

FRACTION = 20


@cache
def paillier() -> Paillier:
    key = generate(256, for_tests=True)
    return Paillier(key_owner(key, "gmp"))


def layout_of(block: int, additions: int = 10) -> Layout:
    return Layout.fit(256, FRACTION, largest=8.0, additions=additions, slots=block)


def exact(random: np.random.Generator, count: int) -> Vector:
    """Multiples of 2^-20, which the layout holds as they are."""
    return np.asarray(np.rint(random.uniform(-0.5, 0.5, count) * 2**FRACTION) / 2**FRACTION)


def sealed(alignment: Alignment, client: str, values: Vector, block: int) -> Ciphertexts:
    """All that a client holds, as it sends it."""
    return ciphertexts(envelope(alignment, client, block).seal(values))


def ciphertexts(value: Value) -> Ciphertexts:
    assert isinstance(value, Ciphertexts)
    return value


def numbers(value: Stored) -> Vector:
    assert isinstance(value, np.ndarray)
    return value


def envelope(alignment: Alignment, client: str, block: int) -> Encrypted:
    return packed(alignment, client, block, slice(None))


def packed(alignment: Alignment, client: str, block: int, blocks: Indices | slice) -> Encrypted:
    """What some of a client's blocks travel in."""
    return Encrypted(alignment.slices[client].sizes[blocks], layout_of(block), paillier())


def kinds(alignment: Alignment, block: int) -> tuple[Vectors, Vectors]:
    return Vectors(alignment), Vectors(alignment, (paillier().public, layout_of(block)))


def decrypted(alignment: Alignment, vector: Stored, block: int) -> Vector:
    """The aligned vector in the clear."""
    if isinstance(vector, np.ndarray):
        return vector
    if isinstance(vector, Ciphertexts):
        vector = CipherVector.from_wire(vector, paillier().public)
    slots = paillier().decrypt(vector).reshape(-1, block)
    return np.concatenate([row[:size] for row, size in zip(slots, alignment.block_sizes, strict=True)])


def added(vectors: Vectors, vector: Stored, shares: Mapping[str, Value], blocks: Mapping[str, Indices]) -> Stored:
    """The vector with the clients' shares, taken as they arrive."""
    total = Accumulator(vectors, vectors.copied(vector), blocks)
    for client in sorted(shares):
        total.add(client, shares[client])
    return total.finish()


def some_blocks(random: np.random.Generator, sizes: Indices) -> Indices:
    return np.flatnonzero(random.random(len(sizes)) < 0.5)


Layouts = tuple[dict[str, HeldEntries], int]


@hypothesis_settings(max_examples=40)
@given(hybrids(), st.integers(1, 7), st.integers(0, 2**32))
def test_sums_over_clients_are_the_same(hybrid: Layouts, block: int, seed: int) -> None:
    local_data, features = hybrid
    random = np.random.default_rng(seed)
    alignment = aligned(local_data, features, block)
    clear, encrypted = kinds(alignment, block)
    own = {client: exact(random, len(part.positions)) for client, part in alignment.slices.items()}
    envelopes = {client: sealed(alignment, client, values, block) for client, values in own.items()}
    total = numbers(clear.total(own))
    np.testing.assert_array_equal(decrypted(alignment, encrypted.total(envelopes), block), total)
    expected = np.zeros(alignment.samples)
    for client, values in own.items():
        for place, value in zip(alignment.slices[client].positions, values, strict=True):
            expected[place] += value
    np.testing.assert_allclose(total, expected, rtol=0, atol=1e-12)
    for client in own:  # each gets its own part of it, and can read it
        part = encrypted.part(encrypted.total(envelopes), client)
        np.testing.assert_array_equal(envelope(alignment, client, block).open(part), clear.part(total, client))


@hypothesis_settings(max_examples=40)
@given(hybrids(), st.integers(1, 7), st.integers(0, 2**32))
def test_blocks_are_added_and_replaced_alike(hybrid: Layouts, block: int, seed: int) -> None:
    local_data, features = hybrid
    random = np.random.default_rng(seed)
    alignment = aligned(local_data, features, block)
    clear, encrypted = kinds(alignment, block)
    number: Stored = clear.zeros()
    cipher: Stored = encrypted.zeros()
    for _ in range(3):  # round after round: sums stay in the range of a single value
        blocks = {client: some_blocks(random, part.sizes) for client, part in alignment.slices.items()}
        own = {
            client: exact(random, int(alignment.slices[client].sizes[chosen].sum()))
            for client, chosen in blocks.items()
        }
        sent = {c: packed(alignment, c, block, blocks[c]).seal(own[c]) for c in own}
        for client in own:
            check({"x": own[client]}, {"x": clear.expected(client, blocks[client])}, client=client)
            check({"x": sent[client]}, {"x": encrypted.expected(client, blocks[client])}, client=client)
        before = decrypted(alignment, number, block).copy()
        number, cipher, earlier = (added(clear, number, own, blocks), added(encrypted, cipher, sent, blocks), number)
        np.testing.assert_array_equal(decrypted(alignment, earlier, block), before)  # a new array
        np.testing.assert_array_equal(decrypted(alignment, cipher, block), number)
        for client, chosen in blocks.items():
            part = encrypted.part(cipher, client, chosen)
            np.testing.assert_array_equal(
                packed(alignment, client, block, chosen).open(part), clear.part(number, client, chosen)
            )
    client, chosen = next(iter(blocks.items()))
    kept = exact(random, len(alignment.slices[client].positions))
    new_number = numbers(clear.replaced(kept, own[client], client, chosen))
    new_cipher = encrypted.replaced(sealed(alignment, client, kept, block), sent[client], client, chosen)
    np.testing.assert_array_equal(paillier_values(alignment, client, new_cipher, block), new_number)
    untouched = np.ones(len(kept), bool)
    untouched[entries_of(alignment.slices[client].sizes, chosen)] = False
    np.testing.assert_array_equal(new_number[untouched], kept[untouched])


@hypothesis_settings(max_examples=40)
@given(hybrids(), st.integers(1, 7), st.integers(0, 2**32), st.booleans())
def test_earlier_shares_stand_in_in_the_order_of_clients(
    hybrid: Layouts, block: int, seed: int, of_blocks: bool
) -> None:
    local_data, features = hybrid
    random = np.random.default_rng(seed)
    alignment = aligned(local_data, features, block)
    clear, encrypted = kinds(alignment, block)
    kept = {client: exact(random, len(part.positions)) for client, part in alignment.slices.items()}
    blocks = {c: some_blocks(random, part.sizes) if of_blocks else None for c, part in alignment.slices.items()}
    there = [client for client in sorted(kept) if random.random() < 0.5]
    fresh = {c: random.normal(size=len(numbers(clear.selected(kept[c], c, blocks[c])))) for c in there}
    shares = {c: fresh.get(c, numbers(clear.selected(kept[c], c, blocks[c]))) for c in sorted(kept)}
    expected = np.zeros(alignment.samples)  # where the order of additions decides on the last bits
    for client, share in shares.items():
        clear.add(expected, client, share, blocks[client])
    total = Accumulator(clear, clear.zeros(), blocks, kept=kept)
    for client in there:
        total.add(client, fresh[client])
    np.testing.assert_array_equal(numbers(total.finish()), expected)
    stored: dict[str, Stored] = {client: sealed(alignment, client, kept[client], block) for client in kept}
    of_nobody = Accumulator(encrypted, encrypted.zeros(), dict.fromkeys(kept), kept=stored)
    np.testing.assert_array_equal(decrypted(alignment, of_nobody.finish(), block), clear.total(kept))


def paillier_values(alignment: Alignment, client: str, vector: Stored, block: int) -> Vector:
    assert isinstance(vector, CipherVector)
    return envelope(alignment, client, block).open(vector.to_wire())


@pytest.mark.parametrize("block", [1, 4])
def test_zeros_and_what_is_expected(block: int) -> None:
    alignment = aligned(grid(2, 2, 11, 4), 4, block)
    clear, encrypted = kinds(alignment, block)
    assert numbers(clear.zeros()).tolist() == [0.0] * 11
    assert not decrypted(alignment, encrypted.zeros(), block).any()
    for client, part in alignment.slices.items():
        assert numbers(clear.own_zeros(client)).shape == (len(part.positions),)
        assert not paillier_values(alignment, client, encrypted.own_zeros(client), block).any()
        whole = sealed(alignment, client, np.ones(len(part.positions)), block)
        check({"x": whole}, {"x": encrypted.expected(client)}, client=client)
        if len(part.blocks) > 1:
            with raises(PayloadError, array="x"):
                check({"x": whole}, {"x": encrypted.expected(client, np.array([0]))}, client=client)


def test_a_sum_that_slots_have_no_room_for_is_refused() -> None:
    alignment = aligned(grid(1, 4, 5, 4), 4, 5)
    narrow = Layout.fit(256, FRACTION, largest=8.0, additions=2, slots=5)
    assert narrow.max_additions == 2
    encrypted = Vectors(alignment, (paillier().public, narrow))
    sizes = alignment.slices["client-000"].sizes
    shares = {client: ciphertexts(Encrypted(sizes, narrow, paillier()).seal(np.ones(5))) for client in alignment.slices}
    with raises(EncryptionError):
        encrypted.total(shares)
    del shares["client-002"], shares["client-003"]
    assert decrypted(alignment, encrypted.total(shares), 5).tolist() == [2.0] * 5
