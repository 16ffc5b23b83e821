"""What is not finite is found while a large body arrives, wherever its chunks were cut."""

from __future__ import annotations

import numpy as np
import pytest

from fenchel.common.arrays import Array
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.residues.gmp import GmpResidues
from fenchel.common.crypto.vector import CipherVector
from fenchel.common.wire.frames import CHUNK_BYTES, Body, parse
from fenchel.common.wire.outline import outline
from fenchel.common.wire.payload import encode
from fenchel.common.wire.reader import Assembly
from fenchel.common.wire.values import SparseVector, Value
from fenchel.proto import fenchel_pb2 as pb
from tests.unit.common.textbook import KEY


def arrived(values: dict[str, Value], cuts: list[int] | None = None) -> tuple[Assembly, pb.Payload]:
    """Return the assembly of a payload that came in frames, or in pieces cut at ``cuts``."""
    encoded = encode(values)
    told = outline(encoded.descriptor, 1 << 40)
    assembly = Assembly(told.size, spans=told.float_spans())
    if cuts is None:
        for frame in Body(encoded).frames():
            assembly.add(parse(frame).chunk)
    else:
        content = memoryview(encoded.joined())
        for start, stop in zip([0, *cuts], [*cuts, len(content)], strict=True):
            assembly.add(content[start:stop])
    assert assembly.complete
    return assembly, encoded.descriptor


def numbers(count: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(3).standard_normal(count).astype(dtype)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [0, CHUNK_BYTES // 4 - 1, CHUNK_BYTES // 4, 899_999])
def test_one_bad_number_in_any_chunk_is_noticed(bad: float, position: int) -> None:
    array = numbers(900_000)
    array[position] = bad
    assembly, _ = arrived({"model": array})
    assert not assembly.finite


def test_a_bad_value_of_a_sparse_vector_is_noticed_and_its_indices_are_not_taken_for_numbers() -> None:
    indices = np.arange(0, 2_000_000, 2)
    good = SparseVector(indices, numbers(len(indices)), 2_000_000)
    assert arrived({"x": good})[0].finite
    bad = SparseVector(indices, good.values.copy(), 2_000_000)
    bad.values[-1] = np.nan
    assert not arrived({"x": bad})[0].finite


def test_a_sum_that_overflows_asks_for_a_closer_look() -> None:
    assert not arrived({"model": np.full(600_000, 3e38, np.float32)})[0].finite
    assert not arrived({"model": np.full(1_200_000, 200, np.float16)})[0].finite


def test_chunks_cut_in_the_middle_of_a_number_ask_for_a_closer_look() -> None:
    assert not arrived({"model": numbers(1000)}, cuts=[1001])[0].finite
    assert arrived({"model": numbers(1000)}, cuts=[1000, 2000])[0].finite


def test_what_arrived_twice_asks_for_a_closer_look() -> None:
    encoded = encode({"model": numbers(1000)})
    content = memoryview(encoded.joined())
    assembly = Assembly(4000, spans=outline(encoded.descriptor, 1 << 40).float_spans())
    assembly.add(content[:2000])
    assembly.rewind(1000)
    assembly.add(content[1000:])
    assert assembly.complete
    assert not assembly.finite


# Ciphertexts beside numbers

LAYOUT = Layout(slot_bits=40, fraction_bits=20, slots=6, value_bits=30)
# Its bytes are those of the float64 nan: whoever takes ciphertexts for numbers notices.
NUMBER = int.from_bytes(b"\x0f" + b"\xff" * (KEY.ciphertext_bytes - 1), "big")
DUAL = CipherVector(KEY, LAYOUT, 13, 1, GmpResidues.of(KEY, [NUMBER] * 3)).to_wire()


def test_ciphertexts_are_not_taken_for_floating_point_numbers() -> None:
    assert np.isnan(np.frombuffer(DUAL.data, "<f8")).any()
    assert outline(encode({"dual": DUAL}).descriptor, 1 << 40).float_spans() == []
    assert arrived({"a": np.ones(3), "dual": DUAL, "b": np.ones(2)}, cuts=[8])[0].finite


def test_numbers_behind_ciphertexts_are_still_looked_at() -> None:
    assert not arrived({"dual": DUAL, "b": np.array([1.0, np.nan])}, cuts=[8])[0].finite
    spans = outline(encode({"dual": DUAL, "b": np.ones(2)}).descriptor, 1 << 40).float_spans()
    assert [(span.start, span.stop) for span in spans] == [(192, 208)]


def test_sparse_values_are_looked_at_also_where_they_take_as_many_bytes_as_their_indices() -> None:
    thin = SparseVector(np.array([300, 599, 899]), np.array([1, np.nan, 2], np.float16), 65_536)
    encoded = encode({"x": thin})
    assert encoded.descriptor.arrays[0].sparse.index_bytes == thin.values.nbytes
    assert [(span.start, span.stop) for span in outline(encoded.descriptor, 1 << 40).float_spans()] == [(8, 14)]
    assert not arrived({"x": thin, "y": np.ones(2)}, cuts=[8])[0].finite
