"""FedPDM, BSDP-FedPDM and the usual methods on small digits, 20 clients: objective, accuracy, rounds and bits.

The table of sanity observations of docs/specifications/fedpdm.md (section 6.3, setup A) beside what it says, over real
server and client processes with TLS. Writes ``docs/results/fedpdm.md`` and its figure; ``--runs
FOLDER`` keeps the runs and reads those that are there already; ``--quick`` does two rows for 20 rounds and
writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fenchel
from benchmarks.experiment import command_line, flags
from benchmarks.fedpdm_runs import Row, against_rounds_and_bits, bits, optimum, rounds_to, runs_of
from benchmarks.page import made_by, put
from benchmarks.program import markdown, progress, tell

_EXPERIMENT = Path("fenchel/experiments/fedpdm/digits.yaml")
_PAGE = Path("docs/results/fedpdm.md")
_FIGURE = _PAGE.with_name("fedpdm-digits.png")
_TARGET = 0.90
_LOCAL = {"local_steps": 20, "batch_size": 10, "batches": "independent", "step_size": 0.05}
_UNIFORM = {"weighting": "uniform", **_LOCAL}


@dataclass(frozen=True)
class Observed:
    """What the specification's prototype found: means over five seeds."""

    objective: float  # objective, accuracy: F and test accuracy after 200 rounds
    accuracy: float
    rounds: str = ""
    """To an accuracy of 0.90, on a grid of ten rounds; empty: not stated, a dash: not reached by all seeds."""
    mbit: str = ""  # sent by all clients, as the paper counts; empty: not stated
    nonzeros: str = ""  # of the model; empty: not stated


def _fedpdm(penalty: float, **changes: Any) -> dict[str, Any]:
    return {"name": "fedpdm", "penalty": penalty, **_LOCAL, **changes}


def _sampled(penalty: float, **changes: Any) -> dict[str, Any]:
    return _fedpdm(penalty, aggregator="sampled", **changes)


def _up(support: str, keep: float, fill: str | None = None) -> str:
    filled = "" if fill is None else f", fill: {fill}"
    return f"uplink.sparsify={{support: {support}, keep: {keep}{filled}}}"


def _down(keep: float) -> str:
    return f"downlink.sparsify={{keep: {keep}}}"


def _noise(sigma: float) -> str:
    return f"uplink.noise={sigma}"


