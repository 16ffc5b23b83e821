"""The kernel computes what GMP computes: by its instructions where the processor has them, and by plain C anywhere."""

from __future__ import annotations

from collections.abc import Iterator

import gmpy2
import pytest
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.crypto.residues import ifma
from fenchel.common.crypto.residues.choice import backend_of
from fenchel.common.crypto.residues.gmp import GmpResidues
from fenchel.common.crypto.residues.ifma import IfmaResidues, SquareModulus
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


@given(data=st.data(), bits=st.sampled_from([64, 97, 98, 99, 155, 1024, 1536]))
def test_products_and_powers_are_those_of_gmp(data: st.DataObject, bits: int) -> None:
    root = data.draw(odd(bits))
    m = root * root
    numbers = st.integers(0, int(m) - 1) | st.sampled_from([0, 1, int(m) - 1, int(root), int(m - root), int(root) - 1])
    xs = [mpz(each) for each in data.draw(st.lists(numbers, max_size=17))]
    ys = [mpz(each) for each in data.draw(st.lists(numbers, min_size=len(xs), max_size=len(xs)))]
    exponent = data.draw(st.integers(0, 1 << 70) | st.sampled_from([0, 1, 2, 31, 32, (1 << 200) - 1]))
    modulus = SquareModulus(root)
    a, b = modulus.of(xs), modulus.of(ys)
    assert modulus.numbers(a, len(xs)) == xs
    assert modulus.numbers(modulus.products(a, b), len(xs)) == [x * y % m for x, y in zip(xs, ys, strict=True)]
    assert modulus.numbers(modulus.powers(a, exponent), len(xs)) == [gmpy2.powmod(x, exponent, m) for x in xs]


@given(data=st.data(), bits=st.sampled_from([64, 200]), base=st.integers(2, 1 << 100).map(mpz))
def test_powers_by_a_table_are_those_of_gmp(data: st.DataObject, bits: int, base: mpz) -> None:
    root = data.draw(odd(bits))
    modulus = SquareModulus(root)
    base %= modulus.value
    exponents = data.draw(st.lists(st.integers(0, (1 << bits) - 1), max_size=17))
    exponents *= data.draw(st.sampled_from([1, 1, 10]))
    found = modulus.fixed_powers(modulus.table(base, bits), exponents)
    assert modulus.numbers(found, len(exponents)) == [gmpy2.powmod(base, each, modulus.value) for each in exponents]


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
    modulus = SquareModulus(P)
    row, kernel = modulus.of([mpz(1)] * 9), modulus._kernel
    table = modulus.table(mpz(2), 12)
    for refused in (
        lambda: kernel.read(b"abc", 2),
        lambda: kernel.read(b"abc", 0),
        lambda: kernel.write(row, 17, 32),
        lambda: kernel.write(row, -1, 32),
        lambda: kernel.products(row, row[:1]),
        lambda: kernel.products(b"x", b"x"),
        lambda: kernel.powers(row, b"1", 9),
        lambda: kernel.table(b"", 1, 6),
        lambda: kernel.table(row, 1, 3),
        lambda: kernel.fixed_powers(table, b"1", 6),
        lambda: kernel.fixed_powers(table, bytes(16), 99),
        lambda: type(kernel)(0, bytes(80)),
        lambda: type(kernel)(3, bytes(80)),
        lambda: type(kernel)(4000, bytes(80)),
        lambda: type(kernel)(2, bytes(8000)),
    ):
        with pytest.raises(ValueError, match=r"."):
            refused()


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
