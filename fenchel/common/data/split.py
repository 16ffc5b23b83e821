"""Random test sets for data sets without a published one, and random subsamples of training samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Indices
from fenchel.common.data.samples import Samples
from fenchel.common.data.shares import apportion
from fenchel.common.errors import DataError
from fenchel.common.randomness import generator
from fenchel.common.settings.data import DataSettings

DEFAULT_TEST_FRACTION = 0.2


def split(
    train: Samples, test: Samples | None, settings: DataSettings, seed: int, where: str
) -> tuple[Samples, Samples | None]:
    """Draw a test set unless one is published, and then a subsample of the training samples.

    Parameters
    ----------
    train
        All samples except the published test set, with class indices or numbers as labels.
    test
        Published test set; ``None`` if there is none.
    settings
        Section ``data`` of the settings.
    seed
        Seed of the run.
    where
        Name of the data, for errors.

    Returns
    -------
    tuple[Samples, Samples | None]
        Training samples, and the test set. It is ``None`` if none is published and ``data.test_fraction`` is 0.

    Raises
    ------
    DataError
        If settings of the test set are given for a data set with a published one, or there are too few samples.
    """
    if test is None:
        train, test = _with_test_set(train, settings, seed)
    else:
        _refuse_draw(test, settings, where)
    return _subsample(train, settings, seed, where), test


def _refuse_draw(test: Samples, settings: DataSettings, where: str) -> None:
    for key in ("test_fraction", "test_split", "test_seed"):
        given = getattr(settings, key)
        if given != DataSettings.model_fields[key].default:
            raise DataError(
                f"{given} given, but the data set has a published test set of {len(test)} samples; remove {key}",
                source=where,
                key=f"data.{key}",
            )


def _with_test_set(samples: Samples, settings: DataSettings, seed: int) -> tuple[Samples, Samples | None]:
    fraction = DEFAULT_TEST_FRACTION if settings.test_fraction is None else settings.test_fraction
    count = int(np.ceil(fraction * len(samples)))
    if count >= len(samples):
        raise DataError(
            f"{fraction} of {len(samples)} samples leaves none for training; use a smaller fraction",
            key="data.test_fraction",
        )
    if not count:
        return samples, None
    test_seed = seed if settings.test_seed is None else settings.test_seed
    classes = settings.task == "classification"
    if settings.test_split == "scikit-learn":
        kept, drawn = _scikit_learn_split(samples.labels, count, test_seed, classes)
    else:
        drawn = stratified(samples.labels, count, generator(test_seed, "test split"), classes=classes)
        kept = np.setdiff1d(np.arange(len(samples)), drawn, assume_unique=True)
    return samples.take(kept), samples.take(drawn)


def _subsample(train: Samples, settings: DataSettings, seed: int, where: str) -> Samples:
    if settings.samples is None or settings.samples == len(train):
        return train
    if settings.samples > len(train):
        raise DataError(
            f"{settings.samples} given, but there are {len(train)} training samples; use at most that number",
            source=where,
            key="data.samples",
        )
    rng = generator(seed, "samples")
    return train.take(stratified(train.labels, settings.samples, rng, classes=settings.task == "classification"))


def _scikit_learn_split(labels: NDArray[Any], count: int, seed: int, classes: bool) -> tuple[Indices, Indices]:
    """Return the positions of training and test samples in scikit-learn's order, or raise a ``DataError``."""
    try:
        from sklearn.model_selection import train_test_split
    except ImportError:
        raise DataError(
            "scikit-learn is not installed; install it with pip install 'fenchel[sklearn]'", key="data.test_split"
        ) from None
    if seed >= 1 << 32:
        raise DataError(
            f"scikit-learn accepts seeds below 2^32, but the seed of the run is {seed}; set data.test_seed",
            key="data.test_split",
        )
    try:
        kept, drawn = train_test_split(
            np.arange(len(labels)), test_size=count, random_state=seed, stratify=labels if classes else None
        )
    except ValueError as error:
        raise DataError(
            f"scikit-learn cannot draw a test set of {count} from {len(labels)} samples ({error}); change "
            "data.test_fraction, or use data.test_split: fenchel",
            key="data.test_split",
        ) from None
    return kept, drawn


def stratified(labels: NDArray[Any], count: int, rng: np.random.Generator, *, classes: bool = True) -> Indices:
    """Draw positions without replacement, from each class in proportion to its size.

    Parameters
    ----------
    labels
        Labels of the samples, shape (n,).
    count
        Number of positions to draw.
    rng
        Random number generator.
    classes
        True if labels are classes. If false, the draw is uniform over all samples.

    Returns
    -------
    Indices
        Drawn positions, shape (count,), increasing.
    """
    if not classes:
        return np.sort(rng.permutation(len(labels))[:count])
    present, sizes = np.unique(labels, return_counts=True)
    shares = apportion(count, sizes)
    drawn = [
        rng.permutation(np.flatnonzero(labels == label))[:share] for label, share in zip(present, shares, strict=True)
    ]
    return np.sort(np.concatenate(drawn))
