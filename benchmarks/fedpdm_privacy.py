"""What the FedPDM paper's noise is worth: the epsilon that it claims beside what accountants find.

The paper's settings for Adult and MNIST (batches of 10, 100 clients of which 30 take part in each of 200 rounds, so
60 uploads of a client on average, delta 1e-4), with the constant that the paper's proof gives for its unstated c0.
Writes the tables and the figure of ``docs/results/fedpdm.md``; ``--quick`` draws no curves, calibrates
nothing, and writes nothing. Needs dp-accounting.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figure import canvas
from benchmarks.page import made_by, put
from benchmarks.program import Figures, markdown, progress, run
from fenchel.common.accounting import paper
from fenchel.common.accounting.accountant import Method, Release, calibrate, epsilon
from fenchel.common.accounting.gaussian import exact_gaussian

_PAGE = Path("docs/results/fedpdm.md")
_FIGURE = _PAGE.with_name("fedpdm-privacy.png")
_DELTA = 1e-4
_UPLOADS = 60
_METHODS: dict[Method, str] = {
    "rdp-poisson": "RDP, Poisson",
    "pld-poisson": "PLD, Poisson",
    "rdp-wor": "RDP, without repl.",
    "pld-wor": "**PLD, without repl.**",
}
_LAWS: dict[paper.Law, str] = {"printed": "q² (printed)", "corrected": "q (corrected)"}
_DASHES: dict[paper.Law, str] = {"printed": "-", "corrected": "--"}
_TICKS = {"Adult": (0.1, 0.2, 0.5, 1.0, 2.0), "MNIST": (5.0, 10.0, 20.0, 40.0)}
_CLAIMS = (0.5, 1.0, 2.0, 5.0, 8.0, 10.0, 20.0, 100.0)
_COLORS = {5: "#1f62a8", 10: "#c2501a", 20: "#15806a"}


@dataclass(frozen=True)
class Case:
    """One of the paper's settings."""

    data: str  # name of the data set
    samples: int  # ``n_i``, of a client
    steps: int  # ``Q``; batches of 10
    budget: float  # the total epsilon that is claimed

    @property
    def sampling_rate(self) -> float:
        """``q = Q b / n_i``."""
        return 10 * self.steps / self.samples

    def release(self, law: paper.Law, budget: float | None = None) -> Release:
        """Return an upload with the noise that the paper derives for its total."""
        claimed = self.budget if budget is None else budget
        each = paper.per_round(claimed, self.sampling_rate, _UPLOADS, _DELTA, law)
        return Release(paper.noise_multiplier(each, _DELTA), self.sampling_rate)

    def __str__(self) -> str:
        return f"{self.data}, Q = {self.steps}"


_CASES = (
    Case("Adult", 325, 5, 0.5),
    Case("Adult", 325, 10, 0.5),
    Case("MNIST", 600, 5, 10),
    Case("MNIST", 600, 10, 20),
    Case("MNIST", 600, 20, 20),
)
_NEEDED = (_CASES[0], Case("Adult", 325, 5, 1.0), _CASES[2], _CASES[3])


def measure(quick: bool) -> Figures:
    """Account for every setting, by every accountant."""
    rows, seconds = [], dict.fromkeys(_METHODS, 0.0)
    for case in _CASES:
        progress(str(case))
        rows += [_row(case, law, seconds) for law in _LAWS]
    if not quick:
        _draw(_FIGURE)
        put(_PAGE, "accounted", markdown(rows))
        put(_PAGE, "needed", markdown([_needed(case) for case in _NEEDED]))
        put(_PAGE, "formula", markdown(_formula()))
        put(_PAGE, "made", made_by("fedpdm_privacy", f"dp-accounting {metadata.version('dp-accounting')}"))
    return {
        "rows": rows,
        "seconds": {method: round(spent, 2) for method, spent in seconds.items()},
        "dp_accounting": metadata.version("dp-accounting"),
    }


def _row(case: Case, law: paper.Law, seconds: dict[Method, float]) -> dict[str, str]:
    release = case.release(law)
    row = {
        "case": str(case),
        "law": _LAWS[law],
        "ε a round": _short(paper.epsilon_of(release.noise_multiplier, _DELTA)),
        "z": _short(release.noise_multiplier),
        "claimed ε": _short(case.budget),
    }
    tight = math.nan
    for method, title in _METHODS.items():
        started = time.perf_counter()
        tight = epsilon({release: _UPLOADS}, _DELTA, method)
        seconds[method] += time.perf_counter() - started
        row[title] = _short(tight)
    row["accounted / claimed"] = _short(tight / case.budget)  # by the last accountant, PLD without replacement
    return row


def _short(value: float) -> str:
    """Three digits, without an exponent."""
    digits = max(0, 2 - math.floor(math.log10(value)))
    return f"{float(f'{value:.3g}'):,.{digits}f}"


def _needed(case: Case) -> dict[str, str]:
    """Return the noise multipliers that a budget needs, by accountant."""
    progress(f"calibrating {case}, {case.budget:g}")
    methods: tuple[Method, ...] = ("rdp-poisson", "rdp-wor", "pld-wor")
    found = {
        _METHODS[method]: _short(calibrate(case.sampling_rate, _UPLOADS, _DELTA, case.budget, method))
        for method in methods
    }
    return {
        "total ε": f"{case.data} {case.budget:g}, Q = {case.steps}",
        "the paper's z": _short(case.release("printed").noise_multiplier),
        **found,
        "no drawing, RDP": _short(calibrate(1, _UPLOADS, _DELTA, case.budget, "rdp-wor")),
        "no drawing, exact": _short(calibrate(1, _UPLOADS, _DELTA, case.budget)),
    }


def _formula() -> list[dict[str, Any]]:
    """Compare the paper's formula of the Gaussian mechanism with the exact value."""
    return [
        {
            "claimed for one release": f"{claimed:g}",
            "exact": f"{exact_gaussian(paper.noise_multiplier(claimed, _DELTA), _DELTA):.4g}",
        }
        for claimed in _CLAIMS
    ]


def _draw(path: Path) -> None:
    """Draw the accounted epsilon (PLD, without replacement) against the claimed one."""
    with canvas(path, (8.8, 3.9), dpi=200) as figure:
        panels = zip(figure.subplots(1, 2), _TICKS.items(), strict=True)
        for axes, (data, ticks) in panels:
            progress(f"drawing {data}")
            claims = np.geomspace(ticks[0], ticks[-1], 13)
            for case in (case for case in _CASES if case.data == data):
                for law, dash in _DASHES.items():
                    accounted = [epsilon({case.release(law, each): _UPLOADS}, _DELTA) for each in claims.tolist()]
                    label = f"Q = {case.steps}, {_LAWS[law]}"
                    axes.plot(claims, accounted, dash, color=_COLORS[case.steps], linewidth=1.8, label=label)
            axes.plot(claims, claims, ":", color="#68727e", label="claimed = accounted")
            axes.set_title(f"{data}, {next(c.samples for c in _CASES if c.data == data)} samples a client")
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel("claimed ε")
            axes.set_ylabel("accounted ε")
            axes.set_xticks(ticks)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(lambda value, _: f"{value:g}")
                axis.set_minor_formatter(lambda value, _: "")
            lines = axes.get_lines()
        names = [str(line.get_label()) for line in lines]  # of MNIST, which has all of them
        figure.legend(lines, names, loc="outside lower left", ncols=4, frameon=False)


if __name__ == "__main__":
    run(__doc__ or "", measure)
