"""Keyed pseudonyms of samples.

If clients hold parts of the same samples, the server must match their rows without learning the samples' identifiers.
Clients therefore send pseudonyms under a key that all clients of a federation share and the server does not have. Equal
identifiers give equal pseudonyms. Without the key, guesses of identifiers cannot be tested.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Indices, Vector
from fenchel.common.errors import DataError

LABEL_BYTES = 16
"""Length of a label's pseudonym in bytes."""

CELL_BYTES = 16
"""Length of a cell's pseudonym in bytes. Among 10 million cells, two agree by chance once in 10^24 runs."""


def pseudonyms(key: bytes, identifiers: Sequence[str]) -> NDArray[np.uint8]:
    """Return a pseudonym for each sample: HMAC-SHA256 of its identifier (docs/specifications/hyfdca.md, step S1).

    Parameters
    ----------
    key
        Alignment key that all clients of the federation share.
    identifiers
        Identifiers of the client's samples, in the order of its rows. They are compared exactly.

    Returns
    -------
    NDArray[np.uint8]
        Pseudonyms, one row for each identifier, shape (n, 32).

    Raises
    ------
    DataError
        If two rows have the same identifier.
    """
    seen: dict[str, int] = {}
    for row, identifier in enumerate(identifiers, start=1):
        first = seen.setdefault(identifier, row)
        if first != row:
            raise DataError(
                f"rows {first} and {row} have the same sample identifier; join the rows of a sample into one, or "
                "remove one of them"
            )
    return _digests(key, (b"sample\0" + each.encode() for each in identifiers), 32)


def label_pseudonyms(key: bytes, identifiers: Sequence[str], targets: Vector) -> NDArray[np.uint8]:
    """Return a pseudonym for each sample's label: HMAC-SHA256 of label and identifier, shape (n, 16).

    The server compares them to check that the holders of a sample agree on its label. As the message includes the
    identifier, labels of different samples cannot be compared.

    Parameters
    ----------
    targets
        Targets of the samples, shape (n,), float64. They are compared exactly.
    """
    # The label has a fixed width and precedes the identifier, so different pairs of label and identifier never give the
    # same message. Adding 0.0 maps -0 to 0.
    labels = (np.asarray(targets, "<f8") + 0.0).tobytes()
    messages = (b"label\0" + labels[8 * row : 8 * row + 8] + each.encode() for row, each in enumerate(identifiers))
    return _digests(key, messages, LABEL_BYTES)


def cell_pseudonyms(
    key: bytes, identifiers: Sequence[str], features: Indices, rows: Indices, columns: Indices
) -> NDArray[np.uint8]:
    """Return a pseudonym for each of some cells: HMAC-SHA256 of sample and feature, shape (cells, 16).

    With ragged data, two clients may have samples and features in common. The server compares these pseudonyms to find
    values that both clients have, which would count twice (docs/specifications/hyfdca.md, E11).

    Parameters
    ----------
    features
        Global positions of the client's features, shape (m,).
    rows, columns
        Row and column of each cell in the client's matrix, shape (cells,) each.
    """
    # The feature has a fixed width and precedes the identifier, so different cells never give the same message.
    prefixes = [b"cell\0" + feature.to_bytes(8, "little") for feature in features.tolist()]
    samples = [each.encode() for each in identifiers]
    cells = zip(rows.tolist(), columns.tolist(), strict=True)
    return _digests(key, (prefixes[column] + samples[row] for row, column in cells), CELL_BYTES)


def _digests(key: bytes, messages: Iterable[bytes], length: int) -> NDArray[np.uint8]:
    """Return the first ``length`` bytes of each message's HMAC, shape (messages, length)."""
    digests = b"".join(hmac.digest(key, message, "sha256")[:length] for message in messages)
    return np.frombuffer(digests, np.uint8).reshape(-1, length)
