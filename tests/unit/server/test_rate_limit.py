"""One client gets what its limits allow, and the others notice nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack

import pytest

from fenchel.fleet.metering.limits import Limits
from fenchel.fleet.metering.rate_limit import CrowdedError, RateLimiter, TokenBucket
from tests.complexity import FACTOR, LINEAR, growth
from tests.messages import raises


def test_a_pace_lets_a_burst_pass_and_then_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pace = TokenBucket(rate=10.0, burst=3.0, _since=now)
    assert [pace.delay() for _ in range(5)] == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.2])
    now += 0.2  # two have been worked off
    assert pace.delay() == pytest.approx(0.1)
    now += 3600.0
    assert [pace.delay() for _ in range(4)] == pytest.approx([0.0, 0.0, 0.0, 0.1])


async def test_calls_at_once_are_counted_for_each_client_and_given_back() -> None:
    rate_limiter = RateLimiter(Limits(max_calls_per_client=2))
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(rate_limiter.passed("a"))
        with raises(CrowdedError):
            await stack.enter_async_context(rate_limiter.passed("a"))
        await stack.enter_async_context(rate_limiter.passed("b"))
    async with rate_limiter.passed("a"):
        pass


async def test_a_call_that_fails_or_is_cancelled_is_given_back() -> None:
    rate_limiter = RateLimiter(Limits(max_calls_per_client=1, calls_per_second=0.01, calls_at_once=2))
    with pytest.raises(KeyError):
        async with rate_limiter.passed("a"):
            raise KeyError
    async with rate_limiter.passed("a"):
        pass

    async def waiting() -> None:
        async with rate_limiter.passed("a"):
            pytest.fail("it was to wait for a hundred seconds")

    task = asyncio.create_task(waiting())
    await asyncio.sleep(0.01)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with rate_limiter.passed("a", probe=True):
        pass


def test_bytes_are_counted_as_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    pace = TokenBucket(rate=10.0, burst=30.0, _since=100.0)
    assert [pace.delay(15), pace.delay(15), pace.delay(5)] == pytest.approx([0.0, 0.0, 0.5])


async def test_a_server_whose_calls_are_all_waiting_to_be_refused_says_that_it_is_full(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    rate_limiter = RateLimiter(Limits(max_calls=30))
    with caplog.at_level(logging.WARNING, logger="fenchel.server"):
        refusals = [asyncio.create_task(rate_limiter.refusing("a")) for _ in range(30)]
        await asyncio.sleep(0)
        for task in refusals:
            task.cancel()
        await asyncio.gather(*refusals, return_exceptions=True)
    assert len(caplog.messages) == 1


def test_thousands_of_clients_pass_at_once() -> None:
    async def join(rate_limiter: RateLimiter, name: str) -> None:
        async with rate_limiter.passed(name):
            await asyncio.sleep(0)

    async def join_all(clients: int) -> None:
        rate_limiter = RateLimiter(Limits())
        await asyncio.gather(*(join(rate_limiter, f"client-{number}") for number in range(clients)))

    assert growth(lambda clients: asyncio.run(join_all(clients)), 12_000 // FACTOR, 3) < LINEAR


async def test_a_full_server_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    rate_limiter = RateLimiter(Limits(max_calls=3))
    with caplog.at_level(logging.WARNING, logger="fenchel.server"):
        async with rate_limiter.passed("a"), rate_limiter.passed("b"):
            assert not caplog.records
            for name in ("c", "d", "c"):
                async with rate_limiter.passed(name):
                    pass
    (message,) = caplog.messages
    assert message.startswith("the server has reached its maximum of 3 open calls")


async def test_a_server_that_is_full_again_and_again_says_so_once_in_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = float(round(time.monotonic()))  # sums of whole seconds are exact
    monkeypatch.setattr(time, "monotonic", lambda: now)
    rate_limiter = RateLimiter(Limits(max_calls=1, calls_at_once=1000))
    with caplog.at_level(logging.WARNING, logger="fenchel.server"):
        for _ in range(121):
            async with rate_limiter.passed("a"):
                now += 1.0
    assert len(caplog.messages) == 3, "after 0, 60 and 120 seconds"
