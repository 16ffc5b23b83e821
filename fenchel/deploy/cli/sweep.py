"""Sweeps of ``fenchel up``: sequential runs with several seeds and values, and their comparison."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from fenchel.common.errors import RunStoppedError, SettingsError
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.cli.conduct import conducted, interruptible, show_warnings
from fenchel.deploy.cli.printing import console_for, print_json, say
from fenchel.deploy.launch.data import ensure
from fenchel.deploy.launch.launchers.slurm import SlurmLauncher
from fenchel.deploy.launch.sweep import (
    SweepPoint,
    SweepResult,
    completed_runs,
    create_sweep_folder,
    do_sweep,
    parse_grid,
    parse_seeds,
    sweep_points,
)
from fenchel.deploy.monitoring.display import StatusLine
from fenchel.deploy.monitoring.exporters import MonitoringOptions
from fenchel.server.preflight import check_run
from fenchel.server.telemetry.observer import Observers

if TYPE_CHECKING:
    from fenchel.deploy.launch.deployment import Deployment
    from fenchel.deploy.launch.in_process import OneProcess


@dataclass(frozen=True)
class Sweep:
    """Sweep with checked settings.

    Attributes
    ----------
    points
        Runs of the sweep.
    deploy
        Function of a run's settings that returns the checked deployment.
    """

    points: Sequence[SweepPoint]
    deploy: Callable[[RunSettings], Deployment | OneProcess]

    @classmethod
    def plan(
        cls,
        values: Mapping[str, Any],
        source: str,
        seeds: str | None,
        grid: Sequence[str],
        deploy: Callable[[RunSettings], Deployment | OneProcess],
    ) -> Sweep:
        """Return the sweep of command-line arguments, with checked settings of every run.

        Raises
        ------
        SettingsError
            If the arguments are invalid.
        FenchelError
            If the settings of a run are invalid: the error of the first such run.
        """

        def check(settings: RunSettings) -> None:
            deployment = deploy(settings)
            check_run(settings, None, deployment.clients)
            if isinstance(deployment.launcher, SlurmLauncher) and not deployment.launcher.is_allocated:
                raise SettingsError(
                    "a sweep on slurm needs an allocation; start this command within salloc or sbatch", key="--on"
                )

        chosen = [] if seeds is None else parse_seeds(seeds)
        if not chosen and not grid:
            raise SettingsError("the option is for sweeps; give --seeds or --grid, or leave it out", key="--skip-done")
        return cls(sweep_points(values, source, chosen, parse_grid(grid), check), deploy)

    def go(self, runs: Path, exporters: MonitoringOptions, *, skip_done: bool, as_json: bool, quiet: bool) -> None:
        """Conduct all runs in a new folder below ``runs``, and compare them.

        Raises
        ------
        RunStoppedError
            If a run is not completed, after the other runs and the comparison.
        """
        console = console_for(as_json, quiet)
        planned = [point.settings for point in self.points]
        for settings in {each.algorithm.warnings: each for each in planned}.values():
            show_warnings(settings)
        for data in {each.data.name: each.data for each in planned}.values():
            ensure(data, console)
        done = completed_runs(runs) if skip_done else {}
        folder = create_sweep_folder(runs, planned[0].name)
        results: list[SweepResult] = []
        try:
            for result in do_sweep(self.points, folder, lambda n, s: self._do(n, s, folder, exporters, console), done):
                results.append(result)
                say(f"{len(results)}/{len(self.points)}  {_line(result)}", console)
        except (KeyboardInterrupt, asyncio.CancelledError):
            completed = sum(result.error is None for result in results)
            say(
                f"{completed} of {len(self.points)} runs are completed; --skip-done with the same command leaves "
                "them out",
                Console(stderr=True),
            )
            raise
        _compare(results, folder, console, as_json=as_json, quiet=quiet)

    def _do(
        self, number: int, settings: RunSettings, parent: Path, exporters: MonitoringOptions, console: Console
    ) -> None:
        """Conduct a run with a progress line in the terminal, and write its HTML page."""
        from fenchel.report.render.page import write_report
        from fenchel.report.run import Run

        label = f"{number + 1}/{len(self.points)}  {self.points[number].label}"
        folder = RunFolder.create(parent, settings.name)
        with conducted(folder, settings, exporters, console) as watchers, console.status(escape(label)) as status:
            progress = StatusLine(status, label, settings.rounds)
            deployment = replace(self.deploy(settings), folder=folder, say=progress.say)
            interruptible(replace(deployment, observer=Observers(progress, watchers)).run())
        write_report([Run(folder.path)], folder.report)


def _line(result: SweepResult) -> str:
    """Return a line with the result of a run."""
    from fenchel.report import figure_names
    from fenchel.report.formatting import figure_text, seconds_text
    from fenchel.report.run import Run
    from fenchel.report.wall_time import wall_of

    state = "skipped" if result.skipped else "completed"
    if result.error is not None:
        state = "refused" if result.path is None else "stopped"
    words = [result.point.label, state]
    if result.path is not None:
        run = Run(result.path)
        shown = [
            name for name in (figure_names.objective(run.figures), "test_accuracy", "test_auc") if name in run.figures
        ]
        words += [f"{figure_names.title(name).lower()} {figure_text(name, run.figures[name])}" for name in shown]
        words += [seconds_text(wall_of(run).total), str(result.path)]
    return "  ".join(words)


def _compare(results: Sequence[SweepResult], folder: Path, console: Console, *, as_json: bool, quiet: bool) -> None:
    """Show and write the comparison of all runs that have begun; raise an error if any is not completed."""
    from fenchel.report.render import terminal
    from fenchel.report.render.page import write_report
    from fenchel.report.run import Run

    runs = [Run(result.path) for result in results if result.path is not None]
    failed = [result for result in results if result.error is not None]
    page = folder / "comparison.html"
    if runs:
        write_report(runs, page)
    if as_json:
        failures = [{"changes": dict(each.point.changes), "error": str(each.error)} for each in failed]
        print_json(terminal.as_json(runs) | {"folder": str(folder), "failed": failures})
    elif quiet:
        print(folder)  # noqa: T201
    elif runs:
        terminal.show(runs, console)
        say(f"sweep folder  {folder}\ncomparison    {page}", console)
    if failed:
        reasons = "\n  ".join(f"{each.point.label}: {str(each.error).splitlines()[0]}" for each in failed)
        raise RunStoppedError(f"{len(failed)} of {len(results)} runs are not completed\n  {reasons}")
