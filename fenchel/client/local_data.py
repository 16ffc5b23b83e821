"""Sources of a client's data: a data set that the settings of the run name, a file of its own, or a shard."""

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
from fenchel.common.data.shard import Shard
from fenchel.common.data.source import DataSource
from fenchel.common.errors import DataError
from fenchel.common.settings.run import RunSettings

log = logging.getLogger("fenchel.client")


class DataProvider(Protocol):
    """Anything that gives a client its data."""

    @property
    def own(self) -> str | None:
        """Description of the data that the client brings itself; ``None``: the settings of the run name its data."""

    def load(self, settings: RunSettings) -> None:
        """Load what :meth:`of` will need, so that mistakes show and time passes while others are waited for."""

    def of(self, settings: RunSettings, index: int, clients: int) -> ClientData:
        """Return what client ``index`` of ``clients`` holds."""

    def identity(self, settings: RunSettings, client: str) -> str:
        """Return a text that stands for a client's data, whatever the server's settings make of them."""


@dataclass
class LocalData:
    """The data that settings name, for all clients of one process; a data set that they share is loaded once."""

    own: None = None
    _sources: dict[str, DataSource] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def load(self, settings: RunSettings) -> None:
        """Load the data set."""
        self._source(settings)

    def of(self, settings: RunSettings, index: int, clients: int) -> ClientData:
        """Return what client ``index`` of ``clients`` holds."""
        source = self._source(settings)
        dtype = settings.objective.dtype
        return ClientData(source.shard(index, clients, dtype), source.holdout(index, clients, dtype))

    def identity(self, settings: RunSettings, client: str) -> str:
        """Return the name of the data set and of the client, which holds a part of it."""
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


def _data_key(settings: RunSettings) -> str:
    return f"{settings.objective.dtype} {settings.data.model_dump_json()}"


@dataclass(frozen=True)
class OwnFile:
    """A data file that belongs to one client.

    Attributes
    ----------
    path
        LIBSVM, CSV, Parquet or NPZ.
    label
        Column of the label; ``None``: the usual one.
    identifier
        Place of the sample identifiers, as ``--id`` names it: a column, an array or a file. ``None``: there are none,
        so samples are known by their row.
    limits
        Of what is read.
    """

    path: Path
    label: str | None = None
    identifier: str | None = None
    limits: DataLimits = ORDINARY
    _loaded: dict[str, Shard] = field(default_factory=dict, repr=False, compare=False)  # not asked for yet

    @property
    def own(self) -> str:
        """The path of the file."""
        return str(self.path)

    def load(self, settings: RunSettings) -> None:
        """Read the file, and keep what is in it until it is asked for."""
        key = _data_key(settings)
        if key in self._loaded:
            return
        self._loaded.clear()  # a server may have changed its settings
        with within_memory(self.path):
            self._loaded[key] = load_own(
                self.path,
                settings.data,
                label=self.label,
                identifier=self.identifier,
                dtype=settings.objective.dtype,
                limits=self.limits,
            )

    def of(self, settings: RunSettings, index: int, clients: int) -> ClientData:
        """Return the samples of the file."""
        self.load(settings)
        shard = self._loaded.pop(_data_key(settings))
        with within_memory(self.path):
            return ClientData(*divide_own(shard, settings.data.holdout, settings.seed, index, clients))

    def identity(self, settings: RunSettings, client: str) -> str:
        """Return the SHA-256 of the file."""
        try:
            with self.path.open("rb") as file:
                return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        except OSError as error:
            raise DataError(f"cannot be read ({error.strerror})", source=self.path) from None


@dataclass(frozen=True)
class OwnShard:
    """Samples that belong to one client, as they are; of ``data`` only ``holdout`` is applied to them."""

    shard: Shard

    @property
    def own(self) -> str:
        """The number of samples."""
        return f"a shard of {self.shard.samples:,} samples"

    def load(self, settings: RunSettings) -> None:
        """Do nothing: the samples are here."""

    def of(self, settings: RunSettings, index: int, clients: int) -> ClientData:
        """Return the shard, in the floating type of the settings."""
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
