"""DRDM, DRFA, SCAFFOLD and FedAvg with a convolutional network: average and worst client beside the paper's Table 1.

The paper's network on Kuzushiji-MNIST and on Fashion-MNIST, 30 clients, Dirichlet 0.1, 20 clients in a round,
tau = 10, one seed, over real server and client processes with TLS. Where only the 10,000 test images of
Kuzushiji-MNIST are at hand, they are split into 8,000 and 2,000. Writes the tables of
``docs/results/drdm-cnn.md`` and its figures. Name the data sets that are wanted, or none for both.

``--trials`` tries out settings instead, on Fashion-MNIST with another seed; ``--controls`` runs SCAFFOLD with
steps of several lengths, and looks at its control variates. ``--runs FOLDER`` keeps the runs and reads those
that are there already, with ``--finished`` only those; ``--quick`` does two methods for two rounds with the
digits of scikit-learn, and writes nothing. Needs torch and the data sets (``fenchel data fetch``, or
``FENCHEL_DATA``).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

import fenchel
from benchmarks.drdm_runs import MEAN, Method, Trial, attempt, draw, line, trials
from benchmarks.experiment import command_line, done, flags, kept
from benchmarks.figure import canvas
from benchmarks.machine import description
from benchmarks.outcome import evaluated
from benchmarks.page import put
from benchmarks.program import markdown, progress
from fenchel.common.data.catalogue import data_folders, locate
from fenchel.common.errors import RunStoppedError
from fenchel.report.render.canvas import COLORS

_PAGE = Path("docs/results/drdm-cnn.md")
_TRIAL = ("seed=0", "rounds=15", "evaluation.every=10")
_TARGETS = (0.60, 0.70)


@dataclass(frozen=True)
class Images:
    """A data set."""

    name: str  # as on the command line, and in the page's markers
    experiment: Path  # settings file
    overrides: tuple[str, ...]  # what differs from it in all rows
    lowest: tuple[float, float]  # lower ends of the figure's axes


_KUZUSHIJI = Images("kmnist", Path("experiments/drdm/kmnist-cnn.yaml"), (), (0.3, 0.0))
_FASHION = Images("fashion-mnist", Path("experiments/drdm/fashion-mnist-cnn.yaml"), (), (0.3, 0.0))
_IMAGES = (_KUZUSHIJI, _FASHION)
_QUICK = replace(
    _FASHION, name="quick", overrides=("data.name=digits", "clients=10", "participation.sampler.size=5", "rounds=2")
)

_LOCAL = {"local_steps": 10, "batch_size": 32, "batches": "independent"}
_GAMMA = 0.3 / (10 * 30 * math.log(10))  # so that one step moves no client's weight by more than a third of 1/N
_DRDM = {"name": "drdm", **_LOCAL, "dual_step_size": _GAMMA, "dual_batch_size": 32}
_AS_PAPER = {"correction": "uniform", "exploration": 0.0, "dual_estimator": "plain"}
_DRDM_GRID = {"step_size": (0.05, 0.1, 0.2), "regularization": (0.1, 1.0)}

METHODS: tuple[Method, ...] = (
    Method("DRDM, uniform, as in the paper", _DRDM | _AS_PAPER, {}, _DRDM_GRID, (95.44, 91.58, 1.68)),
    Method("DRDM, lambda-table", _DRDM, {}, _DRDM_GRID),
    Method(
        "DRFA",
        {"name": "drfa", **_LOCAL, "dual_batch_size": 32},
        {},
        {"step_size": (0.1, 0.2, 0.3), "dual_step_size": (_GAMMA, _GAMMA * 0.1)},
        (85.27, 74.79, 4.51),
    ),
    Method(
        "SCAFFOLD",
        {"name": "scaffold", **_LOCAL},
        {},
        {"step_size": (0.02, 0.05, 0.1), "server_step_size": (1.0, 0.5)},
        (87.54, 75.21, 4.41),
    ),
    Method(
        "FedAvg",
        {"name": "fedavg", **_LOCAL},
        {},
        {"step_size": (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)},
        (84.12, 68.42, 5.83),
    ),
)
"""The methods, with what was tried out; what they are run with is in :data:`CHOSEN`."""

CHOSEN: dict[str, dict[str, float]] = {
    "DRDM, uniform, as in the paper": {"step_size": 0.1, "regularization": 0.1},
    "DRDM, lambda-table": {"step_size": 0.2, "regularization": 0.1},
    "DRFA": {"step_size": 0.2, "dual_step_size": _GAMMA * 0.1},
    "SCAFFOLD": {"step_size": 0.05, "server_step_size": 1.0},
    "FedAvg": {"step_size": 0.3},
}
"""The best of each method's trials on Fashion-MNIST."""

