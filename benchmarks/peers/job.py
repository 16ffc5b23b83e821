"""The job that every system does, and how its result is checked.

A round: the server sends a vector of float32 to every client, client k adds a constant of its own and sends
the sum back, and the server takes the mean as the next vector. This module needs NumPy and nothing of Fenchel:
the processes of the other systems import it, too, in environments of their own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_RESULT = "result.json"
_MODEL = "model.npy"
_GRID = 1024  # all numbers are multiples of 1/1024 and small, so that sums of float32 are exact in any order


class JobError(Exception):
    """A system did not do the job; the text says what was wrong."""


@dataclass(frozen=True)
class Job:
    """What is to be done."""

    clients: int  # client processes; each takes part in every round
    floats: int  # length of the vector
    rounds: int  # rounds that count
    warm_up: int  # rounds before them that do not; at least 1, since a round begins when the one before ends

    @property
    def total(self) -> int:
        """All rounds."""
        return self.warm_up + self.rounds

    def expected(self) -> NDArray[np.float32]:
        """Return the vector after the last round, shape (floats,)."""
        constants = [constant(client) for client in range(self.clients)]
        return start(self.floats) + np.float32(self.total * sum(constants) / self.clients)

    def to_json(self) -> str:
        """Return the job as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Return the job that :meth:`to_json` wrote."""
        return cls(**json.loads(text))


def start(floats: int) -> NDArray[np.float32]:
    """Return the vector of the first round, shape (floats,): numbers that do not compress well."""
    drawn = np.random.default_rng(0).integers(-_GRID, _GRID, floats)
    return (drawn / _GRID).astype(np.float32)


def constant(client: int) -> float:
    """Return what client 0, 1, ... adds."""
    return float(client + 1)


@dataclass(frozen=True)
class Result:
    """What a system's server wrote down."""

    ends: Sequence[float]  # when each round ended, in seconds, from the first round to the last
    model: NDArray[np.floating] | None
    """The vector after the last round, shape (floats,); ``None``: the system computes none."""

    def write(self, folder: Path) -> None:
        """Write it into a folder; :func:`is_written` is true once everything is there."""
        if self.model is not None:
            np.save(folder / _MODEL, self.model)
        unfinished = folder / f"{_RESULT}.part"
        unfinished.write_text(json.dumps(list(self.ends)))
        unfinished.rename(folder / _RESULT)

    @classmethod
    def read(cls, folder: Path) -> Result:
        """Read what :meth:`write` wrote."""
        model = folder / _MODEL
        return cls(json.loads((folder / _RESULT).read_text()), np.load(model) if model.exists() else None)

    def seconds(self, job: Job) -> list[float]:
        """Return the seconds of each round that counts: from the end of the one before to its own end."""
        if len(self.ends) != job.total:
            raise JobError(f"{len(self.ends)} rounds were done instead of {job.total}")
        return [later - earlier for earlier, later in itertools.pairwise(self.ends)][job.warm_up - 1 :]

    def check(self, job: Job) -> None:
        """Return if the vector is what the clients' constants make it."""
        if self.model is None:
            raise JobError("there is no vector in the result")
        expected = job.expected()
        if self.model.shape != expected.shape:
            raise JobError(f"the result has shape {self.model.shape} instead of {expected.shape}")
        # An average may round its weights. A client that is missing from a single round moves every entry by 0.16
        # or more with four clients.
        furthest = float(np.max(np.abs(self.model.astype(np.float64) - expected)))
        if not furthest <= 1e-2:
            raise JobError(f"the result is off by {furthest:g}: it is not the mean of what all clients sent")


def is_written(folder: Path) -> bool:
    """Whether a server has written its result into the folder."""
    return (folder / _RESULT).exists()


class Stopwatch:
    """Notes when rounds end."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def round_ended(self) -> None:
        """Note that a round has ended now."""
        self.ends.append(time.perf_counter())


def words() -> argparse.Namespace:
    """Return the command line of a process of a system: ``job``, ``folder``, ``port``, ``client``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", type=Job.from_json, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--client", type=int, default=None, help="which client; without it: the server")
    parser.add_argument("--tls", action="store_true")
    return parser.parse_args()
