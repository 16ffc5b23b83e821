"""Construction of objectives from settings."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fenchel.common.arrays import Vector
from fenchel.common.data.npz import read_arrays
from fenchel.common.data.shard import Shard
from fenchel.common.errors import DataError, MissingDependencyError, SettingsError
from fenchel.common.objectives.binary import BinaryObjective, LinearScorer, Scorer
from fenchel.common.objectives.linear import LinearObjective
from fenchel.common.objectives.losses import (
    Hinge,
    Logistic,
    MarginLoss,
    OneSidedLogistic,
    ScoreLoss,
    SmoothedHinge,
    Softmax,
    Squared,
    SquaredHinge,
)
from fenchel.common.objectives.objective import Objective, ObjectiveFactory
from fenchel.common.objectives.regularizer import OnTrained, build_regularizer
from fenchel.common.settings.objective import (
    BinarySettings,
    InitialModel,
    LinearSettings,
    ObjectiveSettings,
    OwnSettings,
    SmoothedHingeSettings,
)
from fenchel.common.settings.section import did_you_mean

_MARGIN_LOSSES: dict[str, MarginLoss] = {loss.kind: loss for loss in (Squared(), Logistic(), Hinge(), SquaredHinge())}
_CLASS_LOSSES: dict[str, ScoreLoss] = {loss.kind: loss for loss in (Softmax(), OneSidedLogistic())}


def build_objective(settings: ObjectiveSettings, shard: Shard) -> Objective:
    """Return the objective that the settings describe, for the data of one shard.

    Parameters
    ----------
    shard
        Training data of a client or test data of the server, possibly without samples.

    Raises
    ------
    SettingsError
        If the settings do not fit the shard, or name an objective that cannot be imported.
    MissingDependencyError
        If the objective needs torch, which is not installed.
    """
    objective = _smooth_part(settings, shard)
    shape = (objective.outputs, shard.features.shape[1]) if isinstance(objective, LinearObjective) else None
    h = build_regularizer(settings.regularizer, shape)
    has_statistics = settings.regularizer.present and objective.trained != slice(None)
    objective.regularizer = OnTrained(h, objective.trained) if has_statistics else h
    return objective


def _smooth_part(settings: ObjectiveSettings, shard: Shard) -> Objective:
    if isinstance(settings, LinearSettings | SmoothedHingeSettings):
        loss = _CLASS_LOSSES.get(settings.kind) or _margin_loss(settings)
        return LinearObjective(loss, shard, l2=settings.l2, nonconvex=settings.nonconvex, dtype=settings.dtype)
    if isinstance(settings, OwnSettings):
        return _own(settings.name)(shard=shard, l2=settings.l2, dtype=settings.dtype, **settings.parameters)
    if isinstance(settings, BinarySettings):
        return BinaryObjective(
            _scorer(settings, shard.features.shape[1]),
            shard,
            output=settings.output,
            positive=settings.positive,
            l2=settings.l2,
            dtype=settings.dtype,
        )
    network: Objective = networks_module("factory", f"objective.kind: {settings.kind}").build_network(settings, shard)
    return network


def _scorer(settings: BinarySettings, features: int) -> Scorer:
    if settings.scorer.kind == "linear":
        return LinearScorer(features, settings.dtype)
    networks = networks_module("factory", f"objective.scorer.kind: {settings.scorer.kind}")
    scorer: Scorer = networks.build_scorer(settings.scorer, features, settings.dtype, settings.device)
    return scorer


def networks_module(name: str, wanted: str, remedy: str = ", or use a linear model") -> ModuleType:
    """Return a module of ``fenchel.common.objectives.networks``, imported on first use because it needs torch.

    Parameters
    ----------
    wanted
        Feature that requires torch, named in the error if torch is not installed.
    remedy
        Alternative to an installation of torch, as the end of the error.
    """
    try:
        return importlib.import_module(f"fenchel.common.objectives.networks.{name}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependencyError(
            f"{wanted} needs torch, which is not installed; install it with pip install 'fenchel[torch]'{remedy}"
        ) from None


def _own(name: str) -> Callable[..., Objective]:
    """Import a user's own objective, a subclass of ``Objective`` or an ``ObjectiveFactory``."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        meant = did_you_mean(str(error.name), [file.stem for file in Path().glob("*.py")])
        raise SettingsError(
            f"{name}: the module {error.name!r} is neither installed nor in the current folder; install it on every "
            f"machine of the run, or start all processes in the folder of its file{meant and f'; {meant}'}",
            key="objective.name",
        ) from None
    if found is None:
        hint = "; each process has a __main__ of its own, so name the file, as in networks:net"
        raise SettingsError(
            f"{name}: the module {module!r} has no {attribute!r}{hint if module == '__main__' else ''}; check the name",
            key="objective.name",
        )
    is_class = isinstance(found, type) and issubclass(found, Objective)
    if not is_class and not isinstance(found, ObjectiveFactory):
        raise SettingsError(
            f"{name}: {attribute!r} in {module!r} is neither a subclass of fenchel.Objective nor a "
            "fenchel.TorchObjective",
            key="objective.name",
        )
    return found


