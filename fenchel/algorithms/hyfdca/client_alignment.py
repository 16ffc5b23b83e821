"""Checks of where a server says that a client's entries lie, before anything is laid out by it.

Whoever lays values out by numbers that a server made up may take any amount of memory, divide by zero, or encrypt
into slots that the key has no room for.
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
    """Check where a client's samples, or its features, lie in an aligned vector.

    Parameters
    ----------
    order
        Expected to be a permutation of ``0 .. count-1``, shape (count,).
    sizes
        Expected to be positive numbers that add up to ``count``, shape (blocks,).
    holders
        Expected to be positive numbers, shape (count,).
    slots
        Entries that a ciphertext has room for; ``None`` where nothing is encrypted.
    message_bytes
        The largest message of the run: what a vector may take when its blocks are padded to whole ciphertexts.
    """
    _check_shape(f"the order of the {what}", order, count)
    _check_shape(f"the numbers of holders of the {what}", holders, count)
    if sizes.ndim != 1 or len(sizes) > count:
        raise _wrong(f"the {what} lie in blocks of shape {sizes.shape}, but the client holds {count} {what}")
    inside = (order >= 0) & (order < count)
    if not inside.all() or (np.bincount(order, minlength=count) != 1).any():
        raise _wrong(f"the order of the {what} is no permutation of 0 to {count - 1}")
    if (holders < 1).any():
        raise _wrong(f"some of the {what} have fewer than one holder")
    largest = count if slots is None else slots
    # First each by itself: a sum of any numbers could overflow.
    if ((sizes < 1) | (sizes > largest)).any() or int(sizes.sum()) != count:
        raise _wrong(f"the blocks of the {what} have other sizes than 1 to {largest}, or do not add up to {count}")
    needed = len(sizes) * (slots or 0) * _VALUE_BYTES
    if needed > message_bytes:
        raise SettingsError(
            f"the server lays {count} {what} out in {len(sizes)} ciphertexts of {slots} values, which take {needed:,} "
            f"bytes, and this run's largest message has {message_bytes:,} (network.max_message_bytes). This client "
            "takes no part; choose longer blocks (algorithm.block), or larger messages"
        )


def check_blocks(blocks: Indices | None, held: int) -> Indices | None:
    """Return the numbers of some of a client's blocks, if they are increasing and it has ``held`` blocks."""
    if blocks is None:
        return None
    if blocks.ndim != 1 or (np.diff(blocks) <= 0).any() or (len(blocks) and (blocks[0] < 0 or blocks[-1] >= held)):
        raise _wrong(f"the blocks that a phase is about are not increasing numbers of 0 to {held - 1}")
    return blocks


def check_groups(groups: Indices, sizes: Indices, slots: int | None) -> None:
    """Check the groups of a client's blocks: only the last block of a group may have room left."""
    _check_shape("the groups of the blocks", groups, len(sizes))
    if (len(groups) and groups[0] < 0) or (np.diff(groups) < 0).any():
        raise _wrong("the groups of the blocks are not in increasing order")
    if slots is not None and (sizes[:-1][np.diff(groups) == 0] != slots).any():
        raise _wrong(f"a block in the middle of a group has fewer than {slots} samples")


def check_quotas(quotas: Indices, groups: Indices, settings: HyFDCASettings) -> None:
    """Check how many units the client is to pick in a round."""
    if settings.picks is None:
        _check_shape("the numbers of picks", quotas, 0)
    elif settings.picking == "independent":
        # Fewer picks than were agreed on would show single rows to the server.
        if quotas.tolist() != [settings.picks]:
            raise _wrong(f"the number of picks is not algorithm.picks, {settings.picks}")
    else:
        _check_shape("the numbers of picks", quotas, len(np.unique(groups)))
        if (quotas < 1).any():
            raise _wrong("nothing is picked in some group")


def check_layouts(layouts: Mapping[str, Layout], key: PublicKey, settings: HyFDCASettings) -> None:
    """Check how values lie in ciphertexts: layouts of the settings' precision, for this key."""
    precision = settings.encryption.fraction_bits
    for name, layout in layouts.items():
        try:
            layout.check_fits(key)
        except EncryptionError as error:
            raise _wrong(f"the layout of the {name}s is impossible: {error}") from None
        # Figures have twice the precision: the line search divides differences of them.
        wanted = precision * (2 if name == "figure" else 1)
        if layout.fraction_bits != wanted:
            raise _wrong(
                f"the {name}s have {layout.fraction_bits} bits after the point, but "
                f"algorithm.encryption.fraction_bits is {precision}"
            )
    slots = {layouts[name].slots for name in ("score", "dual", "norm")}
    if len(slots) != 1:
        raise _wrong(f"the blocks of samples have different numbers of slots: {sorted(slots)}")


def _check_shape(what: str, array: Indices, count: int) -> None:
    if array.shape != (count,):
        raise _wrong(f"{what} have the shape {array.shape}, expected ({count},)")


def _wrong(problem: str) -> PayloadError:
    return PayloadError(f"the server's alignment cannot be used: {problem}{SAME_VERSION}")
