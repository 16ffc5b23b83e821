"""Differential privacy of a client: amount and source of the noise of an upload, and its cost."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy

from fenchel.algorithms.privacy_requirements import check_noise, facts_of, problems_of, refuse
from fenchel.client.privacy.budget import Budget
from fenchel.client.privacy.ledger import COUNT, LEDGER, Account, Ledger, PolicyLedger
from fenchel.client.privacy.policy import Policy
from fenchel.client.privacy.randomness import SECRET, PrivateRandomness
from fenchel.common.accounting.accountant import Accountant, Release
from fenchel.common.accounting.grid import GridNoise
from fenchel.common.accounting.public_facts import PrivacyFacts
from fenchel.common.accounting.sensitivity import DualDifference, LocalMap
from fenchel.common.arrays import Matrix, Vector, is_sparse, squared_norms
from fenchel.common.data.shard import Shard
from fenchel.common.errors import CheckpointError, PrivacyBudgetError, SettingsError
from fenchel.common.objectives.objective import Objective
from fenchel.common.settings.privacy import DifferentialPrivacy
from fenchel.common.settings.run import RunSettings


@dataclass(frozen=True)
class Protection:
    """Differentially private mechanism of a client in a run.

    Attributes
    ----------
    privacy
        Settings of the mechanism.
    facts
        Public facts that the sensitivity depends on.
    release
        Noise multiplier and sampling rate of every upload.
    randomness
        Source of noise, batches and index sets.
    ledger
        Ledger of the run, which enforces the budget.
    """

    privacy: DifferentialPrivacy
    facts: PrivacyFacts
    release: Release
    randomness: PrivateRandomness
    ledger: Ledger

    @property
    def clip_gradient(self) -> float | None:
        """Bound G to which the gradient of each sample is clipped; ``None``: the upload is clipped instead."""
        return None if self.privacy.mechanism == "clip-update" else self.privacy.clip

    @property
    def clip_update(self) -> float | None:
        """Bound C on an upload's difference from the round's initial model; ``None``: gradients are clipped."""
        return self.privacy.clip if self.privacy.mechanism == "clip-update" else None

    @property
    def warnings(self) -> list[str]:
        """Caveats about the run's epsilon, for the client's operator."""
        return [f"differential_privacy: {warning}" for warning in self.privacy.warnings(self.facts)]

    def sensitivity(self, local: LocalMap, difference: DualDifference) -> tuple[float, DualDifference]:
        """Return the sensitivity of a round's upload, and the difference of dual variables after it.

        Source: :meth:`fenchel.common.settings.privacy.DifferentialPrivacy.sensitivity`.
        """
        return self.privacy.sensitivity(local, self.facts, difference)

    def released(
        self, values: Vector, t: int, name: str, sensitivity: float, largest: float, occasion: bytes
    ) -> Vector:
        """Add noise to ``values``, charge the upload to the ledger, and return the sum, shape (k,).

        Values and noise are integers times a spacing (:mod:`fenchel.common.accounting.grid`). Only the integer
        sum is converted to floating point, so that the low-order bits of the result reveal no more than that sum.

        The noise is a function of the client's secret and of everything that determines the payload: the values, the
        scale of the noise, the round, and the request with the state before it. A repeated request gives the same
        payload, which costs nothing. Any other payload has independent noise.

        Parameters
        ----------
        values
            Values to send, shape (k,).
        t
            Number of the round.
        name
            Name of the vector among those of a round.
        sensitivity
            L2 sensitivity of ``values`` to one sample.
        largest
            Largest magnitude of the numbers that local steps begin with. It must not depend on the data.
        occasion
            Digest of the request and of the state before it.

        Raises
        ------
        BudgetSpentError
            If the upload exceeds the budget.
        PrivacyBudgetError
            If a value is not finite, or no noise covers the values.
        """
        try:
            grid = GridNoise.covering(
                sensitivity + self.rounding(values, largest), self.release.noise_multiplier, values.size
            )
            integers = grid.integers(values)
        except ValueError as error:
            raise PrivacyBudgetError(
                f"{name!r} is not sent: {error}. No noise protects such values; use step sizes that neither vanish "
                "nor let the model grow without bound",
                round=t,
            ) from None
        about = hashlib.sha256(np.ascontiguousarray(values).data).digest()
        noise = self.randomness.discrete_gaussian(
            values.size, grid.scale, "noise", t, name, occasion, about, grid.spacing.hex()
        )
        noised: Vector = grid.values(integers + noise).astype(values.dtype)
        payload = hashlib.sha256(occasion + f"{t} {name} ".encode() + np.ascontiguousarray(noised).tobytes())
        self.ledger.charge(payload.digest(), t, self.release)
        return noised

    def rounding(self, values: Vector, largest: float) -> float:
        """Return the increase of the sensitivity by rounding, because the sensitivity itself assumes exact arithmetic.

        Two runs that differ in one sample round differently in each coordinate of each step, by a few units in the last
        place. This is negligible unless the model, a dual variable or a control variate is very large, its dtype short,
        or the round long. Near 0 the relative error is unbounded: the error of each product is up to half the smallest
        subnormal number ``u``. The uploads of two runs of Q steps can therefore differ by a multiple of
        ``u Q sqrt(k)``, however short the steps are. A clipped update is rounded once more, to the dtype in which it is
        sent, by units in the last place of the initial model and of C.
        """
        facts, limits = self.facts, np.finfo(values.dtype)
        eps, tiny = float(limits.eps), float(limits.tiny)  # machine epsilon and smallest normal number
        reach = max(1.0, facts.step_size * facts.steps, 1 / facts.penalty if facts.penalty else 0.0)
        # A step has b products per coordinate of the gradient, each with a rounding error that features and step size
        # multiply (`reach` contains the step size). Further products of a step are those by step size, rho and a
        # weight. Sums near 0 are exact. `tiny`, 2^24 times u / 2 in single precision and 2^53 times in double, covers
        # all of these errors. The error u / 2 of the step size itself moves a step by that times the norm of a
        # gradient, at most G.
        last_place = (eps * largest + tiny * max(1.0, self.privacy.clip)) * reach
        # The steps lead away from these numbers, by at most Q eta G along clipped gradients, and the error of a step is
        # relative to that norm, too. A clipped update needs no such term, however far its steps lead.
        travel = facts.steps * facts.step_size * (self.clip_gradient or 0.0)
        of_steps = 4 * facts.steps * (last_place * float(np.sqrt(values.size)) + eps * travel)
        return of_steps + 4 * eps * (self.clip_update or 0.0)


def protection_of(
    client: str,
    settings: RunSettings,
    objective: Objective,
    folder: Path | None,
    policy: Policy | None = None,
    account: Account | None = None,
) -> Protection | None:
    """Create the differentially private mechanism of a client in a run, with its ledger and secret.

    Return ``None`` if the run has no differential privacy.

    Parameters
    ----------
    client
        Client id.
    settings
        Settings of the run.
    objective
        Objective on the client's samples.
    folder
        Folder of the client's secret and ledger; ``None`` keeps them in memory.
    policy
        Differential privacy that the client requires.
    account
        Privacy account over all runs, for a client with a policy.

    Raises
    ------
    SettingsError
        If the run is weaker than the policy requires, or its budget does not allow a single upload.
    BudgetSpentError
        If the policy's budget for all runs does not allow another upload.
    CheckpointError
        If the client has taken part in the run, and its ledger is missing.
    """
    privacy = settings.differential_privacy
    if privacy is None:
        if policy is not None:
            policy.check_without_privacy(client)
        return None
    facts = facts_of(settings, objective, objective.samples)
    refuse(problems_of(settings, facts))
    release = Release(privacy.noise(facts), privacy.sampling_rate(facts))
    check_noise(settings, facts, release.noise_multiplier)
    if policy is not None:
        policy.check_privacy(client, privacy, release.noise_multiplier, facts.support)
    # the mechanism of the paper has its own formula for the budget
    limit = privacy.budget if privacy.mechanism != "paper" else None
    budget = Budget(limit, privacy.delta, Accountant(privacy.accountant))
    _check_ledger(folder)
    if policy is not None:
        first = Budget(policy.maximum_epsilon, policy.delta)
        _check_first(client, first, release, "its policy (maximum_epsilon)", "raise the limit of the policy")
    of_all_runs = _policy_ledger(client, policy, account)
    ledger = Ledger(
        None if folder is None else folder / LEDGER,
        client,
        budget=budget,
        policy=of_all_runs,
        count=None if folder is None else folder / COUNT,
    )
    if not ledger.uploads:
        _check_first(client, budget, release, "the run (differential_privacy.budget)", "a larger budget")
        if of_all_runs is not None:
            of_all_runs.check(release)
    ledger.begin()  # create the ledger before the secret, so that every client with a secret has a ledger
    return Protection(privacy, facts, release, _randomness(client, settings, folder), ledger)


def _policy_ledger(client: str, policy: Policy | None, account: Account | None) -> PolicyLedger | None:
    """Open the ledger over all runs of a client; ``None`` without a policy or a place for the ledger."""
    if policy is None:
        return None
    opened = None if account is None else account.opened(policy.maximum_epsilon, policy.delta)
    if opened is None and policy.maximum_epsilon is not None:
        raise SettingsError(
            f"maximum_epsilon = {policy.maximum_epsilon:g} limits all runs together, but no ledger for them is "
            "given; use a state folder, or name a file in the policy (ledger: PATH)",
            client=client,
        )
    return opened


def _check_first(client: str, budget: Budget, release: Release, origin: str, remedy: str) -> None:
    """Reject a run whose budget does not allow a single upload."""
    if budget.cap is None:
        return
    first = budget.accountant.epsilon({release: 1}, budget.delta)
    if first > budget.cap:
        raise SettingsError(
            f"client {client} does not take part: a single upload of this run costs epsilon = {first:.4g} (delta = "
            f"{budget.delta:g}), and {origin} allows {budget.cap:g} for all uploads. Ask the server's operator "
            f"for more noise, or {remedy}"
        )


def _randomness(client: str, settings: RunSettings, folder: Path | None) -> PrivateRandomness:
    """Return the client's source of randomness, which differs for other settings."""
    privacy = settings.differential_privacy
    if privacy is not None and privacy.fixed_seeds:
        source = PrivateRandomness(hashlib.sha256(f"{settings.seed} {client}".encode()).digest())
    else:
        source = PrivateRandomness.kept_in(folder)
    return source.derived(settings.to_json())


