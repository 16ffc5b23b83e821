"""Federated runs as scikit-learn estimators, for pipelines, hyperparameter searches and cross-validation."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from copy import deepcopy
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import scipy
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fenchel.common.errors import DataError, SettingsError
from fenchel.common.settings.run import change
from fenchel.deploy.launch.up import up
from fenchel.report.predictor import Predictor
from fenchel.report.run import Run

_AVERAGING = {"name": "fedavg", "local_epochs": 5, "batch_size": 8, "step_size": 0.1}
_SECTIONS = ("algorithm", "objective", "partition", "settings")  # parameters that are mappings with keys of their own
_REFUSED = {key: f"use the parameter {key}" for key in ("algorithm", "objective", "clients", "rounds")} | {
    "seed": "use the parameter random_state",
    "data.scale": "use the parameter scale",
    "data.bias": "use the parameter bias",
    "data.partition": "use the parameter partition, or groups of fit",
    "data.task": "leave it out, as FederatedClassifier and FederatedRegressor determine it",
    **{
        f"data.{key}": "leave it out, as X and y are the data"
        for key in ("name", "file", "label", "columns", "classes", "binarise")
    },
}
"""Keys that ``settings`` must not contain, with the remedy."""


def _averaging(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings of FedAvg, completed by defaults."""
    usual = {key: value for key, value in _AVERAGING.items() if key != "local_epochs" or "local_steps" not in given}
    return usual | dict(given)


def _integer(name: str, value: Any) -> int:
    """Return a parameter as an integer, or raise scikit-learn's ``TypeError``. Searches draw NumPy integers."""
    return int(check_scalar(value, name, Integral))


