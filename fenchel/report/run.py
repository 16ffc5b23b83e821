"""Run read from its folder, in any state, and possibly written on another machine."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.json_format import ParseDict, ParseError
from numpy.typing import NDArray

from fenchel.common.arrays import Vector
from fenchel.common.data.npz import read_arrays
from fenchel.common.data.preparation import Preparation
from fenchel.common.errors import CheckpointError, DataError, SettingsError
from fenchel.common.settings.run import RunSettings, load, outside_code
from fenchel.common.storage import store, tables
from fenchel.common.storage.environment_record import EnvironmentRecord
from fenchel.common.storage.run_folder import BEGINS, RunFolder
from fenchel.proto import fenchel_pb2 as pb
from fenchel.report import columns, figure_names
from fenchel.report.files import read_summary, read_text, values_of
from fenchel.report.formatting import bounded_text, count_text
from fenchel.report.resumption import SteadyState, steady
from fenchel.report.sparkline import sparkline

if TYPE_CHECKING:
    from fenchel.report.predictor import Predictor

State = Literal["completed", "stopped", "unfinished"]


class Run:
    """Results of a federated run, read from its folder.

    The run may be completed, still going on, or killed, and the folder may come from another machine. Files are read at
    first access and then cached: create a new ``Run`` of the same folder to see newer rounds. Reading a damaged file
    raises ``CheckpointError``, a subclass of :class:`fenchel.FenchelError`.

    Parameters
    ----------
    path : str or os.PathLike
        The run folder (``docs/run-folder.md``).

    Attributes
    ----------
    path : pathlib.Path
        Absolute path of the run folder.

    Raises
    ------
    CheckpointError
        If the path is not a run folder.

    Examples
    --------
    The test accuracy of the rounds of the run in a folder::

        import fenchel

        run = fenchel.Run("runs/20261127-101500-quickstart")
        print(run.state, run.metrics["test_accuracy"])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).resolve()
        self._folder = RunFolder(self.path)
        if not self.path.is_dir():
            raise CheckpointError("the run folder does not exist; check the path", source=path)
        if not self._folder.settings.is_file():
            raise CheckpointError(
                f"not a run folder, because it has no {self._folder.settings.name}; give the folder of the run "
                "itself, not its parent",
                source=path,
            )

    @property
    def id(self) -> str:
        """Identifier of the run: the name of its folder."""
        return self._folder.id

    @cached_property
    def settings(self) -> RunSettings:
        """Validated settings. An algorithm from outside Fenchel must be importable.

        Raises
        ------
        SettingsError
            If this version of Fenchel does not accept the settings.
        """
        return load(self._folder.settings)

    @cached_property
    def settings_text(self) -> str:
        """Settings as YAML, defaults included, as they are in the folder."""
        return read_text(self._folder.settings)

    @cached_property
    def settings_values(self) -> dict[str, Any]:
        """Settings as a mapping that is not validated, so that no code from outside Fenchel is imported."""
        return values_of(self.settings_text, self._folder.settings)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Missing files and evaluations, differences between environments, and warnings of the algorithm, as texts.

        Warnings of an algorithm from outside Fenchel are left out, because its code would have to be imported.
        """
        found = (*self.missing, *self._missing_evaluations, *self.environments.warnings)
        if outside_code(self.settings_values):
            return found
        try:
            return *found, *self.settings.algorithm.warnings
        except SettingsError:
            return found  # settings of another version; its warnings are in the log

    @property
    def missing(self) -> tuple[str, ...]:
        """Descriptions of missing files and of the information that is lost with them."""
        return tuple(self._missing.values())

    @cached_property
    def _missing(self) -> dict[Path, str]:
        """Missing files that every such run should have, with the information that is lost."""
        folder, found = self._folder, {}
        rows = {folder.metrics: self.metrics_table.num_rows, folder.calls: self.calls_table.num_rows}
        for path, other in ((folder.metrics, folder.calls), (folder.calls, folder.metrics)):
            if rows[other] and not tables.exists(path):
                found[path] = (
                    f"{path} is missing, although {other.name} has rows: its content is missing from reports; "
                    "copy the whole run folder again"
                )
        # The Parquet file exists only after the end of a run; a running run has a growing Arrow table.
        ended = folder.metrics.exists() and not folder.metrics.with_suffix(".arrows").exists()
        if ended and self.summary is None:
            found[folder.summary] = (
                f"{folder.summary} is missing, although the tables are complete: how the run ended is not known; "
                "copy the whole run folder again"
            )
        return found

    @property
    def _missing_evaluations(self) -> tuple[str, ...]:
        """Warning that the last evaluation lacks clients, so that its figures are those of the others."""
        calls = self.calls_table.filter(pc.field("kind") == "inspect")
        if not calls.num_rows:
            return ()
        last = pc.max(calls["round"]).as_py()
        calls = calls.filter(pc.equal(calls["round"], last))
        asked = set(calls["client"].to_pylist())
        absent = asked - set(calls.filter(pc.equal(calls["outcome"], "counted"))["client"].to_pylist())
        if not absent:
            return ()
        count = count_text(len(asked), "client")
        return (
            f"the evaluation after round {last} lacks {len(absent):,} of {count}, which failed or did not answer in "
            "time, so figures over the clients' samples, such as the objective, are those of the others; if the "
            'deadline was too short, raise participation.phases."fenchel.evaluate".deadline',
        )

    @property
    def why_empty(self) -> str:
        """Reason, as a sentence, that there are no rounds: a missing table, or no completed round."""
        for path in (self._folder.metrics, self._folder.calls):
            if path in self._missing:
                return f"run {self.id}: {path} is missing; copy the whole run folder again"
        return f"run {self.id} has no round yet"

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """Content of ``summary.json``, or ``None`` for a run that goes on or was killed."""
        return read_summary(self._folder.summary)

    @cached_property
    def environments(self) -> EnvironmentRecord:
        """Computing environments of the server and the clients. Empty for a run of an older version."""
        return EnvironmentRecord.load(self._folder.environments)

    @property
    def completed(self) -> bool:
        """True if the run was completed: all rounds were done, or it ended early as intended."""
        return self.summary is not None and self.summary.get("completed") is True

    @property
    def has_ended(self) -> bool:
        """True if the run cannot be continued: all rounds are done, or it is completed and its keys are removed."""
        keyed = self.completed and self.settings.algorithm.key_bits is not None
        return keyed or (self.completed and self.rounds >= self.settings.rounds)

    @property
    def state(self) -> State:
        """State of the run: ``completed``, ``stopped`` early, or ``unfinished`` (it goes on, or was killed)."""
        if self.summary is None:
            return "unfinished"
        return "completed" if self.completed else "stopped"

    @property
    def reason(self) -> str:
        """Reason why the run ended before its last round. Empty if there is none, or none is known."""
        return "" if self.summary is None else str(self.summary.get("reason") or "")

    @property
    def rounds(self) -> int:
        """Number of completed rounds."""
        return int(self.metrics_table.num_rows)

    @cached_property
    def metrics_table(self) -> pa.Table:
        """Figures of the rounds as an Arrow table with a row for each round.

        ``docs/run-folder.md`` describes the columns. Times are in seconds, traffic in bytes.
        """
        return _table(self._folder.metrics)

    @cached_property
    def calls_table(self) -> pa.Table:
        """Timings of the instructions as an Arrow table with a row for each instruction to a client.

        ``docs/run-folder.md`` describes the columns. Times are in seconds, messages in bytes.
        """
        return _table(self._folder.calls, _WORDS)

    @cached_property
    def clients_table(self) -> pa.Table:
        """Figures of the algorithm for each client, as an Arrow table with a row for each client and round.

        The table has no rows if the algorithm has no such figures.
        """
        return _table(self._folder.clients, ("client",))

    @cached_property
    def steady(self) -> SteadyState:
        """Tables of rounds and instructions without the time that clients needed to reconnect to a restarted server."""
        return steady(self.metrics_table, self.calls_table)

    @cached_property
    def begun(self) -> tuple[float, ...]:
        """Start times of the server processes of the run, in seconds since 1970, as far as the log has them."""
        return logged(self._folder.log, BEGINS)

    @cached_property
    def metrics(self) -> Any:
        """Pandas ``DataFrame`` with a row for each round.

        Without pandas the value is :attr:`fenchel.Run.metrics_table`.
        """
        return _frame(self.metrics_table)

    @cached_property
    def calls(self) -> Any:
        """Pandas ``DataFrame`` with a row for each instruction to a client.

        Without pandas the value is :attr:`fenchel.Run.calls_table`.
        """
        return _frame(self.calls_table)

    @cached_property
    def clients(self) -> Any:
        """Pandas ``DataFrame`` with a row for each client and round, empty if the algorithm has no figures of clients.

        Without pandas the value is :attr:`fenchel.Run.clients_table`.
        """
        return _frame(self.clients_table)

    @cached_property
    def figures(self) -> dict[str, float]:
        """Last known value of each figure of the evaluation and the algorithm, by name, which may be infinite.

        For a completed run, figures of the final model take precedence over those of the last round.
        """
        last = {}
        for name in columns.figures(self.metrics_table):
            values = columns.column(self.metrics_table, name)
            known = values[~np.isnan(values)]
            if known.size:
                last[name] = float(known[-1])
        final = (self.summary or {}).get("figures") if self.completed else None
        return last | (final if isinstance(final, dict) else {})

    @cached_property
    def shards(self) -> dict[str, pb.ShardDescription]:
        """Shape of each client's data, by client: numbers of samples and features, and classes.

        Raises
        ------
        CheckpointError
            If the run has no checkpoint of this version.
        """
        path = self._folder.checkpoint
        try:
            members = json.loads(str(store.read(path)["about"]))["members"]
            return {name: ParseDict(kept["shard"], pb.ShardDescription()) for name, kept in members.items()}
        except (AttributeError, KeyError, TypeError, ValueError, ParseError, SystemError) as error:
            raise CheckpointError(
                f"not a checkpoint of this version of Fenchel ({error}); read it with the version that wrote it",
                source=path,
            ) from None

    @cached_property
    def model(self) -> Vector:
        """Final model, shape (d,).

        Raises
        ------
        CheckpointError
            If the run has no final model yet, or its file is damaged.
        """
        return self._archive["model"]

    @property
    def kept_rounds(self) -> tuple[int, ...]:
        """Rounds whose models are kept (setting ``keep_models``), in increasing order."""
        return tuple(sorted(int(path.stem.rpartition("-")[2]) for path in self._folder.models.glob("round-*.npz")))

    def model_of(self, t: int) -> Vector:
        """Return the model after a round.

        Parameters
        ----------
        t : int
            Number of the round, one of :attr:`fenchel.Run.kept_rounds`.

        Returns
        -------
        numpy.ndarray, shape (d,)
            The model.

        Raises
        ------
        CheckpointError
            If the model was not kept, or its file is damaged.
        """
        if t not in self.kept_rounds:
            raise CheckpointError(
                f"run {self.id} has the models of rounds {list(self.kept_rounds)}, but not of round {t}; set "
                "keep_models before a run to choose the rounds whose models are kept"
            )
        return self._read_model(self._folder.model_of(t))["model"]

    @cached_property
    def _archive(self) -> Mapping[str, NDArray[Any]]:
        """Arrays in the file of the final model."""
        path = self._folder.model
        if not path.exists():
            raise CheckpointError(
                f"run {self.id} has no {path.name}, which is written after the last round, because the run is "
                f"{self.state} after round {self.rounds}; wait for its end, or continue it with --resume"
            )
        return self._read_model(path)

    @staticmethod
    def _read_model(path: Path) -> Mapping[str, NDArray[Any]]:
        try:
            arrays = read_arrays(path)
        except DataError as error:
            raise CheckpointError(
                f"the file cannot be read as a model ({error}); copy the run folder again", source=path
            ) from None
        if "model" not in arrays:
            raise CheckpointError(
                "the file has no array named model, so it is not a model; copy the run folder again", source=path
            )
        return arrays

    @cached_property
    def predictor(self) -> Predictor:
        """Final model together with the preparation of samples that it was trained with.

        Raises
        ------
        CheckpointError
            If the run has no final model yet, or its file is damaged.
        """
        from fenchel.report.predictor import Predictor

        try:
            preparation = Preparation.from_arrays(self.settings.data, self._archive)
        except DataError as error:
            raise CheckpointError(str(error), source=self._folder.model) from None
        return Predictor(self.settings, self.model, preparation)

    def predict(self, data: Any) -> NDArray[Any]:
        """Predict the class or the target of samples with the final model.

        Parameters
        ----------
        data : array, tensor, sparse matrix or table, shape (n, features)
            Samples in the form in which they were given to the run, without labels. Images are allowed. Columns of
            a table that the model was not trained on are left out. Scaling, bias and extracted features are applied
            as in the run.

        Returns
        -------
        numpy.ndarray, shape (n,)
            Predicted classes: integers if all class names are integers without leading zeros, else texts.
            Predicted targets in regression.

        Raises
        ------
        DataError
            If the samples do not fit the model.
        CheckpointError
            If the run has no final model yet, or its file is damaged.
        SettingsError
            If the objective does not offer predictions.
        """
        return self.predictor.predict(data)

    def predict_proba(self, data: Any) -> NDArray[Any]:
        """Predict the probability of each class with the final model.

        Parameters
        ----------
        data : array, tensor, sparse matrix or table, shape (n, features)
            Samples, as for :meth:`fenchel.Run.predict`.

        Returns
        -------
        numpy.ndarray, shape (n, classes)
            Probabilities, with the classes in the order of ``predictor.classes``.

        Raises
        ------
        SettingsError
            If there are no probabilities: in regression, for hinge losses, or if the area under the ROC curve was
            maximised.
        DataError
            If the samples do not fit the model.
        CheckpointError
            If the run has no final model yet, or its file is damaged.
        """
        return self.predictor.predict_proba(data)

    def decision_function(self, data: Any) -> NDArray[Any]:
        """Return the scores that the final model gives to samples.

        Parameters
        ----------
        data : array, tensor, sparse matrix or table, shape (n, features)
            Samples, as for :meth:`fenchel.Run.predict`.

        Returns
        -------
        numpy.ndarray, shape (n,) or (n, classes)
            One score, above 0 for the second of two classes, or one for each class. Predicted targets in regression.

        Raises
        ------
        SettingsError
            If the objective does not offer scores.
        DataError
            If the samples do not fit the model.
        CheckpointError
            If the run has no final model yet, or its file is damaged.
        """
        return self.predictor.decision_function(data)

    def model_for(self, library: Literal["sklearn", "torch", "onnx"]) -> Any:
        """Return the final model, with the preparation of samples, as an object of another library.

        Parameters
        ----------
        library : {"sklearn", "torch", "onnx"}
            Library of the result.

        Returns
        -------
        sklearn.pipeline.Pipeline, torch.nn.Module or onnx.ModelProto
            For ``sklearn`` a fitted pipeline of a linear model. For ``torch`` a module that maps samples, shape
            (n, features), to scores. For ``onnx`` the same as a graph with the input ``samples`` and the
            output ``scores``.

        Raises
        ------
        SettingsError
            If the library is unknown or cannot represent the model.
        MissingDependencyError
            If the library is not installed.
        CheckpointError
            If the run has no final model yet, or its file is damaged.
        """
        return self.predictor.model_for(library)

    def __repr__(self) -> str:
        return f"<Run {self.id}: {self.state}, {self.rounds} rounds>"

    def _repr_html_(self) -> str:
        """Return a small table and the main curves for notebooks."""
        rows = {"state": self.state, "rounds": str(self.rounds)}
        if self.reason:
            rows["reason"] = self.reason
        rows |= {figure_names.title(name): bounded_text(name, self.figures) for name in self.figures}
        cells = "".join(
            f'<tr><th style="text-align:left">{escape(name)}</th><td>{escape(value)}</td></tr>'
            for name, value in rows.items()
        )
        curves = "".join(
            sparkline(
                figure_names.title(name),
                columns.column(self.metrics_table, "round"),
                columns.column(self.metrics_table, name),
                logarithmic=figure_names.is_gap(name),
                last=bounded_text(name, self.figures),
            )
            for name in self._drawn
        )
        return f"<table><caption>{escape(self.id)}</caption>{cells}</table><div>{curves}</div>"

    @property
    def _drawn(self) -> list[str]:
        """Figures that a notebook draws: objective, gap and quality of the model."""
        quality = ("test_auc", "test_accuracy", "holdout_auc", "holdout_accuracy", "train_accuracy")
        best = next((name for name in quality if name in self.figures), "")
        return [name for name in (figure_names.objective(self.figures), "gap", best) if name in self.figures]


def logged(log: Path, message: str) -> tuple[float, ...]:
    """Return the times at which a log has a message, in seconds since 1970, ascending; empty without a log."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    found = []
    for line in lines:
        if message in line:
            # skip a partial line, which a killed server can leave
            with contextlib.suppress(ValueError, TypeError, KeyError):
                entry = json.loads(line)
                if entry["message"] == message:
                    found.append(float(entry["unix"]))
    return tuple(sorted(found))


