"""Bringing a federation up from Python."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console

from fenchel.common.errors import SettingsError
from fenchel.common.settings.run import RunSettings, change, read, shipped_or_own, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.data import ensure
from fenchel.deploy.launch.deployment import Deployment
from fenchel.deploy.launch.given_data import OwnData, OwnFiles, PooledData, given_data
from fenchel.deploy.launch.launchers.choice import launcher
from fenchel.server.telemetry.observer import Observer

if TYPE_CHECKING:
    from fenchel.report.run import Run

T = TypeVar("T")


def up(
    settings: str | Path | Mapping[str, Any] | RunSettings,
    *,
    overrides: Sequence[str] = (),
    clients: int | None = None,
    data: Any = None,
    label: str | None = None,
    identifier: str | None = None,
    processes: int | None = None,
    on: str = "local",
    hosts: str | Sequence[str] | None = None,
    engine: str | Path | Mapping[str, Any] | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
    runs: str | Path = "runs",
    in_process: bool = False,
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
    data
        Samples in place of those that the settings name: a path; ``(X, y)`` of NumPy arrays, SciPy matrices or
        tensors, X of shape (n, features) or (n, rows, columns[, channels]), y of shape (n,); a mapping of arrays, such
        as ``X``, ``y``, ``X_test`` and ``y_test``; a DataFrame; a torch ``Dataset``; a Hugging Face ``Dataset`` or
        ``DatasetDict``. They are divided among the clients as ``data.partition`` says. A list of any of these has what
        each client brings itself (``data.name: own``); in one process also a list of :class:`fenchel.Shard`.
    label
        Column of the label, where columns have names; by default ``label``, else the last one.
    identifier
        Where clients bring data themselves: column, or array, of the sample identifiers.
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

    if in_process and on != "local":
        raise SettingsError("in_process=True starts no client processes; leave on out", key="on")
    given = given_data(data, label, identifier, in_process=in_process)
    changes = {} if given is None else given.settings
    if clients is not None:
        if changes.get("clients", clients) != clients:
            raise SettingsError(f"{clients} given, but data for {changes['clients']} clients", key="clients")
        changes |= {"clients": clients}
    chosen = _settings(settings, overrides, changes)
    number = chosen.clients
    if not isinstance(number, int):
        raise SettingsError("auto means whoever joins; give clients=N", key="clients")
    engine_launcher = launcher(on, engine=engine, hosts=hosts, cpus=cpus, gpus=gpus)
    ensure(chosen.data, Console(stderr=True))
    folder = RunFolder.create(Path(runs), chosen.name)
    with folder.kept_if_begun():
        own = given.write(folder) if isinstance(given, OwnData) else None
        if isinstance(given, PooledData):
            chosen = given.named(chosen, folder)
        if in_process:
            # Only here: in any other case this process is a server, and must not have what decrypts.
            from fenchel.deploy.launch.in_process import run_in_process

            _wait_for(run_in_process(chosen, folder, observer=observer, own=own))
        else:
            assert own is None or isinstance(own, OwnFiles)  # shards were refused
            deployment = Deployment(
                chosen, folder, number, processes=processes, launcher=engine_launcher, observer=observer, own=own
            )
            _wait_for(deployment.run())
    return Run(folder.path)


def _settings(
    settings: str | Path | Mapping[str, Any] | RunSettings, overrides: Sequence[str], changes: Mapping[str, Any]
) -> RunSettings:
    values, source = values_and_source(settings, overrides)
    change(values, changes)
    return validate(values, source)


def values_and_source(
    settings: str | Path | Mapping[str, Any] | RunSettings, overrides: Sequence[str]
) -> tuple[dict[str, Any], str]:
    """Return settings as a mapping of its own, not validated, and their origin for errors."""
    if isinstance(settings, str | Path):
        path = shipped_or_own(Path(settings))
        return read(path, overrides), str(path)
    if overrides:
        raise SettingsError("overrides belong to a settings file; change the mapping itself")
    return settings.model_dump() if isinstance(settings, RunSettings) else deepcopy(dict(settings)), "settings"


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
