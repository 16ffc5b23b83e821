"""Bringing a federation up from Python."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console

from fenchel.common.errors import SettingsError
from fenchel.common.settings.run import RunSettings, load, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.data import ensure
from fenchel.deploy.launch.deployment import Deployment
from fenchel.deploy.launch.launchers.choice import launcher
from fenchel.server.telemetry.observer import Observer

if TYPE_CHECKING:
    from fenchel.common.data.shard import Shard
    from fenchel.report.run import Run

T = TypeVar("T")


def up(
    settings: str | Path | Mapping[str, Any] | RunSettings,
    *,
    overrides: Sequence[str] = (),
    clients: int | None = None,
    processes: int | None = None,
    on: str = "local",
    hosts: str | Sequence[str] | None = None,
    engine: str | Path | Mapping[str, Any] | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
    runs: str | Path = "runs",
    in_process: bool = False,
    shards: Sequence[Shard] | None = None,
    observer: Observer | None = None,
) -> Run:
    """Do a run with the server in this process, as the command ``fenchel up`` does, and return it.

    Parameters
    ----------
    settings
        A YAML file, a mapping of the same form, or validated settings.
    overrides
        ``key=value`` pairs, for a file.
    clients
        Number of clients, in place of the settings'.
    processes
        Client processes; by default one for each client, at most 16.
    on
        Engine that starts the clients: ``local``, ``ssh``, ``ray``, ``docker``, ``kubernetes`` or, in an allocation,
        ``slurm``.
    hosts
        Hosts of ``ssh``.
    engine
        Settings of the engine: a YAML file, or a mapping.
    cpus
        Processors for each client process, where the engine reserves them.
    gpus
        GPUs for each client process, where the engine reserves them.
    runs
        Folder in which the run folder is created.
    in_process
        Everything in this process and without a network: the same model, sooner; no real latency.
    shards
        What each client holds, in place of data that the settings name (``data.name: own``); only with ``in_process``.
    observer
        Called while the run goes on; several: :class:`fenchel.Observers`.

    Returns
    -------
    fenchel.Run
        The finished run.

    Raises
    ------
    FenchelError
        The settings cannot be accepted, or the run stopped early.
    """
    from fenchel.report.run import Run

    if shards is not None and not in_process:
        raise SettingsError("shards are objects of this process, so in_process=True must be given", key="shards")
    if in_process and on != "local":
        raise SettingsError("in_process=True starts no client processes; leave on out", key="on")
    chosen = _settings(settings, overrides, clients)
    if not isinstance(chosen.clients, int):
        raise SettingsError("auto means whoever joins; give clients=N", key="clients")
    engine_launcher = launcher(on, engine=engine, hosts=hosts, cpus=cpus, gpus=gpus)
    ensure(chosen.data, Console(stderr=True))
    folder = RunFolder.create(Path(runs), chosen.name)
    with folder.kept_if_begun():
        if in_process:
            # Only here: in any other case this process is a server, and must not have what decrypts.
            from fenchel.deploy.launch.in_process import run_in_process

            _wait_for(run_in_process(chosen, folder, observer=observer, shards=shards))
        else:
            deployment = Deployment(
                chosen, folder, chosen.clients, processes=processes, launcher=engine_launcher, observer=observer
            )
            _wait_for(deployment.run())
    return Run(folder.path)


def _settings(
    settings: str | Path | Mapping[str, Any] | RunSettings, overrides: Sequence[str], clients: int | None
) -> RunSettings:
    if isinstance(settings, str | Path):
        return load(Path(settings), [*overrides, *([f"clients={clients}"] if clients else [])])
    if overrides:
        raise SettingsError("overrides belong to a settings file; change the mapping itself")
    values = settings.model_dump() if isinstance(settings, RunSettings) else dict(settings)
    return validate(values | ({"clients": clients} if clients else {}))


def _wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also where an event loop runs already (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(work))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="fenchel-up")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
