"""Session of a client in a run, which handles every instruction exactly once.

The session is independent of the network: instructions come in, replies go out. The server decides which replies
count, and the ``base`` of each instruction carries that decision (:mod:`fenchel.client.journal`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fenchel.algorithms.client_half import ClientAlgorithm, ClientContext
from fenchel.algorithms.registry import client_half, require_allowed
from fenchel.client.evaluation import EVALUATIONS, AnsweredEvaluations, ClientEvaluation, evaluates, most_evaluations
from fenchel.client.journal import Journal
from fenchel.client.privacy.protection import bounded, protection_of
from fenchel.common.compression.uplink import ClientUplink
from fenchel.common.crypto.meter import CipherMeter
from fenchel.common.data.shard import Shard, are_modest, digest_of
from fenchel.common.defects import describe_defect, user_frames
from fenchel.common.environment import Environment
from fenchel.common.errors import (
    BudgetSpentError,
    CheckpointError,
    CredentialError,
    EncryptionError,
    FenchelError,
    LostStateError,
    PayloadError,
    PhaseError,
    PrivacyBudgetError,
    SettingsError,
    StorageError,
    WireError,
)
from fenchel.common.objectives.factory import build_objective
from fenchel.common.settings.run import RunSettings, outside_code
from fenchel.common.settings.solver import Solver
from fenchel.common.slots import working_ns
from fenchel.common.wire.frames import Body
from fenchel.common.wire.outline import Received
from fenchel.common.wire.payload import encode
from fenchel.common.wire.phases import EVALUATE, EXCHANGE
from fenchel.common.wire.values import Values
from fenchel.proto import fenchel_pb2 as pb

if TYPE_CHECKING:
    from fenchel.client.disk_quota import DiskQuota
    from fenchel.client.privacy.ledger import Account
    from fenchel.client.privacy.policy import Policy
    from fenchel.keys.secret_exchange import SecretExchange
    from fenchel.keys.shared import Secrets

log = logging.getLogger("fenchel.client")

# Errors with a text that may be sent to the server: they describe the run and received messages. The texts of other
# errors may contain names of files on this client.
_DISCLOSED = (WireError, SettingsError, CredentialError, LostStateError, EncryptionError, PrivacyBudgetError)


@dataclass(frozen=True)
class ClientData:
    """Data of a client in a run.

    Attributes
    ----------
    shard
        Training samples.
    holdout
        Samples that are used for evaluation only, if any.
    """

    shard: Shard
    holdout: Shard | None = None

    def description(self) -> pb.ShardDescription:
        """Return the description for the server: shape, names of classes and, unless they are too long, of columns."""
        shard, columns = self.shard, self.shard.column_names
        return pb.ShardDescription(
            samples=shard.samples,
            features=shard.total_features,
            classes=shard.classes,
            features_held=shard.features.shape[1],
            class_names=shard.class_names,
            column_names=columns if are_modest(columns) else (),
            column_digest=digest_of(columns),
        )


@dataclass(frozen=True)
class Answer:
    """A reply ready to be sent."""

    head: pb.Reply
    body: Body | None


class Session:
    """Session of one client in one run.

    Parameters
    ----------
    client
        Client id.
    settings
        Settings of the run, checked against the client's trust limits.
    data
        Data of the client.
    journal_folder
        Folder of the client's journal of this run; ``None`` keeps the journal in memory.
    allowed
        Classes from outside the project that the client may run, as ``package.module:Class``.
    secrets
        Secrets that all clients share, if the client was started with any.
    secret_exchange
        The client's side of the secret exchange, if secrets are made in the run. The algorithm is created after it.
    solver
        Local solver in place of the run's.
    policy
        Differential privacy that the client requires of every run.
    quota
        Limit on the size of the client's journals.
    account
        Privacy account over all runs of a client with a policy.
    shows_errors
        True if the text of an unexpected error, which may contain data, is logged.
    """

    def __init__(
        self,
        client: str,
        settings: RunSettings,
        data: ClientData,
        *,
        journal_folder: Path | None = None,
        allowed: Collection[str] = (),
        secrets: Secrets | None = None,
        secret_exchange: SecretExchange | None = None,
        solver: Solver | None = None,
        policy: Policy | None = None,
        quota: DiskQuota | None = None,
        account: Account | None = None,
        shows_errors: bool = False,
    ) -> None:
        self.client = client
        self.settings = settings
        self.data = data
        self._solver = solver
        for name in outside_code(settings.model_dump()):
            require_allowed(name, allowed)
        self._shows_errors = shows_errors
        self._half = client_half(settings.algorithm.name, allowed)
        self._stateless = self._half.stateless()
        norm = settings.differential_privacy.feature_norm if settings.differential_privacy else None
        self._objective = build_objective(settings.objective, bounded(data.shard, norm))
        self._evaluates = evaluates(settings, data.shard)
        self._evaluation = ClientEvaluation(
            self._objective,
            build_objective(settings.objective, data.holdout) if data.holdout else None,
            settings.evaluation.histograms,
            AnsweredEvaluations(
                most_evaluations(settings), None if journal_folder is None else journal_folder / EVALUATIONS
            ),
        )
        self._journal_folder = journal_folder
        self._quota = quota
        self._secret_exchange = secret_exchange
        if policy is not None:
            policy.check_exposure(client, settings.algorithm, evaluates=self._evaluates)
        self._protection = protection_of(client, settings, self._objective, journal_folder, policy, account)
        self._active: _ActiveHalf | None = None
        self._spent = False  # True once the server knows that the privacy budget is spent
        self._live = 0  # sequence number of the instruction that produced the algorithm's current state
        self._last: tuple[int, Answer] | None = None
        if secret_exchange is None:
            _check_secrets(client, settings, secrets)
            self._active = self._begin(secrets)
        elif secret_exchange.secrets is not None:
            self._active = self._begin(secret_exchange.secrets)

    def _begin(self, secrets: Secrets | None) -> _ActiveHalf:
        """Create the algorithm in its initial state, and open its journal."""
        settings, stateless = self.settings, self._stateless
        uplink = ClientUplink(settings.uplink, settings.seed, self.client, self._protection)
        algorithm = self._half(
            ClientContext(
                client=self.client,
                seed=settings.seed,
                settings=settings.algorithm,
                objective=self._objective,
                shard=self.data.shard,
                secrets=secrets,
                solver=self._solver,
                uplink=uplink,
                message_bytes=settings.network.max_message_bytes,
            )
        )
        initial = self._half.State() if stateless else algorithm.initial_state()
        folder = None if stateless else self._journal_folder
        journal = Journal(initial, folder, sync=settings.checkpoint.sync, quota=self._quota)
        algorithm.state = journal.state_after(0)
        return _ActiveHalf(algorithm, journal)

    @property
    def warnings(self) -> list[str]:
        """Warnings about the run for the client's operator."""
        of_privacy = [] if self._protection is None else self._protection.warnings
        return [*self.settings.algorithm.warnings, *of_privacy]

    def hello(self) -> pb.Hello:
        """Return the first message of the client on a new stream."""
        return pb.Hello(
            shard=self.data.description(),
            snapshots=[] if self._active is None else self._active.journal.snapshots,
            stateless=self._stateless,
            environment=Environment.current().message(),
        )

    def handle(self, instruction: pb.Instruction, received: Received) -> Answer:
        """Restore the base of an instruction, handle the instruction, record the outcome and return the reply.

        A repeated instruction gets its stored reply. If the algorithm fails, the reply reports the failure. Restoring
        the base of the next instruction undoes the effects of the failed one.

        Raises
        ------
        StorageError, CheckpointError
            If a file of the client, such as its journal, cannot be written or read.
        """
        watch = _Stopwatch()
        if self._active is not None and not self._stateless:
            self._active.journal.forget(instruction.low_water_mark, instruction.base, instruction.sequence)
            watch.lap("journal_ns")
        stored = self._stored(instruction.sequence)
        if stored is not None:
            return stored
        try:
            answer = self._answered(instruction, received, watch)
        except (StorageError, CheckpointError):
            raise  # storage errors stop the client, and the server waits for a reconnect
        except Exception as error:
            self._live = -1  # no valid state: the failed instruction may have changed parts of it
            self._log_failure(instruction.phase, error)
            self._spent = self._spent or isinstance(error, BudgetSpentError)
            return Answer(_failed(error, instruction.sequence, watch.timing()), None)
        self._last = instruction.sequence, answer
        return answer

    def _log_failure(self, phase: str, error: Exception) -> None:
        """Log why a phase failed. The text of an unexpected error may contain data, so only a terminal shows it."""
        expected = isinstance(error, FenchelError)
        own = user_frames(error) if self._shows_errors and not expected else None
        if own is not None:  # the author of code from outside Fenchel needs the traceback
            log.error("%s: phase %r failed", self.client, phase, exc_info=(type(error), error, own))
        elif not (isinstance(error, BudgetSpentError) and self._spent):  # as all later uploads fail as well
            reason = str(error) if expected else describe_defect(error, text=self._shows_errors)
            log.error("%s: phase %r failed: %s", self.client, phase, reason)
        log.debug("%s: traceback", self.client, exc_info=not expected)

    def _stored(self, sequence: int) -> Answer | None:
        if self._last is not None and self._last[0] == sequence:
            return self._last[1]
        reply = None if self._active is None else self._active.journal.reply_to(sequence)
        if reply is None:
            return None
        return Answer(pb.Reply(sequence=sequence, timing=pb.Timing()), Body(encode(reply), shared=False))

    def _answered(self, instruction: pb.Instruction, received: Received, watch: _Stopwatch) -> Answer:
        values = received.values()
        watch.lap("decode_ns")
        if instruction.kind == pb.INSPECT:
            reply = self._inspect(instruction.phase, values)
            watch.lap("compute_ns")
            encoded = Body(encode(reply), shared=False)
            watch.lap("encode_ns")
        else:
            algorithm, journal = self._ready()
            if not self._stateless and self._live != instruction.base:
                if self._live > instruction.base:
                    log.info(
                        "%s: the server discarded the work after instruction %d; this client now restores its state "
                        "after that instruction",
                        self.client,
                        instruction.base,
                    )
                algorithm.state = journal.state_after(instruction.base)
            self._live = -1
            meter = algorithm.meter
            before = None if meter is None else replace(meter)
            reply = algorithm.answer(instruction.phase, instruction.round, values, finite=received.finite)
            if instruction.kind == pb.TELL and reply:
                raise PayloadError(
                    f"phase {instruction.phase!r} is one-way (tell), but its handler returned values; return "
                    "None, or have the server ask"
                )
            watch.lap("compute_ns")
            if meter is not None and before is not None:
                watch.set_apart(before, meter)
            # encode before recording: an encoding error must fail the instruction
            encoded = Body(encode(reply), shared=False)
            watch.lap("encode_ns")
            if not self._stateless:
                journal.record(instruction.sequence, algorithm.state, reply)
            self._live = instruction.sequence
            watch.lap("journal_ns")
        return Answer(pb.Reply(sequence=instruction.sequence, timing=watch.timing()), encoded)

    def _ready(self) -> tuple[ClientAlgorithm, Journal]:
        if self._active is None:
            raise LostStateError(
                f"client {self.client} has no secrets of this run, because none were sealed for it, or its folder "
                "of this run, below --state, was removed. Restore the folder and start this client again, or "
                "begin a new run"
            )
        return self._active.algorithm, self._active.journal

    def end(self) -> None:
        """Remove the secrets that were made for the run, once it is complete."""
        if self._secret_exchange is not None:
            self._secret_exchange.forget()

    def _inspect(self, phase: str, values: Values) -> Values:
        if self._secret_exchange is not None and phase in EXCHANGE:
            reply = self._secret_exchange.answer(phase, values)
            if self._active is None and self._secret_exchange.secrets is not None:
                self._active = self._begin(self._secret_exchange.secrets)
            return reply
        if phase != EVALUATE:
            raise PayloadError(
                f"the server requests the evaluation {phase!r}, which this version of Fenchel does not know; "
                "install the same version on both sides"
            )
        if not self._evaluates:
            raise PhaseError(
                f"client {self.client} evaluates no models in this run, because of evaluation.clients: false, "
                "differential privacy, or samples of which it holds only parts",
                phase=phase,
            )
        return self._evaluation.sums(values)


