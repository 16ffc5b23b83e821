"""What a run's settings say that differential privacy rests on."""

from __future__ import annotations

from common.algorithms.fedavg import LocalTrainingSettings
from common.algorithms.fedpdm import FedPDMSettings
from common.errors import SettingsError
from common.objectives.linear import LinearObjective
from common.objectives.objective import Objective
from common.privacy.facts import Batches, PrivacyFacts
from common.settings.run import RunSettings

_OF_ONE_SCORE = ("logistic", "one-sided-logistic", "squared", "smoothed-hinge", "squared-hinge")


def facts_of(settings: RunSettings, objective: Objective, samples: int) -> PrivacyFacts:
    """Return what everybody may know of a client with so many samples.

    Parameters
    ----------
    settings
        Of the run, under differential privacy.
    objective
        What is minimised; its data are not looked at.
    samples
        n_i.

    Raises
    ------
    SettingsError
        The sensitivity of this algorithm's uploads is not known.
    """
    algorithm, privacy = settings.algorithm, settings.differential_privacy
    if privacy is None or not isinstance(algorithm, LocalTrainingSettings):
        raise SettingsError(
            f"differential_privacy: how much a sample changes what {algorithm.name} sends is not known; use an "
            "algorithm whose clients take gradient steps, such as fedavg or fedpdm"
        )
    sparsifier = settings.uplink.sparsify
    linear = objective if isinstance(objective, LinearObjective) else None
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
        # The ridge is convex, so for its part this is more than is needed: L grows by l2, and 2 beta is twice half.
        beta=settings.objective.l2 / 2 + (linear.nonconvex if linear is not None else 0.0),
        convex_scalar=settings.objective.kind in _OF_ONE_SCORE,
        curvature=linear.score_loss.smoothness if linear is not None else None,
        penalty=algorithm.pull,
        step_size=algorithm.step_size,
    )


def _batches(algorithm: LocalTrainingSettings, samples: int) -> Batches:
    size = algorithm.samples_a_step(samples)
    if size == samples:
        return "full"
    if algorithm.batches == "passes":  # the first pass draws every sample once
        return "epoch" if algorithm.steps(samples) * size <= samples else "independent"
    return algorithm.batches


def problems_of(settings: RunSettings, facts: PrivacyFacts) -> list[str]:
    """Return why this run's privacy would not be what it says; empty if it is sound, or claims nothing."""
    privacy = settings.differential_privacy
    if privacy is None or privacy.mechanism == "paper":
        return []
    problems = privacy.problems(facts)
    bounded_by_gradients = privacy.mechanism != "clip-update"
    if bounded_by_gradients and settings.algorithm.takes_subgradient and _has_corners(settings):
        problems.append(
            "local steps go along a subgradient of objective.regularizer, which jumps where the model does, and which "
            "nothing clips; take its proximal operator (algorithm.regularizer_step: prox, or fedpdm), leave it out, or "
            "set mechanism to clip-update"
        )
    return problems


def _has_corners(settings: RunSettings) -> bool:
    return settings.objective.regularizer.kind != "none"
