"""Data that a caller passes to a run, in place of the data set that the settings name."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fenchel.common.data.shard import Shard
from fenchel.common.errors import DataError, SettingsError, StorageError
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.names import client_names
from fenchel.deploy.launch.words import option_words

if TYPE_CHECKING:
    from fenchel.common.data.objects import Arrays, Table

log = logging.getLogger(__name__)

_Content: TypeAlias = "Path | Table | Arrays"


@dataclass(frozen=True)
class PooledData:
    """Data set that the run divides among its clients according to ``data.partition``.

    Attributes
    ----------
    label
        Name of the label column; ``None`` for the column in the settings.
    """

    content: _Content
    label: str | None

    @property
    def settings(self) -> dict[str, Any]:
        """Settings for the data set, by dotted key, with a provisional file name until the run folder exists."""
        file = self.content if isinstance(self.content, Path) else f"data{self.content.suffix}"
        found: dict[str, Any] = {"data.name": None, "data.file": str(file)}
        return found if self.label is None else found | {"data.label": self.label}

    def named(self, settings: RunSettings, folder: RunFolder) -> RunSettings:
        """Write an in-memory data set to the run folder, and return settings that name the file."""
        file = _written(self.content, folder.data / "all")
        return settings.model_copy(update={"data": settings.data.model_copy(update={"file": file})})


@dataclass(frozen=True)
class OwnFiles:
    """Data files, one for each client.

    Attributes
    ----------
    label
        Name of the label column; ``None`` for the default column.
    identifier
        Column or array of the sample identifiers, as for ``--id``; ``None`` without identifiers.
    """

    paths: Sequence[Path]
    label: str | None = None
    identifier: str | None = None

    @classmethod
    def written(cls, folder: RunFolder, label: str | None, identifier: str | None) -> OwnFiles | None:
        """Return the files that :meth:`OwnData.write` wrote to a run folder, in the order of the clients' numbers.

        ``None`` if there are none.
        """
        files = sorted(folder.data.glob("client-*"), key=lambda file: (len(file.stem), file.stem))
        return cls([file.absolute() for file in files], label, identifier) if files else None

    @classmethod
    def of_patterns(cls, patterns: Sequence[str], label: str | None, identifier: str | None) -> OwnFiles:
        """Return the files that match patterns such as ``hospitals/*.csv``, in alphabetical order for each pattern.

        Raises
        ------
        SettingsError
            If no file matches a pattern.
        """
        paths = []
        for pattern in patterns:
            literal = Path(pattern).expanduser()
            # Path.glob does not support absolute patterns. The name of a file may look like a pattern.
            matched = [str(literal)] if literal.exists() else sorted(glob(str(literal)))  # noqa: PTH207
            found = [Path(name) for name in matched]
            if not found:
                raise SettingsError("the file does not exist; give a file for each client", key=f"--data {pattern}")
            paths += found
        return cls(paths, label, identifier)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings for the data files, by dotted key."""
        return _own(len(self.paths))

    def require(self, settings: RunSettings, clients: int) -> None:
        """Raise a SettingsError if the settings name a data set, or there are more or fewer files than clients."""
        if not settings.own_data:
            raise SettingsError(
                "clients have their own files, but the settings name a data set; set data.name to own", key="data.name"
            )
        if len(self.paths) != clients:
            raise SettingsError(f"{len(self.paths)} files given for {clients} clients; give one for each", key="--data")

    def words(self, clients: Sequence[int]) -> list[str]:
        """Return the options of ``fenchel client`` for the clients with these numbers, counted from 0."""
        files = [self.paths[number].absolute() for number in clients]
        return option_words({"--data": files, "--label": self.label, "--id": self.identifier})


@dataclass(frozen=True)
class OwnData:
    """Local data of each client. Each Python object or file contains all samples of one client."""

    parts: Sequence[_Content | Shard]
    label: str | None = None
    identifier: str | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Settings for the clients' data, by dotted key."""
        return _own(len(self.parts))

    def write(self, folder: RunFolder) -> OwnFiles | Sequence[Shard]:
        """Write in-memory data to the run folder, and return a file for each client. Return shards unchanged."""
        shards = [part for part in self.parts if isinstance(part, Shard)]
        if shards:
            return shards
        contents = [part for part in self.parts if not isinstance(part, Shard)]
        names = client_names(len(contents))
        paths = [_written(part, folder.data / name) for name, part in zip(names, contents, strict=True)]
        return OwnFiles(paths, self.label, self.identifier)


def name_as_given(error: DataError, folder: RunFolder) -> None:
    """Name data that were written to the run folder as the caller gave them: ``data``, or ``data[1]`` of a list."""
    file = Path(error.source)
    if file.parent == folder.data.absolute():
        number = file.stem.removeprefix("client-")
        error.source = f"data[{int(number)}]" if number.isdecimal() else "data"


def warn_of_clients(values: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Log a warning if the settings name another number of clients than there are data of clients."""
    named, given = values.get("clients"), changes.get("clients")
    if given is not None and isinstance(named, int) and named != given:
        log.warning("the settings have clients: %d, but data of %d are given, so the run has %d", named, given, given)


def check_own(own: OwnFiles | None, settings: RunSettings, clients: int) -> None:
    """Raise a SettingsError unless clients have own files exactly if the settings say so, one for each."""
    if own is not None:
        own.require(settings, clients)
    elif settings.own_data:
        raise SettingsError(
            "own means that each client has its own file; give one for each client with --data, or start fenchel "
            "server here, and fenchel client --data FILE on the clients' machines (docs/separate-machines.md)",
            key="data.name",
        )


def given_data(
    data: Any, label: str | None, identifier: str | None, *, in_process: bool
) -> PooledData | OwnData | None:
    """Return the data of a run from the arguments of :func:`fenchel.up`; ``None`` if no data are given.

    Parameters
    ----------
    data
        List of the data of each client, or one data set to divide among the clients.
    label
        Name of the label column; ``None`` for the default.
    identifier
        Column or array of the sample identifiers, only with a list.
    in_process
        Whether clients run in this process and can therefore share Python objects.

    Raises
    ------
    SettingsError
        If the arguments do not fit together, or the list is empty.
    DataError
        If a file does not exist, or an object cannot be converted.
    """
    if data is None:
        if label is not None or identifier is not None:
            raise SettingsError(
                "the argument describes data, but no data are given; give data, or leave this argument out",
                key="label, identifier",
            )
        return None
    if not isinstance(data, list):
        if identifier is not None:
            raise SettingsError(
                "the argument names the sample identifiers of clients' own data; give data as a list, with one "
                "entry for each client",
                key="identifier",
            )
        return PooledData(_content(data, label), label)
    if not data:
        raise SettingsError("the list is empty; give the data of each client", key="data")
    parts: list[_Content | Shard] = []
    for client, part in enumerate(data):
        try:
            parts.append(part if isinstance(part, Shard) else _own_content(part, label, identifier))
        except DataError as error:
            error.source = f"data[{client}]"
            raise
    shards = sum(isinstance(part, Shard) for part in parts)
    if shards and not in_process:
        raise SettingsError(
            "shards cannot be sent to client processes; give in_process=True, or arrays, tables or files", key="data"
        )
    if 0 < shards < len(parts):
        raise SettingsError("only some clients have a shard; give shards for all clients, or for none", key="data")
    return OwnData(parts, label, identifier)


def _content(data: Any, label: str | None) -> _Content:
    if isinstance(data, str | Path):
        path = Path(data).expanduser().absolute()
        if not path.is_file():
            raise DataError("the file does not exist; check its path", source=path)
        return path
    from fenchel.common.data.objects import in_memory  # late import, because the import of Arrow is slow

    return in_memory(data, label)


def _own_content(data: Any, label: str | None, identifier: str | None) -> _Content:
    content = _content(data, label)
    if not isinstance(content, Path):
        content.check(label, identifier)  # the client would name the file in the run folder
    return content


def _own(clients: int) -> dict[str, Any]:
    named = {"data.name": "own", "data.file": None, "data.label": None, "clients": clients}
    return named | {"data.partition": {"kind": "iid"}}  # who holds what is given with the data


def _written(content: _Content, stem: Path) -> Path:
    """Return the path of a data set, after writing an in-memory data set to a file."""
    if isinstance(content, Path):
        return content
    path = stem.with_suffix(content.suffix).absolute()
    try:
        path.parent.mkdir(exist_ok=True)
        path.touch(mode=0o600)  # set the permissions before any data is written
        content.write(path)
    except OSError as error:
        raise StorageError(
            f"the data cannot be written there ({error.strerror}); make room on the disk, or make the folder writable",
            source=path,
        ) from None
    return path
