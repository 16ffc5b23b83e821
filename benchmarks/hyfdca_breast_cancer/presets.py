"""HyFDCA with each of its presets: rounds to a duality gap, beside those of the prototype."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import fenchel
from benchmarks.experiment import Planned
from benchmarks.hyfdca_breast_cancer.runs import COMPARED, RUNS, all_done, gaps, planned, rounds_to

_TARGETS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
_SEEDS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Case:
    """HyFDCA with one preset: a row of the table."""

    preset: str  # preset, picks: ``picks`` is H; ``None``: all
    picks: int | None
    l2: float  # lambda
    rounds: int  # how many are done
    expected: tuple[int | None, ...]  # rounds to each target that the prototype needed
    seeds: tuple[int, ...] = (1,)  # one run each; the seed decides partition and picks
    loss: str = "hinge"  # kind of the objective

    def plan(self, folder: Path = RUNS) -> list[Planned]:
        """Return its runs."""
        picks = "null" if self.picks is None else str(self.picks)
        return [
            planned(
                f"{self.loss}-{self.preset}-{picks}-{self.l2:g}-seed-{seed}",
                (
                    f"seed={seed}",
                    f"rounds={self.rounds}",
                    f"objective={{kind: {self.loss}, l2: {self.l2}}}",
                    f"algorithm.preset={self.preset}",
                    f"algorithm.picks={picks}",
                    "algorithm.privacy=none",
                ),
                folder,
            )
            for seed in self.seeds
        ]

    def row(self, runs: Sequence[fenchel.Run], targets: Sequence[float] = _TARGETS) -> dict[str, object]:
        """Return the row: rounds that were measured, or their range, and those of the prototype."""
        reached = [[rounds_to(run, target) for run in runs] for target in targets]
        measured = ", ".join(_range(counts) for counts in reached)
        expected = ", ".join(in_words(count) for count in self.expected)
        return {
            "preset": f"`{self.preset}`",
            "H": self.picks or "all",
            "λ": f"{self.l2:g}",
            "rounds to 1e-1, 1e-2, 1e-3, 1e-4, 1e-5": measured,
            "prototype": "the same" if expected == measured else expected,
        }


def in_words(count: int | None) -> str:
    """Return a number of rounds; a dash for never."""
    return "–" if count is None else str(count)


def _range(counts: Sequence[int | None]) -> str:
    known = [count for count in counts if count is not None]
    if not known:
        return "–"
    low, high = min(known), in_words(None) if len(known) < len(counts) else str(max(known))
    return str(low) if str(low) == high else f"{low}…{high}"


DETERMINISTIC = (
    Case("safe", None, 0.1, 345, (5, 13, 38, 103, 336)),
    Case("safe", None, 0.01, 2420, (26, 81, 203, 636, 2407)),
    Case("safe", None, 0.001, 1510, (74, 574, 1499, None, None)),
    Case("linesearch", None, 0.1, COMPARED, (3, 7, 10, 13, 15)),
    Case("linesearch", None, 0.01, COMPARED, (4, 11, 17, 19, 34)),
    Case("linesearch", None, 0.001, COMPARED, (3, 17, 35, 62, 178)),
)
RANDOM = (
    Case("paper", 15, 0.1, COMPARED, (10, 32, 54, 76, 99), _SEEDS),
    Case("paper", 15, 0.01, COMPARED, (10, 30, 55, 80, 130), _SEEDS),
    Case("paper", 15, 0.001, 1300, (10, 55, 120, 335, 1085), _SEEDS),
)
_LOGISTIC = (
    Case("exact", 15, 0.01, 110, (4, 17, 29, 42, 54, 92), (1, 2, 3), "logistic"),
    Case("exact", 50, 0.01, 40, (3, 6, 10, 14, 17, 27), (1, 2, 3), "logistic"),
)
_DIVERGENT = (
    (Case("paper", None, 0.1, 100, ()), 0.93),
    (Case("paper", None, 0.01, 100, ()), 2.2),
    (Case("paper", None, 0.001, 100, ()), 18),
)
_UNSCALED = (
    ("paper", 0.01, 500, "0.099, 0.45"),
    ("exact", 0.01, 1500, "below 1e-5"),
    ("paper", 0.1, 500, "0.003 to 0.009"),
    ("exact", 0.1, 500, "below 1e-5"),
)
_PARTIAL = {"all": (10, 60, 120, 170, 270), "active": (10, 40, 70, 110, 160), "pickers": (10, 30, 60, 120, 200)}


def rounds(workers: ProcessPoolExecutor) -> dict[Case, list[fenchel.Run]]:
    """Return the runs of each row of the first table."""
    cases = (*RANDOM, *DETERMINISTIC)
    runs = iter(all_done(workers, [run for case in cases for run in case.plan()]))
    return {case: [next(runs) for _ in case.seeds] for case in cases}


def divergent(workers: ProcessPoolExecutor) -> list[dict[str, object]]:
    """Return the rows about the paper's step for all samples at once."""
    runs = all_done(workers, [run for case, _ in _DIVERGENT for run in case.plan()])
    return [
        {
            "λ": f"{case.l2:g}",
            "smallest gap": f"{gaps(run)[1:].min():.2g}",
            f"gap after {case.rounds} rounds": f"{gaps(run)[-1]:.3g}",
            "prototype": expected,
        }
        for (case, expected), run in zip(_DIVERGENT, runs, strict=True)
    ]


