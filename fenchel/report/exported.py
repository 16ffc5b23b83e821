"""Export of a run's final model to scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Vector
from fenchel.common.data.preparation import Preparation
from fenchel.common.data.scaling import Columns
from fenchel.common.errors import MissingDependencyError, SettingsError
from fenchel.common.objectives.binary import BinaryObjective, LinearScorer
from fenchel.common.objectives.linear import LinearObjective
from fenchel.common.objectives.objective import Objective

_CLASSIFIERS = {"logistic": "LogisticRegression", "softmax": "LogisticRegression", "squared": "RidgeClassifier"}


def sklearn_pipeline(
    objective: Objective, w: Vector, preparation: Preparation, classes: NDArray[Any] | None, *, is_ranking: bool = False
) -> Any:
    """Return a fitted ``sklearn.pipeline.Pipeline`` of the preparation and a linear model.

    Parameters
    ----------
    objective
        Objective of the run.
    w
        Model, shape (d,).
    preparation
        Preparation of samples.
    classes
        Class names in the order of their numbers; ``None`` in regression.
    is_ranking
        True if the scores were trained for ranking, so that the pipeline must not offer them as probabilities.

    Raises
    ------
    SettingsError
        If the model is not linear.
    MissingDependencyError
        If scikit-learn is not installed.
    """
    try:
        from sklearn import linear_model, svm
        from sklearn.pipeline import Pipeline
        from sklearn.preprocessing import LabelBinarizer, Normalizer, StandardScaler
    except ModuleNotFoundError:
        raise MissingDependencyError(
            "a model for scikit-learn needs scikit-learn, which is not installed; install it with pip install "
            "'fenchel[sklearn]'"
        ) from None
    weights, kind = _weights(objective, w.astype(np.float64))
    found: list[tuple[str, Any]] = []
    for number, step in enumerate(preparation.fixed_steps()):
        if isinstance(step, Columns):
            scaler = StandardScaler(with_mean=bool(step.shift.any()))  # a shift, even by zero, refuses sparse samples
            scaler.mean_, scaler.scale_, scaler.var_ = step.shift, step.spread, step.spread**2
            scaler.n_features_in_, scaler.n_samples_seen_ = step.shift.size, 1
            found.append((f"scale-{number}", scaler))
        else:
            normalizer = Normalizer()
            normalizer.n_features_in_ = preparation.features
            found.append((f"unit-rows-{number}", normalizer))
    if classes is None:
        model = linear_model.LinearRegression()
    else:
        name = None if is_ranking else _CLASSIFIERS.get(kind)
        model = svm.LinearSVC() if name is None else getattr(linear_model, name)()
    bias = preparation.settings.bias
    intercept = np.zeros(weights.shape[0]) if bias is None else weights[:, -1] * bias
    coefficients = weights if bias is None else weights[:, :-1]
    if classes is None:
        model.coef_, model.intercept_ = coefficients[0], float(intercept[0])
    else:
        model.classes_ = classes
        model.coef_, model.intercept_ = coefficients, intercept
    model.n_features_in_ = preparation.features
    if isinstance(model, linear_model.RidgeClassifier):
        model._label_binarizer = LabelBinarizer(pos_label=1, neg_label=-1).fit(classes)
    pipeline = Pipeline([*found, ("model", model)])
    if preparation.columns is not None:
        pipeline.steps[0][1].feature_names_in_ = np.array(preparation.columns, object)
    return pipeline


def _weights(objective: Objective, w: Vector) -> tuple[Any, str]:
    """Return the weights of a linear model, with a row for each score as in scikit-learn, and the name of its loss."""
    if isinstance(objective, BinaryObjective) and isinstance(objective.scorer, LinearScorer):
        return w.reshape(1, -1), "logistic"
    if not isinstance(objective, LinearObjective):
        raise SettingsError("the model is not linear, so scikit-learn has no class for it; use torch or onnx")
    weights = w.reshape(objective.outputs, -1)
    if objective.outputs == 2:  # scikit-learn has one score for two classes
        weights = weights[1:] - weights[:1]
    return weights, objective.score_loss.kind
