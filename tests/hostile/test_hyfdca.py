"""Bad input to HyFDCA: what is wrong is said in words, and what can go on goes on."""

from __future__ import annotations

import asyncio
import importlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from fenchel.algorithms.hyfdca import client_setup
from fenchel.algorithms.hyfdca.partitioned_problem import agreed_key
from fenchel.client.local_data import LocalData
from fenchel.client.session import ClientData
from fenchel.common.arrays import squared_norms
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.public_key import LARGEST_BITS
from fenchel.common.crypto.vector import CipherVector
from fenchel.common.errors import (
    ContradictingLabelsError,
    FenchelError,
    RunStoppedError,
    SettingsError,
    TooFewRepliesError,
)
from fenchel.common.settings.run import RunSettings
from fenchel.common.wire.values import Value, Values
from fenchel.fleet.memory_budget import MemoryBudget, Reservation, Size
from fenchel.keys.shared import Secrets
from tests.algorithms.hybrid import KEY_BITS, Laboratory, Tamper, hybrid_settings, shards_of
from tests.messages import raises

OFFENDER = "client-001"
PARTNER = "client-003"  # holds the same samples, other features
EXACT: Mapping[str, Any] = {"preset": "exact", "picks": 8}

Change: TypeAlias = Callable[[dict[str, Value]], Value]


@pytest.fixture(scope="module")
def secrets() -> Secrets:
    return Secrets.generate(KEY_BITS, for_tests=True)


@pytest.fixture
def laboratory(tmp_path: Path, secrets: Secrets) -> Laboratory:
    return Laboratory(tmp_path, secrets)


def saying(phase: str, name: str, change: Change) -> Tamper:
    """A client that replies something else in one phase."""

    def tamper(asked: str, values: dict[str, Value]) -> Values:
        return values | {name: change(values)} if asked == phase else values

    return tamper


def always(value: Value) -> Change:
    return lambda values: value


def array(values: Mapping[str, Value], name: str) -> np.ndarray:
    value = values[name]
    assert isinstance(value, np.ndarray)
    return value


def ciphertexts(values: Mapping[str, Value], name: str = "change") -> Ciphertexts:
    value = values[name]
    assert isinstance(value, Ciphertexts)
    return value