def logistic(workers: ProcessPoolExecutor) -> list[dict[str, object]]:
    """Return the rows about the logistic loss."""
    runs = iter(all_done(workers, [run for case in _LOGISTIC for run in case.plan()]))
    rows = []
    for case in _LOGISTIC:
        row = case.row([next(runs) for _ in case.seeds], (*_TARGETS, 1e-8))
        rows.append({title.replace("1e-5", "1e-5, 1e-8"): value for title, value in row.items()})
    return rows


def unscaled(workers: ProcessPoolExecutor) -> list[dict[str, object]]:
    """Return the rows about samples whose norms are not 1."""
    plan = [
        planned(
            f"unscaled-{preset}-{l2:g}",
            (
                f"rounds={rounds}",
                f"objective.l2={l2}",
                "data.scale=[standard]",
                f"algorithm.preset={preset}",
                "algorithm.picks=15",
                "algorithm.privacy=none",
            ),
        )
        for preset, l2, rounds, _ in _UNSCALED
    ]
    return [
        {
            "preset": f"`{preset}`",
            "λ": f"{l2:g}",
            "rounds": rounds,
            "last 100 gaps": f"{gaps(run)[-100:].min():.1e}…{gaps(run)[-100:].max():.1e}",
            "prototype, 2,000 rounds": expected,
        }
        for (preset, l2, rounds, expected), run in zip(_UNSCALED, all_done(workers, plan), strict=True)
    ]


def partial(workers: ProcessPoolExecutor) -> list[dict[str, object]]:
    """Return gaps after as many rounds as the prototype needed; only a finished run knows alpha with clients absent."""
    plan = [
        planned(
            f"half-{averaging}-{rounds}",
            (
                f"rounds={rounds}",
                "participation.sampler={kind: fraction, fraction: 0.5}",
                "algorithm.preset=exact",
                "algorithm.picks=15",
                f"algorithm.averaging={averaging}",
                "algorithm.privacy=none",
            ),
        )
        for averaging, counts in _PARTIAL.items()
        for rounds in counts
    ]
    runs = iter(all_done(workers, plan))
    return [
        {
            "`averaging`": f"`{averaging}`",
            "prototype's rounds to 1e-1, 1e-2, 1e-3, 1e-4, 1e-5": ", ".join(map(str, counts)),
            "gap after these rounds": ", ".join(f"{gaps(next(runs))[-1]:.1e}" for _ in counts),
        }
        for averaging, counts in _PARTIAL.items()
    ]
