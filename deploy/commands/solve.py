"""The command solve: the whole problem of a run on one machine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from common.errors import DataError, SettingsError
from deploy.commands.run import JsonOption, SetOption


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(solve)


def solve(
    settings: Annotated[Path, typer.Argument(help="settings file (YAML)")],
    overrides: SetOption = None,
    tolerance: Annotated[float, typer.Option(min=0, help="duality gap at which to stop")] = 1e-9,
    passes: Annotated[int, typer.Option(min=1, help="stop after so many passes over the data")] = 10_000,
    output: Annotated[Path | None, typer.Option(help="also write the figures here, as JSON")] = None,
    as_json: JsonOption = False,
) -> None:
    """Solve a run's whole problem on one machine: the optimum that a federation can at best reach."""
    from common.data.source import DataSource
    from common.objectives.factory import build_objective, margin_loss
    from common.objectives.sdca import solve as solve_dual
    from common.settings.run import load
    from deploy.data import ensure
    from report.output import output_at

    if output is not None and output.is_dir():
        raise SettingsError(f"--output {output}: is a folder; name a file in it")
    if output is not None and not output.parent.is_dir():
        raise SettingsError(f"--output {output}: there is no folder {output.parent}; make it first")
    chosen = load(settings, overrides or ())
    if chosen.own_data:
        raise DataError(
            "data.name: own means that each client brings its own file: nobody holds the whole problem"
        )
    loss, l2 = margin_loss(chosen.objective), chosen.objective.l2
    console = Console(stderr=as_json, highlight=False)
    ensure(chosen.data, console)
    source = DataSource.open(chosen.data, chosen.seed, chosen.positive)
    training, test = source.training(), source.test()
    begun = time.perf_counter()
    found = solve_dual(loss, training, l2, tolerance=tolerance, max_passes=passes, seed=chosen.seed)
    seconds = time.perf_counter() - begun
    objective = build_objective(chosen.objective.model_copy(update={"dtype": "float64"}), training)
    on_test = None if test is None else objective.evaluate(found.primal, test)
    figures: dict[str, Any] = {
        "objective": found.primal_objective,
        "dual_objective": found.dual_objective,
        "gap": found.gap,
        "converged": found.gap <= tolerance,
        "train_accuracy": objective.evaluate(found.primal).accuracy,
        "test_accuracy": None if on_test is None else on_test.accuracy,
        "test_loss": None if on_test is None else on_test.loss,
        "seconds": seconds,
        "passes": found.passes,
        "samples": training.samples,
        "features": source.problem.features,
    }
    if output is not None:
        with output_at(output):
            output.write_text(json.dumps(figures, indent=2) + "\n")
    if as_json:
        print(json.dumps(figures))  # noqa: T201
        return
    title = f"{loss.kind}, l2 {l2:g}, {training.samples:,} samples, {source.problem.features:,} features"
    console.print(f"{'problem':15} {title}", soft_wrap=True)
    for name, fact in _facts(figures).items():
        console.print(f"{name:15} {fact}")
    if not figures["converged"]:
        console.print(
            f"[yellow]the gap is still above {tolerance:g}:[/] the optimum lies between dual and primal; "
            f"go on for longer with --passes {10 * passes}",
            soft_wrap=True,
        )
    if output is not None:
        console.print(f"{'figures':15} {output}", soft_wrap=True)


def _facts(figures: dict[str, Any]) -> dict[str, str]:
    facts = {
        "primal": f"{figures['objective']:.10f}",
        "dual": f"{figures['dual_objective']:.10f}",
        "gap": f"{figures['gap']:.1e}",
    }
    for name in ("train_accuracy", "test_accuracy"):
        if figures[name] is not None:
            facts[name.replace("_", " ")] = f"{100 * figures[name]:.1f} %"
    if figures["test_loss"] is not None:
        facts["test loss"] = f"{figures['test_loss']:.6f}"
    return facts | {"seconds": f"{figures['seconds']:.3f}", "passes": f"{figures['passes']:,}"}
