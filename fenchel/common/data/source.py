"""Data set that is loaded once per process and provides the shards of all clients in it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import DTypeLike, NDArray

from fenchel.common.arrays import Indices, is_sparse
from fenchel.common.data import scaling
from fenchel.common.data.blocks import ClientBlock
from fenchel.common.data.catalogue import load
from fenchel.common.data.client_tests import own_distribution
from fenchel.common.data.extractor import Extracted, Extractor
from fenchel.common.data.files import read_file
from fenchel.common.data.holdout import kept
from fenchel.common.data.imbalance import imbalanced, positive_classes
from fenchel.common.data.labels import binarised, encoded
from fenchel.common.data.partition import partition
from fenchel.common.data.preparation import Preparation
from fenchel.common.data.resnet import FEATURES
from fenchel.common.data.samples import DataSet, RawMatrix, Samples
from fenchel.common.data.shard import Shard
from fenchel.common.data.sites import as_seen
from fenchel.common.data.split import split
from fenchel.common.errors import DataError, FenchelError
from fenchel.common.randomness import generator
from fenchel.common.settings.data import ColumnPartition, DataSettings, SitesPartition

log = logging.getLogger("fenchel")


@dataclass(frozen=True)
class Problem:
    """Properties of a learning problem on which a model depends.

    Attributes
    ----------
    features
        Number of features, with the bias.
    classes
        Number of classes; 0 for regression.
    task
        Classification or regression.
    class_names
        Names of the classes; empty for regression.
    samples
        Total number of training samples of all clients.
    image
        Numbers of channels, rows and columns if features are the pixels of an image in that order, otherwise ``None``.
    """

    features: int
    classes: int
    task: Literal["classification", "regression"]
    class_names: tuple[str, ...]
    samples: int
    image: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class DataSource:
    """Data set with preparation and partition, which can be shared between threads. :meth:`open` creates it.

    Features are kept in memory as stored, such as images as bytes. The features of a shard are prepared when it is
    requested, after extraction by a frozen network if the settings name one.

    Attributes
    ----------
    settings
        Section ``data`` of the settings.
    seed
        Seed of the run.
    problem
        Learning problem.
    labels
        Labels of all training samples, shape (n,).
    positive
        Numbers of the positive classes; ``None`` for regression, or if none are chosen for more than two classes.
    preparation
        Preparation, fitted on all training samples.
    """

    settings: DataSettings
    seed: int
    problem: Problem
    labels: NDArray[Any]
    positive: tuple[int, ...] | None
    _train: Samples
    _test: Samples | None
    preparation: Preparation
    _extractor: Extractor | None  # frozen network that maps images to features
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)
    _parts: dict[int, list[ClientBlock]] = field(default_factory=dict, repr=False, compare=False)
    _tests: dict[int, list[Indices]] = field(default_factory=dict, repr=False, compare=False)
    _made: dict[int, Extracted] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, settings: DataSettings, seed: int, positive: Sequence[int] | None = None) -> DataSource:
        """Load a data set and fit its preparation.

        Parameters
        ----------
        settings
            Section ``data`` of the settings.
        seed
            Seed of the run, for test split, subsample, imbalance and partition.
        positive
            Numbers of the positive classes; ``None`` for the second of two classes.

        Raises
        ------
        DataError
            If the data set is missing or damaged, or does not fit the settings.
        SettingsError
            If ``positive`` does not fit the classes.
        """
        if settings.name is not None:
            dataset, where = load(settings.name), settings.name
        else:
            assert settings.file is not None
            column = settings.partition.column if isinstance(settings.partition, ColumnPartition) else None
            dataset = read_file(settings.file.expanduser(), settings.label, holder=column)
            where = str(settings.file)
        train, test, names = _labelled(dataset, settings, where)
        train, test = split(train, test, settings, seed, where)
        chosen = positive_classes(len(names), positive, settings.asks_for_positives)
        bias = settings.bias is not None
        extractor = (
            None if settings.extractor is None else Extractor.of(settings.extractor, dataset.image, dataset.peak, where)
        )
        problem = Problem(
            features=(dataset.features if extractor is None else FEATURES) + bias,
            classes=len(names),
            task=settings.task,
            class_names=names,
            samples=len(train),
            image=None if bias or extractor is not None else dataset.image,
        )
        normalise = scaling.constants(settings.normalise, int(train.features.shape[1]), dataset.columns)
        preparation = Preparation(
            settings,
            dataset.features,
            names,
            scaling.fit(settings.scalings, train.features, dataset.peak, normalise),
            dataset.columns,
            dataset.image,
            dataset.peak,
        )
        return cls(settings, seed, problem, train.labels, chosen, train, test, preparation, extractor)

    @property
    def lack(self) -> FenchelError | None:
        """Return the error of a missing file or library of the network, or ``None`` if features can be computed."""
        return None if self._extractor is None else self._extractor.lack

    def extract(self, threads: int = 1) -> int:
        """Compute and cache missing features of all images. Return the number of images."""
        parts = [part for part in (self._train, self._test) if part is not None]
        for part in parts:
            self._extracted(part).take(np.arange(len(part)), threads)
        return sum(map(len, parts))

    def parts(self, clients: int) -> list[ClientBlock]:
        """Return each client's part, including its holdout, or raise a ``DataError`` if the data cannot be divided."""
        with self._lock:
            if clients not in self._parts:
                self._parts[clients] = self._divided(clients)
            return self._parts[clients]

    def trained_on(self, clients: int) -> list[Indices]:
        """Return the positions of each client's training samples, in a run with ``clients`` clients.

        Raise a ``DataError`` if the training samples, or a test set for the clients, cannot be divided.
        """
        if self.settings.client_tests == "own-distribution":
            self._own_tests(clients)  # raises an error if the test set cannot be divided
        return [self._part(client, clients)[1] for client in range(clients)]

    def pooled(self, clients: int, dtype: DTypeLike = np.float64) -> tuple[Shard, list[int]]:
        """Return the training samples of all clients, client by client, and the clients' numbers of samples.

        Raise a ``DataError`` if clients hold only parts of the features.
        """
        shards = [self.shard(client, clients, dtype) for client in range(clients)]
        if any(shard.features.shape[1] < self.problem.features for shard in shards):
            raise DataError(
                "clients hold parts of samples, so a client has no loss of its own; weight each sample alike (samples)",
                key="data.partition",
            )
        parts: list[Any] = [shard.features for shard in shards]
        sparse = any(is_sparse(part) for part in parts)
        together = Shard(
            scipy.sparse.vstack(parts, format="csr") if sparse else np.concatenate(parts),
            np.concatenate([shard.labels for shard in shards]),
            self.problem.classes,
            self.problem.features,
            np.concatenate([shard.samples_held for shard in shards]),
        )
        return together, [shard.samples for shard in shards]

    def sizes(self, clients: int) -> list[int]:
        """Return the number of training samples of each client. Raise the errors of :meth:`trained_on`."""
        return [len(rows) for rows in self.trained_on(clients)]

    @property
    def positives(self) -> NDArray[np.bool_] | None:
        """Mask of positive training samples, shape (n,); ``None`` without positive classes."""
        return None if self.positive is None else np.isin(self.labels, self.positive)

    def _divided(self, clients: int) -> list[ClientBlock]:
        positives = self.positives
        parts = partition(
            self.labels,
            clients,
            self.seed,
            self.settings.partition,
            features=self.problem.features,
            bias=self.settings.bias is not None,
            matrix=lambda: self._matrix,
            positive=positives,
            holders=self._train.holders,
        )
        if self.settings.imbalance is not None:
            assert positives is not None, "the settings were checked for it"
            parts = imbalanced(parts, positives, self.settings.imbalance.imratio, self.seed)
        return parts

    def shard(self, client: int, clients: int, dtype: DTypeLike = np.float64) -> Shard:
        """Return the training samples of a client.

        Parameters
        ----------
        client
            Number of the client, from 0.
        clients
            Number of clients.
        dtype
            Floating-point type of the features.

        Raises
        ------
        DataError
            If there is no such client, or the data set cannot be divided or prepared.
        """
        part, trained_on = self._part(client, clients)
        return self._as_seen(self._shard(part, trained_on, dtype), client, clients, part.samples)

    def holdout(self, client: int, clients: int, dtype: DTypeLike = np.float64) -> Shard | None:
        """Return the holdout of a client, or ``None`` if it has none.

        It is a part of the client's samples (``data.holdout``) or of the test set (``data.client_tests``).
        """
        part, trained_on = self._part(client, clients)
        if self.settings.client_tests == "own-distribution":
            rows = self._own_tests(clients)[client]
            assert self._test is not None
            shard = self._whole(self._test, rows, dtype)
            return self._as_seen(shard, client, clients, rows, "noise of tests")
        rows = np.setdiff1d(part.samples, trained_on, assume_unique=True)
        if len(rows) == 0:
            return None
        return self._as_seen(self._shard(part, rows, dtype), client, clients, part.samples)

    def test(self, dtype: DTypeLike = np.float64) -> Shard | None:
        """Return the test set, or ``None`` if there is none, or it cannot be prepared.

        Positions in the shard are those in the test set. It cannot be prepared without the weights of the network of
        ``data.extractor``.
        """
        if self._test is None:
            return None
        if self.lack:
            log.warning("this process has no test set; only the clients evaluate on test samples: %s", self.lack)
            return None
        return self._whole(self._test, None, dtype)

    def training(self, dtype: DTypeLike = np.float64) -> Shard:
        """Return all training samples, including holdouts, as one shard."""
        return self._whole(self._train, None, dtype)

    def _part(self, client: int, clients: int) -> tuple[ClientBlock, Indices]:
        if not 0 <= client < clients:
            raise DataError(
                f"the run has {clients} clients; expected a number from 0 to {clients - 1}", client=str(client)
            )
        part = self.parts(clients)[client]
        return part, kept(part.samples, self.settings.holdout, self.seed, client, clients)

    def _own_tests(self, clients: int) -> list[Indices]:
        """Return the positions of each client's part of the test set, or raise a ``DataError``."""
        if self._test is None:
            raise DataError(
                f"{self.settings.client_tests} needs a test set to divide, but there is none; set data.test_fraction",
                key="data.client_tests",
            )
        held = [self.labels[part.samples] for part in self.parts(clients)]
        with self._lock:
            if clients not in self._tests:
                self._tests[clients] = own_distribution(held, self._test.labels, self.seed)
            return self._tests[clients]

    def _shard(self, part: ClientBlock, rows: Indices, dtype: DTypeLike) -> Shard:
        if part.cells is not None:
            return self._ragged_shard(part, dtype)
        shard = self._whole(self._train, rows, dtype)
        if part.features is None:
            return shard
        block = shard.features[:, part.features]
        if not is_sparse(block):
            block = np.ascontiguousarray(block)
        return replace(shard, features=block, features_held=part.features)

    def _as_seen(self, shard: Shard, client: int, clients: int, all_samples: Indices, purpose: str = "noise") -> Shard:
        """Return a client's samples with the shift and noise of its site. ``all_samples`` includes holdouts."""
        settings = self.settings.partition
        if not isinstance(settings, SitesPartition):
            return shard
        seen = as_seen(
            shard.features,
            settings.sites[client],
            np.searchsorted(all_samples, shard.samples_held),
            len(all_samples),
            generator(self.seed, purpose, client, clients),
            self.problem.features - (self.settings.bias is not None),
        )
        return replace(shard, features=seen)

    def _whole(self, samples: Samples, rows: Indices | None, dtype: DTypeLike) -> Shard:
        """Return prepared samples with all features; ``None`` for ``rows`` takes all samples without a copy."""
        positions = np.arange(len(samples)) if rows is None else rows
        stored: RawMatrix
        if self._extractor is None:
            stored = samples.features if rows is None else samples.features[rows]
        else:
            stored = self._extracted(samples).take(positions)
        assert self.preparation.steps is not None
        features = scaling.apply(self.preparation.steps, stored, dtype, self.settings.bias)
        labels = samples.labels if rows is None else samples.labels[rows]
        return Shard(features, labels, self.problem.classes, self.problem.features, positions)

    def _extracted(self, samples: Samples) -> Extracted:
        """Return the cached features of the training samples or of the test set, or raise a ``DataError``."""
        if self._extractor is None:
            raise DataError(
                "the settings name no extractor network, so there are no features to compute; set data.extractor",
                key="data.extractor",
            )
        return self._made.setdefault(id(samples), Extracted(self._extractor, samples.features))

    def _ragged_shard(self, part: ClientBlock, dtype: DTypeLike) -> Shard:
        assert part.cells is not None
        assert part.features is not None
        with self._lock:
            matrix = self._matrix
        row = np.searchsorted(matrix.indptr, part.cells, side="right") - 1
        starts = np.searchsorted(row, np.append(part.samples, matrix.shape[0]))
        columns = np.searchsorted(part.features, matrix.indices[part.cells])
        held = scipy.sparse.csr_array(
            (matrix.data[part.cells].astype(dtype), columns, starts), shape=(len(part.samples), len(part.features))
        )
        return Shard(
            held, self.labels[part.samples], self.problem.classes, self.problem.features, part.samples, part.features
        )

    @cached_property
    def _matrix(self) -> scipy.sparse.csr_array:
        """Return all prepared training features as CSR. The caller holds the lock."""
        matrix = scipy.sparse.csr_array(self.training().features)
        matrix.eliminate_zeros()
        return matrix


def _labelled(dataset: DataSet, settings: DataSettings, where: str) -> tuple[Samples, Samples | None, tuple[str, ...]]:
    """Replace stored labels by class indices or floats, and return the class names as well."""
    parts = [dataset.train] if dataset.test is None else [dataset.train, dataset.test]
    labels, names = encoded([part.labels for part in parts], settings.task, settings.classes, where)
    if settings.binarise is not None:
        names, new = binarised(names, [str(name) for name in settings.binarise.positive], where)
        labels = [new[part] for part in labels]
    train, *test = (replace(part, labels=own) for part, own in zip(parts, labels, strict=True))
    return train, test[0] if test else None, names
