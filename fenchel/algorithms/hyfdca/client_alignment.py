"""Checks of the alignment and layouts that a client receives from the server.

With invalid numbers a client could allocate any amount of memory, divide by zero, or encrypt into slots that do not
fit the key.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fenchel.algorithms.hyfdca.settings import HyFDCASettings
from fenchel.common.arrays import Indices
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.errors import EncryptionError, PayloadError, SettingsError
from fenchel.common.version import SAME_VERSION

_VALUE_BYTES = 8


def check_slice(
    what: str, count: int, *, order: Indices, sizes: Indices, holders: Indices, slots: int | None, message_bytes: int
) -> None:
    """Check the positions of a client's samples or features in an aligned vector.

    Parameters
    ----------
    what
        Kind of items, for the error.
    count
        Number of items of the client.
    order
        Valid if a permutation of ``0 .. count-1``, shape (count,).
    sizes
        Valid if positive with sum ``count``, shape (blocks,).
    holders
        Valid if positive, shape (count,).
    slots
        Number of slots in a ciphertext; ``None`` without encryption.
    message_bytes
        Limit on the size of a vector in bytes, with blocks padded to whole ciphertexts.

    Raises
    ------
    PayloadError
        If an array is invalid.
    SettingsError
        If a vector with these blocks exceeds ``message_bytes``.
    """
    _check_shape(f"the order of the {what}", order, count)
    _check_shape(f"the numbers of holders of the {what}", holders, count)
    if sizes.ndim != 1 or len(sizes) > count:
        raise _wrong(
            f"the sizes of the blocks of {what} have shape {sizes.shape}, expected one size for each of at most "
            f"{count} blocks"
        )
    inside = (order >= 0) & (order < count)
    if not inside.all() or (np.bincount(order, minlength=count) != 1).any():
        raise _wrong(f"the order of the {what} is no permutation of 0 to {count - 1}")
    if (holders < 1).any():
        raise _wrong(f"some of the {what} have fewer than one holder")
    largest = count if slots is None else slots
    # Check each size before summing: the sum could overflow.
    if ((sizes < 1) | (sizes > largest)).any() or int(sizes.sum()) != count:
        raise _wrong(f"the sizes of the blocks of {what} are not all 1 to {largest}, or do not add up to {count}")
    needed = len(sizes) * (slots or 0) * _VALUE_BYTES
    if needed > message_bytes:
        raise SettingsError(
            f"the server packs {count} {what} into {len(sizes)} ciphertexts of {slots} values, {needed:,} bytes in "
            f"all, above network.max_message_bytes ({message_bytes:,}). This client does not take part; use longer "
            "blocks (algorithm.block), or larger messages"
        )


def check_blocks(blocks: Indices, held: int) -> None:
    """Raise ``PayloadError`` unless block numbers are strictly increasing and below ``held``."""
    if blocks.ndim != 1 or (np.diff(blocks) <= 0).any() or (len(blocks) and (blocks[0] < 0 or blocks[-1] >= held)):
        raise _wrong(f"the block numbers in a request are not strictly increasing from 0 to at most {held - 1}")


def check_groups(groups: Indices, sizes: Indices, slots: int | None) -> None:
    """Raise ``PayloadError`` unless groups are in order, and all blocks of a group but the last are full."""
    _check_shape("the groups of the blocks", groups, len(sizes))
    if (len(groups) and groups[0] < 0) or (np.diff(groups) < 0).any():
        raise _wrong("the groups of the blocks are not in increasing order")
    if slots is not None and (sizes[:-1][np.diff(groups) == 0] != slots).any():
        raise _wrong(f"a block in the middle of a group has fewer than {slots} samples")


def check_quotas(quotas: Indices, groups: Indices, settings: HyFDCASettings) -> None:
    """Raise ``PayloadError`` if the numbers of units sampled in a round contradict the settings or the groups."""
    if settings.picks is None:
        _check_shape("the numbers of picks", quotas, 0)
    elif settings.picking == "independent":
        # Sums over fewer units than agreed would disclose single rows to the server.
        if quotas.tolist() != [settings.picks]:
            raise _wrong(f"the number of picks is {quotas.tolist()!r:.80}, but algorithm.picks is {settings.picks}")
    else:
        _check_shape("the numbers of picks", quotas, len(np.unique(groups)))
        if (quotas < 1).any():
            raise _wrong(f"a sample group has {quotas.min()} picks in the round; expected at least 1 in each group")


def check_layouts(layouts: Mapping[str, Layout], key: PublicKey, settings: HyFDCASettings) -> None:
    """Raise a ``PayloadError`` unless layouts of ciphertexts are consistent with the key and the settings.

    Each layout must fit the key and have the fraction bits of the settings (twice as many for figures). The layouts of
    scores, duals and norms must have the same number of slots.
    """
    precision = settings.encryption.fraction_bits
    for name, layout in layouts.items():
        try:
            layout.check_fits(key)
        except EncryptionError as error:
            raise _wrong(f"the layout of the {name}s is impossible: {error}") from None
        # Twice the precision for figures, because the line search divides differences of their sums.
        wanted = precision * (2 if name == "figure" else 1)
        if layout.fraction_bits != wanted:
            raise _wrong(
                f"the {name}s have {layout.fraction_bits} bits after the point; expected {wanted}, as "
                f"algorithm.encryption.fraction_bits is {precision}"
            )
    slots = {layouts[name].slots for name in ("score", "dual", "norm")}
    if len(slots) != 1:
        raise _wrong(f"the layouts of scores, duals and norms have different numbers of slots, {sorted(slots)}")


def _check_shape(what: str, array: Indices, count: int) -> None:
    if array.shape != (count,):
        raise _wrong(f"{what} have the shape {array.shape}, expected ({count},)")


def _wrong(problem: str) -> PayloadError:
    return PayloadError(f"the server's alignment is invalid: {problem}{SAME_VERSION}")
