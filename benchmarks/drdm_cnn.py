"""DRDM, DRFA, SCAFFOLD and FedAvg with a convolutional network: average and worst client beside the paper's Table 1.

The paper's network on Kuzushiji-MNIST and on Fashion-MNIST, 30 clients, Dirichlet 0.1, 20 clients in a round, tau =
10, one seed, over real server and client processes with TLS. Where only the 10,000 test images of Kuzushiji-MNIST are
at hand, they are split into 8,000 and 2,000. Writes ``docs/results/drdm-cnn.md`` and its figures. Name the data sets
that are wanted, or none for both; ``--trials`` tries out step sizes with another seed, prints what came out and writes
nothing; ``--runs FOLDER`` keeps the runs and reads those that are there already, with ``--finished`` only those;
``--quick`` does two methods for two rounds with the digits of scikit-learn, and writes nothing. Needs torch and the
data sets (``fenchel data fetch``, or ``FENCHEL_DATA``).
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.drdm_runs import Method, draw, finished, line, put, run_of, trials
from benchmarks.machine import description
from benchmarks.program import allow_many_sockets, markdown, progress
from common.data.catalogue import data_folders, locate

_PAGE = Path("docs/results/drdm-cnn.md")
_TRIAL = ("seed=0", "rounds=12", "evaluation.every=4")
_TARGETS = (0.60, 0.70)


@dataclass(frozen=True)
class Images:
    """A data set.

    Attributes
    ----------
    name
        As on the command line, and in the page's markers.
    experiment
        Settings file.
    overrides
        What differs from it in all rows.
    lowest
        Lower ends of the figure's axes.
    """

    name: str
    experiment: Path
    overrides: tuple[str, ...]
    lowest: tuple[float, float]


_IMAGES = (
    Images("kmnist", Path("experiments/drdm/kmnist-cnn.yaml"), (), (0.3, 0.0)),
    Images("fashion-mnist", Path("experiments/drdm/fashion-mnist-cnn.yaml"), (), (0.5, 0.0)),
)
_QUICK = Images(
    "quick",
    _IMAGES[1].experiment,
    ("data.name=digits", "clients=10", "participation.sampler.size=5", "rounds=2"),
    (0.0, 0.0),
)

_LOCAL = {"local_steps": 10, "batch_size": 32, "batches": "independent"}
_GAMMA = 0.3 / (
    10 * 30 * math.log(10)
)  # so that one step moves no client's weight by more than a third of 1/N
_DRDM = {"name": "drdm", **_LOCAL, "dual_step_size": _GAMMA, "dual_batch_size": 32}
_AS_PAPER = {"correction": "uniform", "exploration": 0.0, "dual_estimator": "plain"}
_ETA = (0.05, 0.1, 0.2)
_DRDM_GRID = {"step_size": _ETA, "regularization": (0.1,)}

METHODS: tuple[Method, ...] = (
    Method(
        "DRDM, uniform, as in the paper",
        _DRDM | _AS_PAPER,
        {"step_size": 0.1, "regularization": 0.1},
        _DRDM_GRID,
        (95.44, 91.58, 1.68),
    ),
    Method("DRDM, lambda-table", _DRDM, {"step_size": 0.1, "regularization": 0.1}, _DRDM_GRID),
    Method(
        "DRFA",
        {"name": "drfa", **_LOCAL, "dual_step_size": _GAMMA / 10, "dual_batch_size": 32},
        {"step_size": 0.1},
        {"step_size": _ETA},
        (85.27, 74.79, 4.51),
    ),
    Method(
        "DRFA, eta = 0.2",
        {"name": "drfa", **_LOCAL, "dual_step_size": _GAMMA / 10, "dual_batch_size": 32},
        {"step_size": 0.2},
    ),
    Method(
        "SCAFFOLD",
        {"name": "scaffold", **_LOCAL},
        {"step_size": 0.02},
        {"step_size": (0.02, 0.05, 0.1)},
        (87.54, 75.21, 4.41),
    ),
    Method(
        "FedAvg", {"name": "fedavg", **_LOCAL}, {"step_size": 0.1}, {"step_size": _ETA}, (84.12, 68.42, 5.83)
    ),
    Method("FedAvg, eta = 0.2", {"name": "fedavg", **_LOCAL}, {"step_size": 0.2}),
)
"""The methods; the page says how their step sizes were chosen."""


def overrides_of(images: Images, folder: Path) -> tuple[str, ...]:
    """Return what differs from the settings file, on this machine too.

    Parameters
    ----------
    folder
        Where an archive of the test images of Kuzushiji-MNIST is put, if there is nothing more of it here.
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


def main() -> None:
    """Read the command line, run the methods, write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "images", nargs="*", choices=[[], *(images.name for images in _IMAGES)], metavar="NAME"
    )
    parser.add_argument("--runs", type=Path, help="keep the runs here, and read those that are here already")
    parser.add_argument("--finished", action="store_true", help="write the page from the runs that are kept")
    parser.add_argument("--only", help="do only methods with this in their names, and write nothing")
    parser.add_argument("--trials", action="store_true", help="try out step sizes; writes nothing")
    parser.add_argument("--quick", action="store_true", help="two methods, two rounds; writes nothing")
    words = parser.parse_args()
    allow_many_sockets()
    methods = [method for method in METHODS if (words.only or "") in method.title]
    chosen = [images for images in _IMAGES if images.name in (words.images or [images.name])]
    if words.quick:
        chosen, methods = [_QUICK], methods[:2]
    with tempfile.TemporaryDirectory() as temporary:
        folder = words.runs or Path(temporary)
        for images in chosen:
            overrides, own = overrides_of(images, folder), folder / images.name
            if words.trials:
                print(markdown(trials(images.experiment, methods, own, (*overrides, *_TRIAL))))
                continue
            runs = {}
            for method in methods:
                progress(f"{images.name}: {method.title}")
                do = finished if words.finished else run_of
                run = do(images.experiment, method, own, overrides)
                if run is not None:
                    runs[method.title] = [run]
            table = [line(method, runs[method.title], _TARGETS) for method in methods if method.title in runs]
            print(markdown(table))
            if words.quick or words.only:
                continue
            picture = _PAGE.with_name(f"drdm-cnn-{images.name}.png")
            draw(runs, picture, images.lowest)
            put(
                _PAGE,
                images.name,
                f"{markdown(table)}\n\n![Average and worst client, against rounds and megabytes]({picture.name})\n\n"
                f"Made by `python -m benchmarks.drdm_cnn {images.name}`, server and clients in separate processes over "
                f"TLS, on\n{description()}.",
            )


if __name__ == "__main__":
    main()
