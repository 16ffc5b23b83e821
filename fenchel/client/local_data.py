"""From a run's settings to the data that a client brings."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from fenchel.client.session import ClientData
from fenchel.common.data.catalogue import CATALOGUE, locate
from fenchel.common.data.fetch import fetch
from fenchel.common.data.holdout import divide_own
from fenchel.common.data.limits import ORDINARY, DataLimits, within_memory
from fenchel.common.data.own_file import load_own
from fenchel.common.data.source import DataSource
from fenchel.common.errors import DataError
from fenchel.common.settings.run import RunSettings

log = logging.getLogger("fenchel.client")


@dataclass(frozen=True)
class OwnFile:
    """A data file that belongs to one client."""

    path: Path  # LIBSVM, CSV, Parquet or NPZ
    label: str | None = None  # column of the label; ``None``: the usual one
    identifier: str | None = None
    """Where the sample identifiers are, as ``--id`` says: a column, an array or a file. ``None``: nowhere, and samples
    are known by their row."""
    limits: DataLimits = ORDINARY  # of what is read


@dataclass
class LocalData:
    """Loads the data of the clients of one process; a data set that they share is loaded once."""

    own: OwnFile | None = None
    _sources: dict[str, DataSource] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def of(self, settings: RunSettings, index: int, clients: int) -> ClientData:
        """Return what client ``index`` of ``clients`` holds."""
        if self.own is not None:
            own, dtype = self.own, settings.objective.dtype
            with within_memory(own.path):
                shard = load_own(
                    own.path, settings.data, label=own.label, identifier=own.identifier, dtype=dtype, limits=own.limits
                )
                return ClientData(*divide_own(shard, settings.data.holdout, settings.seed, index, clients))
        source = self._source(settings)
        dtype = settings.objective.dtype
        return ClientData(source.shard(index, clients, dtype), source.holdout(index, clients, dtype))

    def identity(self, settings: RunSettings, client: str) -> str:
        """Return what stands for a client's data, whatever the server's settings make of them."""
        if self.own is None:
            return f"{client}: {settings.data.name or settings.data.file}"
        try:
            with self.own.path.open("rb") as file:
                return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        except OSError as error:
            raise DataError(f"cannot be read ({error.strerror})", source=self.own.path) from None

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
