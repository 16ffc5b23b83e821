"""Class imbalance by removal of positive samples (docs/specifications/codasca.md, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fenchel.common.data.blocks import ClientBlock
from fenchel.common.errors import DataError, SettingsError
from fenchel.common.randomness import generator


def positive_classes(classes: int, chosen: Sequence[int] | None, key: str) -> tuple[int, ...] | None:
    """Return the numbers of the positive classes.

    Parameters
    ----------
    classes
        Number of classes; 0 for regression.
    chosen
        Setting ``objective.positive``; ``None`` for the second of two classes.
    key
        Setting that requires positive classes; empty if none does.

    Returns
    -------
    tuple[int, ...] | None
        Class numbers, increasing. ``None`` for regression, or if none are chosen or required and there are more than
        two classes.

    Raises
    ------
    DataError
        If positive classes are required, but not chosen for more than two classes.
    SettingsError
        If a chosen class does not exist, or all classes are chosen.
    """
    if classes == 0:
        return None  # each objective itself checks whether it accepts numeric labels
    if chosen is None:
        if classes == 2:
            return (1,)
        if key:
            raise DataError(
                "imratio needs positive classes, but the objective does not define which of the classes 0 to "
                f"{classes - 1} are positive; use objective.kind: binary, and list them in objective.positive",
                key=key,
            )
        return None
    wrong = [each for each in chosen if each >= classes]
    if wrong or len(set(chosen)) == classes:
        problem = f"class {wrong[0]} does not exist" if wrong else "no class is left as negative"
        raise SettingsError(
            f"{list(chosen)} given, but {problem}; the data set has the classes 0 to {classes - 1}",
            key="objective.positive",
        )
    return tuple(sorted(set(chosen)))


def positives_beside(negatives: int, imratio: float) -> int:
    """Return the largest number of positive samples whose fraction of all samples is at most ``imratio``."""
    # Exact arithmetic with the decimal number, because the binary number 0.3 is slightly below 0.3.
    rate = Fraction(repr(imratio))
    return int(rate / (1 - rate) * negatives)


def imbalanced(
    parts: Sequence[ClientBlock], positive: NDArray[np.bool_], imratio: float, seed: int
) -> list[ClientBlock]:
    """Remove positive samples of each client at random until their fraction is at most ``imratio``.

    Negative samples are kept. A client with a smaller fraction keeps all samples.

    Parameters
    ----------
    parts
        Part of each client.
    positive
        Mask of positive training samples, shape (n,).
    imratio
        Largest fraction of positive samples.
    seed
        Seed of the run.

    Raises
    ------
    DataError
        If a client has only positive samples, or no sample would be removed from any client.
    """
    thinned = []
    for client, part in enumerate(parts):
        mine, others = part.samples[positive[part.samples]], part.samples[~positive[part.samples]]
        if len(others) == 0:
            raise DataError(
                f"the client holds only positive samples ({len(mine):,}), of which imratio would keep none; use "
                "another partition",
                key="data.imbalance",
                client=str(client),
            )
        count = positives_beside(len(others), imratio)
        if count < len(mine):
            mine = generator(seed, "imbalance", client, len(parts)).permutation(mine)[:count]
        thinned.append(replace(part, samples=np.sort(np.concatenate([others, mine]))))
    if all(len(after.samples) == len(before.samples) for after, before in zip(thinned, parts, strict=True)):
        raise DataError(
            f"{imratio} given, but no client has a larger fraction of positive samples, so none would be removed; "
            "use a smaller fraction",
            key="data.imbalance.imratio",
        )
    return thinned
