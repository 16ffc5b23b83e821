"""Every obfuscator is an n-th residue, as random as phe's, and handed out once."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from functools import cache

import gmpy2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.client.paillier.blinding import BlindingFactors, Powers
from fenchel.client.paillier.key import PrivateKey, generate
from fenchel.common.errors import SettingsError
from tests.messages import raises


def key_of(bits: int = 256) -> PrivateKey:
    return made(bits)


@cache
def made(bits: int) -> PrivateKey:
    return generate(bits, for_tests=True)


def foreign(key: PrivateKey) -> PrivateKey:
    return PrivateKey(key.p, key.q)


def source(kind: str, **options: int) -> BlindingFactors:
    return BlindingFactors(key_of() if kind == "tables" else foreign(key_of()), **options)


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, "waited 20 seconds for nothing"
        time.sleep(0.002)


def in_a_child(work: Callable[[], bool]) -> bool:
    """Return what ``work`` returns in a forked child."""
    child = os.fork()
    if child == 0:
        good = False
        try:
            good = work()
        finally:
            os._exit(0 if good else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


kinds = pytest.mark.parametrize("kind", ["tables", "foreign"])


@kinds
def test_an_obfuscator_is_an_nth_residue(kind: str) -> None:
    """x is an n-th power modulo n² if and only if x^((p-1)(q-1)) = 1, since gcd(n, (p-1)(q-1)) = 1."""
    key = key_of()
    n = key.public.n
    for each in source(kind).take(50):
        assert 0 < each < n * n
        assert gmpy2.gcd(each, n) == 1
        assert pow(int(each), (key.p - 1) * (key.q - 1), n * n) == 1


@kinds
def test_an_obfuscator_is_the_power_r_to_the_n_of_its_own_root(kind: str) -> None:
    """The root that phe would have drawn: r = x^(1/n mod (p-1)(q-1)) modulo n."""
    key = key_of()
    n = key.public.n
    order = (key.p - 1) * (key.q - 1)
    for each in source(kind).take(20):
        r = pow(int(each) % n, pow(n, -1, order), n)
        assert pow(r, n, n * n) == each


@pytest.mark.parametrize("kind", ["tables", "foreign"])
def test_obfuscators_are_uniform_on_the_units(kind: str) -> None:
    """Modulo p they are uniform units: each eighth of the range is hit alike (a chi-squared bound)."""
    key = key_of()
    draws = 4000
    for prime in (key.p, key.q):
        bins = Counter(int(each % prime) * 8 // prime for each in source(kind).take(draws))
        chi = sum((bins[i] - draws / 8) ** 2 / (draws / 8) for i in range(8))
        assert chi < 45  # 7 degrees of freedom: exceeded with probability 1e-7


@kinds
def test_squares_and_others_come_equally_often_and_independently(kind: str) -> None:
    """A generator of a subgroup, of the squares for instance, would show here."""
    key = key_of()
    draws = 4000
    signs = Counter((gmpy2.legendre(each, key.p), gmpy2.legendre(each, key.q)) for each in source(kind).take(draws))
    assert len(signs) == 4
    assert all(abs(count - draws / 4) < 6 * (draws * 3 / 16) ** 0.5 for count in signs.values())


@pytest.mark.parametrize("window", [1, 2, 3, 5, 8, 9])
@given(data=st.data())
def test_a_table_gives_every_power(window: int, data: st.DataObject) -> None:
    modulo = key_of().modulo_p
    powers = tables(window)
    h = powers.power(1)
    order = int(modulo.order)
    exponent = data.draw(st.integers(0, order - 1) | st.sampled_from([0, 1, order - 1, 1 << window]))
    assert powers.power(exponent) == gmpy2.powmod(h, exponent, modulo.square)


@cache
def tables(window: int) -> Powers:
    return Powers(key_of().modulo_p, window)


@kinds
def test_exponents_and_units_are_drawn_from_their_whole_range(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short exponents would be faster, and would rest on another assumption than Paillier's."""
    key = key_of()
    blinding_factors = source(kind)
    bounds = []

    def last(bound: int) -> int:
        bounds.append(bound)
        return bound - 1

    monkeypatch.setattr("secrets.randbelow", last)
    (drawn,) = blinding_factors.take(1)
    assert bounds == [key.p - 1, key.q - 1]
    if kind == "foreign":  # the last unit is -1, and its power as well
        assert drawn == key.public.n_squared - 1


