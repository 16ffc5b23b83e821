"""Weighted sums and means of the clients' replies.

Floating-point sums depend on the order of their terms. Callers therefore add replies in the order of client ids, which
makes a run reproducible.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from fenchel.common.arrays import Array, Indices

_BLOCK = 1 << 16  # number of entries of a block; two such blocks stay in the cache
_REFERRED_BYTES = 64 << 20  # size in bytes up to which a sum of one term refers to the term instead of copying it
# smallest fraction of a message that a term must take, as a reference keeps the whole message in memory
_REFERRED_SHARE = 0.5


def accumulate(total: Array | None, array: Array, weight: float = 1.0) -> Array:
    """Return ``total + weight * array``, in the memory of ``total``, an array of the same shape and dtype.

    A ``total`` of ``None`` stands for zero. The result may then be a read-only view of ``array``, and the next sum
    allocates memory. Weighted terms are added block by block, without a temporary array of full length.
    """
    if total is None and weight != 1.0:
        return np.asarray(array * array.dtype.type(weight))
    if total is None:
        return _referred(array) if _may_be_kept(array) else array.copy()
    if weight == 1.0:
        return np.add(total, array, out=_room_for(total))
    if not total.flags.writeable:
        total = total.copy()
    flat, addend = total.reshape(-1), array.reshape(-1)
    factor = array.dtype.type(weight)
    for start in range(0, flat.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        flat[block] += factor * addend[block]
    return total


def _may_be_kept(array: Array) -> bool:
    if array.nbytes > _REFERRED_BYTES:
        return False
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    whole = root.nbytes
    if root.base is not None:
        owner = memoryview(root.base).obj
        whole = memoryview(owner).nbytes
    return array.nbytes >= _REFERRED_SHARE * whole


def _referred(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _room_for(total: Array) -> Array:
    """Return an output array for the next sum: ``total`` itself, unless it is a view of the first term."""
    return total if total.flags.writeable else np.empty_like(total, order="C")


class WeightedSum:
    """Weighted sum of arrays of one shape, to which terms are added one by one.

    As long as all terms have the same weight of at least 1, the unweighted terms are added, and the total is multiplied
    by the weight at the end: for large arrays a product takes longer than a sum. With a weight below 1, the unweighted
    sum might overflow.

    From the first sparse term on, the sum keeps a coverage: for each entry, the weight of the terms that held it.

    Attributes
    ----------
    weight
        Sum of the weights.
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self._terms = 0
        self._unit = 1.0  # factor to be applied to the total
        self._total: Array | None = None
        self._coverage: Array | None = None

    def add(self, array: Array, weight: float = 1.0) -> None:
        """Add a dense term. The array must not change while it is the only term, because the sum may refer to it."""
        if self._coverage is not None:
            self.add_entries(slice(None), array, array.shape, weight)
            return
        if not self._terms:
            self._unit = max(weight, 1.0)
        if weight != self._unit:
            self._multiply()
        self._total = accumulate(self._total, array, 1.0 if weight == self._unit else weight)
        self.weight += weight
        self._terms += 1

    def add_entries(
        self,
        which: Indices | slice,
        entries: Array,
        shape: tuple[int, ...],
        weight: float = 1.0,
        dtype: DTypeLike | None = None,
    ) -> None:
        """Add a sparse term.

        Parameters
        ----------
        which
            Indices of the entries, each once, or a slice of the sum.
        entries
            Values of the entries. All others are zero.
        shape
            Shape of the sum.
        weight
            Weight of the term.
        dtype
            Dtype of the sum. Default: that of the entries, or float64 if they are integers, whose sums could wrap.
        """
        if self._coverage is None:
            kept = dtype or (entries.dtype if entries.dtype.kind == "f" else np.float64)
            self._total = np.zeros(shape, kept) if self._total is None else self.sum()
            self._coverage = np.full(shape, self.weight)  # previous dense terms cover every entry
        total = self._added
        total[which] += total.dtype.type(weight) * entries
        self._coverage[which] += weight
        self.weight += weight
        self._terms += 1

    @property
    def coverage(self) -> Array:
        """Weight of the terms that held each entry, in the shape of the sum."""
        return np.full(self._added.shape, self.weight) if self._coverage is None else self._coverage

    def _multiply(self) -> None:
        if self._unit != 1.0 and self._total is not None:
            factor = self._total.dtype.type(self._unit)
            self._total = np.multiply(self._total, factor, out=_room_for(self._total))
        self._unit = 1.0

    def sum(self) -> Array:
        """Return the weighted sum. Later terms may change the returned array."""
        self._multiply()
        if not self._added.flags.writeable:
            self._total = self._added.copy()
        return self._added

    def mean(self) -> Array:
        """Return the sum divided by the sum of the weights, as a new array.

        Raises
        ------
        ZeroDivisionError
            If the weights add up to zero.
        """
        if not self.weight:
            raise ZeroDivisionError("the weights add up to zero")
        total = self._added
        weights = self.weight if self._unit == 1.0 else self._terms
        mean: Array = np.divide(total, total.dtype.type(weights))
        return mean

    @property
    def _added(self) -> Array:
        assert self._total is not None, "its collector refuses a sum without terms, which would have no shape"
        return self._total
