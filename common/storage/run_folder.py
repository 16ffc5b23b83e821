"""Where the parts of a run are kept."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from fenchel.common.errors import StorageError

BEGINS = "a server begins to conduct this run"
"""What the log says when one does: at the start, and again after each resumption."""


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

    @property
    def id(self) -> str:
        """The run's id."""
        return self.path.name

    @property
    def settings(self) -> Path:
        """The validated settings, defaults included."""
        return self.path / "settings.yaml"

    @property
    def metrics(self) -> Path:
        """A row a round (Parquet; ``.arrows`` beside it while the run goes on)."""
        return self.path / "metrics.parquet"

    @property
    def calls(self) -> Path:
        """A row an instruction (Parquet; ``.arrows`` beside it while the run goes on)."""
        return self.path / "calls.parquet"

    @property
    def clients(self) -> Path:
        """A row a client and round, for algorithms with figures of each client; else it is not there."""
        return self.path / "clients.parquet"

    @property
    def model(self) -> Path:
        """The final model (NPZ, array ``model``)."""
        return self.path / "model.npz"

    @property
    def checkpoint(self) -> Path:
        """The server's checkpoint."""
        return self.path / "checkpoint" / "latest"

    @property
    def previous_checkpoint(self) -> Path:
        """The checkpoint before it, for when that one is damaged."""
        return self.path / "checkpoint" / "previous"

    @property
    def journals(self) -> Path:
        """Journals of clients that run on this machine."""
        return self.path / "journals"

    @property
    def log(self) -> Path:
        """What happened, a JSON object a line."""
        return self.path / "log.jsonl"

    @property
    def summary(self) -> Path:
        """How the run ended (JSON)."""
        return self.path / "summary.json"

    @property
    def disclosures(self) -> Path:
        """What each party could see (JSON)."""
        return self.path / "disclosures.json"

    @property
    def environments(self) -> Path:
        """What each party computes with (JSON)."""
        return self.path / "environments.json"

    @property
    def report(self) -> Path:
        """The page for people."""
        return self.path / "report.html"
