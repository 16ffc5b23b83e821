"""Encrypted vectors travel beside other values, and those keep their own checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

from fenchel.algorithms.client_half import ClientAlgorithm, ClientContext, answers
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.vector import CipherVector
from fenchel.common.data.shard import Shard
from fenchel.common.errors import PayloadError
from fenchel.common.objectives.objective import Objective
from fenchel.common.settings.algorithm import AlgorithmSettings
from fenchel.common.wire.frames import Assembly
from fenchel.common.wire.outline import outline
from fenchel.common.wire.payload import encode
from fenchel.common.wire.values import SparseVector, Value, Values
from tests.messages import raises
from tests.unit.common.textbook import KEY

LAYOUT = Layout(slot_bits=40, fraction_bits=20, slots=6, value_bits=30)
# Its bytes are those of the float64 nan: whoever takes ciphertexts for numbers notices.
NUMBER = int.from_bytes(b"\x0f" + b"\xff" * (KEY.ciphertext_bytes - 1), "big")
DUAL = CipherVector(KEY, LAYOUT, 13, 1, [NUMBER] * 3).to_wire()


def arrived(values: Values) -> Assembly:
    """Return the body as it is assembled from two chunks."""
    encoded = encode(values)
    told = outline(encoded.descriptor, 1 << 20)
    assembly = Assembly(told.size, spans=told.float_spans())
    content = memoryview(encoded.joined())
    assembly.add(content[:8])
    assembly.add(content[8:])
    return assembly


def test_ciphertexts_are_not_taken_for_floating_point_numbers() -> None:
    assert np.isnan(np.frombuffer(DUAL.data, "<f8")).any()
    assert outline(encode({"dual": DUAL}).descriptor, 1 << 40).float_spans() == []
    assert arrived({"a": np.ones(3), "dual": DUAL, "b": np.ones(2)}).finite


def test_numbers_behind_ciphertexts_are_still_looked_at() -> None:
    assert not arrived({"dual": DUAL, "b": np.array([1.0, np.nan])}).finite
    spans = outline(encode({"dual": DUAL, "b": np.ones(2)}).descriptor, 1 << 40).float_spans()
    assert [(span.start, span.stop) for span in spans] == [(192, 208)]


def test_sparse_values_are_looked_at_also_where_they_take_as_many_bytes_as_their_indices() -> None:
    thin = SparseVector(np.array([300, 599, 899]), np.array([1, np.nan, 2], np.float16), 65_536)
    encoded = encode({"x": thin})
    assert encoded.descriptor.arrays[0].sparse.index_bytes == thin.values.nbytes
    assert [(span.start, span.stop) for span in outline(encoded.descriptor, 1 << 40).float_spans()] == [(8, 14)]
    assert not arrived({"x": thin, "y": np.ones(2)}).finite


class Half(ClientAlgorithm):
    @dataclass
    class State:
        """None."""

    @answers("open")
    def open(self, dual: Ciphertexts, extra: Ciphertexts | None = None, anything: Any = 0) -> Values:
        return {"count": dual.count}


@pytest.fixture
def half() -> Half:
    return Half(ClientContext("client-0", 7, AlgorithmSettings(name="half"), cast(Objective, None), cast(Shard, None)))


def test_a_handler_takes_ciphertexts(half: Half) -> None:
    assert half.answer("open", 1, {"dual": DUAL, "extra": DUAL, "anything": DUAL}) == {"count": 13}


@pytest.mark.parametrize("value", [1.0, "x", np.ones(3), SparseVector(np.array([0]), np.ones(1), 2), float("nan")])
def test_a_handler_of_ciphertexts_takes_nothing_else(half: Half, value: Value) -> None:
    with raises(PayloadError, phase="open", array="dual"):
        half.answer("open", 1, {"dual": value})
    with raises(PayloadError, phase="open", array="extra"):
        half.answer("open", 1, {"dual": DUAL, "extra": value})


def test_ciphertexts_of_a_body_outlive_it(half: Half) -> None:
    encoded = encode({"dual": DUAL})
    body = encoded.joined()
    values = outline(encoded.descriptor, 1 << 40).decode(body)
    del body
    found = values["dual"]
    assert isinstance(found, Ciphertexts)
    assert CipherVector.from_wire(found, KEY).ciphertexts == [NUMBER] * 3