def margin_loss(settings: ObjectiveSettings) -> MarginLoss:
    """Return the loss of one score that the settings name, for algorithms that use the loss's conjugate.

    Raises
    ------
    SettingsError
        If the loss has several scores, or the objective has a non-convex term or a regulariser other than the ridge.
    """
    loss = _margin_loss(settings)
    if isinstance(settings, LinearSettings | SmoothedHingeSettings) and settings.nonconvex:
        raise SettingsError(
            f"{settings.nonconvex:g} given, but the dual of this algorithm exists only for convex objectives; use 0",
            key="objective.nonconvex",
        )
    if settings.regularizer.present:
        raise SettingsError(
            f"{settings.regularizer.kind} given, but the dual of this algorithm is that of a loss and a ridge "
            "(objective.l2); use none",
            key="objective.regularizer.kind",
        )
    return loss


def _margin_loss(settings: ObjectiveSettings) -> MarginLoss:
    if isinstance(settings, SmoothedHingeSettings):
        return SmoothedHinge(settings.smoothing)
    if settings.kind in _MARGIN_LOSSES:
        return _MARGIN_LOSSES[settings.kind]
    raise SettingsError(
        f"{settings.kind} is not a loss of one score, as this algorithm needs; use squared, logistic, hinge, "
        "smoothed-hinge or squared-hinge",
        key="objective.kind",
    )


def dimension_of(settings: ObjectiveSettings, features: int, classes: int) -> int:
    """Return the dimension of a model for given numbers of features and classes.

    Raise the errors of :func:`build_objective`.
    """
    return build_objective(settings, _no_samples(features, classes)).dimension


def initial_model(settings: ObjectiveSettings, features: int, classes: int, seed: int) -> Vector:
    """Return the common initial model of all processes, shape (dimension,).

    Parameters
    ----------
    features, classes
        Numbers of features and classes of the whole problem; 0 classes for regression.
    seed
        Seed of the run.

    Raises
    ------
    SettingsError
        If the file of ``objective.initial`` has no suitable model. The errors of :func:`build_objective` are raised as
        well.
    """
    objective = build_objective(settings, _no_samples(features, classes))
    fresh = objective.initial(seed)
    if settings.initial is None:
        return fresh
    return _continued(settings.initial, fresh, getattr(objective, "head", 0))


def _continued(settings: InitialModel, fresh: Vector, head: int) -> Vector:
    """Return the initial model from a file, optionally with the last ``head`` weights of the fresh model."""
    key = f"objective.initial.file: {settings.file}"
    try:
        model = read_arrays(Path(settings.file).expanduser())["model"]
    except (OSError, KeyError, DataError) as error:
        raise SettingsError(
            f"the file cannot be read as a model ({error}); give the model.npz of a run", key=key
        ) from None
    if model.ndim != 1 or not np.issubdtype(model.dtype, np.floating) or not np.isfinite(model).all():
        raise SettingsError("the file does not have one vector of finite numbers; give the model.npz of a run", key=key)
    if settings.fresh_head and not head:
        raise SettingsError(
            "true given, but this objective has no layers; use false", key="objective.initial.fresh_head"
        )
    kept = fresh.size - head if settings.fresh_head else fresh.size
    fits = model.size > kept and (model.size - kept) % head == 0 if settings.fresh_head else model.size == kept
    if not fits:
        raise SettingsError(
            f"{key}: the model in it has {model.size} numbers, but {fresh.size} are "
            f"needed{f', of which {head} are the last layer' if head else ''}; use a model that was trained with "
            "this objective and number of features"
        )
    return np.concatenate([model[:kept], fresh[kept:]]).astype(fresh.dtype)


def _no_samples(features: int, classes: int) -> Shard:
    return Shard(
        features=np.empty((0, features)),
        labels=np.empty(0, np.int64 if classes else np.float64),
        classes=classes,
        total_features=features,
        samples_held=np.empty(0, np.int64),
    )
