"""A client's differential privacy: how much noise an upload needs, where it comes from, and what it has cost."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from fenchel.algorithms.privacy_requirements import check_noise, facts_of, problems_of, refuse
from fenchel.client.privacy.budget import Budget
from fenchel.client.privacy.ledger import COUNT, LEDGER, Account, Ledger, PolicyLedger
from fenchel.client.privacy.policy import Policy
from fenchel.client.privacy.randomness import SECRET, PrivateRandomness
from fenchel.common.accounting.accountant import Accountant, Release
from fenchel.common.accounting.grid import GridNoise
from fenchel.common.accounting.public_facts import PrivacyFacts
from fenchel.common.accounting.sensitivity import DualDifference, LocalMap
from fenchel.common.arrays import Matrix, Vector
from fenchel.common.data.shard import Shard
from fenchel.common.errors import CheckpointError, PrivacyBudgetError, SettingsError
from fenchel.common.objectives.objective import Objective
from fenchel.common.settings.privacy import DifferentialPrivacy
from fenchel.common.settings.run import RunSettings


@dataclass(frozen=True)
class Protection:
    """What stands between a client's samples and what it sends.

    Attributes
    ----------
    privacy
        The mechanism, as the run asks for it.
    facts
        What else the sensitivity follows from.
    release
        Noise multiplier and sampling rate of every upload.
    randomness
        Where noise, batches and supports come from.
    ledger
        What has left so far, and how much may.
    """

    privacy: DifferentialPrivacy
    facts: PrivacyFacts
    release: Release
    randomness: PrivateRandomness
    ledger: Ledger

    @property
    def clip_gradient(self) -> float | None:
        """G, to which the gradient of every sample is clipped."""
        return None if self.privacy.mechanism == "clip-update" else self.privacy.clip

    @property
    def clip_update(self) -> float | None:
        """C, to which what is sent is clipped, as a difference from the model that the round began with."""
        return self.privacy.clip if self.privacy.mechanism == "clip-update" else None

    @property
    def warnings(self) -> list[str]:
        """What a reader of this run's epsilon should know."""
        return [f"differential_privacy: {warning}" for warning in self.privacy.warnings(self.facts)]

    def sensitivity(self, local: LocalMap, difference: DualDifference) -> tuple[float, DualDifference]:
        """Return the sensitivity of a round's upload; see :meth:`DifferentialPrivacy.sensitivity`."""
        return self.privacy.sensitivity(local, self.facts, difference)

    def released(
        self, values: Vector, t: int, name: str, sensitivity: float, largest: float, occasion: bytes
    ) -> Vector:
        """Return ``values`` with their noise, shape (k,), charged to the ledger: now they may leave.

        Both are integers times a spacing (:mod:`fenchel.common.accounting.grid`), and only their sum becomes
        floating-point numbers. So the last bits of these say no more than the sum does.

        The noise depends on the client's secret and on everything that makes the payload: the values, how
        much noise there is, the round, and the question with the state in which it is answered. So what is
        computed again is the same payload, which costs nothing, and anything else has noise of its own.

        Parameters
        ----------
        values
            Shape (k,).
        largest
            Magnitude of the largest number that local steps begin with, which must not depend on the data.
        occasion
            Stands for the question, and for the state before it.
        """
        try:
            grid = GridNoise.covering(
                sensitivity + self.rounding(values, largest), self.release.noise_multiplier, values.size
            )
            integers = grid.integers(values)
        except ValueError as error:
            raise PrivacyBudgetError(
                f"{name!r} stays here: {error}. No noise covers such values; take steps that are neither "
                "endlessly small nor so large that the model grows without bound",
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
        """Return by how much rounding can move an upload further than its sensitivity, which is of real numbers.

        Two runs that differ in a sample round differently in every coordinate of every step, by some units in the
        last place of what they compute with: nothing beside the sensitivity, unless the model, a dual
        variable or a control variate is very large, or their dtype short. Near 0 numbers have no such units, and
        each product is wrong by up to half the smallest subnormal number ``u``. So the uploads of two runs of Q
        steps differ by a multiple of ``u Q sqrt(k)``, however short the steps. An update that is clipped is
        rounded once more, to the dtype in which it is sent: by units in the last place of the model, which
        local steps begin with, and of C.
        """
        facts, limits = self.facts, np.finfo(values.dtype)
        eps, tiny = float(limits.eps), float(limits.tiny)  # tiny: the smallest normal number
        reach = max(1.0, facts.step_size * facts.steps, 1 / facts.penalty if facts.penalty else 0.0)
        # A step has the products of the gradient, b for each coordinate, whose errors features and the step size
        # multiply (`reach` has the latter), and its own: by the step size, rho, a weight. Sums near 0 are exact. `tiny`
        # is 2^24 times u / 2 in single precision, 2^53 times in double, and so covers all of them. Rounding the step
        # size itself, by u / 2, moves a step by that times the length of a gradient, at most G.
        last_place = (eps * largest + tiny * max(1.0, self.privacy.clip)) * reach
        of_steps = 4 * facts.steps * last_place * float(np.sqrt(values.size))
        return of_steps + 4 * eps * (self.clip_update or 0.0)


def protection_of(
    client: str,
    settings: RunSettings,
    objective: Objective,
    folder: Path | None,
    policy: Policy | None = None,
    account: Account | None = None,
) -> Protection | None:
    """Return a client's protection in a run, or ``None`` if there is to be none.

    Parameters
    ----------
    folder
        Where the client's secret and its ledger are kept; ``None``: in memory.
    account
        Where all its runs are counted, if it has a policy.
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
    limit = privacy.budget if privacy.mechanism != "paper" else None  # that one is by the paper's formula
    _check_ledger(folder)
    if policy is not None:
        _check_first(client, Budget(policy.maximum_epsilon, policy.delta), release)
    of_all_runs = _policy_ledger(client, policy, account)
    ledger = Ledger(
        None if folder is None else folder / LEDGER,
        client,
        cap=limit,
        delta=privacy.delta,
        accountant=Accountant(privacy.accountant),
        at_least=0 if folder is None or of_all_runs is None else of_all_runs.uploads_of_this_run,
        policy=of_all_runs,
        count=None if folder is None else folder / COUNT,
    )
    if not ledger.uploads:
        _check_first(client, Budget(limit, privacy.delta, Accountant(privacy.accountant)), release)
        if of_all_runs is not None:
            of_all_runs.check(release)
    ledger.begin()  # before there is a secret: whoever has one has a ledger
    return Protection(privacy, facts, release, _randomness(client, settings, folder), ledger)


def _policy_ledger(client: str, policy: Policy | None, account: Account | None) -> PolicyLedger | None:
    """Open the ledger of all runs, which a client with a policy keeps wherever there is a place for it."""
    if policy is None:
        return None
    opened = None if account is None else account.opened(policy.maximum_epsilon, policy.delta)
    if opened is None and policy.maximum_epsilon is not None:
        raise SettingsError(
            f"maximum_epsilon = {policy.maximum_epsilon:g} holds for all runs together, and nothing "
            "says where they are counted; give a state folder, or name a file in the policy (ledger: PATH)",
            client=client,
        )
    return opened


def _check_first(client: str, budget: Budget, release: Release) -> None:
    """Refuse a run of which not even the first upload fits into an empty budget."""
    if budget.cap is None:
        return
    first = budget.accountant.epsilon({release: 1}, budget.delta)
    if first > budget.cap:
        raise SettingsError(
            f"client {client} does not take part: a single upload of this run costs epsilon = {first:.4g} (delta = "
            f"{budget.delta:g}), and {budget.cap:g} is allowed for all of them"
        )


def _randomness(client: str, settings: RunSettings, folder: Path | None) -> PrivateRandomness:
    """Return the client's own source for these settings: with other settings it draws other numbers."""
    privacy = settings.differential_privacy
    if privacy is not None and privacy.fixed_seeds:
        source = PrivateRandomness(hashlib.sha256(f"{settings.seed} {client}".encode()).digest())
    else:
        source = PrivateRandomness.kept_in(folder)
    return source.derived(settings.to_json())


def _check_ledger(folder: Path | None) -> None:
    """Refuse to begin a ledger anew where this client has taken part already."""
    if folder is None or (folder / LEDGER).exists() or not (folder / SECRET).exists():
        return
    raise CheckpointError(
        "the privacy ledger is missing, but this client has taken part in this run before. Without "
        "it nobody knows what was given away: put it back, or begin a new run without this client",
        source=folder / LEDGER,
    )


def bounded(shard: Shard, norm: float | None) -> Shard:
    """Return a shard none of whose samples is longer than ``norm``: longer ones are shortened to it.

    The bound holds whatever the samples are, so that what follows from it does not depend on them.
    """
    if norm is None or not shard.samples:
        return shard
    lengths = _row_norms(shard.features)
    factors = np.minimum(1.0, norm / np.maximum(lengths, np.finfo(np.float64).tiny))
    if (factors == 1.0).all():
        return shard
    scaled: Matrix
    if isinstance(shard.features, sp.csr_array):
        scaled = sp.csr_array(sp.diags_array(factors) @ shard.features).astype(shard.features.dtype)
    else:
        scaled = (shard.features * factors[:, None]).astype(shard.features.dtype)
    return replace(shard, features=scaled)


def _row_norms(features: Matrix) -> Vector:
    if isinstance(features, sp.csr_array):
        norms: Vector = np.sqrt(np.asarray(features.multiply(features).sum(axis=1), np.float64).ravel())
        return norms
    return np.asarray(np.linalg.norm(features.astype(np.float64, copy=False), axis=1))
