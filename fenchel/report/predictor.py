"""Predictions of a run's final model for new samples."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fenchel.algorithms.auc.staged_settings import StagedSettings
from fenchel.common.arrays import Dense, Matrix, Vector
from fenchel.common.data.objects import features_in_memory
from fenchel.common.data.preparation import Preparation
from fenchel.common.data.resnet import FEATURES
from fenchel.common.data.shard import Shard
from fenchel.common.errors import DataError, SettingsError
from fenchel.common.objectives.binary import BinaryObjective
from fenchel.common.objectives.factory import build_objective, networks_module
from fenchel.common.objectives.objective import Objective
from fenchel.common.settings.run import RunSettings

_INTEGER = re.compile("0|-?[1-9][0-9]*")
"""Integers as Python writes them. Others, such as 007, are names, which would be changed or merged as numbers."""


@dataclass(frozen=True)
class Predictor:
    """Model together with the preparation of samples.

    Attributes
    ----------
    settings
        Settings of the run.
    model
        Model, shape (d,).
    preparation
        Preparation of samples.
    """

    settings: RunSettings
    model: Vector
    preparation: Preparation

    @cached_property
    def objective(self) -> Objective:
        """Objective of the run, without samples.

        Raises
        ------
        DataError
            If the model does not have the dimension of the objective.
        """
        names, prepared = self.preparation.class_names, self._prepared_width
        labels = np.empty(0, np.int64 if names else np.float64)
        none = Shard(np.empty((0, prepared)), labels, len(names), prepared, np.empty(0, np.int64))
        objective = build_objective(self.settings.objective, none)
        if objective.dimension != self.model.size:
            raise DataError(
                f"the model has {self.model.size} numbers, but the settings describe one of {objective.dimension}; "
                "check that the files come from one run"
            )
        return objective

    @property
    def _prepared_width(self) -> int:
        settings = self.settings.data
        width = self.preparation.features if settings.extractor is None else FEATURES
        return width + (settings.bias is not None)

    @cached_property
    def classes(self) -> NDArray[Any] | None:
        """Classes in the order of the columns of :meth:`predict_proba`, shape (classes,). ``None`` in regression.

        Integers if all class names are integers without leading zeros, otherwise texts.
        """
        names = list(self.preparation.class_names)
        if not names:
            return None
        if isinstance(self.objective, BinaryObjective):
            positive = [names[number] for number in self.objective.positive_classes]
            rest = [name for name in names if name not in positive]
            names = [rest[0] if len(rest) == 1 else "rest", "+".join(positive)]
        if all(_INTEGER.fullmatch(name) for name in names):
            return np.array([int(name) for name in names])
        return np.array(names)

    def prepared(self, data: Any) -> Matrix:
        """Return the prepared features of samples, with the parameters and errors of :meth:`predict`."""
        features, is_image = features_in_memory(data, self.preparation.columns)
        if features.shape[1] != self.preparation.features:
            raise DataError(
                f"the samples have {features.shape[1]} features, but the model was trained on "
                f"{self.preparation.features}",
                source="X",
            )
        peak = 255.0 if is_image and features.dtype == np.uint8 else None
        return self.preparation.apply(features, self.settings.objective.dtype, peak)

    def decision_function(self, data: Any) -> Dense:
        """Return the model's scores, with the parameters and errors of :meth:`predict`.

        Returns
        -------
        Dense
            Predictions in regression, shape (n,). For two classes one score, shape (n,), which is positive for the
            second class, or a score for each class, shape (n, classes).
        """
        return self._offered(self.objective.decision_function, data)

    def predict(self, data: Any) -> NDArray[Any]:
        """Return the class of each sample, or its predicted target in regression, shape (n,).

        Parameters
        ----------
        data
            Samples, shape (n, features): an array, a sparse matrix, a tensor, images, or a table with the columns of
            the training data. Other columns are ignored.

        Raises
        ------
        DataError
            If the samples do not fit the model.
        SettingsError
            If the objective does not offer predictions.
        """
        scores = self.decision_function(data)
        if self.classes is None:
            return scores
        numbers = (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)
        predicted: NDArray[Any] = self.classes[numbers]
        return predicted

    def predict_proba(self, data: Any) -> Dense:
        """Return the probability of each class, shape (n, classes), with the parameters of :meth:`predict`.

        Raises
        ------
        SettingsError
            If there are no probabilities: in regression, for losses without a likelihood such as the hinge, and for
            models trained to maximise the AUC.
        DataError
            If the samples do not fit the model.
        """
        if self.classes is None:
            raise SettingsError("regression has no classes and no probabilities; use predict")
        if self._is_ranking:
            raise SettingsError(
                f"{self.settings.algorithm.name} trains scores for ranking, which are not probabilities; use "
                "decision_function"
            )
        return self._offered(self.objective.probabilities, data)

    @property
    def _is_ranking(self) -> bool:
        """True if the area under the ROC curve was maximised, so that scores are not log-odds."""
        return isinstance(self.settings.algorithm, StagedSettings)

    def model_for(self, library: Literal["sklearn", "torch", "onnx"]) -> Any:
        """Return the model as an object of another library; see :meth:`fenchel.Run.model_for`."""
        if library == "sklearn":
            from fenchel.report.exported import sklearn_pipeline

            return sklearn_pipeline(
                self.objective, self.model, self.preparation, self.classes, is_ranking=self._is_ranking
            )
        if library not in ("torch", "onnx"):
            raise SettingsError(f"{library!r} given; use sklearn, torch or onnx", key="library")
        exported = networks_module("exported", f"a model for {library}", "")
        steps, bias = self.preparation.fixed_steps(), self.preparation.settings.bias
        module = exported.torch_module(self.objective, self.model, steps, bias)
        return module if library == "torch" else exported.onnx_model(module, self.preparation.features)

    def _offered(self, method: Any, data: Any) -> Dense:
        """Apply a method of the objective to prepared samples."""
        try:
            found: Dense = method(self.model, self.prepared(data))
        except NotImplementedError as error:
            remedy = "; use decision_function" if method == self.objective.probabilities else ""
            raise SettingsError(f"{error}{remedy}") from None
        return found
