"""DP-FedPDM on Adult: accuracy for a total epsilon, in the paper's way and in a way that keeps its promise.

100 clients with one class and 325 samples each, 30 of them in each of 200 rounds, batches of 10 and five
local steps, delta 1e-4, over real server and client processes with TLS. Every row says the epsilon that it
claims and the one that accountants find. Writes ``docs/results/fedpdm.md`` and its figure; ``--runs
FOLDER`` keeps the runs and reads those that are there already; ``--quick`` does two rows for ten rounds and
writes nothing. Needs Adult (``fenchel data fetch adult``, or ``FENCHEL_DATA``) and dp-accounting.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import fenchel
from benchmarks.experiment import command_line, flags
from benchmarks.fedpdm_runs import Row, run_of, runs_of
from benchmarks.figure import canvas
from benchmarks.outcome import evaluated
from benchmarks.page import made_by, put
from benchmarks.program import markdown, progress, tell
from fenchel.algorithms.privacy_requirements import facts_of
from fenchel.common.accounting.accountant import calibrate
from fenchel.common.accounting.sensitivity import DualDifference
from fenchel.common.data.source import DataSource
from fenchel.common.objectives.factory import build_objective
from fenchel.common.settings.run import RunSettings
from fenchel.report.render.canvas import COLORS

_EXPERIMENT = Path("fenchel/experiments/fedpdm/adult-private.yaml")
_PAGE = Path("docs/results/fedpdm.md")
_FIGURE = _PAGE.with_name("fedpdm-dp.png")
_BUDGETS = (1.0, 5.0, 20.0)
_PAPER_UPLOADS, _MOST_UPLOADS = 60, 82  # p T, as the paper counts; what hardly any draw of cohorts exceeds
_ALGORITHM: dict[str, Any] = {
    "name": "fedpdm",
    "penalty": 0.55,
    "aggregator": "sampled",
    "local_steps": 5,
    "batch_size": 10,
    "batches": "epoch",
    "step_size": 0.4,
}
_PUBLIC = _ALGORITHM | {"dual": "public"}
_PRIVATE = _ALGORITHM | {"dual": "private"}
_CONTRACTIVE = {"mechanism": "contractive", "feature_norm": 1.0}
_BATCH = {"mechanism": "batch"}
_PAPER = {"mechanism": "paper", "uploads": _PAPER_UPLOADS}
_SAMPLING_RATE = 50 / 325  # Q b / n_i, of the smallest client
_DELTA = 1e-4


@cache
def _noise_multiplier(budget: float) -> float:
    """Calibrate the noise for a budget, once for all clients of this machine."""
    return calibrate(_SAMPLING_RATE, _MOST_UPLOADS, _DELTA, budget)


@dataclass(frozen=True)
class Kind:
    """A curve of the figure; a row for each epsilon."""

    title: str  # its name
    algorithm: dict[str, Any]  # algorithm, privacy: settings; of ``differential_privacy`` without the budget
    privacy: dict[str, Any]
    uplink: tuple[str, ...] = ()  # what is sent, if not everything
    guaranteed: bool = True  # whether the accounted epsilon is a guarantee

    def row(self, budget: float) -> Row:
        """Return what to run for a total epsilon."""
        noise = {"noise_multiplier": _noise_multiplier(budget)} if self.guaranteed else {"budget": budget}
        protection = self.privacy | noise | {"delta": _DELTA, "clip": 1.0}
        own = f"differential_privacy={json.dumps(protection)}"
        return Row(f"{self.title}, {budget:g}", self.algorithm, (own, *self.uplink))


KINDS: tuple[Kind, ...] = (
    Kind("sound: contractive", _PUBLIC, _CONTRACTIVE),
    Kind(
        "sound: contractive, shared-random 0.5",
        _PUBLIC,
        _CONTRACTIVE,
        ("uplink.sparsify={support: shared-random, keep: 0.5}",),
    ),
    Kind("sound: batch", _PUBLIC, _BATCH),
    Kind("paper's", _PRIVATE, _PAPER, guaranteed=False),
    Kind("paper's, top-k 0.1", _PRIVATE, _PAPER, ("uplink.sparsify={support: top-k, keep: 0.1}",), guaranteed=False),
)
_PLAIN = ("differential_privacy=null",)
NOISELESS: tuple[Row, ...] = (
    Row("no noise", _PUBLIC, _PLAIN),
    Row("no noise, top-k 0.1", _PRIVATE, (*_PLAIN, "uplink.sparsify={support: top-k, keep: 0.1}")),
)


def noise_of(settings: RunSettings) -> tuple[float, float]:
    """Return the noise multiplier and the standard deviation of the first upload's noise."""
    privacy = settings.differential_privacy
    assert privacy is not None
    assert isinstance(settings.clients, int)
    source = DataSource.open(settings.data, settings.seed)
    samples = min(len(source.shard(client, settings.clients).labels) for client in range(settings.clients))
    facts = facts_of(settings, build_objective(settings.objective, source.shard(0, settings.clients)), samples)
    local = settings.algorithm.local_map(1, samples, noisy=True)  # type: ignore[attr-defined]  # it takes gradient steps
    sensitivity, _ = privacy.sensitivity(local, facts, DualDifference())
    z = privacy.noise(facts)
    return z, z * sensitivity


