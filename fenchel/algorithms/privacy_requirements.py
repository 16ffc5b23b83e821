"""Requirements of differential privacy on the settings of a run."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from fenchel.algorithms.fedavg import FedAvgSettings, LocalTrainingSettings
from fenchel.algorithms.fedpdm import FedPDMSettings
from fenchel.common.accounting.accountant import Accountant, Release
from fenchel.common.accounting.grid import GridNoise
from fenchel.common.accounting.public_facts import Batches, PrivacyFacts
from fenchel.common.accounting.sensitivity import DualDifference
from fenchel.common.data.shard import Shard
from fenchel.common.errors import SettingsError
from fenchel.common.objectives.factory import build_objective
from fenchel.common.objectives.linear import LinearObjective
from fenchel.common.objectives.objective import Objective
from fenchel.common.settings.objective import CnnSettings, LinearSettings, MlpSettings, SmoothedHingeSettings
from fenchel.common.settings.run import RunSettings

_OF_ONE_SCORE = ("logistic", "one-sided-logistic", "squared", "smoothed-hinge", "squared-hinge")


def facts_of(settings: RunSettings, objective: Objective | None, samples: int) -> PrivacyFacts:
    """Return the public facts on which the privacy guarantee of a client with this number of samples depends.

    Parameters
    ----------
    settings
        Settings of the run.
    objective
        Objective; its data are not used. Bounds on the curvature of the loss come only from a linear objective.
    samples
        Number of samples of the client.

    Raises
    ------
    SettingsError
        If the sensitivity of the algorithm's uploads is unknown.
    """
    algorithm, privacy = settings.algorithm, settings.differential_privacy
    if privacy is None or not isinstance(algorithm, LocalTrainingSettings):
        raise SettingsError(
            f"it is unknown how much a single sample can change the uploads of {algorithm.name}; use an algorithm "
            "whose clients take gradient steps, such as fedavg or fedpdm",
            key="differential_privacy",
        )
    sparsifier = settings.uplink.sparsify
    linear = objective if isinstance(objective, LinearObjective) else None
    smoothness = math.inf if linear is None else linear.score_loss.smoothness
    return PrivacyFacts(
        support="dense" if sparsifier is None else sparsifier.support,
        error_feedback=isinstance(algorithm, FedPDMSettings) and algorithm.error_feedback != "none",
        fixed_steps=not isinstance(algorithm, FedPDMSettings) or algorithm.tolerance is None,
        batches=_batches(algorithm, samples),
        dual=algorithm.memory(noisy=True),
        aggregator=algorithm.aggregates(noisy=True) if isinstance(algorithm, FedPDMSettings) else "sampled",
        steps=algorithm.steps(samples),
        batch_size=algorithm.samples_a_step(samples),
        samples=samples,
        fixed_seeds=privacy.fixed_seeds,
        # The gradient of the ridge is l2-Lipschitz, like that of a weakly convex term with beta = l2 / 2. The ridge is
        # convex, so the sensitivity with this beta is an upper bound.
        beta=settings.objective.l2 / 2 + (linear.nonconvex if linear is not None else 0.0),
        convex_scalar=settings.objective.kind in _OF_ONE_SCORE,
        # an infinite smoothness means a loss with kinks, or an unknown constant
        curvature=smoothness if math.isfinite(smoothness) else None,
        penalty=algorithm.pull,
        step_size=algorithm.step_size,
    )


def _batches(algorithm: LocalTrainingSettings, samples: int) -> Batches:
    size = algorithm.samples_a_step(samples)
    once = algorithm.steps(samples) * size <= samples
    if algorithm.batches == "epoch" or (algorithm.batches == "passes" and once):  # a single pass draws each sample once
        return "epoch"
    return "full" if size == samples else "independent"


def problems_of(settings: RunSettings, facts: PrivacyFacts) -> list[str]:
    """Return the reasons why the privacy guarantee does not hold.

    The list is empty without differential privacy, and with ``mechanism: paper``, which is not checked.
    """
    privacy = settings.differential_privacy
    if privacy is None or privacy.mechanism == "paper":
        return []
    problems = privacy.problems(facts)
    if settings.own_data and settings.data.classes is None and settings.data.task == "classification":
        problems.append(
            "each client tells the classes that occur in its file, so one sample of a rare class shows; list them all "
            "in data.classes"
        )
    bounded_by_gradients = privacy.mechanism != "clip-update"
    if bounded_by_gradients and not isinstance(settings.objective, _CLIPPED):
        problems.append(
            f"gradients of single samples cannot be clipped with objective.kind: {settings.objective.kind}; "
            "set mechanism to clip-update"
        )
    if bounded_by_gradients and settings.algorithm.takes_subgradient and settings.objective.regularizer.kind != "none":
        problems.append(
            "local steps go along a subgradient of objective.regularizer, which jumps where the model does, and which "
            "nothing clips; take its proximal operator (algorithm.regularizer_step: prox, or fedpdm), leave it out, or "
            "set mechanism to clip-update"
        )
    if bounded_by_gradients and _expands(settings):
        problems.append(
            "local steps end with the proximal operator of objective.regularizer, which is not convex, so the operator "
            "can drive apart what was near; use a convex regulariser, fedpdm (whose server takes it), or set mechanism "
            "to clip-update"
        )
    return problems


def check_claim(settings: RunSettings) -> None:
    """Reject settings whose privacy guarantee fails for any data.

    Raises
    ------
    SettingsError
        If a requirement of the guarantee is not met, or the noise is not representable in floating point.
    """
    privacy = settings.differential_privacy
    if privacy is None:
        return
    kind = settings.objective
    linear = build_objective(kind, _NO_DATA) if isinstance(kind, LinearSettings | SmoothedHingeSettings) else None
    facts = facts_of(settings, linear, _MANY)
    refuse(problems_of(settings, facts))
    # With ``uploads``, the noise multiplier is calibrated to the budget and depends on the data. Calibrated multipliers
    # are neither tiny nor huge, so check with 1.
    check_noise(settings, facts, privacy.noise(facts) if privacy.uploads is None else 1.0)


def check_noise(settings: RunSettings, facts: PrivacyFacts, noise_multiplier: float) -> None:
    """Raise ``SettingsError`` if the noise of the first or last round is not representable in floating point."""
    algorithm, privacy = settings.algorithm, settings.differential_privacy
    assert isinstance(algorithm, LocalTrainingSettings)
    assert privacy is not None
    if facts.samples == _MANY and None in (algorithm.local_steps, algorithm.batch_size):
        return  # the sensitivity depends on data that is not known yet
    # Step sizes never grow, so the first and last rounds have the extreme sensitivities. With "recursive", the
    # sensitivity of later rounds also depends on earlier uploads, so only round 1 is checked.
    for t in (1,) if privacy.mechanism == "recursive" else (1, settings.rounds):
        local = algorithm.local_map(t, facts.samples, noisy=True)
        sensitivity, _ = privacy.sensitivity(local, facts, DualDifference())
        try:
            GridNoise.covering(sensitivity, noise_multiplier, 1)
        except ValueError as error:
            raise SettingsError(
                f"in round {t} the sensitivity of an upload would be {sensitivity:.4g}: {error}. Change "
                "algorithm.step_size and step_decay, or clip and noise of differential_privacy",
                key="differential_privacy",
            ) from None


def check_uploads(settings: RunSettings, objective: Objective, samples: Collection[int]) -> None:
    """Reject settings whose privacy guarantee fails, or whose budget is below the cost of one upload, for some client.

    Parameters
    ----------
    settings
        Settings of the run.
    objective
        Objective; its data are not used.
    samples
        Numbers of samples of the clients.

    Raises
    ------
    SettingsError
        If a requirement is not met, the noise is not representable, or the budget is too small.
    """
    privacy = settings.differential_privacy
    assert privacy is not None
    for count in sorted(set(samples)):
        refuse(problems_of(settings, facts_of(settings, objective, count)))
    # Noise and sampling rate decrease with the size of a shard. The check covers only the extreme sizes, as each
    # calibration takes a second.
    for count in sorted({min(samples), max(samples)}):
        facts = facts_of(settings, objective, count)
        release = Release(privacy.noise(facts), privacy.sampling_rate(facts))
        check_noise(settings, facts, release.noise_multiplier)
        if privacy.budget is None or privacy.mechanism == "paper":
            continue  # the mechanism of the paper has its own noise formula
        first = Accountant(privacy.accountant).epsilon({release: 1}, privacy.delta)
        if first > privacy.budget:
            raise SettingsError(
                f"{privacy.budget:g} given, but a single upload of a client with {count:,} samples costs epsilon = "
                f"{first:.4g} (delta = {privacy.delta:g}); use a larger budget or more noise",
                key="differential_privacy.budget",
            )


def refuse(problems: Sequence[str]) -> None:
    """Raise a ``SettingsError`` that lists the problems, if there are any."""
    if problems:
        raise SettingsError("\n  ".join(["", *problems]), key="differential_privacy")


_CLIPPED = (LinearSettings, SmoothedHingeSettings, MlpSettings, CnnSettings)
_NO_DATA = Shard(np.empty((0, 1)), np.empty(0, np.int64), 2, 1, np.empty(0, np.int64))
_MANY = 1 << 40  # placeholder for an unknown number of samples; a later check uses the actual number


def _expands(settings: RunSettings) -> bool:
    """Return whether clients take the proximal operator of a non-convex function."""
    algorithm = settings.algorithm
    by_clients = isinstance(algorithm, FedAvgSettings) and algorithm.regularizer_step == "prox"
    return by_clients and settings.objective.regularizer.kind in ("mcp", "l0")
