"""L2 sensitivities of a client's uploads (docs/specifications/fedpdm.md, section 3).

Two data sets are neighbours if they differ by the replacement of one sample. A sensitivity is the largest distance of
the noiseless uploads of neighbours, for equal public values: the model at the start of the round, the number of steps,
the rows of each batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LocalMap:
    """Public parameters of the map from a client's gradients to its upload in one round.

    A step is ``x <- x - eta (g - lambda + pull (x - x0))``, from ``x0``. The gradient ``g`` of the data is clipped,
    sample by sample, to the norm G.

    Attributes
    ----------
    step_size
        Step size ``eta`` of the round.
    steps
        Number ``Q`` of steps, fixed before the round.
    pull
        Weight of the pull towards ``x0``: ``rho`` for FedPDM, ``mu`` for FedProx, ``alpha`` for FedDyn, 0 for FedAvg
        and SCAFFOLD.
    gain
        Factor of the local model in the upload: 2 for ``y = 2 x - x0 - lambda / rho``, 1 for ``x``.
    batch_size
        Number ``b`` of samples of a step.
    """

    step_size: float
    steps: int
    pull: float = 0.0
    gain: Literal[1, 2] = 1
    batch_size: int = 1

    @property
    def contraction(self) -> float:
        """Factor ``a = 1 - pull eta`` of a step on a difference of models with equal gradients."""
        return 1 - self.pull * self.step_size

    @property
    def travel(self) -> float:
        """Distance ``eta sum_{j<Q} a^j`` that a constant gradient of norm 1 moves the local model."""
        return self.step_size * _powers(self.contraction, self.steps)

    @property
    def reach(self) -> float:
        """Largest distance ``eta sum_{j<Q} |a|^j`` that gradients of norm 1 can move the local model."""
        return self.step_size * _powers(abs(self.contraction), self.steps)


def _powers(a: float, count: int) -> float:
    """Return ``sum_{j<count} a^j`` in constant time, infinite if it overflows."""
    if a in (0.0, 1.0):
        return float(count) if a else 1.0
    power = count * math.log(abs(a))  # the logarithm of |a|^count, accurate also for a near 1
    try:
        if a < 0 and count % 2:
            return (1 + math.exp(power)) / (1 - a)
        return math.expm1(power) / (a - 1)
    except OverflowError:
        return math.inf


def whole_batch(local: LocalMap, clip: float, *, beta: float = 0.0) -> float:
    """Return ``gain 2 eta G sum_{j<Q} (|a| + 2 beta eta)^j``, a sensitivity as if a sample were the whole batch.

    For FedPDM this is the paper's Theorem 1, ``4 eta G sum_{j<Q} |1 - rho eta|^j``, and for FedAvg ``2 eta Q G``. It
    requires equal private states at the start of the round: no dual variable, or a public one.

    Parameters
    ----------
    clip
        Bound ``G`` on the norm of a batch's gradient.
    beta
        Weight of an unclipped regulariser ``beta sum x^2 / (1 + x^2)``, whose gradient has the Lipschitz constant
        ``2 beta`` (docs/specifications/fedpdm.md, section 3.3, item 5).
    """
    growth = abs(local.contraction) + 2 * beta * local.step_size
    return local.gain * 2 * local.step_size * clip * _powers(growth, local.steps)


def contractive(
    local: LocalMap, clip: float, smoothness: float, *, convex_scalar: bool = False, beta: float = 0.0
) -> float:
    """Return ``(gain 2 eta G / b) max(1, kappa)^(Q - 1)``, a sensitivity for a sample in one batch of the round.

    ``kappa = |a| + eta L``, or 1 under the conditions below (docs/specifications/fedpdm.md, section 3.3, item 2). The
    bound requires that a sample is used at most once in the round, that every sample's gradient is clipped, and that
    clients have no private state. It is infinite if it overflows: then no noise suffices, and nothing is sent.

    Parameters
    ----------
    clip
        Bound ``G`` on the norm of a sample's gradient.
    smoothness
        Smoothness ``L`` of every admissible sample's loss, including ``2 beta``.
    convex_scalar
        Whether the loss is convex in one number ``a^T x`` (logistic; not softmax, whose clipped gradient is not
        monotone). Then a step is non-expansive if ``eta <= 2 / (L + pull)`` and ``pull >= beta / 2``.
    """
    gentle = local.step_size * (smoothness + local.pull) <= 2 and local.pull >= beta / 2
    kappa = 1.0 if convex_scalar and gentle else abs(local.contraction) + local.step_size * smoothness
    once = local.gain * 2 * local.step_size * clip / local.batch_size
    try:
        return once * float(max(1.0, kappa) ** (local.steps - 1))
    except OverflowError:
        return math.inf


def clip_update(bound: float) -> float:
    """Return the sensitivity ``2 C`` of a clipped update, the diameter of its ball.

    See docs/specifications/fedpdm.md, section 3.3.
    """
    return 2 * bound


@dataclass(frozen=True)
class DualDifference:
    """Bound on the difference of a private dual variable between neighbours, which accumulates over rounds.

    A private dual variable carries information about a sample from earlier rounds into later ones. The bound
    (docs/specifications/fedpdm.md, section 3.3, item 1) requires ``lambda = 0`` at the start. Beside the clipped
    gradient, no term of a step may depend on the data or the model, so there must be no unclipped regulariser.

    Attributes
    ----------
    value
        Bound ``D`` on the distance of the dual variables before the round, 0 at the start.
    """

    value: float = 0.0

    def step(self, local: LocalMap, clip: float, penalty: float) -> tuple[float, DualDifference]:
        """Return the sensitivity of this round's upload, and the difference after it.

        For FedPDM, with ``penalty = pull = rho``, these are ``|1 - 2 a^Q| D / rho + 4 G eta sum_{j<Q} |a|^j`` and
        ``|a|^Q D + 2 G rho eta sum_{j<Q} |a|^j``, which is at most 2 G if ``rho eta <= 1``.

        Parameters
        ----------
        clip
            Bound ``G`` on the norm of a batch's gradient.
        penalty
            Weight ``rho`` in the dual step ``lambda <- lambda - rho (x - x0)`` and in ``y``.
        """
        # The dual variable lambda enters x - x0 as travel * lambda, and enters y as twice this term minus lambda / rho.
        taken = 1 / penalty if local.gain == 2 else 0.0
        carried = abs(local.gain * local.travel - taken) * self.value
        fresh = 2 * clip * local.reach
        after = abs(1 - penalty * local.travel) * self.value + penalty * fresh
        return carried + local.gain * fresh, DualDifference(after)