def number(n: int) -> np.ndarray:
    return np.frombuffer(n.to_bytes((n.bit_length() + 7) // 8 or 1, "big"), np.uint8)


STRANGER = Secrets.generate(KEY_BITS, for_tests=True)
BIG = (1 << 511) + 1234567  # of the right length

SETUP: dict[str, tuple[str, Change]] = {
    "pseudonyms that are too short": ("samples", lambda v: array(v, "samples")[:, :16]),
    "pseudonyms of another type": ("samples", lambda v: array(v, "samples") / 1.0),
    "a sample twice": ("samples", lambda v: np.concatenate([array(v, "samples")[:1], array(v, "samples")[:-1]])),
    "more samples than it has": (
        "samples",
        lambda v: np.concatenate([array(v, "samples"), array(v, "samples")[:5] ^ 1]),
    ),
    "no samples": ("samples", lambda v: array(v, "samples")[:0]),
    "no features": ("features", lambda v: array(v, "features")[:0]),
    "a feature that is none": ("features", lambda v: array(v, "features") + 100),
    "a negative feature": ("features", lambda v: array(v, "features") - 100),
    "a feature twice": ("features", lambda v: np.repeat(array(v, "features")[:8], 2)[:15]),
    "cells of its partner": ("features", lambda v: np.arange(10, 25)),
    "no key": ("key", always(np.empty(0, np.uint8))),
    "zero for a key": ("key", always(number(0))),
    "an even key": ("key", always(number(BIG + 1))),
    "a short key": ("key", always(number(15))),
    "a key without end": ("key", always(np.full(40_000, 255, np.uint8))),
    "a prime for a key": ("key", always(number((1 << 521) - 1))),
    "another key": ("key", always(number(STRANGER.private_key.public.n))),
    "rows of any length": ("norm_bits", always(10**9)),
    "rows that are too long to count": ("norm_bits", always(1024)),
    "very long rows": ("norm_bits", always(1000)),
    "long rows": ("norm_bits", always(300)),
    "a truth for a length": ("norm_bits", always(True)),
}
"""What a client may say of itself: name of the value, change of it."""


@pytest.mark.parametrize("name", SETUP)
def test_a_run_that_cannot_begin_says_whose_fault_it_is(name: str, laboratory: Laboratory) -> None:
    field, change = SETUP[name]
    tampers = {OFFENDER: saying("introduce", field, change)}
    with raises(FenchelError) as caught:
        laboratory.run(hybrid_settings(1, **EXACT), tampers=tampers)
    assert OFFENDER in str(caught.value)


def flipped(values: dict[str, Value]) -> Value:
    """Numbers under the right key that are no sum of what the layout allows."""
    change = ciphertexts(values)
    noise = np.random.default_rng(1).bytes(len(change.data))
    # Below n^2 for certain: the first bytes of each number are zero.
    data = bytearray(noise)
    for start in range(0, len(data), change.ciphertext_bytes):
        data[start : start + 2] = b"\0\0"
    return replace(change, data=bytes(data))


def of_another_key(values: dict[str, Value]) -> Value:
    change = ciphertexts(values)
    cipher = STRANGER.cipher()
    return cipher.encrypt(np.zeros(change.count), change.layout).to_wire()


def out_of_range(values: dict[str, Value]) -> Value:
    change = ciphertexts(values)
    return replace(change, data=b"\xff" * len(change.data))


def relaid(values: dict[str, Value]) -> Value:
    change = ciphertexts(values)
    layout = change.layout
    return replace(change, layout=replace(layout, fraction_bits=layout.fraction_bits - 1))


CIPHERTEXTS: dict[str, tuple[Change, str]] = {
    "another key": (of_another_key, "give all clients the same file of secrets"),
    "another layout": (relaid, "after the point; expected"),
    "a sum that says so": (
        lambda v: replace(ciphertexts(v), additions=2),
        "is a sum of 2 encrypted vectors, expected at most 1",
    ),
    "one ciphertext too few": (
        lambda v: replace(
            ciphertexts(v),
            count=ciphertexts(v).count - ciphertexts(v).layout.slots,
            data=bytes(ciphertexts(v).data)[ciphertexts(v).ciphertext_bytes :],
        ),
        "encrypted values, expected",
    ),
    "numbers beyond n^2": (out_of_range, "expected 1 to n^2 - 1"),
    "zeros": (lambda v: replace(ciphertexts(v), data=bytes(len(ciphertexts(v).data))), "expected 1 to n^2 - 1"),
    "plain numbers": (lambda v: np.zeros(ciphertexts(v).count), "expected an encrypted vector"),
}
"""Changes of duals that are refused, and what the log says."""


@pytest.mark.parametrize("name", CIPHERTEXTS)
def test_ciphertexts_that_do_not_fit_cost_their_client_the_round_and_nobody_else(
    name: str, laboratory: Laboratory, caplog: pytest.LogCaptureFixture
) -> None:
    change, told = CIPHERTEXTS[name]
    with caplog.at_level(logging.WARNING, logger="fenchel.server"):
        run = laboratory.run(hybrid_settings(6, **EXACT), tampers={OFFENDER: saying("change_dual", "change", change)})
    said = [r.message for r in caplog.records if f"client {OFFENDER} failed" in r.message]
    assert len(said) == 6
    assert all(told in message for message in said)
    # The others went on: the offender's partner updated the samples that both hold, which it learnt of.
    assert np.abs(run.model).max() > 0.1
    assert np.abs(run.duals[PARTNER]).max() > 0.1
    np.testing.assert_allclose(run.duals[OFFENDER], run.duals[PARTNER], rtol=0, atol=1e-12)


def test_noise_under_the_right_key_is_found_by_whoever_opens_it(
    laboratory: Laboratory, caplog: pytest.LogCaptureFixture
) -> None:
    # The server cannot tell it from anything else, but a random plaintext is far beyond what slots may hold.
    with caplog.at_level(logging.WARNING, logger="fenchel.server"), raises(FenchelError, round=1, phase="aggregate"):
        laboratory.run(
            hybrid_settings(6, **EXACT),
            tampers={c: saying("change_dual", "change", flipped) for c in ("client-000", OFFENDER)},
        )


def test_a_sum_that_slots_have_no_room_for_is_refused(secrets: Secrets) -> None:
    layout = Layout.fit(KEY_BITS, 40, 1.0, 2)
    cipher = secrets.cipher()
    one = cipher.encrypt(np.ones(3), layout)
    total = CipherVector.zeros(one.key, layout, 3)
    for _ in range(layout.max_additions):
        total.add_at([0], one)
    with raises(FenchelError):
        total.add_at([0], one)
    assert cipher.decrypt(total).tolist() == [float(layout.max_additions)] * 3, "and nothing has changed"


@pytest.mark.parametrize(
    "settings",
    [
        hybrid_settings(8, loss="squared", encryption={"largest_dual": 1e-3}),
        hybrid_settings(8, **EXACT, encryption={"largest_score": 1e-3}),
        hybrid_settings(8, scale=["standard"], encryption={"largest_norm": 4.0}),
    ],
    ids=["duals", "scores", "norms"],
)
def test_a_value_beyond_the_range_names_the_bound_and_the_setting(settings: Any, laboratory: Laboratory) -> None:
    with raises(FenchelError):
        laboratory.run(settings)


def test_a_key_that_is_too_short_for_the_numbers_says_what_to_do(laboratory: Laboratory) -> None:
    settings = hybrid_settings(1, encryption={"fraction_bits": 52, "largest_score": 1e150})
    with raises(SettingsError, key="algorithm.encryption"):
        laboratory.run(settings)


def test_clients_with_different_keys_are_told_apart(secrets: Secrets) -> None:
    keys = {"a": secrets, "b": secrets, "c": STRANGER}
    numbers = {client: number(each.private_key.public.n) for client, each in keys.items()}
    with raises(RunStoppedError) as caught:
        agreed_key(numbers, KEY_BITS, None)
    said = str(caught.value)
    assert "clients a and c have different keys" in said
    assert secrets.private_key.public.fingerprint in said
    assert STRANGER.private_key.public.fingerprint in said
    assert bytes(agreed_key(numbers | {"c": numbers["a"]}, KEY_BITS, None)) == bytes(numbers["a"])


def test_clients_that_pick_more_than_they_have_pick_all(laboratory: Laboratory) -> None:
    many = laboratory.run(hybrid_settings(3, preset="safe", picks=10_000))
    everything = laboratory.run(hybrid_settings(3, preset="safe"))
    assert many.model.tobytes() == everything.model.tobytes()


@pytest.mark.parametrize(
    ("preset", "told"), [("paper", 5), ("theory", 5), ("exact", 0), ("safe", 0), ("linesearch", 0)]
)
def test_each_client_and_the_server_tell_of_long_rows_where_the_preset_does_not_know_them(
    preset: str, told: int, laboratory: Laboratory, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        laboratory.run(hybrid_settings(1, preset=preset, picks=1, scale=["standard"]))
    assert len({r.message for r in caplog.records if "a norm above 1" in r.message}) == told


def test_rows_of_norm_1_as_float32_rounds_them_are_not_warned_of(
    laboratory: Laboratory, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = squared_norms
    monkeypatch.setattr(client_setup, "squared_norms", lambda features: exact(features) * (1 + 2.0**-22))
    with caplog.at_level(logging.WARNING):
        laboratory.run(hybrid_settings(1, preset="paper", picks=1))
    assert not [r.message for r in caplog.records if "a norm above 1" in r.message]


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ({"contribution": np.zeros(3)}, "has shape"),
        ({"contribution": np.full(15, np.nan)}, "not finite"),
        ({"contribution": np.zeros(15), "more": 1.0}, "3 values; expected at most 2"),
    ],
    ids=["length", "nan", "more"],
)
def test_contributions_are_checked(
    reply: Values, told: str, laboratory: Laboratory, caplog: pytest.LogCaptureFixture
) -> None:
    def tamper(phase: str, values: dict[str, Value]) -> Values:
        return {**values, **reply} if phase == "aggregate" else values

    with caplog.at_level(logging.WARNING, logger="fenchel.server"):
        run = laboratory.run(hybrid_settings(4, **EXACT), tampers={OFFENDER: tamper})
    said = [r.message for r in caplog.records if f"client {OFFENDER} failed" in r.message]
    assert said
    assert all(told in message for message in said)
    assert np.isfinite(run.model).all()


def test_secrets_of_another_length_are_refused(laboratory: Laboratory) -> None:
    other = Secrets.generate(KEY_BITS + 128, for_tests=True)
    with raises(SettingsError):
        laboratory.run(hybrid_settings(1), secrets=other)


def test_too_few_clients_stop_the_run_with_the_reason_of_each(laboratory: Laboratory) -> None:
    tampers = {c: saying("introduce", "more", always(1)) for c in ("client-000", OFFENDER)}
    with raises(TooFewRepliesError, round=0, phase="introduce"):
        laboratory.run(hybrid_settings(1), tampers=tampers)


# Labels of the samples that clients share


@pytest.mark.parametrize("privacy", ["paillier", "none"])
def test_holders_with_other_labels_are_refused_with_the_number_of_contradictions(
    privacy: str, laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = LocalData.of

    def of(self: LocalData, settings: RunSettings, index: int, clients: int) -> ClientData:
        holding = honest(self, settings, index, clients)
        labels = holding.shard.labels.copy()
        if index == 1:
            labels[[2, 3, 11]] = 1 - labels[[2, 3, 11]]
        return replace(holding, shard=replace(holding.shard, labels=labels))

    monkeypatch.setattr(LocalData, "of", of)
    with raises(ContradictingLabelsError) as caught:
        laboratory.run(hybrid_settings(1, privacy=privacy))
    assert caught.value.contradictions == 3
    assert caught.value.clients == (OFFENDER, PARTNER)
    assert caught.value.exit_code == 3


# The setup and the server's memory and event loop


def test_so_many_pseudonyms_are_taken_as_a_client_described(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, Mapping[str, Size]] = {}
    honest = MemoryBudget.reserve

    def reserve(self: MemoryBudget, phase: str, sizes: Mapping[str, Size], buffer: int | None = None) -> Reservation:
        found[phase] = sizes
        return honest(self, phase, sizes, buffer)

    monkeypatch.setattr(MemoryBudget, "reserve", reserve)
    settings = hybrid_settings(1)
    laboratory.run(settings)
    (introduced,) = (sizes for phase, sizes in found.items() if "introduce" in phase)
    for client, shard in shards_of(settings).items():
        most = introduced[client].most
        assert most is not None
        described = shard.samples * (32 + 16) + shard.features.shape[1] * 8
        assert described <= most <= described + LARGEST_BITS // 8


def test_more_than_the_server_can_align_is_refused_before_it_is_sent(laboratory: Laboratory) -> None:
    settings = hybrid_settings(1)
    small = settings.network.model_copy(update={"in_flight_bytes": 20_000})
    heard: list[str] = []

    def tamper(phase: str, values: dict[str, Value]) -> Values:
        heard.append(phase)
        return values

    with raises(SettingsError):
        laboratory.run(settings.model_copy(update={"network": small}), tampers={OFFENDER: tamper})
    assert not heard


def test_more_values_than_the_server_can_compare_are_refused(laboratory: Laboratory) -> None:
    settings = hybrid_settings(1, layout="ragged")
    samples = sum(shard.samples + shard.features.shape[1] for shard in shards_of(settings).values())
    enough_for_samples = settings.network.model_copy(update={"in_flight_bytes": 300 * samples})
    with raises(SettingsError):
        laboratory.run(settings.model_copy(update={"network": enough_for_samples}))


def test_the_event_loop_turns_while_the_alignment_is_worked_out(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    worked_out: list[bool] = []

    def tamper(phase: str, values: dict[str, Value]) -> Values:
        loops.append(asyncio.get_running_loop())
        return values

    def while_the_loop_turns(work: Callable[..., Any]) -> Callable[..., Any]:
        def waits(*args: Any, **keywords: Any) -> Any:
            turned = threading.Event()
            loops[0].call_soon_threadsafe(turned.set)
            worked_out.append(turned.wait(10))  # for ever, on the loop's own thread
            return work(*args, **keywords)

        return waits

    for module, name in (("partitioned_problem", "align"), ("server_setup", "check_labels")):
        work = getattr(importlib.import_module(f"fenchel.algorithms.hyfdca.{module}"), name)
        monkeypatch.setattr(f"fenchel.algorithms.hyfdca.{module}.{name}", while_the_loop_turns(work))
    laboratory.run(hybrid_settings(1), tampers={OFFENDER: tamper})
    assert worked_out == [True, True]
