"""Rounds that HyFDCA needs on breast cancer, nine clients in a 3 by 3 grid, beside an independent prototype.

Real server and client processes over TLS. Writes ``docs/results/hyfdca-breast-cancer.md`` and its figures. It
takes about half an hour on two cores. Runs are kept in ``runs/hyfdca-breast-cancer``, and those that are
there already are not done again: remove the folder to measure anew. ``--quick`` does four short runs in under
a minute, and writes and keeps nothing. No data are downloaded: the set is installed with Fenchel.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.experiment import done
from benchmarks.hyfdca_breast_cancer import averaging, figures, presets
from benchmarks.hyfdca_breast_cancer.encryption import ENCRYPTED, encrypted
from benchmarks.hyfdca_breast_cancer.page import GAPS, LOSSES, PAGE, page
from benchmarks.hyfdca_breast_cancer.runs import LAMBDAS, hush, pool
from benchmarks.program import Figures, progress, run


def measure(quick: bool) -> Figures:
    """Do all runs, and write the page; or four runs, and write nothing."""
    if quick:
        return {"rows": _quick()}
    with pool() as workers:
        table = presets.rounds(workers)
        partial, unscaled = presets.partial(workers), presets.unscaled(workers)
        divergent, logistic = presets.divergent(workers), presets.logistic(workers)
        best = {name: [averaging.search(workers, name, l2) for l2 in LAMBDAS] for name in averaging.BASELINES}
    ciphered = encrypted(ENCRYPTED)
    losses = averaging.losses(table, best)
    PAGE.parent.mkdir(exist_ok=True)
    figures.draw_gaps(table, GAPS)
    figures.draw_losses(losses, LOSSES)
    rows = [case.row(runs) for case, runs in table.items()]
    compared = averaging.compared(losses, best)
    PAGE.write_text(page(rows, divergent, ciphered, compared, partial, unscaled, logistic))
    return {"rows": rows}


def _quick() -> list[dict[str, object]]:
    hush()
    with tempfile.TemporaryDirectory() as temporary:
        cases = (
            presets.Case("linesearch", None, 0.01, 36, (4, 11, 17, 19, 34)),
            presets.Case("paper", 15, 0.1, 110, (10, 32, 54, 76, 99)),
        )
        rows = [case.row([done(each) for each in case.plan(Path(temporary))]) for case in cases]
        for row in encrypted((ENCRYPTED[0], ENCRYPTED[2]), rounds=5):
            progress(", ".join(f"{name} {value}" for name, value in row.items()))
    return rows


if __name__ == "__main__":
    run(__doc__ or "", measure)