ROWS: tuple[tuple[Row, Observed], ...] = (
    (Row("FedPDM, sampled, rho = 3", _sampled(3.0)), Observed(0.580, 0.931, "52", "25.0", "487")),
    (Row("FedPDM, sampled, rho = 1", _sampled(1.0)), Observed(0.491, 0.943, "44", "25.0", "457")),
    (Row("FedPDM, sampled, rho = 0.3", _sampled(0.3)), Observed(0.476, 0.939, "52", "25.0", "424")),
    (Row("FedPDM, hybrid, rho = 1", _fedpdm(1.0)), Observed(0.483, 0.948, "22", "25.0", "426")),
    (Row("FedPDM, hybrid, rho = 0.3", _fedpdm(0.3)), Observed(0.437, 0.962, "20", "25.0", "315")),
    (Row("FedPDM, stale, rho = 0.3", _fedpdm(0.3, aggregator="stale")), Observed(0.482, 0.948, "30", "25.0", "401")),
    (Row("FedAvg", {"name": "fedavg", **_UNIFORM}), Observed(0.525, 0.942, "60", "25.0", "610")),
    (
        Row("FedMiD", {"name": "fedavg", "regularizer_step": "prox", **_UNIFORM}),
        Observed(0.525, 0.942, "60", "25.0", "511"),
    ),
    (
        Row("FedProx, mu = 0.1", {"name": "fedprox", "proximity": 0.1, **_UNIFORM}),
        Observed(0.528, 0.942, "60", "25.0", "610"),
    ),
    (Row("SCAFFOLD", {"name": "scaffold", **_UNIFORM}), Observed(0.483, 0.948, "16", "49.9", "610")),
    (
        Row("FedDyn, alpha = 1", {"name": "feddyn", "alpha": 1.0, **_UNIFORM}),
        Observed(0.483, 0.948, "20", "25.0", "610"),
    ),
    (
        Row("FedDyn, alpha = 0.3", {"name": "feddyn", "alpha": 0.3, **_UNIFORM}),
        Observed(0.437, 0.963, "20", "25.0", "610"),
    ),
    (Row("BSDP, top-k 0.5", _sampled(1.0), (_up("top-k", 0.5),)), Observed(0.599, 0.926, "82", "12.5", "331")),
    (Row("BSDP, top-k 0.3", _sampled(1.0), (_up("top-k", 0.3),)), Observed(0.716, 0.892, "–", "7.5", "200")),
    (Row("BSDP, top-k 0.1", _sampled(1.0), (_up("top-k", 0.1),)), Observed(0.999, 0.744, "–", "2.5", "66")),
    (
        Row("BSDP, top-k 0.5 up, 0.5 down", _sampled(1.0), (_up("top-k", 0.5), _down(0.5))),
        Observed(0.516, 0.939, "64", "12.5", "325"),
    ),
    (
        Row("BSDP, top-k 0.5 up, 0.25 down", _sampled(1.0), (_up("top-k", 0.5), _down(0.25))),
        Observed(0.540, 0.916, "86", "12.5", "162"),
    ),
    (Row("random 0.5, zero", _sampled(1.0), (_up("random", 0.5, "zero"),)), Observed(0.808, 0.845, "–", "12.5", "481")),
    (Row("random 0.5, hold", _sampled(1.0), (_up("random", 0.5),)), Observed(0.512, 0.942, "56", "12.5", "467")),
    (Row("random 0.1, hold", _sampled(1.0), (_up("random", 0.1),)), Observed(0.629, 0.916, "116", "2.5", "467")),
    (
        Row("EF21, top-k 0.1, sampled, rho = 1", _sampled(1.0, error_feedback="ef21"), (_up("top-k", 0.1),)),
        Observed(0.584, 0.904, "108", "2.5", "419"),
    ),
    (
        Row(
            "EF21, top-k 0.1, stale, rho = 0.3",
            _fedpdm(0.3, aggregator="stale", error_feedback="ef21"),
            (_up("top-k", 0.1),),
        ),
        Observed(0.500, 0.939, "40", "2.5", "416"),
    ),
)
"""The table of section 6.3."""

_NOISY: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    ("FedPDM, private dual", _sampled(1.0, dual="private"), ()),
    ("FedPDM, public dual", _sampled(1.0, dual="public"), ()),
    ("BSDP, top-k 0.5, private dual", _sampled(1.0, dual="private"), (_up("top-k", 0.5),)),
    ("shared-random 0.5, public dual", _sampled(1.0, dual="public"), (_up("shared-random", 0.5),)),
    ("public-top-k 0.5, public dual", _sampled(1.0, dual="public"), (_up("public-top-k", 0.5),)),
    ("FedAvg", {"name": "fedavg", **_UNIFORM}, ()),
)
_SEEN = {
    0.1: ((0.710, 0.921), (0.639, 0.931), (0.616, 0.919), (0.651, 0.921), (0.574, 0.927), (0.739, 0.908)),
    0.3: ((1.70, 0.804), (1.36, 0.838), (1.20, 0.798), (1.16, 0.837), (1.04, 0.812), (1.76, 0.764)),
}

NOISE_ROWS: tuple[tuple[Row, Observed], ...] = tuple(
    (Row(f"sigma = {sigma}: {title}", algorithm, (*changes, _noise(sigma))), Observed(*seen))
    for sigma, observations in _SEEN.items()
    for (title, algorithm, changes), seen in zip(_NOISY, observations, strict=True)
)
"""The paragraph of section 6.3 on noise."""

_DRAWN = (
    "FedPDM, hybrid, rho = 0.3",
    "FedPDM, sampled, rho = 1",
    "BSDP, top-k 0.5 up, 0.5 down",
    "random 0.1, hold",
    "EF21, top-k 0.1, stale, rho = 0.3",
    "FedAvg",
    "SCAFFOLD",
    "FedDyn, alpha = 0.3",
)