OTHERS: dict[str, dict[str, dict[str, float]]] = {
    "kmnist": {
        "DRDM, uniform, as in the paper": {"step_size": 0.1, "regularization": 0.1},
        "DRDM, lambda-table": {"step_size": 0.1, "regularization": 0.1},
        "DRFA": {"step_size": 0.2, "dual_step_size": _GAMMA / 10},
        "SCAFFOLD": {"step_size": 0.02, "server_step_size": 1.0},
        "FedAvg": {"step_size": 0.2},
    }
}
"""More rows: steps from before there were trials."""

_CONTROLS = (0.02, 0.05, 0.1)
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
    """Return the methods with what was chosen, then with what else they are run; the paper has one of the data sets."""
    methods = METHODS if images is _KUZUSHIJI else [replace(method, paper=()) for method in METHODS]
    others = OTHERS.get(images.name, {})
    return [replace(method, tuned=CHOSEN[method.title]) for method in methods] + [
        replace(method, title=f"{method.title}, η = {tuned['step_size']:g}", tuned=tuned)
        for method in methods
        for tuned in [others.get(method.title, CHOSEN[method.title])]
        if tuned != CHOSEN[method.title]
    ]


def score(trial: Trial) -> float:
    """Return what the best trial is the best by: average plus worst client."""
    return trial.mean + trial.worst if trial.is_over else -1.0


def trial_rows(tested: Sequence[Trial]) -> list[dict[str, object]]:
    """Return a row for each trial, the best of each method marked."""
    titles = dict.fromkeys(trial.method for trial in tested)
    best = [max((trial for trial in tested if trial.method == title), key=score) for title in titles]
    return [
        {
            "method": trial.method,
            "tried": _words(trial.tried),
            "average": f"{100 * trial.mean:.1f}" if trial.is_over else "broke off",
            "worst": f"{100 * trial.worst:.1f}" if trial.is_over else "",
            "sum": (f"**{100 * score(trial):.1f}**" if trial in best else f"{100 * score(trial):.1f}")
            if trial.is_over
            else "",
        }
        for trial in tested
    ]


def controls(folder: Path, *, only_kept: bool) -> dict[str, fenchel.Run]:
    """Run SCAFFOLD on Fashion-MNIST to whatever end it comes: steps of several lengths as in trials, and the chosen."""
    scaffold = next(method for method in METHODS if method.title == "SCAFFOLD")
    chosen = CHOSEN["SCAFFOLD"]["step_size"]
    wanted: dict[str, tuple[Path, float, tuple[str, ...]]] = {
        f"η {step:g}, seed 0": (folder / _FASHION.name / "trials", step, _TRIAL) for step in _CONTROLS
    }
    wanted[f"η {chosen:g}, seed 1"] = (folder / _FASHION.name, chosen, ())
    runs = {}
    for title, (own, step, changes) in wanted.items():
        method = replace(scaffold, tuned={"step_size": step, "server_step_size": 1.0})
        run = attempt(_FASHION.experiment, method, own, changes, only_kept=only_kept)
        if run is not None:
            runs[title] = run
    return runs


def control_rows(runs: Mapping[str, fenchel.Run], last: int = 25) -> list[dict[str, object]]:
    """Return a row for every third round: the norm of c in each run."""
    norms = {title: run.metrics_table["control_variate_norm"].to_numpy() for title, run in runs.items()}
    return [
        {"round": t} | {title: f"{norm[t - 1]:.3g}" if t <= norm.size else "–" for title, norm in norms.items()}
        for t in (1, *range(3, last + 1, 3))
    ]


def draw_controls(runs: Mapping[str, fenchel.Run], path: Path) -> None:
    """Draw the norm of c and the average accuracy against rounds."""
    with canvas(path, (10, 3.6)) as figure:
        left, right = figure.subplots(1, 2)
        for (title, run), color in zip(runs.items(), COLORS, strict=False):
            norm = run.metrics_table["control_variate_norm"].to_numpy()
            left.plot(np.arange(1, norm.size + 1), norm, color=color, linewidth=1.5, label=title)
            right.plot(*evaluated(run, MEAN), color=color, linewidth=1.5)
        left.set(xlabel="round", title="Norm of the server's control variate c", yscale="log", ylim=(0.1, 1e6))
        right.set(xlabel="round", ylabel="accuracy", title="Average over clients")
        left.legend(frameon=False, fontsize=8)


