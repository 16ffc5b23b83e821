"""How far one sample can move what a client sends: L2 sensitivities (docs/specifications/fedpdm.md, section 3).

Two data sets are neighbours if one sample of the one is replaced by another in the other. A sensitivity is the
largest distance of the noiseless uploads for neighbours, everything public being equal: the model that the round
began with, the number of steps, the rows of each batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LocalMap:
    """What a client's round does to its gradients; everybody may know it.

    A step is ``x <- x - eta (g - lambda + pull (x - x0))``, from ``x0``. The gradient ``g`` of the data is
    clipped, sample by sample, to the norm G.

    Attributes
    ----------
    step_size
        ``eta``, of this round.
    steps
        ``Q``, fixed before the round.
    pull
        Weight of the pull towards ``x0``: ``rho`` for FedPDM, ``mu`` for FedProx, ``alpha`` for FedDyn, 0 for FedAvg
        and SCAFFOLD.
    gain
        By how much the upload moves with the local model: 2 for ``y = 2 x - x0 - lambda / rho``, 1 for ``x``.
    batch_size
        ``b``, samples of a step.
    """

    step_size: float
    steps: int
    pull: float = 0.0
    gain: Literal[1, 2] = 1
    batch_size: int = 1

    @property
    def contraction(self) -> float:
        """``a = 1 - pull eta``: what a step leaves of a difference, the gradients apart."""
        return 1 - self.pull * self.step_size

    @property
    def travel(self) -> float:
        """``eta sum_{j<Q} a^j``: how far a gradient of norm 1 that never changes moves the local model."""
        return self.step_size * _powers(self.contraction, self.steps)

    @property
    def reach(self) -> float:
        """``eta sum_{j<Q} |a|^j``: how far gradients of norm 1, of any direction, move the local model."""
        return self.step_size * _powers(abs(self.contraction), self.steps)


def _powers(a: float, count: int) -> float:
    """Return ``sum_{j<count} a^j``, infinite where that is no number any more, in a time that does not grow with it."""
    if a in (0.0, 1.0):
        return float(count) if a else 1.0
    power = count * math.log(abs(a))  # the logarithm of |a|^count, with all digits also where a is near 1
    try:
        if a < 0 and count % 2:
            return (1 + math.exp(power)) / (1 - a)
        return math.expm1(power) / (a - 1)
    except OverflowError:
        return math.inf


def whole_batch(local: LocalMap, clip: float, *, beta: float = 0.0) -> float:
    """Return ``gain 2 eta G sum_{j<Q} (|a| + 2 beta eta)^j``: one sample counts as if it were the whole batch.

    For FedPDM this is the paper's Theorem 1, ``4 eta G sum_{j<Q} |1 - rho eta|^j``; for FedAvg ``2 eta Q G``.
    It holds if the two runs begin with the same private state: without a dual variable, or with a public one.

    Parameters
    ----------
    clip
        ``G``: bound on the norm of a batch's gradient.
    beta
        Weight of the regulariser ``beta sum x^2 / (1 + x^2)`` where it is not clipped; its gradient grows by at most
        ``2 beta`` times a distance (section 3.3, item 5).
    """
    growth = abs(local.contraction) + 2 * beta * local.step_size
    return local.gain * 2 * local.step_size * clip * _powers(growth, local.steps)


def contractive(
    local: LocalMap, clip: float, smoothness: float, *, convex_scalar: bool = False, beta: float = 0.0
) -> float:
    """Return ``(gain 2 eta G / b) max(1, kappa)^(Q - 1)``: one sample counts in one batch of the round.

    It is infinite where that is no number any more: then no noise is enough, and nothing is sent.
    ``kappa = |a| + eta L``, or 1 under the conditions below. This is section 3.3, item 2. It holds only if a
    sample is used at most once in the round, every sample's gradient is clipped, and the private state is
    public.

    Parameters
    ----------
    clip
        ``G``: bound on the norm of a sample's gradient.
    smoothness
        ``L``: of every admissible sample's loss, ``2 beta`` included.
    convex_scalar
        Whether the loss is convex in one number, ``a^T x`` (logistic; not softmax, whose clipped gradient is not
        monotone). Then a step does not stretch if ``eta <= 2 / (L + pull)`` and ``pull >= beta / 2``.
    """
    gentle = local.step_size * (smoothness + local.pull) <= 2 and local.pull >= beta / 2
    kappa = 1.0 if convex_scalar and gentle else abs(local.contraction) + local.step_size * smoothness
    once = local.gain * 2 * local.step_size * clip / local.batch_size
    try:
        return once * float(max(1.0, kappa) ** (local.steps - 1))
    except OverflowError:
        return math.inf


def clip_update(bound: float) -> float:
    """Return ``2 C``: a sample can turn a clipped update from one side of its ball to the other (section 3.3)."""
    return 2 * bound


@dataclass(frozen=True)
class DualDifference:
    """How far a private dual variable may differ between neighbours, round after round (section 3.3, item 1).

    A dual variable that the server cannot compute carries what earlier rounds learnt from the sample into
    later ones. The bound needs ``lambda = 0`` at the start, and that the clipped gradient is everything in a
    step that depends on the data or the model: no regulariser outside of it.

    Attributes
    ----------
    value
        ``D``: bound on the distance of the dual variables before the round; 0 at the start.
    """

    value: float = 0.0

    def step(self, local: LocalMap, clip: float, penalty: float) -> tuple[float, DualDifference]:
        """Return the sensitivity of this round's upload, and the difference after it.

        With ``penalty = pull = rho``, which is FedPDM, these are ``|1 - 2 a^Q| D / rho + 4 G eta sum_{j<Q} |a|^j``
        and ``min(|a|^Q D + 2 G rho eta sum_{j<Q} |a|^j, 2 G)``.

        Parameters
        ----------
        clip
            ``G``: bound on the norm of a batch's gradient.
        penalty
            ``rho`` in the dual step ``lambda <- lambda - rho (x - x0)`` and in ``y``.
        """
        # x - x0 holds travel * lambda, and y takes lambda / rho from twice that.
        taken = 1 / penalty if local.gain == 2 else 0.0
        carried = abs(local.gain * local.travel - taken) * self.value
        fresh = 2 * clip * local.reach
        after = abs(1 - penalty * local.travel) * self.value + penalty * fresh
        return carried + local.gain * fresh, DualDifference(after)
