"""Where the parts of a run are kept."""

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
"""What the log says when one does: at the start, and again after each resumption."""


class Part:
    """A file or folder, by its path in the folder whose ``path`` an object has."""

    def __init__(self, inside: str) -> None:
        self._inside = inside

    def __get__(self, folder: Any, kind: type) -> Path:
        return Path(folder.path, self._inside)


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run.

    Attributes
    ----------
    path
        The folder; its name is the run's id.
    settings
        The validated settings, defaults included.
    metrics
        A row a round (Parquet; ``.arrows`` beside it while the run goes on).
    calls
        A row an instruction (Parquet; ``.arrows`` beside it while the run goes on).
    clients
        A row a client and round, for algorithms with figures of each client; else it is not there.
    model
        The final model (NPZ, array ``model``).
    models
        The models of earlier rounds that are kept, as that of the last one.
    checkpoint
        The server's checkpoint.
    previous_checkpoint
        The checkpoint before it, for when that one is damaged.
    journals
        Journals of clients that run on this machine.
    data
        Data that were given from Python, a file for all clients or for each.
    log
        What happened, a JSON object a line.
    summary
        How the run ended (JSON).
    disclosures
        What each party could see (JSON).
    environments
        What each party computes with (JSON).
    report
        The page for people.
    """

    path: Path

    @classmethod
    def create(cls, parent: Path, name: str) -> RunFolder:
        """Create the folder of a new run below ``parent``."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        folder = cls(parent / f"{stamp}-{name}-{secrets.token_hex(2)}")
        try:
            folder.path.mkdir(parents=True)
            folder.checkpoint.parent.mkdir()
        except OSError as error:
            raise StorageError(
                f"no run folder can be made there ({error.strerror}); make room on the disk, or the folder "
                "writable, or choose another with --runs",
                source=parent,
            ) from None
        return folder

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """Return the folder of a run that is to go on; refuse any other."""
        folder = cls(path)
        if not folder.settings.exists():
            raise CheckpointError(f"not a run folder (it has no {folder.settings.name})", source=path)
        return folder

    @property
    def id(self) -> str:
        """The run's id."""
        return self.path.name

    def model_of(self, t: int) -> Path:
        """Return the file of the model after round ``t``, if it was kept."""
        return self.models / f"round-{t:06d}.npz"

    @contextmanager
    def kept_if_begun(self) -> Iterator[None]:
        """Remove the folder where what is done in the block fails before the run has begun."""
        try:
            yield
        except FenchelError:
            # On a full disk the summary is missing, too, and a checkpoint is what the run goes on from.
            if not any(part.exists() for part in (self.summary, self.checkpoint, self.previous_checkpoint)):
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