Rows: TypeAlias = list[dict[str, object]]


def _compared(
    images: Images, methods: Sequence[Method], folder: Path, *, only_kept: bool
) -> tuple[str, Rows, Callable[[], str]]:
    """Run the methods; return the name of their place in the page, the table, and what makes the text there."""
    overrides, runs = overrides_of(images, folder), {}
    for method in methods:
        progress(f"{images.name}: {method.title}")
        own = folder / images.name
        try:
            planned = method.planned(images.experiment, own, overrides)
            run = kept(planned) if only_kept else done(planned)
        except RunStoppedError as error:
            progress(f"{method.title} broke off: {error}")  # the others are worth having
            run = None
        if run is not None:
            runs[method.title] = [run]
    rows = [
        {"method": method.title, "settings": _words(method.tuned)} | line(method, runs[method.title], _TARGETS)
        for method in methods
        if method.title in runs
    ]
    if not rows:
        raise SystemExit(f"{images.name}: no run came to its end, so there is nothing to show")
    # Seconds are of runs beside other work, some of them in one process; columns about the paper may be empty.
    left_out = {"s a round", *(name for name in rows[0] if all(row[name] == "–" for row in rows))}
    rows = [{name: figure for name, figure in row.items() if name not in left_out} for row in rows]

    def page() -> str:
        picture = _PAGE.with_name(f"drdm-cnn-{images.name}.png")
        draw(runs, picture, images.lowest)
        return (
            f"{markdown(rows)}\n\n![Average and worst client, against rounds and megabytes]({picture.name})\n\n"
            f"Made by `python -m benchmarks.drdm_cnn {images.name}` on\n{description()}."
        )

    return images.name, rows, page


def _tried(
    images: Images, methods: Sequence[Method], folder: Path, *, only_kept: bool
) -> tuple[str, Rows, Callable[[], str]]:
    """Do the trials; return as :func:`_compared` does."""
    overrides = (*overrides_of(images, folder), *_TRIAL)
    tested = trials(images.experiment, methods, folder / images.name, overrides, only_kept=only_kept)
    rows = trial_rows(tested)
    made = "Made by `python -m benchmarks.drdm_cnn --trials`, in one process."
    return "trials", rows, lambda: f"{markdown(rows)}\n\n{made}"


def _controlled(
    _: Images, __: Sequence[Method], folder: Path, *, only_kept: bool
) -> tuple[str, Rows, Callable[[], str]]:
    """Look at SCAFFOLD's control variates; return as :func:`_compared` does."""
    runs = controls(folder, only_kept=only_kept)
    rows = control_rows(runs)

    def page() -> str:
        picture = _PAGE.with_name("drdm-cnn-scaffold.png")
        draw_controls(runs, picture)
        return (
            f"{markdown(rows)}\n\n![Norm of c and average accuracy, against rounds]({picture.name})\n\n"
            "Made by `python -m benchmarks.drdm_cnn --controls`, in one process."
        )

    return "controls", rows, page


def _words(settings: Mapping[str, float]) -> str:
    return ", ".join(f"{_SYMBOLS[name]} {value:.2g}" for name, value in settings.items())


def main() -> None:
    """Read the command line, run the methods, write the page."""
    parser = flags(__doc__, quick="two methods, two rounds; writes nothing")
    parser.add_argument("images", nargs="*", choices=[[], *(images.name for images in _IMAGES)], metavar="NAME")
    parser.add_argument("--finished", action="store_true", help="write the page from the runs that are kept")
    parser.add_argument("--only", help="do only methods with this in their names, and write nothing")
    parser.add_argument("--trials", action="store_true", help="try out settings")
    parser.add_argument("--controls", action="store_true", help="look at SCAFFOLD's control variates")
    with command_line(parser) as (words, folder):
        chosen = [images for images in _IMAGES if images.name in (words.images or [images.name])]
        if words.quick:
            chosen = [_QUICK]
        elif words.trials or words.controls:
            chosen = [_FASHION]
        figures = {}
        for images in chosen:
            methods = [method for method in methods_of(images) if (words.only or "") in method.title]
            make = _tried if words.trials else _controlled if words.controls else _compared
            marker, rows, page = make(images, methods[:2] if words.quick else methods, folder, only_kept=words.finished)
            figures[marker] = rows
            print(markdown(rows))
            if not (words.quick or words.only):
                put(_PAGE, marker, page())
    if words.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
