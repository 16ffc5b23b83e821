"""HyFDCA in plaintext and encrypted: the seconds and bytes of the same run."""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experiment import done
from benchmarks.hyfdca_breast_cancer.presets import in_words
from benchmarks.hyfdca_breast_cancer.runs import planned, rounds_to
from benchmarks.program import progress
from fenchel.common.arrays import Vector

ENCRYPTED = (
    ("plaintext", ("algorithm.privacy=none",)),
    ("3072-bit key", ()),
    ("2048-bit key", ("algorithm.encryption.security=112",)),
    ("3072-bit key, `protect_primal`", ("algorithm.protect_primal=true",)),
)


def encrypted(rows: Sequence[tuple[str, tuple[str, ...]]], rounds: int = 40) -> list[dict[str, object]]:
    """Do the same run in plaintext and encrypted, one at a time and always anew; the first is the measure."""
    table: list[dict[str, object]] = []
    model: Vector | None = None
    with tempfile.TemporaryDirectory() as temporary:
        for name, overrides in rows:
            progress(name)
            begun, busy = time.perf_counter(), _processor_seconds()
            run = done(planned("encrypted", (f"rounds={rounds}", *overrides), Path(temporary), processes=2))
            seconds, busy = time.perf_counter() - begun, _processor_seconds() - busy
            metrics = run.metrics_table
            model = run.model if model is None else model
            in_rounds = float(np.sum(metrics["seconds"].to_numpy()))
            table.append(
                {
                    "run": name,
                    "rounds to 1e-5": in_words(rounds_to(run, 1e-5)),
                    "seconds in all": f"{seconds:.1f}",
                    "of processors": f"{busy:.1f}",
                    "s a round": f"{in_rounds / rounds:.3f}",
                    **_split(run.calls_table),
                    "MB down, up": f"{_megabytes(metrics, 'wire_down')}, {_megabytes(metrics, 'wire_up')}",
                    "model difference": f"{np.abs(run.model - model).max():.1g}",
                }
            )
    return table


def _processor_seconds() -> float:
    """Return what this process and those that it started and saw end have used: no matter what else goes on."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _split(calls: Any) -> dict[str, str]:
    """Return what the clients' processors did, as far as the table of calls tells it."""
    parts = {"encrypt_s": "encrypting", "decrypt_s": "decrypting", "compute_s": "computing"}
    return {
        f"s {words}": f"{np.nansum(calls[column].to_numpy()):.1f}"
        for column, words in parts.items()
        if column in calls.column_names
    }


def _megabytes(metrics: Any, column: str) -> str:
    return f"{np.sum(metrics[column].to_numpy()) / 1e6:.1f}"