def _accuracy(runs: Sequence[fenchel.Run]) -> str:
    """Mean over the last 50 rounds, which noise moves up and down, then over seeds."""
    values = []
    for run in runs:
        rounds, accuracy = evaluated(run, "test_accuracy")
        values.append(float(accuracy[rounds > rounds[-1] - 50].mean()))
    mean = f"{np.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values):.3f}"


def line(kind: Kind, budget: float, runs: Sequence[fenchel.Run]) -> dict[str, object]:
    """Return a line of the table."""
    z, sigma = noise_of(runs[0].settings)
    last = {name: max(run.figures[name] for run in runs) for name in ("epsilon_paper", "epsilon_pld", "epsilon_rdp")}
    return {
        "mechanism": kind.title,
        "ε asked": f"{budget:g}",
        "z": f"{z:.3g}",
        "σ": f"{sigma:.3g}",
        "Theorem 2": f"{last['epsilon_paper']:.3g}",
        "PLD": f"{last['epsilon_pld']:.3g}",
        "RDP": f"{last['epsilon_rdp']:.3g}",
        "guaranteed": "yes, PLD" if kind.guaranteed else "**no**",
        "accuracy": _accuracy(runs),
    }


def _draw(accuracy: Mapping[str, Sequence[float]], plain: float, path: Path) -> None:
    """Accuracy against the epsilon asked for."""
    with canvas(path, (6.4, 3.8)) as figure:
        axes = figure.subplots()
        for (title, values), color in zip(accuracy.items(), COLORS, strict=False):
            dash = "-o" if title.startswith("sound") else "--s"
            axes.plot(_BUDGETS, values, dash, color=color, linewidth=1.6, markersize=4, label=title)
        axes.axhline(plain, color="#68727e", linestyle=":", label="no noise")
        axes.set(xlabel="total ε asked for", ylabel="test accuracy", xscale="log", title="Adult, δ = 1e-4")
        axes.set_xticks(_BUDGETS, [f"{budget:g}" for budget in _BUDGETS])
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.legend(frameon=False, fontsize=8)


def main() -> None:
    """Read the command line, run the rows, write the page."""
    parser = flags(__doc__, quick="two rows, ten rounds; writes nothing")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds: 1, 2, ...")
    with command_line(parser) as (words, folder):
        seeds = range(1, words.seeds + 1)
        if words.quick:
            rows = [
                line(kind, 5.0, [run_of(_EXPERIMENT, kind.row(5.0), folder, ("rounds=10",))]) for kind in KINDS[::3]
            ]
            tell({"rows": rows}, as_json=words.json)
            return
        rows, accuracy = [], {}
        for kind in KINDS:
            means = []
            for budget in _BUDGETS:
                row = kind.row(budget)
                progress(row.title)
                runs = runs_of(_EXPERIMENT, row, seeds, folder)
                rows.append(line(kind, budget, runs))
                means.append(float(_accuracy(runs).split()[0]))
            accuracy[kind.title] = means
        plain = []
        for row in NOISELESS:
            progress(row.title)
            runs = runs_of(_EXPERIMENT, row, seeds, folder)
            plain.append({"without noise": row.title, "accuracy": _accuracy(runs)})
        _draw(accuracy, float(str(plain[0]["accuracy"]).split()[0]), _FIGURE)
        parts = (
            markdown(rows),
            markdown(plain),
            "Accuracy: test accuracy, mean of the last 50 rounds"
            f"{'' if len(seeds) == 1 else f' and of {len(seeds)} seeds'}.",
            f"![Accuracy against epsilon]({_FIGURE.name})",
            made_by("fedpdm_dp"),
        )
        put(_PAGE, "dp", "\n\n".join(parts))
        print(markdown(rows))
        print(markdown(plain))
        if words.json:
            print(json.dumps({"rows": rows, "without noise": plain}))


if __name__ == "__main__":
    main()
