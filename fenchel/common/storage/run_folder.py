"""Folder of a run, with the paths of its files."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fenchel.common.errors import CheckpointError, FenchelError, StorageError

BEGINS = "a server begins to conduct this run"
"""Log message of a server that starts to conduct a run, new or resumed."""

IN_ONE_PROCESS = "the clients of this run are in the process of the server"
"""Log message of a run without client processes and network."""


class Part:
    """Python descriptor that returns the path of a file or folder below the owner's ``path``."""

    def __init__(self, inside: str) -> None:
        self._inside = inside

    def __get__(self, folder: Any, kind: type) -> Path:
        return Path(folder.path, self._inside)


@dataclass(frozen=True)
class RunFolder:
    """Folder of one run.

    Attributes
    ----------
    path
        Path of the folder, whose name is the run's id.
    settings
        Validated settings with all defaults.
    metrics
        Table with a row for each round (Parquet, with ``.arrows`` beside it during the run).
    calls
        Table with a row for each instruction (Parquet, with ``.arrows`` beside it during the run).
    clients
        Table with a row for each client and round, if the algorithm has figures of single clients.
    model
        Final model (NPZ, array ``model``).
    models
        Folder of kept models of earlier rounds, in the same format.
    checkpoint
        Checkpoint of the server.
    previous_checkpoint
        Checkpoint before it, which replaces a damaged one.
    journals
        Folder of the journals of clients on this machine.
    data
        Folder of data from Python, in one file for all clients or one for each.
    log
        Log of events, one JSON object a line.
    summary
        Result of the run (JSON).
    disclosures
        Disclosure record (JSON).
    environments
        Computing environments of server and clients (JSON).
    report
        HTML report.
    """

    path: Path

    @classmethod
    def create(cls, parent: Path, name: str) -> RunFolder:
        """Create the folder of a new run below ``parent``; raise ``StorageError`` if that is impossible."""
        while True:
            folder = cls(parent / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}-{secrets.token_hex(2)}")
            try:
                folder.path.mkdir(parents=True)
                folder.checkpoint.parent.mkdir()
            except OSError as error:
                if isinstance(error, FileExistsError) and folder.path.is_dir():
                    continue  # another run of the same second has drawn the same number
                raise StorageError(
                    f"no run folder can be created in this folder ({error.strerror}); make room on the disk, make "
                    "the folder writable, or choose another one with --runs",
                    source=parent,
                ) from None
            return folder

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """Return the folder of a run that is to be resumed, or raise a ``CheckpointError`` for any other folder."""
        folder = cls(path)
        if not folder.settings.exists():
            raise CheckpointError(
                f"not a run folder, because it has no {folder.settings.name}; check the path", source=path
            )
        return folder

    @property
    def id(self) -> str:
        """The run's id."""
        return self.path.name

    def model_of(self, t: int) -> Path:
        """Return the file of the model after round ``t``, if it was kept."""
        return self.models / f"round-{t:06d}.npz"

    @property
    def can_be_resumed(self) -> bool:
        """True if the run has a checkpoint."""
        return self.checkpoint.exists() or self.previous_checkpoint.exists()

    @contextmanager
    def kept_if_begun(self) -> Iterator[None]:
        """Remove what is of no use if the block raises an error and the run cannot be resumed.

        These are copies of the caller's data, and the whole folder if the run has not even a summary after a
        ``FenchelError``.
        """
        try:
            yield
        except BaseException as error:
            # On a full disk the summary may be missing, but a run with a checkpoint can be resumed.
            if not self.can_be_resumed:
                shutil.rmtree(self.data, ignore_errors=True)
                if isinstance(error, FenchelError) and not self.summary.exists():
                    shutil.rmtree(self.path)
            raise

    settings = Part("settings.yaml")
    metrics = Part("metrics.parquet")
    calls = Part("calls.parquet")
    clients = Part("clients.parquet")
    model = Part("model.npz")
    models = Part("models")
    checkpoint = Part("checkpoint/latest")
    previous_checkpoint = Part("checkpoint/previous")
    journals = Part("journals")
    data = Part("data")
    log = Part("log.jsonl")
    summary = Part("summary.json")
    disclosures = Part("disclosures.json")
    environments = Part("environments.json")
    report = Part("report.html")
