"""A data set that is loaded once in a process and serves the shards of all its clients."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike, NDArray

from common.arrays import Indices
from common.data import scaling
from common.data.blocks import Part
from common.data.catalogue import load
from common.data.client_tests import own_distribution
from common.data.columns import listed
from common.data.extractor import Extracted, Extractor
from common.data.files import read_file
from common.data.imbalance import imbalanced, imbalanced_whole, positive_classes
from common.data.labels import binarised, class_names, encode, numbers
from common.data.partition import partition
from common.data.samples import DataSet, Samples
from common.data.shard import Shard
from common.data.shares import apportion
from common.data.sites import as_seen
from common.errors import DataError
from common.randomness import generator
from common.settings.data import ColumnPartition, DataSettings, ExtractorSettings, Scaling, SitesPartition

log = logging.getLogger("fenchel")

DEFAULT_TEST_FRACTION = 0.2


@dataclass(frozen=True)
class Problem:
    """What is to be learnt, as a model must know it.

    Attributes
    ----------
    features
        Number of features, with the bias.
    classes
        Number of classes; 0 for regression.
    task
        Whether labels are classes or numbers.
    class_names
        Name of each class; empty for regression.
    samples
        Number of training samples, of all clients together.
    image
        Channels, rows and columns if features are the pixels of an image in that order; else ``None``.
    """

    features: int
    classes: int
    task: Literal["classification", "regression"]
    class_names: tuple[str, ...]
    samples: int
    image: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class DataSource:
    """A data set, prepared and divided as the settings say; safe to share between threads.

    Features stay as they were stored (images as bytes); the rows of a shard are converted when asked for, by a frozen
    network if the settings name one. Make one with :meth:`open`.

    Attributes
    ----------
    settings
        The ``data`` section.
    seed
        ``settings.seed``.
    problem
        What is to be learnt.
    labels
        Of all training samples, shape (n,).
    positive
        The classes that count as positive, by number; ``None`` if nobody said it and there are more than two.
    """

    settings: DataSettings
    seed: int
    problem: Problem
    labels: NDArray[Any]
    positive: tuple[int, ...] | None
    _train: Samples
    _test: Samples | None
    _steps: tuple[scaling.Step, ...]
    _extractor: Extractor | None = None
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)
    _parts: dict[int, list[Part]] = field(default_factory=dict, repr=False, compare=False)
    _tests: dict[int, list[Indices]] = field(default_factory=dict, repr=False, compare=False)
    _features: dict[int, Extracted] = field(default_factory=dict, repr=False, compare=False)
    _prepared: list[sp.csr_array] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def open(
        cls,
        settings: DataSettings,
        seed: int,
        positive: Sequence[int] | None = None,
        *,
        folders: tuple[Path, ...] | None = None,
    ) -> DataSource:
        """Load a data set and fit its preparation.

        Parameters
        ----------
        settings
            The ``data`` section.
        seed
            ``settings.seed``: decides test split, subsample, imbalance and partition.
        positive
            ``settings.positive``: the classes that count as positive, by number; ``None`` where nobody said it, and
            then the second of two.
        folders
            Where named data sets are looked for; by default ``$FENCHEL_DATA`` and the cache.

        Raises
        ------
        DataError
            If the data cannot be found, read, or used as the settings ask.
        """
        if settings.name is not None:
            dataset, where = load(settings.name, folders), settings.name
        else:
            assert settings.file is not None
            column = settings.partition.column if isinstance(settings.partition, ColumnPartition) else None
            dataset, where = read_file(settings.file, settings.label, holder=column), str(settings.file)
        train, test, names = _labelled(dataset, settings, where)
        train, test = _split(train, test, settings, seed, where)
        chosen = positive_classes(len(names), positive, settings.asks_for_positives)
        if settings.imbalance is not None and settings.imbalance.of == "whole":
            assert chosen is not None, "positive_classes refuses not to know"
            are_positive = np.isin(train.labels, chosen)
            train = train.take(imbalanced_whole(train.labels, are_positive, settings.imbalance.imratio, seed))
        bias = settings.bias is not None
        extractor = _extractor(settings.extractor, dataset, where)
        problem = Problem(
            features=(dataset.features if extractor is None else extractor.features) + bias,
            classes=len(names),
            task=settings.task,
            class_names=names,
            samples=len(train),
            image=None if bias or extractor is not None else dataset.image,
        )
        steps = scaling.fit(settings.scalings, train.features, dataset.peak)
        return cls(settings, seed, problem, train.labels, chosen, train, test, steps, extractor)

    @property
    def lack(self) -> str:
        """What is missing on this machine to compute features with the network of the settings; empty: nothing."""
        return "" if self._extractor is None else self._extractor.lack

    def extract(self, threads: int = 1) -> int:
        """Compute the features of all images that nobody has computed yet; return how many images there are.

        Parameters
        ----------
        threads
            How many compute.

        Raises
        ------
        DataError
            The settings name no network, or its weights cannot be used here.
        MissingDependencyError
            torch is not installed.
        """
        if self._extractor is None:
            raise DataError(
                "data.extractor: the settings name no network, so there are no features to compute"
            )
        parts = [part for part in (self._train, self._test) if part is not None]
        for part in parts:
            self._extracted(part).take(np.arange(len(part)), threads)
        return sum(map(len, parts))

    def parts(self, clients: int) -> list[Part]:
        """Return what each of ``clients`` clients holds, its held-out samples among it."""
        with self._lock:
            if clients not in self._parts:
                self._parts[clients] = self._divided(clients)
            return self._parts[clients]

    @property
    def positives(self) -> NDArray[np.bool_] | None:
        """Which training samples are positive, shape (n,); ``None`` if nobody said which classes are."""
        return None if self.positive is None else np.isin(self.labels, self.positive)

    def _divided(self, clients: int) -> list[Part]:
        positives = self.positives
        parts = partition(
            self.labels,
            clients,
            self.seed,
            self.settings.partition,
            features=self.problem.features,
            bias=self.settings.bias is not None,
            matrix=self._matrix,
            positive=positives,
            holders=self._train.holders,
        )
        imbalance = self.settings.imbalance
        if imbalance is not None and imbalance.of == "client":
            assert positives is not None, "the settings were checked for it"
            parts = imbalanced(parts, positives, imbalance.imratio, self.seed)
        return parts

    def shard(self, client: int, clients: int, dtype: DTypeLike = np.float64) -> Shard:
        """Return the samples that a client trains on.

        Parameters
        ----------
        client
            Number of the client, from 0.
        clients
            Number of clients.
        dtype
            Floating type of the features.

        Raises
        ------
        DataError
            If there is no such client, or the partition is not possible.
        """
        part, kept = self._part(client, clients)
        return self._as_seen(self._shard(part, kept, dtype), client, clients, part.samples)

    def holdout(self, client: int, clients: int, dtype: DTypeLike = np.float64) -> Shard | None:
        """Return the samples that a client only tests on; ``None`` if it has none.

        It held them out of its own (``data.holdout``), or got them of the test set (``data.client_tests``).

        Raises
        ------
        DataError
            If there is no such client, or no test set that could be divided so.
        """
        part, kept = self._part(client, clients)
        if self.settings.client_tests == "own-distribution":
            rows = self._own_tests(clients)[client]
            assert self._test is not None
            shard = self._whole(self._test, rows, dtype)
            return self._as_seen(shard, client, clients, rows, "noise of tests")
        rows = np.setdiff1d(part.samples, kept, assume_unique=True)
        if len(rows) == 0:
            return None
        return self._as_seen(self._shard(part, rows, dtype), client, clients, part.samples)

    def test(self, dtype: DTypeLike = np.float64) -> Shard | None:
        """Return the test set, whose positions are its own; ``None`` if there is none, or nothing to prepare it with.

        A server need not have the network of ``data.extractor``: then only the clients can test.
        """
        if self._test is None:
            return None
        if self.lack:
            log.warning("no test set here, only the clients test on their own: %s", self.lack)
            return None
        return self._whole(self._test, None, dtype)

    def training(self, dtype: DTypeLike = np.float64) -> Shard:
        """Return all training samples, held-out ones among them, as one shard."""
        return self._whole(self._train, None, dtype)

    def _part(self, client: int, clients: int) -> tuple[Part, Indices]:
        if not 0 <= client < clients:
            raise DataError(
                f"client {client} of {clients} clients; expected a number from 0 to {clients - 1}"
            )
        part = self.parts(clients)[client]
        return part, _kept(part.samples, self.settings.holdout, self.seed, client, clients)

    def _own_tests(self, clients: int) -> list[Indices]:
        """Return which samples of the test set each client tests on."""
        if self._test is None:
            raise DataError(
                f"data.client_tests: {self.settings.client_tests} divides the test set, but there is none; give "
                "data.test_fraction"
            )
        held = [self.labels[part.samples] for part in self.parts(clients)]
        with self._lock:
            if clients not in self._tests:
                self._tests[clients] = own_distribution(held, self._test.labels, self.seed)
            return self._tests[clients]

    def _shard(self, part: Part, rows: Indices, dtype: DTypeLike) -> Shard:
        if part.cells is not None:
            return self._ragged_shard(part, dtype)
        shard = self._whole(self._train, rows, dtype)
        if part.features is None:
            return shard
        block = shard.features[:, part.features]
        if not isinstance(block, sp.csr_array):
            block = np.ascontiguousarray(block)
        return Shard(block, shard.labels, shard.classes, shard.total_features, rows, part.features)

    def _as_seen(
        self, shard: Shard, client: int, clients: int, all_samples: Indices, purpose: str = "noise"
    ) -> Shard:
        """Return samples of a client, out of ``all_samples`` of it, as its own instruments see them."""
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
        """Return whole samples, prepared; ``rows`` is ``None`` for all of them, which are not copied then."""
        positions = np.arange(len(samples)) if rows is None else rows
        chosen = samples if rows is None else samples.take(rows)
        stored = chosen.features if self._extractor is None else self._extracted(samples).take(positions)
        features = scaling.apply(self._steps, stored, dtype, self.settings.bias)
        return Shard(features, chosen.labels, self.problem.classes, self.problem.features, positions)

    def _extracted(self, samples: Samples) -> Extracted:
        """Return the features of the training samples, or of the test set; each is opened once."""
        assert self._extractor is not None
        with self._lock:
            if id(samples) not in self._features:
                self._features[id(samples)] = Extracted(self._extractor, samples.features)
            return self._features[id(samples)]

    def _ragged_shard(self, part: Part, dtype: DTypeLike) -> Shard:
        assert part.cells is not None
        assert part.features is not None
        matrix = self._matrix_held()
        row = np.searchsorted(matrix.indptr, part.cells, side="right") - 1
        starts = np.searchsorted(row, np.append(part.samples, matrix.shape[0]))
        columns = np.searchsorted(part.features, matrix.indices[part.cells])
        held = sp.csr_array(
            (matrix.data[part.cells].astype(dtype), columns, starts),
            shape=(len(part.samples), len(part.features)),
        )
        return Shard(
            held,
            self.labels[part.samples],
            self.problem.classes,
            self.problem.features,
            part.samples,
            part.features,
        )

    def _matrix_held(self) -> sp.csr_array:
        with self._lock:
            return self._matrix()

    def _matrix(self) -> sp.csr_array:
        """All prepared training features as CSR, made once; called under the lock."""
        if not self._prepared:
            features = scaling.apply(self._steps, self._train.features, np.float64, self.settings.bias)
            matrix = sp.csr_array(features)
            matrix.eliminate_zeros()
            self._prepared.append(matrix)
        return self._prepared[0]


def divide_own(
    shard: Shard, holdout: float, seed: int, client: int, clients: int
) -> tuple[Shard, Shard | None]:
    """Divide the samples of a client that brings its own file as :class:`DataSource` does: to train and to test on.

    Parameters
    ----------
    shard
        Whole samples, from :func:`load_own`.
    holdout
        ``data.holdout``: the part that it only tests on.
    seed
        ``settings.seed``.
    client, clients
        Number of the client, from 0, and of all.

    Returns
    -------
    shard
        The samples to train on.
    holdout
        The others; ``None`` if there are none.
    """
    rows = np.arange(shard.samples)
    kept = _kept(rows, holdout, seed, client, clients)
    if len(kept) == len(rows):
        return shard, None
    return shard.take(kept), shard.take(np.setdiff1d(rows, kept, assume_unique=True))


def _kept(rows: Indices, holdout: float, seed: int, client: int, clients: int) -> Indices:
    """Return the samples that a client trains on, when it holds some out."""
    held_out = round(holdout * len(rows))
    if held_out == 0:
        return rows
    # Rounding must not leave a client without samples to train on.
    held_out = min(held_out, len(rows) - 1)
    rng = generator(seed, "holdout", client, clients)
    kept: Indices = np.sort(rng.permutation(rows)[held_out:])
    return kept


def load_own(
    path: Path,
    label: str | None = None,
    *,
    task: Literal["classification", "regression"] = "classification",
    classes: Sequence[int | str] | None = None,
    identifier: str | None = None,
    columns: Sequence[str] | int | None = None,
    scalings: Sequence[Scaling] = (),
    bias: float | None = None,
    extractor: ExtractorSettings | None = None,
    dtype: DTypeLike = np.float64,
) -> Shard:
    """Load the file of a client that brings its own data: all of it is its shard.

    A test part of a NumPy archive is left out.

    Parameters
    ----------
    path
        LIBSVM, CSV, Parquet or NumPy file.
    label
        Name of the label column.
    task
        Whether labels are classes or numbers.
    classes
        All class names of the run in order; ``None`` takes those of this file, sorted.
    identifier
        Name of the column of sample identifiers, which is no feature; ``None``: there is none.
    columns
        The features of the whole problem, of which this file may hold some: their names in order or, for files
        without names, their number. ``None``: every client holds all features, in the same order.
    scalings
        Preparation; only steps that every client can do alone and alike.
    bias
        Value of an appended constant feature, which belongs to whoever holds the last of ``columns``; ``None``
        appends none.
    extractor
        A frozen network that makes features of the images in the file; ``None``: there is none.
    dtype
        Floating type of the features.

    Raises
    ------
    MissingDependencyError
        If the network needs torch, and torch is not installed.
    DataError
        If the file cannot be read, has other classes, features that the run does not have, or sample
        identifiers that are missing or repeated, or if a step needs the data of others.
    """
    width = columns if isinstance(columns, int) else None
    dataset = read_file(path, label, width, identifier)
    network = _extractor(extractor, dataset, str(path))
    if network is not None:
        images = dataset.train
        made = Extracted(network, images.features).take(np.arange(len(images)))
        dataset = DataSet(Samples(made, images.labels), identifiers=dataset.identifiers)
    for position, step in enumerate(scalings):
        pixels = dataset.peak is not None and position == 0
        if step == "standard" or (step == "unit-interval" and not pixels):
            raise DataError(
                f"{path}: data.scale: {step} needs the values of all clients, which nobody may see; scale "
                "the columns of every client's file alike beforehand, or use unit-rows"
            )
    part, held, total = _columns_held(dataset, columns, str(path))
    if len(held) < total and "unit-rows" in scalings:
        raise DataError(
            f"{path}: data.scale: unit-rows needs all {total} features of a sample, of which this file holds "
            f"{len(held)}; scale the columns of every client's file beforehand"
        )
    if bias is not None:
        if held[-1] == total - 1:
            held = np.append(held, total)
        else:
            bias = None
        total += 1
    if task == "regression":
        labels: NDArray[Any] = numbers(part.labels, str(path))
        names: tuple[str, ...] = ()
    else:
        names = class_names([part.labels], str(path)) if classes is None else tuple(map(str, classes))
        labels = encode(part.labels, names, str(path))
    prepared = scaling.apply(scaling.fit(scalings, part.features, dataset.peak), part.features, dtype, bias)
    return Shard(
        prepared,
        labels,
        len(names),
        total,
        np.arange(len(part)),
        None if len(held) == total else held,
        class_names=names,
        sample_ids=dataset.identifiers,
    )


def _columns_held(
    dataset: DataSet, columns: Sequence[str] | int | None, where: str
) -> tuple[Samples, Indices, int]:
    """Put the features of a client's file in the order of the run's.

    Returns
    -------
    samples
        The training samples, with features in increasing global position.
    held
        Global positions of the features, shape (m,).
    total
        Number of features of the run.
    """
    part = dataset.train
    if columns is None:
        return part, np.arange(dataset.features), dataset.features
    if isinstance(columns, int):
        return *_numbered_columns(dataset, columns, where), columns
    if dataset.columns is None:
        raise DataError(
            f"{where}: data.columns lists {len(columns)} names, but files of this form have no column names; set "
            "data.columns to the number of features, or use CSV or Parquet files"
        )
    place = {name: position for position, name in enumerate(columns)}
    unknown = [name for name in dataset.columns if name not in place]
    if unknown:
        raise DataError(
            f"{where}: data.columns does not have these columns of the file: {listed(unknown)}; it lists "
            f"{listed(columns)}. Remove them from the file, or correct the names (the columns of the label and of "
            "the sample identifiers are named with --label and --id)"
        )
    positions = np.array([place[name] for name in dataset.columns])
    order = np.argsort(positions)
    return Samples(part.features[:, order], part.labels), positions[order], len(columns)


def _numbered_columns(dataset: DataSet, total: int, where: str) -> tuple[Samples, Indices]:
    """Return the samples and the features that occur, of a file whose columns have numbers and no names."""
    part = dataset.train
    if dataset.columns is not None:
        raise DataError(
            f"{where}: data.columns is the number {total}, but the columns of this file have names; list the names "
            "of all features of the run in data.columns"
        )
    matrix = part.features
    sparse = isinstance(matrix, sp.csr_array)
    if dataset.features > total or (dataset.features < total and not sparse):
        raise DataError(
            f"{where}: {dataset.features} features, but data.columns is {total}; expected "
            f"{'at most so many' if sparse else 'as many'}"
        )
    if not isinstance(matrix, sp.csr_array):
        return part, np.arange(total)
    held = np.unique(matrix.indices).astype(np.int64)
    if len(held) == 0:
        raise DataError(f"{where}: no value that is not zero; expected some of the {total} features")
    shape = (matrix.shape[0], len(held))
    kept = sp.csr_array((matrix.data, np.searchsorted(held, matrix.indices), matrix.indptr), shape=shape)
    return Samples(kept, part.labels), held


def _extractor(settings: ExtractorSettings | None, dataset: DataSet, where: str) -> Extractor | None:
    return None if settings is None else Extractor.of(settings, dataset.image, dataset.peak, where)


def _labelled(
    dataset: DataSet, settings: DataSettings, where: str
) -> tuple[Samples, Samples | None, tuple[str, ...]]:
    """Replace labels as stored by class indices or floats; give the class names too."""
    parts = [dataset.train] if dataset.test is None else [dataset.train, dataset.test]
    names: tuple[str, ...] = ()
    if settings.task == "regression":
        made = [replace(part, labels=numbers(part.labels, where)) for part in parts]
    else:
        if settings.classes is None:
            names = class_names([part.labels for part in parts], where)
        else:
            names = tuple(map(str, settings.classes))
        made = [replace(part, labels=encode(part.labels, names, where)) for part in parts]
        if settings.binarise is not None:
            names, new = binarised(names, [str(name) for name in settings.binarise.positive], where)
            made = [replace(part, labels=new[part.labels]) for part in made]
    return made[0], made[1] if len(made) > 1 else None, names


def _split(
    train: Samples, test: Samples | None, settings: DataSettings, seed: int, where: str
) -> tuple[Samples, Samples | None]:
    """Split off a test set unless one is published, then take the subsample."""
    classes = settings.task == "classification"
    for key in ("test_fraction", "test_split", "test_seed"):
        given = getattr(settings, key)
        if test is not None and given != DataSettings.model_fields[key].default:
            raise DataError(
                f"data.{key}: {given} given, but {where} has a published test set of {len(test)} samples; "
                f"remove {key}"
            )
    if test is None:
        fraction = DEFAULT_TEST_FRACTION if settings.test_fraction is None else settings.test_fraction
        count = int(np.ceil(fraction * len(train)))
        if count >= len(train):
            raise DataError(
                f"data.test_fraction: {fraction} of {len(train)} samples leaves none to train on; use a "
                "smaller one"
            )
        if count:
            test_seed = seed if settings.test_seed is None else settings.test_seed
            if settings.test_split == "scikit-learn":
                kept, rows = _scikit_learn_split(train.labels, count, test_seed, classes)
            else:
                rows = stratified(train.labels, count, generator(test_seed, "test split"), classes=classes)
                kept = np.setdiff1d(np.arange(len(train)), rows, assume_unique=True)
            train, test = train.take(kept), train.take(rows)
    if settings.samples is not None and settings.samples != len(train):
        if settings.samples > len(train):
            raise DataError(
                f"data.samples: {settings.samples} given, but {where} has {len(train)} training samples; "
                "use at most those"
            )
        train = train.take(
            stratified(train.labels, settings.samples, generator(seed, "samples"), classes=classes)
        )
    return train, test


def _scikit_learn_split(
    labels: NDArray[Any], count: int, seed: int, classes: bool
) -> tuple[Indices, Indices]:
    """Return the positions of training and test samples in the order that scikit-learn gives them."""
    from sklearn.model_selection import train_test_split

    if seed >= 1 << 32:
        raise DataError(
            f"data.test_split: scikit-learn takes seeds below 2^32, but the seed of the run is {seed}; give "
            "data.test_seed"
        )
    try:
        kept, drawn = train_test_split(
            np.arange(len(labels)), test_size=count, random_state=seed, stratify=labels if classes else None
        )
    except ValueError as error:
        raise DataError(
            f"data.test_split: scikit-learn cannot draw {count} of {len(labels)} samples from each class in "
            f"proportion: {error}"
        ) from None
    return kept, drawn


def stratified(
    labels: NDArray[Any], count: int, rng: np.random.Generator, *, classes: bool = True
) -> Indices:
    """Draw positions without replacement, from each class in proportion to its size.

    Parameters
    ----------
    labels
        Shape (n,).
    count
        How many to draw, at most n.
    rng
        Where the numbers come from.
    classes
        Whether labels are classes; otherwise the draw is uniform.

    Returns
    -------
    Indices
        Shape (count,), increasing.
    """
    if not classes:
        return np.sort(rng.permutation(len(labels))[:count])
    present, sizes = np.unique(labels, return_counts=True)
    shares = apportion(count, sizes)
    drawn = [
        rng.permutation(np.flatnonzero(labels == label))[:share]
        for label, share in zip(present, shares, strict=True)
    ]
    return np.sort(np.concatenate(drawn))
