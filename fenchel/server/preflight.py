"""The check of a run's settings against its data, before any process is started or any client is awaited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fenchel.algorithms.fedavg import LocalTrainingSettings
from fenchel.algorithms.privacy_requirements import check_claim, check_uploads
from fenchel.algorithms.registry import server_half
from fenchel.algorithms.server_half import Algorithm, ServerContext
from fenchel.common.accounting.accountant import require_library
from fenchel.common.arrays import Vector
from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.data.shard import Shard
from fenchel.common.data.source import DataSource
from fenchel.common.errors import SettingsError
from fenchel.common.objectives.factory import build_objective, initial_model
from fenchel.common.objectives.objective import Objective
from fenchel.common.settings.objective import BinarySettings, LinearSettings, SmoothedHingeSettings
from fenchel.common.settings.run import RunSettings
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.fleet import Fleet
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.evaluation import check_training
from fenchel.server.membership.late_joiners import check_late_joiners


def open_data(settings: RunSettings) -> DataSource | None:
    """Open the data set of a run. Return ``None`` if each client brings its own data."""
    return None if settings.own_data else DataSource.open(settings.data, settings.seed, settings.positive)


def check_run(settings: RunSettings, source: DataSource | None, clients: int | None) -> tuple[str, ...]:
    """Check that a run is possible with its settings and data, and return warnings.

    The check builds the server half as in the run, for clients with the shards of the partition. So it also raises the
    errors of the half's constructor and of :meth:`fenchel.algorithms.server_half.Algorithm.check`.

    Parameters
    ----------
    settings
        Settings of the run.
    source
        Data set; ``None`` if each client brings its own, or the data are not to be checked.
    clients
        Number of clients; ``None`` if it is not known yet, so that checks that depend on it are skipped.

    Raises
    ------
    SettingsError, DataError
        If the run is not possible.
    """
    if settings.differential_privacy is not None:
        require_library()
        check_claim(settings)
    half = server_half(settings.algorithm.name)
    check_late_joiners(settings, half)
    shape = _assumed_shape(settings) if source is None else (source.problem.features, source.problem.classes)
    if shape is None:
        return ()
    objective = build_objective(settings.objective, no_samples(*shape))
    if clients is None:
        return ()
    shards = [None] * clients if source is None else _described(source, clients)
    described = [ClientRecord(f"client-{number:03d}", shard) for number, shard in enumerate(shards)]
    members = {member.name: member for member in described}
    fleet = Fleet(members=members, seed=settings.seed, participation=settings.participation, network=settings.network)
    built = build_half(settings, half, fleet, shape)
    built.check(source)
    if source is None:
        return ()
    check_training(settings, source)
    if settings.differential_privacy is not None:
        check_uploads(settings, objective, [shard.samples for shard in shards if shard is not None])
    _check_batches(settings, {member.name: member.shard.samples for member in described if member.shard is not None})
    return () if source.lack else built.cautions(lambda: _smoothness(settings, source))


def _check_batches(settings: RunSettings, samples: Mapping[str, int]) -> None:
    """Reject batches without repetition for which a client has too few samples, so that no reply of it would count."""
    algorithm = settings.algorithm
    if not isinstance(algorithm, LocalTrainingSettings) or algorithm.batches != "epoch":
        return
    for client, held in samples.items():
        steps, size = algorithm.steps(held), algorithm.samples_a_step(held)
        if steps * size > held:
            raise SettingsError(
                f"epoch given, but {steps} batches of {size} without repetition need {steps * size} samples, and "
                f"{client} has {held}; use fewer steps, smaller batches or batches: passes",
                key="algorithm.batches",
            )


def _smoothness(settings: RunSettings, source: DataSource) -> float:
    """Return the smoothness of the objective on all training samples, a lower bound on the largest of any client."""
    return float(build_objective(settings.objective, source.training(settings.objective.dtype)).smoothness)


def build_half(
    settings: RunSettings,
    half: type[Algorithm],
    fleet: Fleet,
    shape: tuple[int, int],
    public_key: PublicKey | None = None,
) -> Algorithm:
    """Build the server half of a run's algorithm.

    Parameters
    ----------
    settings
        Settings of the run.
    half
        Class of the server half.
    fleet
        Fleet of the run.
    shape
        Numbers of features and classes of the problem.
    public_key
        Public key that the clients must use, if the server has one.

    Raises
    ------
    SettingsError
        If the algorithm cannot use the objective's optimiser, or the server half refuses the settings.
    """
    objective = build_objective(settings.objective, no_samples(*shape))
    model = initial_model(settings.objective, *shape, settings.seed)
    if objective.has_optimizer:
        _check_optimizer(settings, objective, model)
    return half(
        ServerContext(
            fleet=fleet,
            settings=settings.algorithm,
            initial_model=model,
            objective=objective,
            public_key=public_key,
            uplink=settings.uplink,
            downlink=settings.downlink,
            privacy=settings.differential_privacy,
        )
    )


def _check_optimizer(settings: RunSettings, objective: Objective, model: Vector) -> None:
    """Refuse an optimiser that the algorithm would not use, or that cannot take a step."""
    algorithm = settings.algorithm
    if not algorithm.uses_optimizer:
        raise SettingsError(
            f"the objective has an optimiser, but the local steps of {algorithm.name} are part of its method; "
            "leave the optimiser out, or use fedavg, fedprox, fedopt or robust-aggregation",
            key="objective.name",
        )
    if algorithm.prox_penalty is not None:
        raise SettingsError(
            "prox given, but it needs one step size for all parameters, which the objective's optimiser does not "
            "have; use subgradient, or leave the optimiser out",
            key="algorithm.regularizer_step",
        )
    try:
        objective.local_step(model, 1.0)(model, np.zeros_like(model))
    except RuntimeError as error:
        raise SettingsError(
            f"the objective's optimiser cannot take a step ({error}); use another", key="objective.name"
        ) from error


def no_samples(features: int, classes: int) -> Shard:
    """Return a shard without samples of a problem with the given numbers of features and classes (0: regression)."""
    return Shard(
        np.empty((0, features)),
        np.empty(0, np.int64 if classes else np.float64),
        classes,
        features,
        np.empty(0, np.int64),
    )


def _assumed_shape(settings: RunSettings) -> tuple[int, int] | None:
    """Return placeholder numbers of features and classes; ``None`` if the objective's check depends on them."""
    data, objective = settings.data, settings.objective
    linear = isinstance(objective, LinearSettings | SmoothedHingeSettings)
    if not linear and not (isinstance(objective, BinarySettings) and objective.scorer.kind == "linear"):
        return None  # the numbers of features and classes may determine the layers of a network
    if objective.initial is not None:
        return None
    if data.task == "regression":
        return 1, 0
    return 1, 2 if data.classes is None else len(data.classes)


def _described(source: DataSource, clients: int) -> Sequence[pb.ShardDescription]:
    """Return the description of each client's shard."""
    problem = source.problem
    return [
        pb.ShardDescription(
            samples=samples,
            features=problem.features,
            classes=problem.classes,
            features_held=problem.features if part.features is None else len(part.features),
        )
        for part, samples in zip(source.parts(clients), source.sizes(clients), strict=True)
    ]
