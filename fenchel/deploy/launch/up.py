"""Start of a federation from Python."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from fenchel.common.errors import DataError, SettingsError
from fenchel.common.settings.run import RunSettings, change, load, read, shipped_or_own, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.data import ensure
from fenchel.deploy.launch.given_data import OwnData, OwnFiles, PooledData, given_data, name_as_given, warn_of_clients
from fenchel.deploy.launch.launchers.choice import launcher
from fenchel.deploy.launch.logs import log_to_file
from fenchel.server.telemetry.observer import Observer

if TYPE_CHECKING:
    from fenchel.common.data.shard import Shard
    from fenchel.report.run import Run
    from fenchel.server.checkpoint import Checkpoint

_LOOK = 0.1  # polling interval for the cancellation of the caller's task, in seconds

P = ParamSpec("P")
T = TypeVar("T")

GivenSettings: TypeAlias = str | Path | Mapping[str, Any] | RunSettings
"""Settings that programs pass: a file, a mapping of the same form, or validated settings."""


@dataclass(frozen=True)
class _Work:
    """Run to execute, new or resumed.

    Attributes
    ----------
    given
        Data passed by the caller, not yet written to the run folder.
    own
        Clients' data files in the folder of a resumed run.
    """

    settings: RunSettings
    folder: RunFolder
    clients: int
    given: PooledData | OwnData | None
    own: OwnFiles | None = None
    checkpoint: Checkpoint | None = None


async def up_async(
    settings: GivenSettings | None = None,
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
    resume: str | Path | Run | None = None,
    observer: Observer | None = None,
    progress: bool = True,
) -> Run:
    """Run a federation and return the completed run.

    The server is in this process. The clients are processes of their own, connected by TLS, as with the command
    ``fenchel up``. :func:`fenchel.up` blocks until the run ends, also in a notebook. :func:`fenchel.up_async` is a
    coroutine with the same arguments for the event loop of the caller. A run that is interrupted or cancelled is saved
    up to its last checkpoint.

    Parameters
    ----------
    settings : str, pathlib.Path, mapping or RunSettings, optional
        A YAML file, the name of a shipped experiment such as ``quickstart``, a mapping of the same form, or validated
        settings. Required unless ``resume`` is given.
    overrides : sequence of str, default ()
        Changes of a settings file, such as ``"participation.deadline=30"``: dotted keys, values in YAML.
    clients : int, optional
        Number of clients, in place of that in the settings. Required if the settings have ``clients: auto``.
    data : optional
        Samples, in place of those that the settings name. One data set is divided among the clients by
        ``data.partition``: a path; a pair ``(X, y)`` of arrays, SciPy matrices or tensors; a mapping of arrays such as
        ``X``, ``y``, ``X_test`` and ``y_test``; a DataFrame; a torch ``Dataset`` or ``DataLoader``; a Hugging Face
        ``Dataset`` or ``DatasetDict``. X is of shape (n, features) or (n, rows, columns[, channels]), y of (n,).
        A list has one data set for each client, in any of these forms. With ``in_process`` it may be a list of
        :class:`fenchel.Shard`.
    label : str, optional
        Name of the label column. By default ``label``, or the last column if none has that name.
    identifier : str, optional
        Column or array of the sample identifiers, if ``data`` is a list.
    processes : int, optional
        Number of client processes. By default one for each client, at most 16.
    on : {"local", "ssh", "ray", "docker", "kubernetes", "slurm"}, default "local"
        Engine that starts the client processes. ``slurm`` needs an allocation.
    hosts : str or sequence of str, optional
        Hosts of the engine ``ssh``: a list, a text with commas or blanks, or a file with such a text.
    engine : str, pathlib.Path or mapping, optional
        Settings of the engine: a YAML file, or a mapping.
    cpus : float, optional
        Processors reserved for each client process, if the engine reserves them.
    gpus : float, optional
        GPUs reserved for each client process, if the engine reserves them; with ``docker``, for all together.
    runs : str or pathlib.Path, default "runs"
        Folder in which the run folder is created.
    in_process : bool, default False
        Simulate the clients in this process, without a network. The model is the same, but latencies are not measured.
    resume : str, pathlib.Path or Run, optional
        Run to continue from its last checkpoint, in place of ``settings``. Data given as Python objects are in its
        folder. Clients' own data files must be given again. A run with all rounds done is returned unchanged.
    observer : Observer, optional
        Receiver of the events of the run. :class:`fenchel.Observers` combines several.
    progress : bool, default True
        Show the progress in a notebook or on a terminal.

    Returns
    -------
    Run
        The completed run.

    Raises
    ------
    SettingsError
        If the settings or arguments are not valid, or a required package is not installed.
    DataError
        If the data cannot be read or used.
    FenchelError
        If the run stopped early, for instance because too few clients replied. A note of the error explains how to
        resume the run.

    Examples
    --------
    A run of five rounds, whose final test accuracy is printed::

        import fenchel

        run = fenchel.up("quickstart", overrides=["rounds=5"])
        print(run.figures["test_accuracy"])
    """
    if not isinstance(observer, Observer | None):
        raise SettingsError(
            f"{observer!r:.80} is not an observer; give an object of a class that derives from fenchel.Observer, "
            "such as fenchel.trackers.TensorBoard()",
            key="observer",
        )
    if in_process and on != "local":
        raise SettingsError(
            "in_process=True starts no client processes, so it has no engine; leave out this argument", key="on"
        )
    # A resumed run without new data applies label and identifier to the data in its folder.
    resumed = resume is not None and data is None
    given = None if resumed else given_data(data, label, identifier, in_process=in_process)
    engine_launcher = launcher(on, engine=engine, hosts=hosts, cpus=cpus, gpus=gpus)
    if resume is None:
        work = _begin(settings, overrides, clients, given, Path(runs))
    elif settings is not None or overrides or clients is not None:
        raise SettingsError("a resumed run keeps its settings; give resume without settings", key="resume")
    else:
        path = Path(resume if isinstance(resume, str | os.PathLike) else resume.path)
        work = _resume(path, given, label, identifier)
    from fenchel.deploy.monitoring.display import progress_shown  # late imports, because they are slow
    from fenchel.report.run import Run

    folder, rounds = work.folder, work.settings.rounds
    if work.checkpoint is not None and (run := Run(folder.path)).has_ended:
        return run
    shown = progress_shown(observer, folder.id, rounds) if progress else nullcontext(observer)
    try:
        with folder.kept_if_begun(), log_to_file(folder.log), shown as watching:
            chosen, own = _with_data(work)
            if in_process:
                # Late import, because a process that is only a server must not load the code that decrypts.
                from fenchel.deploy.launch.in_process import run_in_process

                await run_in_process(chosen, folder, resume=work.checkpoint, observer=watching, own=own)
            else:
                from fenchel.deploy.launch.deployment import Deployment  # late import, because the import is slow

                assert own is None or isinstance(own, OwnFiles)  # given_data accepts shards only with in_process
                await Deployment(
                    chosen,
                    folder,
                    work.clients,
                    processes=processes,
                    launcher=engine_launcher,
                    resume=work.checkpoint,
                    observer=watching,
                    own=own,
                ).run()
    except BaseException as error:
        if isinstance(error, DataError) and given is not None:
            name_as_given(error, folder)
        if folder.can_be_resumed:
            again = f"fenchel.up(resume={str(folder.path)!r})"
            error.add_note(f"The run is saved up to its last checkpoint; go on with {again}.")
        raise
    return Run(folder.path)


def _blocking(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return a blocking function with the arguments of a coroutine function."""
    signature = inspect.signature(work)

    @functools.wraps(work)
    def up(*arguments: P.args, **options: P.kwargs) -> T:
        try:
            signature.bind(*arguments, **options)
        except TypeError as error:
            raise TypeError(f"up() {error}") from None
        return _wait_for(work(*arguments, **options))

    up.__name__ = up.__qualname__ = "up"
    return up


