"""Command ``fenchel up``: a whole federation, whose clients an engine starts on this machine or others."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fenchel.common.errors import SettingsError
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.cli import options
from fenchel.deploy.cli.conduct import (
    chosen_settings,
    chosen_values,
    conducted,
    interruptible,
    show_outcome,
    show_warnings,
)
from fenchel.deploy.cli.printing import console_for, say
from fenchel.deploy.launch.data import ensure
from fenchel.deploy.launch.words import option_words

if TYPE_CHECKING:
    from fenchel.common.settings.run import RunSettings
    from fenchel.deploy.launch.deployment import Deployment
    from fenchel.deploy.launch.in_process import OneProcess
    from fenchel.deploy.launch.launchers.slurm_job import SlurmJob
    from fenchel.server.checkpoint import Checkpoint


def up(
    settings: options.SettingsArgument = None,
    overrides: options.SetOption = None,
    clients: options.ClientsOption = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|PATTERN",
            help="data files of the clients, one for each, such as 'hospitals/*.csv' (in place of the settings' data)",
        ),
    ] = None,
    label: options.LabelOption = None,
    identifier: options.IdentifierOption = None,
    processes: options.ProcessesOption = None,
    in_process: options.InProcessOption = False,
    runs: options.RunsOption = Path("runs"),
    on: Annotated[
        str,
        typer.Option(
            metavar="ENGINE", help="engine that starts the clients: local, ssh, slurm, ray, docker or kubernetes"
        ),
    ] = "local",
    hosts: Annotated[
        str | None,
        typer.Option(metavar="A,B,C|FILE", help="hosts of --on ssh, to which processes are assigned in turn"),
    ] = None,
    engine: Annotated[
        Path | None, typer.Option(metavar="FILE", help="settings file of the engine (YAML); see docs/engines.md")
    ] = None,
    cpus: Annotated[
        float | None,
        typer.Option(min=0, help="number of processors for each client process, if the engine reserves them"),
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="number of GPUs for each client process, if the engine reserves them; with docker, for all together",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the plan in the language of the engine, and start nothing")
    ] = False,
    seeds: Annotated[
        str | None, typer.Option(metavar="1..5|1,4,7", help="seeds, with a run for each; see docs/experiments.md")
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V1,V2", help="values of a setting, with a run for each; several --grid make all combinations"
        ),
    ] = None,
    skip_done: Annotated[
        bool, typer.Option("--skip-done", help="with --seeds or --grid: skip runs that are completed below --runs")
    ] = False,
    resume: options.ResumeOption = None,
    previous: options.PreviousOption = False,
    dashboard: options.DashboardOption = False,
    dashboard_at: options.DashboardAtOption = None,
    metrics: options.MetricsOption = None,
    track: options.TrackOption = None,
    insecure: options.InsecureOption = False,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
    log_level: options.LogLevelOption = None,
) -> None:
    """Start a whole federation, a server on this machine and its clients, over TLS, until the run ends."""
    from fenchel.deploy.launch.deployment import Deployment
    from fenchel.deploy.launch.given_data import OwnFiles
    from fenchel.deploy.launch.launchers.choice import launcher
    from fenchel.deploy.monitoring.display import Display
    from fenchel.deploy.monitoring.exporters import MonitoringOptions
    from fenchel.fleet.metering.open_files import raise_limit
    from fenchel.report.run import Run
    from fenchel.server.coordinator import open_resumed
    from fenchel.server.telemetry.observer import Observers
    from fenchel.server.telemetry.summary import Summary

    raise_limit()
    exporters = MonitoringOptions.parse(dashboard, dashboard_at, metrics, track)
    own = OwnFiles.of_patterns(data, label, identifier) if data else None
    if own is None and (label, identifier) != (None, None):
        raise SettingsError(
            "the option names columns of --data, which is not given; give --data, or leave the option out",
            key="--label, --id",
        )
    of_processes: dict[str, object] = {"--processes": processes, "--insecure": insecure or None}
    of_processes |= {"--on": None if on == "local" else on, "--hosts": hosts, "--engine": engine}
    of_processes |= {"--cpus": cpus, "--gpus": gpus}
    if in_process and (given := [option for option, value in of_processes.items() if value is not None]):
        raise SettingsError(
            "the option configures client processes, but --in-process starts none; leave one of the two out",
            key=given[0],
        )

    def deploy(
        chosen: RunSettings, folder: RunFolder | None = None, checkpoint: Checkpoint | None = None
    ) -> Deployment | OneProcess:
        number = len(checkpoint.members) if checkpoint is not None else chosen.clients
        if not isinstance(number, int):
            raise SettingsError(
                "auto leaves the number of clients open, but this command starts the clients; give --clients N",
                key="clients",
            )
        folder = folder or RunFolder(runs / "RUN")
        deployment: Deployment | OneProcess
        if in_process:
            # Late import, because a process that is only a server must not load the code that decrypts.
            from fenchel.deploy.launch.in_process import OneProcess

            deployment = OneProcess(chosen, folder, number, resume=checkpoint, own=own)
        else:
            deployment = Deployment(
                chosen,
                folder,
                number,
                processes=processes,
                secure=not insecure,
                launcher=launcher(on, engine=engine, hosts=hosts, cpus=cpus, gpus=gpus),
                resume=checkpoint,
                own=own,
            )
        deployment.check()
        return deployment

    if seeds is not None or grid or skip_done:
        from fenchel.deploy.cli.sweep import Sweep

        if resume is not None or previous:
            raise SettingsError(
                "the option continues a single run; leave --seeds, --grid and --skip-done out", key="--resume"
            )
        if skip_done and own is not None:
            raise SettingsError(
                "the option cannot detect changes in the files of --data; leave it out", key="--skip-done"
            )
        planned = Sweep.plan(*chosen_values(settings, overrides, clients, own), seeds, grid or (), deploy)
        if dry_run:
            print("\n".join(point.label for point in planned.points))  # noqa: T201
            return
        planned.go(runs, exporters, skip_done=skip_done, as_json=as_json, quiet=quiet)
        return
    chosen, folder = chosen_settings(settings, overrides, clients, resume, previous, own)
    if folder is not None and not (previous or dry_run) and (run := Run(folder.path)).has_ended:
        say(
            "the run is completed, and nothing is left to do; docs/python.md says how to train longer",
            Console(stderr=True),
        )
        show_outcome(console_for(as_json, quiet), folder, Summary(**(run.summary or {})), as_json=as_json, quiet=quiet)
        return
    checkpoint = None if folder is None else open_resumed(folder, previous=previous)
    deployment = deploy(chosen, folder, checkpoint)
    kept: dict[str, object] = {"--on": on, "--engine": engine, "--cpus": cpus, "--gpus": gpus, "--processes": processes}
    kept |= {"--dashboard-at": dashboard_at, "--metrics": metrics, "--log-level": log_level}
    kept |= {"--quiet": quiet, "--track": exporters.tracked}
    always = [*option_words(kept), *(() if own is None else own.words(range(deployment.clients)))]
    changes: dict[str, object] = {"--clients": clients, "--set": overrides, "--resume": resume, "--previous": previous}
    beginning = [*(() if settings is None else (str(settings),)), *option_words(changes)]
    job = _job(deployment, always, beginning, runs)
    if job is not None and dashboard:
        raise SettingsError(
            "the option opens a page on this machine, but the run is in a job; use --dashboard-at", key="--dashboard"
        )
    if dry_run:
        print(job.script() if job is not None else "\n".join(deployment.plan()))  # noqa: T201
        return
    show_warnings(chosen)
    console = console_for(as_json, quiet)
    ensure(chosen.data, console)
    if job is not None:
        _wait_for(job, resume, as_json, quiet)
        return
    folder = folder or RunFolder.create(runs, chosen.name)
    with (
        conducted(folder, chosen, exporters, console) as watchers,
        Display(console, folder.id, chosen.rounds) as display,
    ):
        observer = Observers(display, watchers)
        summary = interruptible(replace(deployment, folder=folder, observer=observer, say=display.say).run())
    show_outcome(console, folder, summary, as_json=as_json, quiet=quiet)


def _job(deployment: Deployment | OneProcess, always: list[str], beginning: list[str], runs: Path) -> SlurmJob | None:
    """Return the Slurm job that runs this command, or ``None`` if this process itself runs the server."""
    from fenchel.deploy.launch.deployment import Deployment
    from fenchel.deploy.launch.launchers.slurm import SlurmLauncher
    from fenchel.deploy.launch.launchers.slurm_job import SlurmJob

    if not isinstance(deployment, Deployment):
        return None
    launcher = deployment.launcher
    if not isinstance(launcher, SlurmLauncher) or launcher.is_allocated:
        return None
    return SlurmJob(
        settings=launcher.settings,
        name=deployment.settings.name,
        processes=len(deployment.groups),
        always=always,
        beginning=beginning,
        runs=runs,
    )


def _wait_for(job: SlurmJob, resumed: Path | None, as_json: bool, quiet: bool) -> None:
    """Run a Slurm job, show its log and its result, and exit with its code if that is not 0."""
    console = Console(stderr=as_json or quiet)  # the log of a quiet job contains only errors
    code, folder = interruptible(job.run(partial(say, console=console)))
    if code:
        raise typer.Exit(code)
    if as_json or quiet:
        # If Slurm restarted the job before its first checkpoint, there are several run folders: take the latest.
        run = RunFolder(resumed or max(folder.iterdir(), key=lambda path: path.stat().st_mtime))
        found = json.loads(run.summary.read_text()) | {"folder": str(run.path)}
        print(json.dumps(found) if as_json else run.path)  # noqa: T201
