"""DRDM, DRFA, SCAFFOLD and FedAvg with a convolutional network: average and worst client beside the paper's Table 1.

The paper's network on Kuzushiji-MNIST and on Fashion-MNIST, 30 clients, Dirichlet 0.1, 20 clients in a round, tau =
10, one seed, over real server and client processes with TLS. Where only the 10,000 test images of Kuzushiji-MNIST
are at hand, they are split into 8,000 and 2,000. Writes the tables of ``docs/results/drdm.md`` and its figures.
Name the data sets that are wanted, or none for both.

``--runs FOLDER`` keeps the runs and reads those that are there already; ``--quick`` does two methods for two rounds
with the digits of scikit-learn, and writes nothing. Needs torch and the data sets (``fenchel data fetch``, or
``FENCHEL_DATA``).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.drdm_runs import Method, draw, line
from benchmarks.experiment import command_line, flags
from benchmarks.page import made_by, put
from benchmarks.program import markdown, progress
from fenchel.common.data.catalogue import data_folders, locate
from fenchel.common.errors import RunStoppedError

_PAGE = Path("docs/results/drdm.md")
_TARGETS = (0.60, 0.70)


@dataclass(frozen=True)
class Images:
    """A data set."""

    name: str  # as on the command line, and in the page's markers
    experiment: Path  # settings file
    overrides: tuple[str, ...]  # what differs from it in all rows
    lowest: tuple[float, float]  # lower ends of the figure's axes


_KUZUSHIJI = Images("kmnist", Path("fenchel/experiments/drdm/kmnist-cnn.yaml"), (), (0.3, 0.0))
_FASHION = Images("fashion-mnist", Path("fenchel/experiments/drdm/fashion-mnist-cnn.yaml"), (), (0.3, 0.0))
_IMAGES = (_KUZUSHIJI, _FASHION)
_QUICK = replace(
    _FASHION, name="quick", overrides=("data.name=digits", "clients=10", "participation.sampler.size=5", "rounds=2")
)

_LOCAL = {"local_steps": 10, "batch_size": 32, "batches": "independent"}
_GAMMA = 0.3 / (10 * 30 * math.log(10))  # so that one step moves no client's weight by more than a third of 1/N
_DRDM = {"name": "drdm", **_LOCAL, "dual_step_size": _GAMMA, "dual_batch_size": 32}
_AS_PAPER = {"correction": "uniform", "exploration": 0.0, "dual_estimator": "plain"}

METHODS: tuple[Method, ...] = (
    Method("DRDM, uniform", _DRDM | _AS_PAPER, {"step_size": 0.1, "regularization": 0.1}, (95.44, 91.58, 1.68)),
    Method("DRDM, lambda-table", _DRDM, {"step_size": 0.2, "regularization": 0.1}),
    Method(
        "DRFA",
        {"name": "drfa", **_LOCAL, "dual_batch_size": 32},
        {"step_size": 0.2, "dual_step_size": _GAMMA * 0.1},
        (85.27, 74.79, 4.51),
    ),
    Method(
        "SCAFFOLD", {"name": "scaffold", **_LOCAL}, {"step_size": 0.05, "server_step_size": 1.0}, (87.54, 75.21, 4.41)
    ),
    Method("FedAvg", {"name": "fedavg", **_LOCAL}, {"step_size": 0.3}, (84.12, 68.42, 5.83)),
)
"""The methods; what is tuned is the best of the trials on Fashion-MNIST, which the page has."""

OTHERS: dict[str, dict[str, float]] = {
    "DRDM, lambda-table": {"step_size": 0.1, "regularization": 0.1},
    "DRFA": {"step_size": 0.2, "dual_step_size": _GAMMA / 10},
    "SCAFFOLD": {"step_size": 0.02, "server_step_size": 1.0},
    "FedAvg": {"step_size": 0.2},
}
"""More rows for Kuzushiji-MNIST: steps from before there were trials."""

_SYMBOLS = {"step_size": "η", "regularization": "μ", "dual_step_size": "γ", "server_step_size": "η_g"}


def overrides_of(images: Images, folder: Path) -> tuple[str, ...]:
    """Return what differs from the settings file, on this machine too.

    folder: where an archive of the test images of Kuzushiji-MNIST is put, if there is nothing more of it here.
    """
    if images.name != "kmnist" or locate("kmnist") is not None:
        return images.overrides
    archive = folder / "kmnist-test.npz"
    if not archive.exists():
        parts = {"X": "kmnist-test-imgs.npz", "y": "kmnist-test-labels.npz"}
        here = [root / "kmnist" for root in data_folders() if (root / "kmnist" / parts["X"]).is_file()]
        if not here:
            raise SystemExit("kmnist is not on this machine: fenchel data fetch kmnist")
        folder.mkdir(parents=True, exist_ok=True)
        partial = archive.with_name(f"{os.getpid()}-{archive.name}")  # another process may be at it too
        np.savez_compressed(partial, **{key: np.load(here[0] / file)["arr_0"] for key, file in parts.items()})
        partial.rename(archive)
    return (*images.overrides, "data.name=null", f"data.file={archive}", "data.test_fraction=0.2")


def methods_of(images: Images) -> list[Method]:
    """Return the methods, then with what else they are run; the paper has one of the data sets."""
    if images is not _KUZUSHIJI:
        return [replace(method, paper=()) for method in METHODS]
    return [*METHODS] + [
        replace(method, title=f"{method.title}, by hand", tuned=tuned)
        for method in METHODS
        if (tuned := OTHERS.get(method.title)) is not None
    ]


def compared(images: Images, methods: Sequence[Method], folder: Path, *, write: bool) -> list[dict[str, object]]:
    """Run the methods; return the table, and write it and the figure if that is wanted."""
    overrides, runs = overrides_of(images, folder), {}
    for method in methods:
        progress(f"{images.name}: {method.title}")
        try:
            runs[method.title] = [method.run(images.experiment, folder / images.name, overrides)]
        except RunStoppedError as error:
            progress(f"{method.title} broke off: {error}")  # the others are worth having
    rows = [
        {"method": method.title, "settings": _words(method.tuned)} | line(method, runs[method.title], _TARGETS)
        for method in methods
        if method.title in runs
    ]
    if not rows:
        raise SystemExit(f"{images.name}: no run came to its end, so there is nothing to show")
    # No worst client may have reached a target.
    left_out = {name for name in rows[0] if all(row[name] == "–" for row in rows)}
    rows = [{name: figure for name, figure in row.items() if name not in left_out} for row in rows]
    if write:
        picture = _PAGE.with_name(f"drdm-cnn-{images.name}.png")
        draw(runs, picture, images.lowest)
        image = f"![Average and worst client]({picture.name})"
        put(_PAGE, images.name, f"{markdown(rows)}\n\n{image}\n\n{made_by(f'drdm_cnn {images.name}')}")
    return rows


def _words(settings: Mapping[str, float]) -> str:
    return ", ".join(f"{_SYMBOLS[name]}={value:.2g}" for name, value in settings.items())


def main() -> None:
    """Read the command line, run the methods, write the page."""
    parser = flags(__doc__, quick="two methods, two rounds; writes nothing")
    parser.add_argument("images", nargs="*", choices=[[], *(images.name for images in _IMAGES)], metavar="NAME")
    with command_line(parser) as (words, folder):
        chosen = [images for images in _IMAGES if images.name in (words.images or [images.name])]
        figures = {}
        for images in [_QUICK] if words.quick else chosen:
            methods = methods_of(images)
            rows = compared(images, methods[:2] if words.quick else methods, folder, write=not words.quick)
            figures[images.name] = rows
            print(markdown(rows))
    if words.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