up = _blocking(up_async)


def _begin(
    settings: GivenSettings | None,
    overrides: Sequence[str],
    clients: int | None,
    given: PooledData | OwnData | None,
    runs: Path,
) -> _Work:
    """Create the run folder, and return a new run."""
    if settings is None:
        raise SettingsError("no settings given; give a file, a name such as quickstart, a mapping, or resume")
    changes = {} if given is None else given.settings
    if clients is not None:
        if changes.get("clients", clients) != clients:
            raise SettingsError(
                f"{clients} clients given, but data for {changes['clients']}; give one entry of data for each client",
                key="clients",
            )
        changes |= {"clients": clients}
    values, source = values_and_source(settings, overrides)
    if clients is None:
        warn_of_clients(values, changes)
    change(values, changes)
    chosen = validate(values, source)
    if not isinstance(chosen.clients, int):
        raise SettingsError("auto leaves the number of clients open; give clients=N", key="clients")
    ensure(chosen.data)
    return _Work(chosen, RunFolder.create(runs, chosen.name), chosen.clients, given)


def _resume(path: Path, given: PooledData | OwnData | None, label: str | None, identifier: str | None) -> _Work:
    """Return a run that is resumed from its folder."""
    from fenchel.server.coordinator import open_resumed

    folder = RunFolder.existing(path)
    chosen, checkpoint = load(folder.settings), open_resumed(folder)
    if isinstance(given, PooledData):
        raise SettingsError("a resumed run keeps its data; leave data out", key="data")
    own = OwnFiles.written(folder, label, identifier) if given is None and chosen.own_data else None
    return _Work(chosen, folder, len(checkpoint.members), given, own, checkpoint)