def _check_ledger(folder: Path | None) -> None:
    """Raise an error if the ledger is missing though the client has taken part in the run."""
    if folder is None or (folder / LEDGER).exists() or not (folder / SECRET).exists():
        return
    raise CheckpointError(
        "the privacy ledger is missing, but this client has taken part in this run before, so its privacy loss is "
        "unknown. Restore the ledger, or begin a new run without this client",
        source=folder / LEDGER,
    )


def bounded(shard: Shard, norm: float | None) -> Shard:
    """Return a shard whose samples have a norm of at most ``norm``; longer samples are scaled down.

    The bound holds for any samples, so quantities derived from it reveal nothing about the data.
    """
    if norm is None or not shard.samples:
        return shard
    lengths = _row_norms(shard.features)
    factors = np.minimum(1.0, norm / np.maximum(lengths, np.finfo(np.float64).tiny))
    if (factors == 1.0).all():
        return shard
    scaled: Matrix
    if is_sparse(shard.features):
        scaled = scipy.sparse.csr_array(scipy.sparse.diags_array(factors) @ shard.features).astype(shard.features.dtype)
    else:
        scaled = (shard.features * factors[:, None]).astype(shard.features.dtype)
    return replace(shard, features=scaled)


def _row_norms(features: Matrix) -> Vector:
    wide = features.astype(np.float64, copy=False)  # squares of float32 overflow above 1e19 and underflow below 1e-23
    if is_sparse(wide):
        norms: Vector = np.sqrt(squared_norms(wide))
        return norms
    return np.asarray(np.linalg.norm(wide, axis=1))
