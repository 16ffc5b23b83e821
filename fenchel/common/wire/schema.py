"""Schemas of payloads, and the check of payloads against them.

A schema maps the name of each value to a specification: an array (of the same dtype and shape), an :class:`ArraySpec`
(if a length is open), a :class:`CipherSpec` (an encrypted vector), a scalar type, or a :class:`NumberSpec` (a number
within bounds). Floating-point values must be finite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, Unpack

import numpy as np

from fenchel.common.arrays import Array, require_finite
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.crypto.vector import check_received
from fenchel.common.errors import NotFiniteError, PayloadError, Place
from fenchel.common.untrusted_text import sanitize
from fenchel.common.wire.codecs import ARRAY_TYPES, ArrayCodec, codec_of, entries_of, noun_of
from fenchel.common.wire.values import Value, Values, aligned

Form: TypeAlias = Literal["clear", "noisy", "pseudonyms", "sealed"]
"""Protection of an array that is no ciphertext, as declared in a schema, because its bytes do not show it."""


ABSURD = 1e30
"""Bound beyond which a model's loss or score is meaningless. Products of such numbers are still finite."""

_NAME, _NAMES = 80, 400  # limits on the characters of one name, and of all names, in an error


class Spec(Protocol):
    """Specification of one value of a schema."""

    @property
    def form(self) -> Form:
        """Protection of the value, for the disclosure record (``fenchel/server/disclosure/record.py``); not checked."""
        ...

    def check(self, value: Value, finite: bool) -> None:
        """Raise an error for a value that does not match.

        Parameters
        ----------
        finite
            True if the entries of arrays are known to be finite, so that they are not checked.

        Raises
        ------
        PayloadError
            With the first difference, without the value's name.
        """
        ...

    def bounds(self) -> tuple[int, int | None]:
        """Return the smallest and largest number of bytes of such a value in a body, or ``None`` for no upper bound."""
        ...


