"""Experiment trackers: observers that record a run in TensorBoard, MLflow or Weights & Biases.

Each tracker requires its library, which is imported when the tracker is created::

    fenchel.up("quickstart", observer=fenchel.trackers.TensorBoard())
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fenchel.common.errors import MissingDependencyError
from fenchel.common.storage.round_columns import Row
from fenchel.server.disclosure.exporters import ExporterEntry
from fenchel.server.telemetry.observer import Observer, OngoingRun
from fenchel.server.telemetry.summary import Summary

_FLUSH_SECONDS = 10
_PARAMETERS = 100  # largest number of parameters that MLflow accepts in one call
_CHARACTERS = 6000  # largest number of characters that MLflow accepts in a parameter


class TensorBoard(Observer):
    """Observer that writes event files for TensorBoard, without TensorFlow or PyTorch.

    It writes the settings as hyperparameters and the figures of each round as scalars, with the round as the step.

    Parameters
    ----------
    folder : str or pathlib.Path, optional
        Parent folder, in which each run has a folder named by its id. By default ``tensorboard`` in the run folder.

    Raises
    ------
    MissingDependencyError
        If the package ``tensorboard`` is not installed.

    Examples
    --------
    Event files in the run folder::

        import fenchel

        fenchel.up("quickstart", observer=fenchel.trackers.TensorBoard())
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self._writer_type = _library("tensorboard.summary.writer.event_file_writer", "tensorboard").EventFileWriter
        self._event = _library("tensorboard.compat.proto.event_pb2", "tensorboard").Event
        self._summary = _library("tensorboard.compat.proto.summary_pb2", "tensorboard").Summary
        self._hparams = _library("tensorboard.plugins.hparams.metadata", "tensorboard")
        self._folder = folder
        self._writer: Any = None

    def begun(self, run: OngoingRun) -> None:
        """Open an event file and write the settings as hyperparameters.

        Parameters
        ----------
        run : OngoingRun
            The run that starts.
        """
        folder = run.folder.path / "tensorboard" if self._folder is None else Path(self._folder, run.folder.id)
        self._writer = self._writer_type(str(folder), flush_secs=_FLUSH_SECONDS)
        plugin = self._hparams.plugin_data_pb2.HParamsPluginData()
        plugin.session_start_info.start_time_secs = time.time()
        for name, value in _parameters(run.settings.model_dump(mode="json")):
            kind = "bool_value" if isinstance(value, bool) else "number_value"
            known = isinstance(value, int | float)
            setattr(
                plugin.session_start_info.hparams[name], *((kind, value) if known else ("string_value", str(value)))
            )
        start = self._summary.Value(
            tag=self._hparams.SESSION_START_INFO_TAG,
            metadata=self._hparams.create_summary_metadata(plugin),
            tensor=self._hparams.NULL_TENSOR,
        )
        self._write([start], 0, time.time())

    def round_ended(self, row: Row) -> None:
        """Write the figures of a round.

        Parameters
        ----------
        row : mapping of str to float
            Figures by name, with the number of the round as ``row["round"]``.
        """
        self._write(self._scalars(row), int(row["round"]), row["unix"])

    def ended(self, summary: Summary) -> None:
        """Write the final figures as ``final/NAME`` and close the event file.

        Parameters
        ----------
        summary : Summary
            Outcome of the run.
        """
        self._write(self._scalars(summary.figures, "final/"), summary.rounds, time.time())
        self._writer.close()

    def _scalars(self, figures: Mapping[str, Any], prefix: str = "") -> list[Any]:
        return [self._summary.Value(tag=prefix + name, simple_value=value) for name, value in _finite(figures).items()]

    def _write(self, values: list[Any], step: int, unix: float) -> None:
        self._writer.add_event(self._event(wall_time=unix, step=step, summary=self._summary(value=values)))