@dataclass(frozen=True)
class _ActiveHalf:
    algorithm: ClientAlgorithm
    journal: Journal


@dataclass
class _Stopwatch:
    """Stopwatch of an instruction's stages, named as in ``pb.Timing``. It does not count waiting for other tasks."""

    _stages: dict[str, int] = field(default_factory=dict)
    _last: int = field(default_factory=working_ns)

    def lap(self, stage: str) -> None:
        """Add the nanoseconds since the last lap to a stage."""
        now = working_ns()
        self._stages[stage] = self._stages.get(stage, 0) + now - self._last
        self._last = now

    def set_apart(self, before: CipherMeter, after: CipherMeter) -> None:
        """Enter numbers and times of encryptions and decryptions, and subtract these times from the compute time."""
        encrypt_ns, decrypt_ns = after.encryption_ns - before.encryption_ns, after.decryption_ns - before.decryption_ns
        self._stages |= {
            "encryptions": after.encryptions - before.encryptions,
            "decryptions": after.decryptions - before.decryptions,
            "encrypt_ns": encrypt_ns,
            "decrypt_ns": decrypt_ns,
            "compute_ns": max(self._stages["compute_ns"] - encrypt_ns - decrypt_ns, 0),
        }

    def timing(self) -> pb.Timing:
        """Return the stages so far as a message."""
        return pb.Timing(**self._stages)


