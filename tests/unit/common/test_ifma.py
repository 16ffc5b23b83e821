"""The kernel computes what GMP computes: by its instructions where the processor has them, and by plain C anywhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.crypto.residues import ifma
from fenchel.common.crypto.residues.choice import backend_of
from fenchel.common.crypto.residues.gmp import GmpResidues
from fenchel.common.crypto.residues.ifma import IfmaResidues, Row, SquareModuli
from fenchel.common.crypto.residues.interface import Residues
from fenchel.common.errors import SettingsError
from tests.ifma_kernel import KINDS, compiled, in_use
from tests.messages import raises

P, Q = gmpy2.next_prime(mpz(3) << 126), gmpy2.next_prime(mpz(7) << 125)
KEY = PublicKey(int(P * Q))


@pytest.fixture(scope="module", params=KINDS, autouse=True)
def kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    with in_use(request.param):
        yield


def odd(bits: int) -> st.SearchStrategy[mpz]:
    return st.integers(1 << (bits - 1), (1 << bits) - 1).map(lambda number: mpz(number | 1))


lengths = st.sampled_from([2, 3, 64, 97, 98, 99, 155, 1024, 1536])
"""Of half a modulus, in bits: some at the edge of a digit."""


def numbers_modulo(root: mpz) -> st.SearchStrategy[mpz]:
    m = root * root
    special = st.sampled_from([mpz(0), mpz(1), m - 1, root, m - root, root - 1])
    return st.integers(0, int(m) - 1).map(mpz) | special


@given(data=st.data(), bits=st.lists(lengths, min_size=1, max_size=2))
def test_products_and_powers_are_those_of_gmp(data: st.DataObject, bits: list[int]) -> None:
    roots = [data.draw(odd(each)) for each in bits]
    count = data.draw(st.integers(0, 17))
    xs, ys = (
        [data.draw(st.lists(numbers_modulo(root), min_size=count, max_size=count)) for root in roots] for _ in range(2)
    )
    exponents = [data.draw(st.integers(0, 1 << 70) | st.sampled_from([0, 1, 2, 31, 32, (1 << 200) - 1])) for _ in roots]
    moduli = SquareModuli(*roots)
    a, b = moduli.of(*xs), moduli.of(*ys)
    assert moduli.numbers(a, count) == xs
    assert moduli.numbers(moduli.products(a, b), count) == [
        [x * y % root**2 for x, y in zip(*each, strict=True)] for *each, root in zip(xs, ys, roots, strict=True)
    ]
    assert moduli.numbers(moduli.powers(a, *exponents), count) == [
        [gmpy2.powmod(x, exponent, root**2) for x in each]
        for each, exponent, root in zip(xs, exponents, roots, strict=True)
    ]


@given(data=st.data(), bits=lengths)
def test_larger_numbers_are_reduced(data: st.DataObject, bits: int) -> None:
    roots = [data.draw(odd(bits)), data.draw(odd(max(2, bits - 5)))]
    moduli = SquareModuli(*roots)
    width = data.draw(st.integers(1, 4 * moduli.digits * 52 // 8))
    xs = data.draw(st.lists(st.integers(0, 256**width - 1).map(mpz), max_size=9))
    xs.append(mpz(256) ** width - 1)
    found = moduli.numbers(moduli.of(xs, xs, width=width), len(xs))
    assert found == [[x % root**2 for x in xs] for root in roots]


@given(data=st.data(), bits=lengths)
def test_halves_may_be_as_large_as_the_kernel_says(data: st.DataObject, bits: int) -> None:
    root = data.draw(odd(bits))
    moduli = SquareModuli(root)
    r, limit = mpz(1) << (52 * moduli.digits), 8 * root - 1
    halves = st.integers(0, int(limit)).map(mpz) | st.just(limit)
    xs, ys = ([(data.draw(halves), data.draw(halves)) for _ in range(8)] for _ in range(2))
    a, b = (_row(each, moduli.digits) for each in (xs, ys))
    m, inverse = root * root, gmpy2.invert(r, root * root)
    values = [[(low + high * root) * inverse % m for low, high in each] for each in (xs, ys)]
    assert moduli.numbers(a, 8) == [values[0]]
    assert moduli.numbers(moduli.products(a, b), 8) == [[x * y % m for x, y in zip(*values, strict=True)]]
    assert moduli.numbers(moduli.powers(a, 2), 8) == [[x * x % m for x in values[0]]]
    for low, high in _halves(moduli.products(a, b)):
        assert max(low, high) < 3 * root


def _row(halves: list[tuple[mpz, mpz]], digits: int) -> Row:
    numbers = [[int(half >> (52 * j)) & (1 << 52) - 1 for half in each for j in range(digits)] for each in halves]
    return np.array(numbers, np.uint64).T[None].copy()


def _halves(row: Row) -> list[tuple[int, int]]:
    digits = row.shape[1] // 2
    return [
        (
            sum(int(digit) << (52 * j) for j, digit in enumerate(row[0, :digits, lane])),
            sum(int(digit) << (52 * j) for j, digit in enumerate(row[0, digits:, lane])),
        )
        for lane in range(8)
    ]


@given(data=st.data(), bits=st.lists(st.sampled_from([64, 97, 200]), min_size=2, max_size=2))
def test_powers_by_a_table_are_those_of_gmp(data: st.DataObject, bits: list[int]) -> None:
    roots = [data.draw(odd(each)) for each in bits]
    bases = [data.draw(numbers_modulo(root)) for root in roots]
    count = data.draw(st.integers(0, 17) | st.just(150))
    below = st.integers(0, (1 << max(bits)) - 1)
    exponents = [data.draw(st.lists(below, min_size=min(count, 17), max_size=min(count, 17))) for _ in roots]
    exponents = [each * (count // max(len(each), 1)) for each in exponents]
    moduli = SquareModuli(*roots)
    found = moduli.fixed_powers(moduli.table(bases[0], bases[1], max(bits)), *exponents)
    assert moduli.numbers(found, len(exponents[0])) == [
        [gmpy2.powmod(base, each, root**2) for each in those]
        for base, those, root in zip(bases, exponents, roots, strict=True)
    ]


units = st.integers(1, KEY.n**2 - 1).map(mpz).filter(lambda number: gmpy2.gcd(number, KEY.n) == 1)


@given(data=st.data(), rows=st.lists(units, min_size=1, max_size=20), exponent=st.integers(-100, 100))
def test_residues_are_those_of_gmp(data: st.DataObject, rows: list[mpz], exponent: int) -> None:
    places = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=20))
    factors = data.draw(st.lists(units, min_size=len(places), max_size=len(places)))
    found = []
    kinds: tuple[type[Residues], ...] = (GmpResidues, IfmaResidues)
    for kind in kinds:
        mine, others = kind.of(KEY, rows), kind.of(KEY, factors)
        taken = mine.take(places)
        assert len(taken) == len(places)
        changed = mine.take(range(len(mine)))
        changed.multiply_at(places, others)
        replaced = mine.take(range(len(mine)))
        replaced.put(places, others)
        width = KEY.ciphertext_bytes
        assert list(mine) == rows  # as it was
        found.append([list(each) for each in (taken, taken.products(others), changed, replaced, mine.powers(exponent))])
        found[-1].append([mpz(1)] if not mine.to_bytes(width) else list(kind.read(KEY, mine.to_bytes(width))))
    assert found[0] == found[1]


def test_what_does_not_fit_is_refused() -> None:
    moduli = SquareModuli(P, Q)
    row, kernel = moduli.of([mpz(1)] * 9, [mpz(1)] * 9), moduli._kernel
    table = moduli.table(mpz(2), mpz(3), 12)
    one = moduli.of([mpz(1)], [mpz(1)])
    most = 4 * moduli.digits * 52 // 8
    constants = bytes([255]) * 8 * 6 * 13
    refused: list[Callable[[], object]] = [
        *(lambda width=width: kernel.read(b"abc", width) for width in (-1, 0, 2, 1 << 61)),
        lambda: kernel.read(bytes(most + 1), most + 1),
        *(lambda count=count: kernel.write(row, count, 32) for count in (-1, 25, 1 << 61)),
        *(lambda width=width: kernel.write(row, 8, width) for width in (-1, 0)),
        lambda: kernel.products(row, row[:1]),
        lambda: kernel.products(b"x", b"x"),
        *(lambda bits=bits: kernel.powers(row, bytes(8), bits) for bits in (-1, 0, 9, 1 << 30)),
        lambda: kernel.powers(row, b"1", 5),
        lambda: kernel.table(b"", 1, 6),
        lambda: kernel.table(row, 1, 6),
        *(lambda bits=bits: kernel.table(one, 1, bits) for bits in (-1, 3, 9)),
        lambda: kernel.table(one, -1, 6),
        lambda: kernel.fixed_powers(table, b"1", 6),
        *(lambda bits=bits: kernel.fixed_powers(table, bytes(16), bits) for bits in (-1, 3, 5, 99)),
        *(lambda digits=digits: type(kernel)(digits, constants) for digits in (-2, 0, 1, 3, 322, 1 << 60)),
        lambda: type(kernel)(2, constants[:-1]),
        lambda: type(kernel)(2, constants * 2),
        lambda: type(kernel)(2, bytes(len(constants))),  # even
        lambda: type(kernel)(2, b""),
    ]
    for call in refused:
        with pytest.raises(ValueError, match=r"."):
            call()
    too_large: list[Callable[[], object]] = [
        *(lambda width=width: kernel.write(row, 8, width) for width in (1 << 61, (1 << 61) + 1, 1 << 62)),
        *(lambda rows=rows: kernel.table(one, rows, 6) for rows in (1 << 52, (1 << 53) + 1, 1 << 62)),
    ]
    for call in too_large:
        with pytest.raises(MemoryError):
            call()


def test_a_small_stack_is_enough() -> None:
    """Of a thread, where all arrays would lie on it by the largest modulus."""
    moduli = SquareModuli(mpz(3) << 16_000 | 1)
    before = threading.stack_size(128 * 1024)
    try:
        with ThreadPoolExecutor(1) as threads:
            row = threads.submit(moduli.of, [mpz(2)]).result()
            found = threads.submit(moduli.powers, row, 3).result()
            assert threads.submit(moduli.numbers, found, 1).result() == [[8]]
    finally:
        threading.stack_size(before)


def test_the_fastest_backend_is_chosen_and_another_one_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend_of("fenchel") == "ifma"
    assert backend_of("fenchel", "gmp") == "gmp"
    assert backend_of("phe") == "phe"
    with raises(SettingsError, key="algorithm.encryption.backend"):
        backend_of("phe", "ifma")
    monkeypatch.setattr(compiled("emulated"), "is_available", lambda: False)
    monkeypatch.setattr(ifma, "_ifma", compiled("emulated"))
    _only_gmp()
    monkeypatch.setattr(ifma, "_ifma", None)
    _only_gmp()


def _only_gmp() -> None:
    assert backend_of("fenchel") == "gmp"
    with raises(SettingsError, key="algorithm.encryption.backend"):
        backend_of("fenchel", "ifma")
