"""Comparison of the labels that clients have for the samples that they share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fenchel.algorithms.hyfdca.alignment import Alignment
from fenchel.common.errors import ContradictingLabelsError

LABEL_BYTES = 16
"""Length of a label's pseudonym."""


def check_labels(alignment: Alignment, labels: Mapping[str, NDArray[np.uint8]]) -> None:
    """Refuse samples whose holders have different labels for them.

    labels: for each client, pseudonyms of its labels in the order of its rows, shape (N_k, 16), uint8: equal for two
        clients if their labels of one sample are equal.

    A sample with two labels has a different dual step at each holder, so that the method converges to no optimum.
    """
    first_label = np.zeros((alignment.samples, LABEL_BYTES), np.uint8)
    first_holder = np.full(alignment.samples, -1)
    contradicted = np.zeros(alignment.samples, np.bool_)
    example: tuple[int, int, int] | None = None  # two clients, and a sample that they have in common
    clients = sorted(labels)
    for number, client in enumerate(clients):
        held = alignment.slices[client]
        own = labels[client][held.order]
        new = first_holder[held.positions] < 0
        first_label[held.positions[new]] = own[new]
        first_holder[held.positions[new]] = number
        differing = held.positions[(first_label[held.positions] != own).any(axis=1)]
        contradicted[differing] = True
        if example is None and len(differing):
            example = int(first_holder[differing[0]]), number, int(differing[0])
    if example is None:
        return
    count = int(contradicted.sum())
    pair = clients[example[0]], clients[example[1]]
    rows = _row(alignment, pair[0], example[2]), _row(alignment, pair[1], example[2])
    raise ContradictingLabelsError(
        f"{count} samples have different labels at different clients: for example, row {rows[0]} of client {pair[0]} "
        f"and row {rows[1]} of client {pair[1]} are the same sample. The run does not begin: all holders of a sample "
        "need its one label, so correct the clients' data",
        contradictions=count,
        clients=pair,
        rows=rows,
    )


def _row(alignment: Alignment, client: str, position: int) -> int:
    """Return which row of a client's data lies at a place of the aligned vector, counted from 1."""
    held = alignment.slices[client]
    return int(held.order[np.searchsorted(held.positions, position)]) + 1
