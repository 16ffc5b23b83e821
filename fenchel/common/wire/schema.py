"""What a payload should hold, and the check that it does.

An expectation maps names to what is wanted: an array (same dtype and shape as this one), an
:class:`ArraySpec` (where a length is open), a :class:`CipherSpec` (an encrypted vector), a scalar type, or a
:class:`NumberSpec` (a number within bounds). Floating values must be finite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, Unpack

import numpy as np

from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.crypto.vector import wire_problem
from fenchel.common.errors import NotFiniteError, PayloadError, Place
from fenchel.common.untrusted_text import plain
from fenchel.common.wire.values import ALIGNMENT, Array, SparseVector, Value, Values

Form: TypeAlias = Literal["clear", "noisy", "pseudonyms", "sealed"]
"""What a reader can take from an array that is no ciphertext: its bytes do not show it, so who asks for it says it."""


ABSURD = 1e30
"""Beyond this no loss and no score of a model means anything; products of such numbers are numbers still."""

_NAME, _NAMES = 80, 400  # characters of a name, and of all of them, in an error


@dataclass(frozen=True)
class ArraySpec:
    """An array wanted by dtype and shape.

    Attributes
    ----------
    dtype
        Exactly this one.
    shape
        ``None`` stands for any length.
    sparse
        Whether a one-dimensional array may come, and is handed on, as a :class:`SparseVector`.
    count
        How many entries of it must be given, where that is agreed: then only a :class:`SparseVector` will do.
    form
        For the account of what a run disclosed (``fenchel/server/disclosure/record.py``); it is not checked, and
        cannot be.
    most
        How large a length that ``shape`` leaves open may be; ``None``: as large as a message.
    """

    dtype: np.dtype[Any] | type[np.generic]
    shape: tuple[int | None, ...]
    sparse: bool = False
    count: int | None = None
    form: Form = "clear"
    most: int | None = None


@dataclass(frozen=True)
class CipherSpec:
    """An encrypted vector wanted."""

    key: PublicKey  # that it must be under
    layout: Layout  # exactly this one
    count: int  # of values that it must hold
    additions: int = 1  # of how many fresh vectors it may be the sum; no more


@dataclass(frozen=True)
class NumberSpec:
    """A number wanted within bounds, both of them allowed.

    Attributes
    ----------
    kind
        ``int`` or ``float``.
    minimum, maximum
        An infinite one is no bound.
    hint
        For people, what to do where a number lies outside: a part of a sentence.
    """

    kind: type[int] | type[float] = float
    minimum: float = -math.inf
    maximum: float = math.inf
    hint: str = ""


Expected: TypeAlias = ArraySpec | CipherSpec | NumberSpec | Array | type[bool] | type[int] | type[float] | type[str]
Expectation: TypeAlias = Mapping[str, Expected]


def check(values: Values, expectation: Expectation, *, finite: bool = False, **place: Unpack[Place]) -> None:
    """Raise a PayloadError that names the first difference, unless ``values`` are what was asked for.

    expectation: wanted names and kinds; no others are accepted.
    finite: True if the arrays are known to be finite (:class:`fenchel.common.wire.reader.Assembly`).
    place: round, phase and client, for the error.
    """
    if values.keys() != expectation.keys():
        raise PayloadError(
            f"got values named {_names(values)}, expected {sorted(expectation)}; "
            "do both sides run the same version of the algorithm?",
            **place,
        )
    for name, expected in expectation.items():
        problem = _difference(values[name], expected, finite)
        if problem:
            place["array"] = name
            raise payload_error(problem, **place)


def body_bounds(expectation: Expectation) -> tuple[int, int | None]:
    """Return how many bytes a payload that is as expected has, at least and at most; ``None``: no bound.

    A sender chooses the smallest encoding of a sparse vector's indices, so that they take a bit an entry at most.
    """
    least, most, bounded = 0, 0, True
    for expected in expectation.values():
        if isinstance(expected, CipherSpec):
            size = _aligned(expected.layout.ciphertexts(expected.count) * expected.key.ciphertext_bytes)
            least, most = least + size, most + size
        elif isinstance(expected, ArraySpec | np.ndarray):
            spec = expected if isinstance(expected, ArraySpec) else ArraySpec(expected.dtype, expected.shape)
            itemsize = np.dtype(spec.dtype).itemsize
            longest = [
                side for side in (spec.most if side is None else side for side in spec.shape) if side is not None
            ]
            bounded = bounded and len(longest) == len(spec.shape)
            entries = math.prod(longest)
            if spec.sparse:
                given = entries if spec.count is None else spec.count
                least += (spec.count or 0) * itemsize
                most += _aligned(-(-entries // 8)) + _aligned(given * itemsize)
            else:
                least += math.prod(side or 0 for side in spec.shape) * itemsize
                most += _aligned(entries * itemsize)
    return least, most if bounded else None


def _aligned(length: int) -> int:
    return length + -length % ALIGNMENT


def _difference(value: Value, expected: Expected, finite: bool) -> str | None:
    if isinstance(expected, type):
        return _scalar_difference(value, expected)
    if isinstance(expected, NumberSpec):
        return _number_difference(value, expected)
    if isinstance(expected, CipherSpec):
        return _cipher_difference(value, expected)
    if isinstance(value, SparseVector):
        if not isinstance(expected, ArraySpec) or not expected.sparse:
            return "is sparse, expected a dense array"
        shape: tuple[int, ...] = (value.size,)
        entries = value.values
    elif isinstance(value, np.ndarray):
        shape, entries = value.shape, value
    else:
        kind = "an encrypted vector" if isinstance(value, Ciphertexts) else f"a {type(value).__name__}"
        return f"is {kind}, expected an array"
    if entries.dtype != np.dtype(expected.dtype):
        return f"has dtype {entries.dtype}, expected {np.dtype(expected.dtype)}"
    wanted = expected.shape
    if len(shape) != len(wanted) or any(w is not None and w != s for s, w in zip(shape, wanted, strict=True)):
        return f"has shape {shape}, expected {tuple('any' if w is None else w for w in wanted)}"
    most = expected.most if isinstance(expected, ArraySpec) else None
    if most is not None and any(w is None and s > most for s, w in zip(shape, wanted, strict=True)):
        return f"has shape {shape}, expected at most {most} in an open length"
    count = expected.count if isinstance(expected, ArraySpec) else None
    if count is not None:
        if not isinstance(value, SparseVector):
            return f"is a dense array, expected a sparse vector with {count} entries given"
        if len(entries) != count:
            return f"has {len(entries)} entries given, expected {count}"
    return None if finite else finiteness_problem(entries)


def _cipher_difference(value: Value, expected: CipherSpec) -> str | None:
    if not isinstance(value, Ciphertexts):
        return f"is {_described(value)}, expected an encrypted vector"
    if value.key_id == expected.key.id:  # a vector under another key may well have another layout, too
        if value.layout != expected.layout:
            return f"has {value.layout}; expected {expected.layout}"
        if value.count != expected.count:
            return f"holds {value.count} encrypted values, expected {expected.count}"
        if value.additions > expected.additions:
            return f"is a sum of {value.additions} encrypted vectors, expected at most {expected.additions}"
    return wire_problem(value, expected.key)


def _scalar_difference(value: Value, expected: type) -> str | None:
    # bool is an int in Python, and an int is welcome where a float is wanted: neither is a surprise here.
    fits = type(value) is expected or (expected is float and type(value) is int)
    if not fits:
        return f"is {_described(value)}, expected a {expected.__name__}"
    if isinstance(value, float) and not np.isfinite(value):
        return NotFinite(f"is {value}, expected a finite number")
    return None


def _number_difference(value: Value, expected: NumberSpec) -> str | None:
    problem = _scalar_difference(value, expected.kind)
    if problem:
        return problem
    assert isinstance(value, int | float)
    if expected.minimum <= value <= expected.maximum:
        return None
    bound = f"at least {_told(expected.minimum)}" if value < expected.minimum else f"at most {_told(expected.maximum)}"
    return f"is {_told(value)}, expected {bound}" + (f"; {expected.hint}" if expected.hint else "")


def _told(number: float) -> str:
    """Return a number as people write it: 153, 0.5, 1e+100."""
    return str(number) if isinstance(number, int) else f"{number:.15g}"


def _names(values: Values) -> str:
    """Return names that somebody else chose, as far as people want to read them."""
    return plain(str(sorted(plain(name, _NAME) for name in values)), _NAMES)


def _described(value: Value) -> str:
    if isinstance(value, np.ndarray | SparseVector):
        return "an array"
    if isinstance(value, Ciphertexts):
        return "an encrypted vector"
    return f"the {type(value).__name__} {value!r:.80}"


def is_finite(array: Array) -> bool:
    """Whether the sum of squares of a floating-point array is finite.

    If any entry is not, the sum is not; and it may overflow although every entry is.
    """
    flat = array.reshape(-1)
    # np.vdot, unlike np.dot, gives no warning where the sum overflows.
    return math.isfinite(np.vdot(flat, flat))


class NotFinite(str):
    """A difference from what was expected: that a value is not finite."""


def payload_error(problem: str, **place: Unpack[Place]) -> PayloadError:
    """Return the error for a value at this place that has a problem."""
    kind = NotFiniteError if isinstance(problem, NotFinite) else PayloadError
    return kind(problem, **place)


def finiteness_problem(array: Array) -> NotFinite | None:
    """Say where an array is not finite, or return ``None``.

    One fast pass decides the usual case; only a sum that overflowed needs the exact look.
    """
    if array.dtype.kind != "f" or is_finite(array):
        return None
    flat = array.reshape(-1)
    bad = np.flatnonzero(~np.isfinite(flat))
    if not len(bad):
        return None
    return NotFinite(f"has {len(bad)} values that are not finite, the first at position {bad[0]}")
