"""Names for samples that mean nothing to the server.

Clients that hold parts of the same samples must let the server find out which rows belong together, but not who
the samples are. So they send keyed pseudonyms: all clients of a federation share the key, and the server does not
have it. Equal identifiers give equal pseudonyms; without the key, no list of identifiers can be tried out.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Indices, Vector
from fenchel.common.errors import DataError

LABEL_BYTES = 16
"""Length of a label's pseudonym."""

CELL_BYTES = 16
"""Length of a cell's pseudonym: with 10 million cells, two agree by chance once in 10^24 runs."""


def pseudonyms(key: bytes, identifiers: Sequence[str]) -> NDArray[np.uint8]:
    """Return a pseudonym for each sample: HMAC-SHA256 of its identifier.

    key: the alignment key that all clients of the federation share.
    identifiers: identifiers of the client's samples, in the order of its rows; compared to the letter.

    Returns: Shape (n, 32), one row for each identifier.

    docs/specifications/hyfdca.md, setup step S1.
    """
    seen: dict[str, int] = {}
    for row, identifier in enumerate(identifiers, start=1):
        first = seen.setdefault(identifier, row)
        if first != row:
            raise DataError(
                f"rows {first} and {row} have the same sample identifier; each sample may occur once in a client's "
                "data: join its rows into one, or remove one of them"
            )
    digests = [hmac.digest(key, b"sample\0" + each.encode(), "sha256") for each in identifiers]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


def label_pseudonyms(key: bytes, identifiers: Sequence[str], targets: Vector) -> NDArray[np.uint8]:
    """Return a pseudonym for each sample's label: HMAC-SHA256 of label and identifier, cut to 16 bytes.

    By these the server can tell whether the holders of a sample agree on its label. As the identifier is in the
    message, labels of different samples cannot be compared.

    key: the alignment key that all clients of the federation share.
    identifiers: identifiers of the client's samples, in the order of its rows.
    targets: what the scores should be, shape (n,), float64; compared exactly.

    Returns: Shape (n, 16), in the order of the rows.
    """
    # The label's fixed width comes first, so no two pairs have the same message. 0 and -0 are one number.
    labels = (np.asarray(targets, "<f8") + 0.0).tobytes()
    digests = [
        hmac.digest(key, b"label\0" + labels[8 * row : 8 * row + 8] + each.encode(), "sha256")[:LABEL_BYTES]
        for row, each in enumerate(identifiers)
    ]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, LABEL_BYTES)


def cell_pseudonyms(
    key: bytes, identifiers: Sequence[str], features: Indices, rows: Indices, columns: Indices
) -> NDArray[np.uint8]:
    """Return a pseudonym for each of some cells: HMAC-SHA256 of sample and feature, cut to 16 bytes.

    With ragged data two clients may have samples and features in common; by these pseudonyms the server can tell
    whether they have a value in common, which would count twice.

    key: the alignment key that all clients of the federation share.
    identifiers: identifiers of the client's samples, in the order of its rows.
    features: global positions of the client's features, shape (m,).
    rows, columns: where the cells lie in the client's matrix, shape (cells,) each.

    Returns: Shape (cells, 16), in the order of the cells.

    docs/specifications/hyfdca.md, E11.
    """
    # The feature's fixed width comes first, so no two cells have the same message.
    prefixes = [b"cell\0" + feature.to_bytes(8, "little") for feature in features.tolist()]
    samples = [each.encode() for each in identifiers]
    digests = [
        hmac.digest(key, prefixes[column] + samples[row], "sha256")[:CELL_BYTES]
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
    ]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, CELL_BYTES)