def _with_data(work: _Work) -> tuple[RunSettings, OwnFiles | Sequence[Shard] | None]:
    """Write the caller's data to the run folder, and return the settings and the clients' own data."""
    if isinstance(work.given, PooledData):
        return work.given.named(work.settings, work.folder), None
    return work.settings, work.own if work.given is None else work.given.write(work.folder)


def values_and_source(settings: GivenSettings, overrides: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return settings as a new mapping before validation, and their origin for errors."""
    if isinstance(settings, str | Path):
        path = shipped_or_own(Path(settings))
        return read(path, overrides), str(path)
    if overrides:
        raise SettingsError("overrides change a file of settings, but a mapping is given; change the mapping itself")
    return settings.model_dump() if isinstance(settings, RunSettings) else deepcopy(dict(settings)), "settings"


def _wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to completion, even inside a running event loop, as in a notebook."""
    if not _in_event_loop():
        try:
            return asyncio.run(work)
        except KeyboardInterrupt as interruption:
            raise _noted(interruption, interruption.__context__) from None
    outcome: list[T] = []
    failure: list[BaseException] = []
    begun: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []

    async def doing() -> T:
        task = asyncio.create_task(work)
        begun.append((asyncio.get_running_loop(), task))
        return await task

    def run() -> None:
        try:
            outcome.append(asyncio.run(doing()))
        except BaseException as error:
            failure.append(error)

    outer = asyncio.current_task()
    thread = threading.Thread(target=run, name="fenchel-up")
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK)
            if outer is not None and outer.cancelling():  # asyncio.run cancels the task on Ctrl-C
                raise asyncio.CancelledError
    except (KeyboardInterrupt, asyncio.CancelledError) as interruption:
        for loop, task in begun:
            loop.call_soon_threadsafe(task.cancel)
        thread.join()  # wait until the run has saved its state
        raise _noted(interruption, *failure) from None
    if failure:
        raise failure[0]
    return outcome[0]


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _noted(error: BaseException, *others: BaseException | None) -> BaseException:
    """Add the notes of other errors to an error, and return it."""
    for note in (note for other in others for note in getattr(other, "__notes__", ())):
        error.add_note(note)
    return error
