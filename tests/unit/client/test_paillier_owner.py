"""Every blinding factor is an n-th residue, as random as the definition's, and handed out once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from functools import cache

import gmpy2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.crypto.public_key import Backend
from fenchel.keys.paillier.crt import CrtOwner
from fenchel.keys.paillier.gmp import GeneratorPowers
from fenchel.keys.paillier.key import PrivateKey
from fenchel.keys.paillier.owner import key_owner
from tests.ifma_kernel import in_use
from tests.unit.client.paillier_keys import key_of

KEY = key_of()
FOREIGN = PrivateKey(KEY.p, KEY.q)
"""Without the factors of p-1 and q-1, as for a key that another program has made."""


@cache
def owner(key: PrivateKey, backend: Backend) -> CrtOwner:
    made = key_owner(key, backend)
    assert isinstance(made, CrtOwner)
    return made


@pytest.fixture(params=["gmp", "ifma"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with in_use("emulated"):
        yield request.param


@pytest.fixture(params=[KEY, FOREIGN], ids=["by a table", "by exponentiation"])
def source(request: pytest.FixtureRequest, backend: Backend) -> CrtOwner:
    return owner(request.param, backend)


def test_a_blinding_factor_is_the_power_r_to_the_n_of_its_own_root(source: CrtOwner) -> None:
    """The root that the definition would have drawn: r = x^(1/n mod (p-1)(q-1)) modulo n."""
    n, order = KEY.public.n, (KEY.p - 1) * (KEY.q - 1)
    for each in source.blinding_factors(20):
        assert 0 < each < n * n
        r = pow(int(each) % n, pow(n, -1, order), n)
        assert pow(r, n, n * n) == each


def test_blinding_factors_are_uniform_on_the_units(source: CrtOwner) -> None:
    """Modulo p they are uniform units, in range and in quadratic character (chi-squared bounds of 1e-7).

    A generator of a subgroup, of the squares for instance, would show here.
    """
    draws = 4000
    drawn = source.blinding_factors(draws)
    for prime in (KEY.p, KEY.q):
        bins = Counter(int(each % prime) * 8 // prime for each in drawn)
        assert sum((bins[i] - draws / 8) ** 2 / (draws / 8) for i in range(8)) < 45
    signs = Counter((gmpy2.legendre(each, KEY.p), gmpy2.legendre(each, KEY.q)) for each in drawn)
    assert len(signs) == 4
    assert all(abs(count - draws / 4) < 6 * (draws * 3 / 16) ** 0.5 for count in signs.values())
    assert len(set(drawn)) == draws


@cache
def table(window: int) -> GeneratorPowers:
    return GeneratorPowers(KEY.modulo_p, window)


@pytest.mark.parametrize("window", [1, 5, 8, 9])
@given(data=st.data())
def test_a_table_gives_every_power(window: int, data: st.DataObject) -> None:
    modulo, powers = KEY.modulo_p, table(window)
    order = int(modulo.order)
    exponent = data.draw(st.integers(0, order - 1) | st.sampled_from([0, 1, order - 1, 1 << window]))
    assert powers.power(exponent) == gmpy2.powmod(powers.power(1), exponent, modulo.square)


def test_exponents_are_drawn_from_their_whole_range(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short exponents would be faster, and would rest on another assumption than Paillier's."""
    bounds = []

    def last(bound: int) -> int:
        bounds.append(bound)
        return bound - 1

    source = owner(KEY, backend)
    monkeypatch.setattr("secrets.randbelow", last)
    source.blinding_factors(1)
    assert sorted(bounds) == sorted([KEY.p - 1, KEY.q - 1])


def test_the_tables_take_the_memory_that_is_documented(backend: Backend) -> None:
    rows, entries, number = {"gmp": (1024 // 8, 256, 256), "ifma": (1024 // 6 + 1, 64, 2 * 20 * 8)}[backend]
    assert owner(key_of(2048), backend).arithmetic.table_bytes == 2 * rows * entries * number


def test_both_backends_encrypt_to_the_same_ciphertext(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the same randomness: the same generators, and the same exponents."""
    generators = {half.prime: half.generator() for half in (KEY.modulo_p, KEY.modulo_q)}
    exponents = {KEY.p - 1: 12345678901234567890, KEY.q - 1: KEY.q - 3}
    monkeypatch.setattr("fenchel.keys.paillier.key.PrimePower.generator", lambda half: generators[half.prime])
    monkeypatch.setattr("secrets.randbelow", exponents.__getitem__)
    plaintexts = [gmpy2.mpz(each) for each in (0, 1, KEY.public.n - 1, -1, KEY.p, KEY.public.n // 2)]
    with in_use("emulated"):
        by_gmp, by_ifma = (key_owner(KEY, backend).encrypt(plaintexts) for backend in ("gmp", "ifma"))
        assert list(by_gmp) == list(by_ifma)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_draws_its_own(backend: Backend) -> None:
    read, write = os.pipe()
    if not (child := os.fork()):
        os.write(write, b"".join(int(each).to_bytes(64, "big") for each in owner(KEY, backend).blinding_factors(7)))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    content = os.read(read, 7 * 64)
    childs = {int.from_bytes(content[start : start + 64], "big") for start in range(0, len(content), 64)}
    assert len(childs) == 7
    assert not childs & {int(each) for each in owner(KEY, backend).blinding_factors(7)}