def line(row: Row, observed: Observed, runs: Sequence[fenchel.Run], *, noisy: bool) -> dict[str, object]:
    """Return a line of the table: means over seeds beside what the specification has."""
    objective = np.array([run.figures["objective"] for run in runs])
    accuracy = np.array([run.figures["test_accuracy"] for run in runs])
    figures: dict[str, object] = {
        "row": row.title,
        "F": f"{objective.mean():.3f} ± {objective.std():.3f}",
        "spec.": f"{observed.objective:.3f}",
        "accuracy": f"{accuracy.mean():.3f} ± {accuracy.std():.3f}",
        "spec. ": f"{observed.accuracy:.3f}",
    }
    if noisy:
        return figures
    reached = [rounds_to(run, _TARGET) for run in runs]
    missing = sum(each is None for each in reached)
    rounds = np.array([each for each in reached if each is not None], float)
    nonzeros = np.array([np.count_nonzero(run.model) for run in runs])
    counted = [bits(run) for run in runs]
    return figures | {
        "rounds to 0.90": f"{rounds.mean():.0f}" if not missing else f"– ({missing} of {len(runs)} not)",
        "spec.  ": observed.rounds,
        "Mbit up, 32 k": f"{np.mean([each.paper[-1] for each in counted]) / 1e6:.1f}",
        "payload": f"{np.mean([each.payload[-1] for each in counted]) / 1e6:.1f}",
        "non-zeros": f"{nonzeros.mean():.0f}",
        "spec.   ": observed.nonzeros,
    }


def _draw(curves: Mapping[str, Sequence[fenchel.Run]], path: Path) -> None:
    with against_rounds_and_bits(curves, "objective", path, (10, 4.2)) as (_, left, right):
        left.set(ylabel="objective F", yscale="log")
        for axis in (left.yaxis, right.xaxis):
            axis.set_major_formatter(lambda value, _: f"{value:g}")
        left.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if value in (0.4, 0.5, 0.7, 2.0) else "")
        left.legend(frameon=False, fontsize=7.5)


def central(seeds: Sequence[int]) -> dict[str, object]:
    """Return what one machine finds with all training samples: means over seeds beside the specification's."""
    found = [optimum(_EXPERIMENT, [f"seed={seed}"], 1500) for seed in seeds]
    return {
        "on one machine": "here",
        "F*": f"{np.mean([each.objective for each in found]):.3f}",
        "accuracy": f"{np.mean([each.accuracy for each in found]):.3f}",
        "non-zeros": f"{np.mean([each.nonzeros for each in found]):.0f}",
    }


_CENTRAL = {"on one machine": "spec.", "F*": "0.409", "accuracy": "0.964", "non-zeros": "227"}


def main() -> None:
    """Read the command line, run the rows, write the page."""
    parser = flags(__doc__, quick="two rows, 20 rounds, one seed; writes nothing")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds: 1, 2, ...")
    with command_line(parser) as (words, folder):
        seeds = range(1, words.seeds + 1)
        if words.quick:
            rows = [
                line(row, observed, runs_of(_EXPERIMENT, row, (1,), folder, ("rounds=20",)), noisy=False)
                for row, observed in (ROWS[4], ROWS[15])
            ]
            tell({"rows": rows}, as_json=words.json)
            return
        curves, rows, noisy = {}, [], []
        for row, observed in ROWS:
            progress(row.title)
            runs = runs_of(_EXPERIMENT, row, seeds, folder)
            rows.append(line(row, observed, runs, noisy=False))
            if row.title in _DRAWN:
                curves[row.title] = runs
        for row, observed in NOISE_ROWS:
            progress(row.title)
            noisy.append(line(row, observed, runs_of(_EXPERIMENT, row, seeds, folder), noisy=True))
        _draw({title: curves[title] for title in _DRAWN}, _FIGURE)
        best = central(seeds)
        parts = (
            f"Means and standard deviations over {len(seeds)} seeds; each has its own test set, shards and cohorts.",
            markdown([best, _CENTRAL]),
            markdown(rows),
            f"![Objective against rounds and against bits]({_FIGURE.name})",
            "Gaussian noise on every value that is sent (`uplink.noise`), rho = 1:",
            markdown(noisy),
            made_by("fedpdm_digits"),
        )
        put(_PAGE, "digits", "\n\n".join(parts))
        print(markdown(rows))
        print(markdown(noisy))
        if words.json:
            print(json.dumps({"rows": rows, "noisy": noisy, "on one machine": best}))


if __name__ == "__main__":
    main()
