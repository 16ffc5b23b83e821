"""Names for samples that mean nothing to the server.

Clients that hold parts of the same samples must let the server find out which rows belong together, but not who
the samples are. So they send keyed pseudonyms: all clients of a federation share the key, and the server does not
have it. Equal identifiers give equal pseudonyms; without the key, no list of identifiers can be tried out.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Indices, Vector
from fenchel.common.errors import DataError

LABEL_BYTES = 16
"""Length of a label's pseudonym."""

CELL_BYTES = 16
"""Length of a cell's pseudonym: with 10 million cells, two agree by chance once in 10^24 runs."""


def pseudonyms(key: bytes, identifiers: Sequence[str]) -> NDArray[np.uint8]:
    """Return a pseudonym for each sample: HMAC-SHA256 of its identifier (docs/specifications/hyfdca.md, step S1).

    Parameters
    ----------
    key
        The alignment key that all clients of the federation share; so for all functions here.
    identifiers
        Those of the client's samples, in the order of its rows; compared to the letter.

    Returns
    -------
    NDArray[np.uint8]
        Shape (n, 32), one row for each identifier.
    """
    seen: dict[str, int] = {}
    for row, identifier in enumerate(identifiers, start=1):
        first = seen.setdefault(identifier, row)
        if first != row:
            raise DataError(
                f"rows {first} and {row} have the same sample identifier; each sample may occur once in a client's "
                "data: join its rows into one, or remove one of them"
            )
    return _digests(key, (b"sample\0" + each.encode() for each in identifiers), 32)


def label_pseudonyms(key: bytes, identifiers: Sequence[str], targets: Vector) -> NDArray[np.uint8]:
    """Return a pseudonym for each sample's label: HMAC-SHA256 of label and identifier, shape (n, 16).

    By these the server can tell whether the holders of a sample agree on its label. As the identifier is in the
    message, labels of different samples cannot be compared.

    Parameters
    ----------
    targets
        What the scores should be, shape (n,), float64; compared exactly.
    """
    # The label's fixed width comes first, so no two pairs have the same message. 0 and -0 are one number.
    labels = (np.asarray(targets, "<f8") + 0.0).tobytes()
    messages = (b"label\0" + labels[8 * row : 8 * row + 8] + each.encode() for row, each in enumerate(identifiers))
    return _digests(key, messages, LABEL_BYTES)


def cell_pseudonyms(
    key: bytes, identifiers: Sequence[str], features: Indices, rows: Indices, columns: Indices
) -> NDArray[np.uint8]:
    """Return a pseudonym for each of some cells: HMAC-SHA256 of sample and feature, shape (cells, 16).

    With ragged data two clients may have samples and features in common; by these pseudonyms the server can tell
    whether they have a value in common, which would count twice (docs/specifications/hyfdca.md, E11).

    Parameters
    ----------
    features
        Global positions of the client's features, shape (m,).
    rows, columns
        Where the cells lie in the client's matrix, shape (cells,) each.
    """
    # The feature's fixed width comes first, so no two cells have the same message.
    prefixes = [b"cell\0" + feature.to_bytes(8, "little") for feature in features.tolist()]
    samples = [each.encode() for each in identifiers]
    cells = zip(rows.tolist(), columns.tolist(), strict=True)
    return _digests(key, (prefixes[column] + samples[row] for row, column in cells), CELL_BYTES)


def _digests(key: bytes, messages: Iterable[bytes], length: int) -> NDArray[np.uint8]:
    """Return the beginnings of the messages' HMACs, shape (messages, length)."""
    digests = b"".join(hmac.digest(key, message, "sha256")[:length] for message in messages)
    return np.frombuffer(digests, np.uint8).reshape(-1, length)
