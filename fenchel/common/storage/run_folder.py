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
    """The folder of one run."""

    path: Path  # the folder; its name is the run's id

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

    settings = Part("settings.yaml")  # the validated settings, defaults included
    metrics = Part("metrics.parquet")  # a row a round (Parquet; ``.arrows`` beside it while the run goes on)
    calls = Part("calls.parquet")  # a row an instruction (Parquet; ``.arrows`` beside it while the run goes on)
    clients = Part("clients.parquet")
    """A row a client and round, for algorithms with figures of each client; else it is not there."""
    model = Part("model.npz")  # the final model (NPZ, array ``model``)
    models = Part("models")  # the models of earlier rounds that are kept, as that of the last one
    checkpoint = Part("checkpoint/latest")  # the server's checkpoint
    previous_checkpoint = Part("checkpoint/previous")  # the checkpoint before it, for when that one is damaged
    journals = Part("journals")  # journals of clients that run on this machine
    data = Part("data")  # data that were given from Python, a file for all clients or for each
    log = Part("log.jsonl")  # what happened, a JSON object a line
    summary = Part("summary.json")  # how the run ended (JSON)
    disclosures = Part("disclosures.json")  # what each party could see (JSON)
    environments = Part("environments.json")  # what each party computes with (JSON)
    report = Part("report.html")  # the page for people