class MLflow(Observer):
    """Observer that records a run in MLflow, with the settings as parameters and the figures as metrics.

    Metrics are sent by a thread of MLflow, so a slow tracking server does not delay rounds.

    Parameters
    ----------
    experiment : str, default "fenchel"
        Name of the experiment, which is created if it does not exist.
    uri : str, optional
        Tracking server or local store. By default that of MLflow, such as the environment variable
        ``MLFLOW_TRACKING_URI``.

    Raises
    ------
    MissingDependencyError
        If the package ``mlflow`` is not installed.
    """

    def __init__(self, experiment: str = "fenchel", uri: str | None = None) -> None:
        mlflow = _library("mlflow", "mlflow")
        self._entities = mlflow.entities
        self._address = re.sub("//[^/@]*@", "//", uri or mlflow.get_tracking_uri())  # without a password
        self._client = mlflow.MlflowClient(uri)
        found = self._client.get_experiment_by_name(experiment)
        self._experiment = self._client.create_experiment(experiment) if found is None else found.experiment_id
        self._run = ""
        self._wait: Callable[[], object] = lambda: None

    def begun(self, run: OngoingRun) -> None:
        """Create a run with the settings as its parameters.

        Parameters
        ----------
        run : OngoingRun
            The run that starts.
        """
        run.disclosures.shown(ExporterEntry("tracker", self._address))
        self._run = self._client.create_run(self._experiment, run_name=run.folder.id).info.run_id
        settings = _parameters(run.settings.model_dump(mode="json"))
        parameters = [self._entities.Param(name, str(value)[:_CHARACTERS]) for name, value in settings]
        for start in range(0, len(parameters), _PARAMETERS):
            self._client.log_batch(self._run, params=parameters[start : start + _PARAMETERS])

    def round_ended(self, row: Row) -> None:
        """Log the figures of a round.

        Parameters
        ----------
        row : mapping of str to float
            Figures by name, with the number of the round as ``row["round"]``.
        """
        self._log(row, int(row["round"]), row["unix"])

    def ended(self, summary: Summary) -> None:
        """Log the final figures as ``final.NAME``, wait until all is sent, and end the run.

        Parameters
        ----------
        summary : Summary
            Outcome of the run.
        """
        try:
            self._log({f"final.{name}": value for name, value in summary.figures.items()}, summary.rounds, time.time())
            self._wait()
        finally:
            self._client.set_terminated(self._run, "FINISHED" if summary.completed else "FAILED")

    def _log(self, figures: Mapping[str, Any], step: int, unix: float) -> None:
        metrics = [self._entities.Metric(*each, round(unix * 1000), step) for each in _finite(figures).items()]
        self._wait = self._client.log_batch(self._run, metrics=metrics, synchronous=False).wait


class WandB(Observer):
    """Observer that records a run in Weights & Biases, with the settings as its configuration.

    Parameters
    ----------
    project : str, default "fenchel"
        Name of the project.
    mode : {"offline", "online"}, default "offline"
        ``offline`` stores all records in the run folder, for ``wandb sync``. ``online`` sends them during the run.

    Raises
    ------
    MissingDependencyError
        If the package ``wandb`` is not installed.
    """

    def __init__(self, project: str = "fenchel", mode: str = "offline") -> None:
        self._library = _library("wandb", "wandb")
        self._project = project
        self._mode = mode
        self._run: Any = None

    def begun(self, run: OngoingRun) -> None:
        """Create a run with the settings as its configuration.

        Parameters
        ----------
        run : OngoingRun
            The run that starts.
        """
        if self._mode == "online":
            run.disclosures.shown(ExporterEntry("tracker", "Weights & Biases"))
        self._run = self._library.init(
            project=self._project,
            name=run.folder.id,
            mode=self._mode,
            dir=str(run.folder.path),
            config=run.settings.model_dump(mode="json"),
            reinit="create_new",
            settings=self._library.Settings(console="off", silent=True),
        )

    def round_ended(self, row: Row) -> None:
        """Log the figures of a round.

        Parameters
        ----------
        row : mapping of str to float
            Figures by name, with the number of the round as ``row["round"]``.
        """
        self._run.log(_finite(row), step=int(row["round"]))

    def ended(self, summary: Summary) -> None:
        """Write the final figures into the summary as ``final.NAME``, and finish the run.

        Parameters
        ----------
        summary : Summary
            Outcome of the run.
        """
        self._run.summary.update({f"final.{name}": value for name, value in _finite(summary.figures).items()})
        self._run.finish(exit_code=0 if summary.completed else 1)


TRACKERS: Mapping[str, Callable[[], Observer]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
"""Trackers by their names for the option ``--track``."""


def _library(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"the tracker's library is not installed; install it with pip install 'fenchel[{extra}]', or leave "
            "this tracker out",
            key=extra,
        ) from error


def _finite(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures that are finite numbers."""
    return {name: value for name, value in figures.items() if isinstance(value, int | float) and math.isfinite(value)}


def _parameters(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings that have a value, with dotted keys."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _parameters(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value
