"""Sources of a client's data: a data set named in the run's settings, the client's own file, or a shard."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np

from fenchel.client.session import ClientData
from fenchel.common.data.catalogue import CATALOGUE, locate
from fenchel.common.data.fetch import fetch
from fenchel.common.data.holdout import divide_own
from fenchel.common.data.limits import ORDINARY, DataLimits, within_memory
from fenchel.common.data.own_file import load_own
from fenchel.common.data.samples import listed
from fenchel.common.data.shard import Shard
from fenchel.common.data.source import DataSource
from fenchel.common.errors import DataError
from fenchel.common.settings.run import RunSettings

log = logging.getLogger("fenchel.client")


class DataProvider(Protocol):
    """Source of a client's data."""

    @property
    def own(self) -> str | None:
        """Description of the client's own data, or ``None`` if the run's settings name the data."""

    def load(self, settings: RunSettings) -> None:
        """Load the data that :meth:`of` needs. Called while other clients are still joining."""

    def of(self, settings: RunSettings, index: int, clients: int) -> ClientData:
        """Return the data of client number ``index``, counted from 0, in a run with ``clients`` clients."""

    def identity(self, settings: RunSettings, client: str) -> str:
        """Return a text that identifies the client's data, independently of how the settings prepare it."""


@dataclass
class LocalData:
    """Data set named in the run's settings, loaded once for all clients of a process."""

    own: None = None
    _sources: dict[str, DataSource] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def load(self, settings: RunSettings) -> None:
        """Load the data set, and download it first if necessary."""
        self._source(settings)

    def of(self, settings: RunSettings, index: int, clients: int) -> ClientData:
        """Return the share of client number ``index``, counted from 0, in the data set divided among ``clients``."""
        source = self._source(settings)
        dtype = settings.objective.dtype
        return ClientData(source.shard(index, clients, dtype), source.holdout(index, clients, dtype))

    def identity(self, settings: RunSettings, client: str) -> str:
        """Return the client id with the name or the file of the data set."""
        return f"{client}: {settings.data.name or settings.data.file}"

    def _source(self, settings: RunSettings) -> DataSource:
        key = f"{settings.seed} {settings.positive} {settings.data.model_dump_json()}"
        with self._lock:
            if key not in self._sources:
                entry = CATALOGUE.get(settings.data.name or "")
                if entry is not None and locate(entry.name) is None:
                    log.info("downloading the data set %s", entry.name)
                    fetch(entry)
                self._sources[key] = DataSource.open(settings.data, settings.seed, settings.positive)
            return self._sources[key]


def _require_whole_samples(shard: Shard, settings: RunSettings, path: Path) -> None:
    """Raise a ``DataError`` if a file lacks features of the run, and the algorithm needs all of them."""
    if shard.features_held is None or settings.algorithm.splits_features:
        return
    columns, held = settings.data.columns, {*shard.features_held.tolist()}
    if isinstance(columns, tuple):
        lacking = f"the columns {listed([name for place, name in enumerate(columns) if place not in held])}"
    else:
        lacking = f"values of {shard.total_features - len(held)} of {shard.total_features} features"
    raise DataError(
        f"the file lacks {lacking}, but {settings.algorithm.name} needs whole samples; add them, or use an algorithm "
        "for data that is split by features",
        source=path,
        key="data.columns",
    )


def _data_key(settings: RunSettings) -> str:
    return f"{settings.objective.dtype} {settings.data.model_dump_json()}"


@dataclass(frozen=True)
class OwnFile:
    """Data file of one client.

    Attributes
    ----------
    path
        File in LIBSVM, CSV, Parquet or NPZ format.
    label
        Column of the label; ``None`` for the default of the format.
    identifier
        Source of sample identifiers, as in ``--id``: a column, an array or a file. ``None`` identifies samples by row.
    limits
        Limits on the size of the file's contents.
    """

    path: Path
    label: str | None = None
    identifier: str | None = None
    limits: DataLimits = ORDINARY
    # shards read by load() and not yet taken by of()
    _loaded: dict[str, Shard] = field(default_factory=dict, repr=False, compare=False)

    @property
    def own(self) -> str:
        """The path of the file."""
        return str(self.path)

    def load(self, settings: RunSettings) -> None:
        """Read the file, and keep its contents for :meth:`of`."""
        key = _data_key(settings)
        if key in self._loaded:
            return
        self._loaded.clear()  # discard shards of an earlier call, whose settings may differ
        with within_memory(self.path):
            shard = load_own(
                self.path,
                settings.data,
                label=self.label,
                identifier=self.identifier,
                dtype=settings.objective.dtype,
                limits=self.limits,
            )
        _require_whole_samples(shard, settings, self.path)
        self._loaded[key] = shard

    def of(self, settings: RunSettings, index: int, clients: int) -> ClientData:
        """Return the samples of the file, divided into training samples and holdout."""
        self.load(settings)
        shard = self._loaded.pop(_data_key(settings))
        with within_memory(self.path):
            return ClientData(*divide_own(shard, settings.data.holdout, settings.seed, index, clients))

    def identity(self, settings: RunSettings, client: str) -> str:
        """Return the SHA-256 of the file; raise ``DataError`` if the file cannot be read."""
        try:
            with self.path.open("rb") as file:
                return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        except OSError as error:
            raise DataError(
                f"the file cannot be read ({error.strerror}); check the path and its permissions", source=self.path
            ) from None


@dataclass(frozen=True)
class OwnShard:
    """Samples of one client in memory. They are not prepared: of the ``data`` settings, only ``holdout`` applies."""

    shard: Shard

    @property
    def own(self) -> str:
        """Description of the shard by its number of samples."""
        return f"a shard of {self.shard.samples:,} samples"

    def load(self, settings: RunSettings) -> None:
        """Do nothing, as the samples are in memory."""

    def of(self, settings: RunSettings, index: int, clients: int) -> ClientData:
        """Return training samples and holdout of the shard, in the floating-point type of the settings."""
        features: Any = self.shard.features.astype(settings.objective.dtype, copy=False)
        shard = replace(self.shard, features=features)
        return ClientData(*divide_own(shard, settings.data.holdout, settings.seed, index, clients))

    def identity(self, settings: RunSettings, client: str) -> str:
        """Return the SHA-256 of features and labels."""
        digest = hashlib.sha256()
        features = self.shard.features
        parts = (features,) if isinstance(features, np.ndarray) else (features.data, features.indices, features.indptr)
        for part in (*parts, self.shard.labels):
            digest.update(np.ascontiguousarray(part).data)
        return f"sha256:{digest.hexdigest()}"