def _table(path: Path, words: Sequence[str] = ()) -> pa.Table:
    """Read a table and check its columns, which include given text columns; return an empty table without rows yet."""
    growing = path.with_suffix(".arrows")
    begun = growing.stat().st_size > 0 if growing.exists() else path.exists()
    if not begun:
        return pa.table({"round": pa.array([], pa.int32())} | {name: pa.array([], pa.string()) for name in words})
    table = tables.read(path)
    for name in dict.fromkeys(("round", *words, *table.column_names)):
        _check_column(table, name, path)
    return table


_WORDS = ("phase", "kind", "client", "outcome")
"""Text columns; all others are numeric."""


def _check_column(table: pa.Table, name: str, path: Path) -> None:
    """Raise an error for a column that is missing, duplicate, of another type, or has nulls that are not allowed."""
    times = table.column_names.count(name)
    kind = table[name].type if times == 1 else None
    if kind is None:
        problem = f"is there {times} times; expected one"
    elif name in _WORDS and not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        problem = f"holds values of type {kind}; expected text"
    elif name not in _WORDS and not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        problem = f"holds values of type {kind}; expected numbers"
    elif name == "round" and not pa.types.is_integer(kind):
        problem = f"holds values of type {kind}; expected whole numbers"
    elif table[name].null_count and (name in _WORDS or name == "round"):
        problem = "has rows without a value; expected one in each"
    else:
        return
    raise CheckpointError(
        f"column {name!r} {problem}, so the table is damaged, or another program wrote it; copy the run folder again",
        source=path,
    )


def _frame(table: pa.Table) -> Any:
    return table if importlib.util.find_spec("pandas") is None else table.to_pandas()