def _further(settings: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameter ``settings`` without the section ``data``, and that section."""
    given = dict(settings or {})
    data = given.pop("data", {})
    if not isinstance(data, Mapping):
        raise SettingsError(f"expected a mapping, such as {{'holdout': 0.2}} (given {data!r:.80})", key="settings.data")
    for key in (*given, *(f"data.{key}" for key in data)):
        if key in _REFUSED:
            raise SettingsError(f"the estimator sets {key} itself; {_REFUSED[key]}", key=f"settings.{key}")
    return given, dict(data)


def _clients_of(groups: Any, samples: int) -> NDArray[Any]:
    """Return groups as integers or strings, shape (samples,), or raise a ``ValueError``."""
    # A list is not converted to one type, as [1, "1"] would become a single group.
    found = np.asarray(groups, None if hasattr(groups, "dtype") else object)
    if found.shape != (samples,):
        raise ValueError(f"groups has shape {found.shape}, but X has {samples} samples; give one group for each sample")
    if found.dtype.kind in "Uiu":
        return found
    values = [value.item() if isinstance(value, np.generic) else value for value in found.tolist()]
    if all(isinstance(value, str) for value in values):
        return np.array(values, np.str_)
    row = next((row for row, value in enumerate(values) if not _is_whole(value)), None)
    if row is not None:
        raise ValueError(
            f"groups[{row}] is {values[row]!r:.80}; give whole numbers for all samples, or strings for all samples"
        )
    return np.array([int(value) for value in values], np.int64)


def _is_whole(value: Any) -> bool:
    """Return whether a value is an integer, a boolean or a whole float that int64 can hold."""
    return isinstance(value, int | float) and value % 1 == 0 and -(1 << 63) <= value < 1 << 63


class _Federated(BaseEstimator):  # type: ignore[misc]
    """Base class of both estimators, which are trained by a federated run."""

    predictor_: Predictor
    run_: Run | None

    _task: ClassVar[Literal["classification", "regression"]]

    def __init__(
        self,
        *,
        algorithm: Mapping[str, Any] | str | None = None,
        objective: Mapping[str, Any] | None = None,
        clients: int = 4,
        rounds: int = 20,
        scale: str | tuple[str, ...] | None = None,
        bias: float | None = 1.0,
        partition: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        in_process: bool = True,
        runs: str | Path | None = None,
        random_state: Any = None,
    ) -> None:
        self.algorithm = algorithm
        self.objective = objective
        self.clients = clients
        self.rounds = rounds
        self.scale = scale
        self.bias = bias
        self.partition = partition
        self.settings = settings
        self.in_process = in_process
        self.runs = runs
        self.random_state = random_state

    def set_params(self, **params: Any) -> Self:
        """Set parameters or keys of sections, such as ``algorithm__step_size``, and return the estimator itself."""
        changes: dict[str, dict[str, Any]] = {}
        for key in [key for key in params if key.partition("__")[0] in _SECTIONS and "__" in key]:
            section, _, name = key.partition("__")
            value = params.pop(key)
            value = (
                value.item() if isinstance(value, np.generic) else value
            )  # hyperparameter searches draw NumPy scalars
            changes.setdefault(section, {})[name.replace("__", ".")] = value
        super().set_params(**params)
        for section, values in changes.items():
            given = getattr(self, section) or {}
            changed: dict[str, Any] = {"name": given} if isinstance(given, str) else deepcopy(dict(given))
            change(changed, values)
            setattr(self, section, changed)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _run(self, features: Any, targets: NDArray[Any], kind: str, groups: Any) -> None:
        """Run the federation, and store its predictor. Store the run too if its folder is kept.

        Parameters
        ----------
        kind
            Kind of the objective, unless ``objective`` contains one.
        groups
            Client of each sample, shape (n,), or ``None``.
        """
        further, further_data = _further(self.settings)
        groups = None if groups is None else _clients_of(groups, features.shape[0])
        objective = dict(self.objective or {})
        objective = objective if "kind" in objective else {"kind": kind, "l2": 1e-4} | objective
        algorithm = {"name": self.algorithm} if isinstance(self.algorithm, str) else dict(self.algorithm or {})
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        data: dict[str, Any] = {
            "scale": self.scale or ("unit-rows" if scipy.sparse.issparse(features) else "standard"),
            "bias": self.bias,
            "test_fraction": 0.0,
            "partition": dict(self.partition or {"kind": "iid"}),
            "task": self._task,
        }
        given: dict[str, Any] = {"X": features, "y": targets}
        clients = min(_integer("clients", self.clients), features.shape[0])
        if groups is not None:
            given["group"] = groups
            data["partition"], clients = {"kind": "column", "column": "group"}, len(np.unique(groups))
        settings = {
            "seed": seed,
            "rounds": _integer("rounds", self.rounds),
            "clients": clients,
            "data": data | further_data,
            "objective": objective,
            "algorithm": algorithm if "name" in algorithm else _averaging(algorithm),
            **further,
        }
        with tempfile.TemporaryDirectory(prefix="fenchel-") as temporary:
            runs = temporary if self.runs is None else self.runs
            try:
                run = up(settings, data=given, in_process=self.in_process, runs=runs, progress=False)
            except BaseException as error:
                # The temporary folder is deleted, so a note on resuming its run leads nowhere.
                notes, folder = getattr(error, "__notes__", []), Path(temporary).name
                notes[:] = [note for note in notes if folder not in note]
                if isinstance(error, DataError) and error.source == "data":
                    error.source = "X and y"
                raise
            self.predictor_ = run.predictor
            self.run_ = None if self.runs is None else run

    def _scores(self, data: Any) -> NDArray[Any]:
        check_is_fitted(self)
        features = validate_data(self, data, accept_sparse="csr", dtype=np.float64, reset=False)
        return self.predictor_.decision_function(features)


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """Scikit-learn classifier that clients train together, each on its own samples.

    :meth:`fenchel.FederatedClassifier.fit` runs a federation as :func:`fenchel.up` does. Hyperparameter searches and
    ``set_params`` can set keys of sections, such as ``algorithm__step_size``.

    Parameters
    ----------
    algorithm : mapping or str, optional
        Section ``algorithm`` of the settings, or the name of an algorithm. Keys without a name change the default:
        FedAvg with five local epochs, batches of 8 and steps of 0.1.
    objective : mapping, optional
        Section ``objective``. By default ``logistic`` for two classes and ``softmax`` for more, with ``l2: 1e-4``.
        Losses of one score, such as ``squared`` and ``binary``, need two classes.
    clients : int, default 4
        Number of clients, at most one for each sample.
    rounds : int, default 20
        Number of rounds.
    scale : str or tuple of str, optional
        Preparation of the features (``data.scale``). By default ``unit-rows`` for sparse features, else ``standard``.
    bias : float or None, default 1.0
        Constant feature that serves as an intercept. ``None`` for none.
    partition : mapping, optional
        Section ``data.partition``. By default random parts of equal size.
    settings : mapping, optional
        Further sections of the settings, such as ``participation`` or ``differential_privacy``, and further keys of
        ``data``, such as ``holdout``.
    in_process : bool, default True
        Simulate the clients in this process. With ``False`` they are processes, connected by TLS.
    runs : str or pathlib.Path, optional
        Folder in which the run folder is kept. By default it is removed.
    random_state : int, numpy.random.RandomState or None, default None
        Source of the seed of the run.

    Attributes
    ----------
    classes_ : numpy.ndarray, shape (classes,)
        Class labels.
    predictor_ : Predictor
        Final model with the preparation of samples.
    run_ : Run or None
        The run. ``None`` if its folder was removed.
    n_features_in_ : int
        Number of features.
    """

    classes_: NDArray[Any]

    _task = "classification"

    def fit(self, X: Any, y: Any, *, groups: Any = None) -> Self:
        """Train the classifier.

        Parameters
        ----------
        X : array or sparse matrix, shape (n, features)
            Training samples.
        y : array, shape (n,)
            Classes.
        groups : array, shape (n,), optional
            Client that holds each sample, in place of ``clients`` and ``partition``: strings or whole numbers.

        Returns
        -------
        FederatedClassifier
            The estimator itself.

        Raises
        ------
        ValueError
            If ``y`` has fewer than two classes, or the samples or groups are not valid.
        FenchelError
            The parameters are not valid, or the run stopped early.
        """
        features, labels = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {self.classes_[0]!r}; a classifier needs two classes or more")
        kind = "logistic" if len(self.classes_) == 2 else "softmax"
        if len(self.classes_) > 2 and dict(self.objective or {}).get("kind") == "binary":
            # The run would learn the positive classes against the rest, from which no single class follows.
            raise SettingsError(
                f"binary separates two classes, but y has {len(self.classes_)}; use softmax, or a y of two classes",
                key="objective.kind",
            )
        self._run(features, numbers, kind, groups)
        return self

    @property
    def _is_reversed(self) -> bool:
        """True if the first class is the positive one of the run."""
        return set(self.predictor_.settings.positive or ()) == {0}

    def decision_function(self, X: Any) -> NDArray[Any]:
        """Return the scores of samples.

        Parameters
        ----------
        X : array or sparse matrix, shape (n, features)
            Samples.

        Returns
        -------
        numpy.ndarray, shape (n,) or (n, classes)
            With two classes, one score for each sample, above 0 for the second class. With more classes, one score for
            each sample and class.

        Raises
        ------
        SettingsError
            If the scores of an objective of your own do not fit the number of classes.
        """
        scores, classes = self._scores(X), len(self.classes_)
        if scores.shape[1:] != (classes,) and (scores.ndim, classes) != (1, 2):
            raise SettingsError(
                f"the objective returns scores of shape {scores.shape}, but there are {classes} classes; use an "
                "objective with one score for each class",
                key="objective",
            )
        if scores.ndim == 2:
            return scores[:, 1] - scores[:, 0] if classes == 2 else scores
        return -scores if self._is_reversed else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the class of samples.

        Parameters
        ----------
        X : array or sparse matrix, shape (n, features)
            Samples.

        Returns
        -------
        numpy.ndarray, shape (n,)
            Predicted classes.
        """
        scores = self.decision_function(X)
        predicted: NDArray[Any] = self.classes_[scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(int)]
        return predicted

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Predict the probability of each class.

        Parameters
        ----------
        X : array or sparse matrix, shape (n, features)
            Samples.

        Returns
        -------
        numpy.ndarray, shape (n, classes)
            Probabilities, in the order of ``classes_``.

        Raises
        ------
        SettingsError
            If there are no probabilities: for squared and hinge losses, or if the area under the ROC curve was
            maximised.
        """
        check_is_fitted(self)
        features = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        probabilities = self.predictor_.predict_proba(features)
        return probabilities[:, ::-1] if self._is_reversed else probabilities


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """Scikit-learn linear regressor that clients train together, each on its own samples.

    Targets are standardised before the run, by the mean and standard deviation over all clients' targets.

    Parameters
    ----------
    algorithm : mapping or str, optional
        Section ``algorithm`` of the settings, or the name of an algorithm. Keys without a name change the default:
        FedAvg with five local epochs, batches of 8 and steps of 0.1.
    objective : mapping, optional
        Section ``objective``. By default ``squared``, with ``l2: 1e-4``.
    clients : int, default 4
        Number of clients, at most one for each sample.
    rounds : int, default 20
        Number of rounds.
    scale : str or tuple of str, optional
        Preparation of the features (``data.scale``). By default ``unit-rows`` for sparse features, else ``standard``.
    bias : float or None, default 1.0
        Constant feature that serves as an intercept. ``None`` for none.
    partition : mapping, optional
        Section ``data.partition``. By default random parts of equal size.
    settings : mapping, optional
        Further sections of the settings, such as ``participation`` or ``differential_privacy``, and further keys of
        ``data``, such as ``holdout``.
    in_process : bool, default True
        Simulate the clients in this process. With ``False`` they are processes, connected by TLS.
    runs : str or pathlib.Path, optional
        Folder in which the run folder is kept. By default it is removed.
    random_state : int, numpy.random.RandomState or None, default None
        Source of the seed of the run.

    Attributes
    ----------
    predictor_ : Predictor
        Final model with the preparation of samples.
    run_ : Run or None
        The run. ``None`` if its folder was removed.
    n_features_in_ : int
        Number of features.
    """

    _task = "regression"

    def fit(self, X: Any, y: Any, *, groups: Any = None) -> Self:
        """Train the regressor.

        Parameters
        ----------
        X : array or sparse matrix, shape (n, features)
            Training samples.
        y : array, shape (n,)
            Target values.
        groups : array, shape (n,), optional
            Client that holds each sample, in place of ``clients`` and ``partition``: strings or whole numbers.

        Returns
        -------
        FederatedRegressor
            The estimator itself.

        Raises
        ------
        ValueError
            If the samples or groups are not valid.
        FenchelError
            The parameters are not valid, or the run stopped early.
        """
        features, targets = validate_data(
            self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True, ensure_min_samples=2
        )
        targets = np.asarray(targets, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            self._centre, self._spread = float(targets.mean()), float(targets.std()) or 1.0
        if not np.isfinite(self._spread):
            raise ValueError(f"y has values up to {np.abs(targets).max():.3g}, whose variance overflows; scale y down")
        self._run(features, (targets - self._centre) / self._spread, "squared", groups)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the target of samples.

        Parameters
        ----------
        X : array or sparse matrix, shape (n, features)
            Samples.

        Returns
        -------
        numpy.ndarray, shape (n,)
            Predicted targets.
        """
        return self._scores(X) * self._spread + self._centre