@dataclass(frozen=True)
class ArraySpec:
    """Schema of an array in a reply, by dtype and shape.

    It is used in ``returns`` of :meth:`fenchel.Cohort.ask` if the shape is not fully known, or if a value is sparse. A
    plain array in ``returns`` stands for an array of the same dtype and shape.

    Parameters
    ----------
    dtype : numpy.dtype or type[numpy.generic]
        Exact dtype, or a scalar type such as ``np.int64`` or ``np.floating``, which includes its subtypes.
    shape : tuple[int or None, ...] or None
        Shape, with ``None`` for a side of any length. ``None`` accepts any shape.
    kinds : tuple[type, ...], default (numpy.ndarray,)
        Accepted encodings: ``numpy.ndarray``, :class:`fenchel.SparseVector`, or both. The value is not converted.
    count : int, optional
        Exact number of stored entries. Default: any number.
    form : {"clear", "noisy", "pseudonyms", "sealed"}, default "clear"
        Form of the entries for the disclosure record. It cannot be checked.
    most : int, optional
        Largest length of a side that ``shape`` leaves open. Default: bounded by the largest message only.

    Examples
    --------
    >>> import fenchel
    >>> import numpy as np
    >>> schema = fenchel.ArraySpec(np.int64, (None,), most=1000)
    >>> schema.check(np.arange(3), finite=True)
    >>> schema.check(np.zeros(3), finite=True)
    Traceback (most recent call last):
        ...
    fenchel.common.errors.PayloadError: has dtype float64, expected int64
    """

    dtype: np.dtype[Any] | type[np.generic]
    shape: tuple[int | None, ...] | None
    kinds: tuple[type, ...] = (np.ndarray,)
    count: int | None = None
    form: Form = "clear"
    most: int | None = None

    def check(self, value: Value, finite: bool) -> None:
        """Raise an error for a value that does not match.

        Parameters
        ----------
        value : Value
            Value received.
        finite : bool
            True if all entries of arrays are known to be finite, so that they are not checked.

        Raises
        ------
        PayloadError
            The encoding, dtype, shape or number of entries differs.
        NotFiniteError
            An entry is infinite or not a number.
        """
        entries = entries_of(value) if isinstance(value, self.kinds) else None
        if entries is None:
            raise PayloadError(f"is {noun_of(value)}, expected {self._noun}")
        dtype, shape = entries.values.dtype, entries.shape
        if isinstance(self.dtype, np.dtype):
            if dtype != self.dtype:
                raise PayloadError(f"has dtype {dtype}, expected {self.dtype}")
        elif not issubclass(dtype.type, self.dtype):
            raise PayloadError(f"has dtype {dtype}, expected {self.dtype.__name__}")
        if self.shape is not None and shape != self.shape:
            self._check_shape(shape, self.shape)
        if self.count is not None and entries.values.size != self.count:
            raise PayloadError(f"has {entries.values.size} entries given, expected {self.count}")
        if not finite:
            require_finite(entries.values)

    def _check_shape(self, shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> None:
        """Raise a ``PayloadError`` if a fixed length differs, or an open one exceeds ``most``."""
        if len(shape) != len(wanted) or any(w is not None and w != s for s, w in zip(shape, wanted, strict=True)):
            raise PayloadError(f"has shape {shape}, expected {tuple('any' if w is None else w for w in wanted)}")
        if self.most is not None and any(w is None and s > self.most for s, w in zip(shape, wanted, strict=True)):
            raise PayloadError(f"has shape {shape}, expected at most {self.most} in an open length")

    def bounds(self) -> tuple[int, int | None]:
        """Return the range of the number of bytes that such a value takes in the body of a message.

        Returns
        -------
        tuple[int, int or None]
            Smallest and largest number of bytes over all ``kinds``. ``None`` if there is no upper bound.
        """
        if self.shape is None:
            return 0, None
        longest = [side for side in (self.most if side is None else side for side in self.shape) if side is not None]
        least, most = math.prod(side or 0 for side in self.shape), math.prod(longest)
        bounds = [codec.bounds(least, most, np.dtype(self.dtype).itemsize, self.count) for codec in self._codecs]
        largest = max(largest for _, largest in bounds)
        return min(smallest for smallest, _ in bounds), largest if len(longest) == len(self.shape) else None

    @property
    def _codecs(self) -> list[ArrayCodec]:
        return [codec for codec in map(codec_of, self.kinds) if isinstance(codec, ArrayCodec)]

    @property
    def _noun(self) -> str:
        given = "" if self.count is None else f" with {self.count} entries given"
        return ("an array" if self.kinds == ARRAY_TYPES else " or ".join(codec.noun for codec in self._codecs)) + given


@dataclass(frozen=True)
class CipherSpec:
    """Schema of an encrypted vector.

    Attributes
    ----------
    key
        Public key of the ciphertexts.
    layout
        Layout of the plaintexts.
    count
        Number of values.
    additions
        Largest number of fresh vectors of which the value may be the sum.
    form
        Unused, because the bytes of the value show that it is encrypted.
    """

    key: PublicKey
    layout: Layout
    count: int
    additions: int = 1
    form: ClassVar[Form] = "clear"

    def check(self, value: Value, finite: bool) -> None:
        """Raise a ``PayloadError`` for a value that is not encrypted, or differs in key, layout, count or additions."""
        if not isinstance(value, Ciphertexts):
            raise PayloadError(f"is {noun_of(value)}, expected an encrypted vector")
        if value.key_id == self.key.id:  # a wrong key is reported below, before any other difference
            if value.layout != self.layout:
                raise PayloadError(f"has {value.layout}; expected {self.layout}")
            if value.count != self.count:
                raise PayloadError(f"holds {value.count} encrypted values, expected {self.count}")
            if value.additions > self.additions:
                raise PayloadError(
                    f"is a sum of {value.additions} encrypted vectors, expected at most {self.additions}"
                )
        check_received(value, self.key)

    def bounds(self) -> tuple[int, int]:
        """Return the size of the ciphertexts in bytes as both the lower and the upper bound."""
        size = aligned(self.layout.ciphertexts(self.count) * self.key.ciphertext_bytes)
        return size, size


@dataclass(frozen=True)
class NumberSpec:
    """Schema of a number in a reply, within bounds.

    It is used in ``returns`` of :meth:`fenchel.Cohort.ask` and :meth:`fenchel.Cohort.reduce`. A client that sends
    another value has failed in this phase. ``int`` or ``float`` in ``returns`` stands for a finite number without
    bounds.

    Parameters
    ----------
    kind : type, default float
        ``int`` or ``float``. ``float`` accepts integers, too.
    minimum : float, default -inf
        Smallest number accepted.
    maximum : float, default inf
        Largest number accepted.
    hint : str, default ""
        Advice for the error message of a number out of bounds, a clause without a full stop.

    Examples
    --------
    >>> import fenchel
    >>> schema = fenchel.NumberSpec(int, minimum=1)
    >>> schema.check(153, finite=True)
    >>> schema.check(0, finite=True)
    Traceback (most recent call last):
        ...
    fenchel.common.errors.PayloadError: is 0, expected at least 1
    """

    kind: type[int] | type[float] = float
    minimum: float = -math.inf
    maximum: float = math.inf
    hint: str = ""
    form: ClassVar[Form] = "clear"

    def check(self, value: Value, finite: bool) -> None:
        """Raise an error for a value that does not match.

        Parameters
        ----------
        value : Value
            Value received.
        finite : bool
            Ignored: a number is always checked.

        Raises
        ------
        PayloadError
            The type differs, or the number is out of bounds.
        NotFiniteError
            The number is infinite or not a number.
        """
        TypeSpec(self.kind).check(value, finite)
        assert isinstance(value, int | float)
        if not self.minimum <= value <= self.maximum:
            at_most = value > self.maximum
            bound = f"at most {_digits(self.maximum)}" if at_most else f"at least {_digits(self.minimum)}"
            hint = f"; {self.hint}" if self.hint else ""
            raise PayloadError(f"is {_digits(value)}, expected {bound}{hint}")

    def bounds(self) -> tuple[int, int]:
        """Return the range of the number of bytes that such a value takes in the body of a message.

        Returns
        -------
        tuple[int, int]
            Zero and zero, as numbers are sent in the head of a message.
        """
        return 0, 0


@dataclass(frozen=True)
class TypeSpec:
    """Schema of a value by its type alone; numbers must be finite."""

    kind: type
    form: ClassVar[Form] = "clear"

    def check(self, value: Value, finite: bool) -> None:
        """Raise a ``PayloadError`` for another type, and a ``NotFiniteError`` for numbers that are not finite."""
        # In Python, bool is a subclass of int and must be rejected, whereas an int is accepted as a float.
        if type(value) is not self.kind and not (self.kind is float and type(value) is int):
            codec = codec_of(self.kind)
            noun = f"a {self.kind.__name__}" if codec is None or codec.is_scalar else codec.noun
            raise PayloadError(f"is {noun_of(value)}, expected {noun}")
        if isinstance(value, float) and not math.isfinite(value):
            raise NotFiniteError(f"is {value}, expected a finite number")
        if not finite and (entries := entries_of(value)) is not None:
            require_finite(entries.values)

    def bounds(self) -> tuple[int, int | None]:
        """Return the range of bytes in a body, which is 0 to 0 for numbers and texts, and unbounded for arrays."""
        codec = codec_of(self.kind)
        return 0, 0 if codec is not None and codec.is_scalar else None


Expected: TypeAlias = Spec | Array | type[bool] | type[int] | type[float] | type[str]
Expectation: TypeAlias = Mapping[str, Expected]


def spec_of(expected: Expected) -> Spec:
    """Return the specification that an array (of the same dtype and shape) or a type stands for."""
    if isinstance(expected, np.ndarray):
        return ArraySpec(expected.dtype, expected.shape)
    return TypeSpec(expected) if isinstance(expected, type) else expected


def check(values: Values, expectation: Expectation, *, finite: bool = False, **place: Unpack[Place]) -> None:
    """Raise an error for values that do not match a schema.

    Parameters
    ----------
    expectation
        Schema with all names; no others are accepted.
    finite
        True if the arrays are known to be finite (:class:`fenchel.common.wire.reader.Assembly`).
    **place
        Round, phase and client, for the error.

    Raises
    ------
    PayloadError
        With the first difference and its place.
    """
    if values.keys() != expectation.keys():
        raise PayloadError(
            f"got values named {_names(values)}, expected {sorted(expectation)}; "
            "do both sides run the same version of the algorithm?",
            **place,
        )
    for name, expected in expectation.items():
        try:
            spec_of(expected).check(values[name], finite)
        except PayloadError as error:
            place["array"] = name
            raise error.at(**place) from None


def body_bounds(expectation: Expectation) -> tuple[int, int | None]:
    """Return the smallest and largest number of bytes of a matching payload, or ``None`` for no upper bound."""
    least, most, bounded = 0, 0, True
    for expected in expectation.values():
        smallest, largest = spec_of(expected).bounds()
        least, most, bounded = least + smallest, most + (largest or 0), bounded and largest is not None
    return least, most if bounded else None


def _digits(number: float) -> str:
    """Return a number for error messages, such as 153, 0.5 or 1e+100."""
    return str(number) if isinstance(number, int) else f"{number:.15g}"


def _names(values: Values) -> str:
    """Return the sender's names for an error message, shortened and without control characters."""
    return sanitize(str(sorted(sanitize(name, _NAME) for name in values)), _NAMES)
