"""Rounds that HyFDCA needs on breast cancer, nine clients in a 3 by 3 grid, beside an independent prototype.

Real server and client processes over TLS. Writes the tables and the figures of
``docs/results/hyfdca.md``. It takes about half an hour on two cores. Runs are kept in
``runs/hyfdca-breast-cancer``, and those that are there already are not done again: remove the folder to measure
anew. ``--quick`` does four short runs in under a minute, and writes and keeps nothing. No data are downloaded: the
set is installed with Fenchel.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.experiment import done
from benchmarks.hyfdca_breast_cancer import averaging, figures, presets
from benchmarks.hyfdca_breast_cancer.encryption import ENCRYPTED, encrypted
from benchmarks.hyfdca_breast_cancer.runs import LAMBDAS, hush, pool
from benchmarks.page import made_by, put
from benchmarks.program import Figures, markdown, progress, run

_PAGE = Path("docs/results/hyfdca.md")


def measure(quick: bool) -> Figures:
    """Do all runs, and write the page; or four runs, and write nothing."""
    if quick:
        return {"rows": _quick()}
    with pool() as workers:
        table = presets.rounds(workers)
        tables = {
            "presets": [case.row(runs) for case, runs in table.items()],
            "divergent": presets.divergent(workers),
            "partial": presets.partial(workers),
            "unscaled": presets.unscaled(workers),
            "logistic": presets.logistic(workers),
        }
        best = {name: [averaging.search(workers, name, l2) for l2 in LAMBDAS] for name in averaging.BASELINES}
    losses = averaging.losses(table, best)
    tables |= {"encrypted": encrypted(ENCRYPTED), "averaging": averaging.compared(losses, best)}
    figures.draw_gaps(table, _PAGE.with_name("hyfdca-breast-cancer-gap.png"))
    figures.draw_losses(losses, _PAGE.with_name("hyfdca-breast-cancer-loss.png"))
    for name, rows in tables.items():
        made = f"{made_by('hyfdca_breast_cancer')}\n\n" if name == "presets" else ""
        put(_PAGE, name, f"{made}{markdown(rows)}")
    return {"rows": tables["presets"], "optima": [averaging.optimum(l2) for l2 in LAMBDAS]}


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