def test_larger_windows_take_the_memory_that_is_documented() -> None:
    key = key_of(2048)
    assert BlindingFactors(key, window=8).table_bytes == 2 * (1024 // 8) * 256 * 256
    assert BlindingFactors(foreign(key)).table_bytes == 0


@pytest.mark.parametrize("options", [{"window": 0}, {"window": 15}, {"pool": -1}])
def test_impossible_sizes_are_refused(options: dict[str, int]) -> None:
    with raises(SettingsError):
        BlindingFactors(key_of(), **options)


@kinds
def test_no_obfuscator_is_handed_out_twice_to_any_thread(kind: str) -> None:
    blinding_factors = source(kind, pool=20)
    blinding_factors.start()
    taken: list[list[gmpy2.mpz]] = [[] for _ in range(6)]

    def draw(mine: list[gmpy2.mpz]) -> None:
        for count in range(30):
            mine += blinding_factors.take(count)

    threads = [threading.Thread(target=draw, args=[mine]) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: blinding_factors.ready == 20)
    everything = [each for mine in taken for each in mine] + blinding_factors.take(20)
    blinding_factors.stop()
    assert len(everything) == 6 * 435 + 20
    assert len(set(everything)) == len(everything)


def test_the_pool_fills_to_its_bound_and_again_after_use() -> None:
    blinding_factors = source("tables", pool=7)
    assert blinding_factors.ready == 0
    blinding_factors.start()
    blinding_factors.start()
    wait_until(lambda: blinding_factors.ready == 7)
    time.sleep(0.05)
    assert blinding_factors.ready == 7
    assert len(blinding_factors.take(3)) == 3
    wait_until(lambda: blinding_factors.ready == 7)
    blinding_factors.stop()
    assert blinding_factors.ready == 0
    assert len(blinding_factors.take(5)) == 5


def test_ready_ones_are_taken_before_new_ones_are_made() -> None:
    blinding_factors = source("tables", pool=7)
    blinding_factors.start()
    wait_until(lambda: blinding_factors.ready == 7)
    with blinding_factors.paused():
        assert len(blinding_factors.take(5)) == 5
        assert blinding_factors.ready == 2
        assert len(blinding_factors.take(4)) == 4
        assert blinding_factors.ready == 0
        time.sleep(0.05)
        assert blinding_factors.ready <= 1  # one may have been on its way
    wait_until(lambda: blinding_factors.ready == 7)
    blinding_factors.stop()


def test_a_pool_without_room_starts_no_thread() -> None:
    before = threading.active_count()
    blinding_factors = source("tables")
    blinding_factors.start()
    assert threading.active_count() == before
    blinding_factors.stop()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_starts_with_an_empty_pool_and_draws_its_own() -> None:
    blinding_factors = source("tables", pool=7)
    blinding_factors.start()
    wait_until(lambda: blinding_factors.ready == 7)
    read, write = os.pipe()

    def child() -> bool:
        if blinding_factors.ready:
            return False
        mine = blinding_factors.take(7)
        os.write(write, b"".join(int(each).to_bytes(64, "big") for each in mine))
        blinding_factors.start()
        wait_until(lambda: blinding_factors.ready == 7)
        return True

    assert in_a_child(child)
    assert blinding_factors.ready == 7
    content = os.read(read, 7 * 64)
    childs = {int.from_bytes(content[start : start + 64], "big") for start in range(0, len(content), 64)}
    assert len(childs) == 7
    assert not childs & {int(each) for each in blinding_factors.take(14)}
    blinding_factors.stop()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_at_any_moment_is_not_stuck() -> None:
    """The lock may be held by the parent's thread, and a pause may be on, while the child is made."""
    blinding_factors = source("tables", pool=5)
    blinding_factors.start()

    def child() -> bool:
        return not blinding_factors.ready and len(blinding_factors.take(2)) == 2

    for _ in range(10):
        blinding_factors.take(5)
        assert in_a_child(child)
    with blinding_factors._pool.changed:
        assert in_a_child(child)
    blinding_factors.stop()


def test_tables_are_freed_with_the_last_user() -> None:
    """What is registered for forks must not keep them."""
    blinding_factors = source("tables")
    gone = weakref.ref(blinding_factors)
    del blinding_factors
    gc.collect()
    assert gone() is None