def _failed(error: Exception, sequence: int, timing: pb.Timing) -> pb.Reply:
    """Return the reply to an instruction that failed, with a text that contains no data and no names of files."""
    if isinstance(error, BudgetSpentError):  # withhold amounts and other runs
        return pb.Reply(sequence=sequence, timing=timing, failure="its privacy budget is spent", spent=True)
    if isinstance(error, _DISCLOSED):
        failure = str(error) or "unknown"
        return pb.Reply(sequence=sequence, timing=timing, failure=failure, diverged=error.diverged)
    article = "a" if isinstance(error, FenchelError) else "an unexpected"
    failure = f"{article} {type(error).__name__}; see the client's log"
    return pb.Reply(sequence=sequence, timing=timing, failure=failure)


def _check_secrets(client: str, settings: RunSettings, secrets: Secrets | None) -> None:
    """Raise ``SettingsError`` if the client lacks secrets that the algorithm needs, or its key has another length."""
    bits, name = settings.algorithm.key_bits, settings.algorithm.name
    if bits is None:
        return
    if settings.seals_secrets:
        raise SettingsError(
            "the clients of this run exchange secrets in sealed boxes (secrets.source: sealed), for which client "
            f"{client} needs a certificate; start it with --certs DIR, not with --insecure"
        )
    if secrets is None:
        raise SettingsError(
            f"{name} needs secrets that all clients share; start client {client} with --secrets FILE, where FILE "
            "is a copy of the clients.secret that fenchel keys made"
        )
    if secrets.private_key.public.bits != bits:
        raise SettingsError(
            f"{name} needs a key of {bits} bits, but the key in client {client}'s secrets has "
            f"{secrets.private_key.public.bits}; make another with fenchel keys --bits {bits}, or change the "
            "settings"
        )
