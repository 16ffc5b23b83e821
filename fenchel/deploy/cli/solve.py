"""Command ``fenchel solve``: centralised solution of a run's problem on one machine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console

from fenchel.common.errors import SettingsError
from fenchel.common.settings.algorithm import Weighting
from fenchel.common.settings.data import GridPartition, RaggedPartition
from fenchel.common.settings.run import RunSettings
from fenchel.deploy.cli.conduct import load_shared
from fenchel.deploy.cli.options import JsonOption, SetOption
from fenchel.deploy.cli.printing import print_json, say

if TYPE_CHECKING:
    from fenchel.common.arrays import Vector
    from fenchel.common.data.shard import Shard
    from fenchel.common.data.source import DataSource


def solve(
    settings: Annotated[Path, typer.Argument(help="settings file (YAML)")],
    overrides: SetOption = None,
    tolerance: Annotated[float, typer.Option(min=0, help="duality gap at which to stop")] = 1e-9,
    passes: Annotated[int, typer.Option(min=1, help="largest number of passes over the data")] = 10_000,
    weighting: Annotated[
        Weighting | None, typer.Option(help="equal weights for each sample, or for each client; default: as in the run")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="also write the figures here, as JSON")] = None,
    as_json: JsonOption = False,
) -> None:
    """Solve a run's problem centrally on one machine: its optimum bounds the objective of any federation.

    All samples or all clients have equal weight, as in the objective of the run's algorithm.
    """
    from fenchel.common.data.source import DataSource
    from fenchel.common.objectives.factory import build_objective, margin_loss
    from fenchel.common.optim.sdca import solve as solve_dual
    from fenchel.deploy.launch.data import ensure
    from fenchel.report.render.output import output_at

    chosen = load_shared(settings, overrides or ())
    if output is not None:
        if output.is_dir():
            raise SettingsError("the path is a folder; give a file in it", source=output, key="--output")
        with output_at(output):  # make the folder now, as a solution may take long
            pass
    loss, l2 = margin_loss(chosen.objective), chosen.objective.l2
    console = Console(stderr=as_json, highlight=False)
    ensure(chosen.data, console)
    source = DataSource.open(chosen.data, chosen.seed, chosen.positive)
    weights, counts = _counted(chosen, weighting)
    (training, own), test = _training(chosen, source, weights), source.test()
    begun = time.perf_counter()
    found = solve_dual(loss, training, l2, tolerance=tolerance, max_passes=passes, seed=chosen.seed, weights=own)
    seconds = time.perf_counter() - begun
    objective = build_objective(chosen.objective.model_copy(update={"dtype": "float64"}), training)
    on_test = None if test is None else objective.evaluate(found.primal, test)
    figures: dict[str, Any] = {
        "weighting": weights,
        "objective": found.primal_objective,
        "sample_objective": found.primal_objective if own is None else objective.value(found.primal),
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
        print_json(figures)
        return
    title = f"{loss.kind}, l2 {l2:g}, {training.samples:,} samples, {source.problem.features:,} features"
    console.print(f"{'problem':15} {title}", soft_wrap=True)
    say(f"{'weighting':15} {weights}: {counts}", console)
    for name, fact in _facts(figures).items():
        console.print(f"{name:15} {fact}")
    if not figures["converged"]:
        console.print(
            f"[yellow]the gap is still above {tolerance:g}:[/] the optimum lies between dual and primal; "
            f"go on for longer with --passes {10 * passes}",
            soft_wrap=True,
        )
    if output is not None:
        say(f"{'figures':15} {output}", console)


def _counted(settings: RunSettings, wanted: Weighting | None) -> tuple[Weighting, str]:
    """Return the weighting of the problem to solve, and a text that compares it with the run's problem."""
    algorithm, what = settings.algorithm, {"samples": "each sample", "uniform": "each client"}
    own = algorithm.minimises(settings.participation.sampler)
    partition = settings.data.partition
    if own == "uniform" and isinstance(partition, GridPartition | RaggedPartition) and partition.feature_groups > 1:
        own = None  # with several feature groups, clients have no individual losses to weight uniformly
    chosen = wanted or own or "samples"
    alike = f"{what[chosen]} counts alike"
    if own is None:
        other = algorithm.other_problem or "something else, or does not say what"
        return chosen, f"{alike}. This is not the run's problem: {algorithm.name} minimises {other}"
    if chosen != own:
        return chosen, f"{alike}. This is not the run's problem, in which {what[own]} does"
    return chosen, f"{alike}, as in the run"


def _training(settings: RunSettings, source: DataSource, weighting: Weighting) -> tuple[Shard, Vector | None]:
    """Return the clients' n training samples, and their weights of mean 1, shape (n,); ``None`` for equal weights."""
    if weighting == "samples" and not (settings.data.holdout or settings.data.leaves_out):
        return source.training(), None
    if not isinstance(settings.clients, int):
        raise SettingsError(
            "auto leaves the number of clients open, but the problem depends on the partition; give --set clients=N",
            key="clients",
        )
    training, counts = source.pooled(settings.clients)
    if weighting == "samples":
        return training, None
    return training, np.repeat(training.samples / (len(counts) * np.array(counts, np.float64)), counts)


def _facts(figures: dict[str, Any]) -> dict[str, str]:
    facts = {
        "primal": f"{figures['objective']:.10f}",
        "dual": f"{figures['dual_objective']:.10f}",
        "gap": f"{figures['gap']:.1e}",
    }
    if figures["weighting"] == "uniform":
        facts["over samples"] = f"{figures['sample_objective']:.10f}, the objective of this model in a run's tables"
    for name in ("train_accuracy", "test_accuracy"):
        if figures[name] is not None:
            facts[name.replace("_", " ")] = f"{100 * figures[name]:.1f} %"
    if figures["test_loss"] is not None:
        facts["test loss"] = f"{figures['test_loss']:.6f}"
    return facts | {"seconds": f"{figures['seconds']:.3f}", "passes": f"{figures['passes']:,}"}
