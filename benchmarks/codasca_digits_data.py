"""The digits of CODASCA's sanity observations, exactly as our specification deals them (section 8).

Writes one NumPy archive: all shards in the order of the machines, who holds which row, and the test set. A
run divides it with ``data.partition: {kind: column}``, so that real processes train on just these samples.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Arrangement: TypeAlias = Literal["disjoint", "skew"]
"""One positive and one negative class for each machine; or positives of any class, in unequal shares."""

MACHINES = 5
_TEST = 539
_IMRATIO = 0.1
_SHARES = (0.02, 0.05, 0.13, 0.30, 0.50)


@dataclass(frozen=True)
class Part:
    """Images with their digits."""

    features: NDArray[np.float64]  # scaled pixels, shape (n, 64), float64
    labels: NDArray[np.int64]  # digits 0 to 9, shape (n,); 5 to 9 are positive


def shards(seed: int, arrangement: Arrangement = "disjoint") -> tuple[list[Part], Part]:
    """Return the shards of the five machines, and the test set.

    seed: the seed s of the specification; the generator's is 1000 + s.
    """
    digits = load_digits()
    pixels, target = digits.data / 16, digits.target
    rng = np.random.default_rng(1000 + seed)
    order = rng.permutation(len(target))
    test, train = order[:_TEST], order[_TEST:]
    mean, deviation = pixels[train].mean(axis=0), pixels[train].std(axis=0)
    scaled = (pixels - mean) / (deviation + 0.1)
    negatives, positives = [], []
    for c in range(MACHINES):
        negatives.append(train[target[train] == c])
        kept = int(_IMRATIO / (1 - _IMRATIO) * len(negatives[c]))
        positives.append(train[target[train] == c + MACHINES][:kept])
    of_negative = rng.permutation(MACHINES)
    if arrangement == "disjoint":
        dealt = [positives[c] for c in rng.permutation(MACHINES)]
    else:
        shuffled = rng.permutation(np.concatenate(positives))
        dealt = np.split(shuffled, np.rint(np.cumsum(_SHARES) * len(shuffled)).astype(np.int64)[:-1])
    rows = [np.concatenate([negatives[of_negative[k]], dealt[k]]) for k in range(MACHINES)]
    return [Part(scaled[mine], target[mine]) for mine in rows], Part(scaled[test], target[test])


def write(path: Path, seed: int, arrangement: Arrangement = "disjoint") -> None:
    """Write shards and test set as an archive for ``data.file``, with the array ``client`` for the partition."""
    parts, test = shards(seed, arrangement)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        X=np.concatenate([part.features for part in parts]),
        y=np.concatenate([part.labels for part in parts]),
        client=np.repeat(np.arange(MACHINES), [len(part.labels) for part in parts]),
        X_test=test.features,
        y_test=test.labels,
    )


def data_section(path: Path) -> dict[str, Any]:
    """Return the section ``data`` of a run on the archive; ``clients`` must be 5."""
    return {"file": str(path), "partition": {"kind": "column", "column": "client"}}


def main() -> None:
    """Write the archive that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="the archive to write, .npz")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arrangement", choices=get_args(Arrangement), default="disjoint")
    chosen = parser.parse_args()
    write(chosen.file, chosen.seed, chosen.arrangement)


if __name__ == "__main__":
    main()
