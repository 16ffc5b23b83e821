"""The conductor of a run: gathers the fleet, goes through the rounds, evaluates, records, checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from common.algorithms import keeps_no_state
from common.errors import (
    CheckpointError,
    FenchelError,
    JoinRefusedError,
    RunStoppedError,
    SettingsError,
    StorageError,
    TooFewRepliesError,
    WireError,
)
from common.memory import KEPT_BYTES, Recycler
from common.objectives.factory import build_objective
from common.paillier.key import PublicKey
from common.run_folder import BEGINS, RunFolder
from common.settings.run import RunSettings
from common.store import writing
from common.stream import Stream
from common.tables import exists, read
from proto import fenchel_pb2 as pb
from server import checkpoint as checkpoints
from server.algorithm import Algorithm
from server.algorithms import server_half
from server.calls import Call
from server.ceremony import share_secrets
from server.checkpoint import Checkpoint
from server.conversation import Conversation
from server.disclosures import Disclosures
from server.enrolment import Enrolment
from server.environments import Environments
from server.evaluation import Evaluator
from server.fleet import Fleet
from server.in_flight import InFlight
from server.member import Member
from server.newcomers import Newcomers
from server.preflight import build_half, check_run, no_samples, open_data
from server.privacy import Spending
from server.recorder import Recorder
from server.remarks import Remarks
from server.rounds import Rounds, Row

log = logging.getLogger("fenchel.server")

_COME_BACK = "start this client again when the server is back"
_CLASS_NAMES = 10_000  # that a client may have
_CLASS_NAME = 200  # characters of each


@dataclass(frozen=True)
class Summary:
    """How a run ended.

    Attributes
    ----------
    run
        Its id.
    completed
        Whether the run came to its end: all rounds were done, or its budget of privacy was spent.
    rounds
        Rounds done.
    seconds
        Wall-clock time of the rounds that this process did.
    reason
        Why it stopped early, or ended before its last round; empty if it did neither.
    figures
        Of the final model, as far as they are known: the last evaluation, and the algorithm's own. If the run
        stopped early, the last evaluation.
    """

    run: str
    completed: bool
    rounds: int
    seconds: float
    reason: str
    figures: dict[str, float]


@dataclass(frozen=True)
class Observer:
    """Where a run's progress goes while it runs: nowhere, unless the command line or a test asks.

    Attributes
    ----------
    joined
        Called with the number of clients described so far and the number expected (``None``: open).
    row
        Called with the figures of each round.
    conducting
        Called once, on the event loop of the run, with who conducts it.
    begins
        Called with the number of each round that begins.
    calls
        Called with the instructions of each round once they are over, and with those that belong to none.
    opened
        Called with the id of a client that opens a stream, and the trace context it names; empty: none.
    traced
        Called with each phase that is about to be asked, and its round; returns the trace context that goes with its
        instructions, or nothing.
    waits
        Called when the run waits for replies beyond their deadline, with what it waits for in a few words; empty: it
        goes on.
    """

    joined: Callable[[int, int | None], None] = lambda present, expected: None
    row: Callable[[Row], None] = lambda row: None
    conducting: Callable[[Coordinator], None] = lambda coordinator: None
    begins: Callable[[int], None] = lambda t: None
    calls: Callable[[Sequence[Call]], None] = lambda calls: None
    opened: Callable[[str, str], None] = lambda client, traceparent: None
    traced: Callable[[str, int], str] = lambda phase, t: ""
    waits: Callable[[str], None] = lambda words: None

    def beside(self, other: Observer) -> Observer:
        """Return an observer that tells this one and then another; only one of them can trace."""

        def both(name: str) -> Callable[..., None]:
            first, second = getattr(self, name), getattr(other, name)

            def tell(*told: object) -> None:
                first(*told)
                second(*told)

            return tell

        return Observer(
            joined=both("joined"),
            row=both("row"),
            conducting=both("conducting"),
            begins=both("begins"),
            calls=both("calls"),
            opened=both("opened"),
            traced=lambda phase, t: self.traced(phase, t) or other.traced(phase, t),
            waits=both("waits"),
        )


class Coordinator:
    """One run on the server.

    Parameters
    ----------
    settings
        Of the run.
    folder
        Of the run.
    resume
        The checkpoint to go on from.
    observer
        Who is told of the progress.
    public_key
        The key that the clients must use; ``None``: the algorithm learns it from them.

    Raises
    ------
    FenchelError
        The settings name what cannot be had: data, a library, an algorithm, a key of this length.
    """

    def __init__(
        self,
        settings: RunSettings,
        folder: RunFolder,
        *,
        resume: Checkpoint | None = None,
        observer: Observer | None = None,
        public_key: PublicKey | None = None,
    ) -> None:
        self.settings = settings
        self.folder = folder
        self._observer = observer or Observer()
        self._public_key: PublicKey | None = None
        if public_key is not None:
            self.require_key(public_key)
        self._resume = resume
        self._epoch = 0 if resume is None else resume.epoch + 1
        self._half = server_half(settings.algorithm.name)
        self._stateless = keeps_no_state(settings.algorithm)
        self._remarks = Remarks()
        self.revoked: Callable[[bytes], str] = lambda certificate: ""
        """Says why a certificate was revoked; the transport knows."""
        self._source = open_data(settings)
        expected = None if settings.clients == "auto" else settings.clients
        names = () if resume is None else tuple(resume.members)
        check_run(settings, self._source, len(names) or expected)
        late_joiners = settings.participation.late_joiners
        self.enrolment = Enrolment(expected, settings.network.settle, names, late_joiners)
        self._newcomers = Newcomers(self._epoch)
        self.members: dict[str, Member] = {} if resume is None else resume.restore()
        if settings.participation.on_lost_state == "stop":
            for member in self.members.values():
                member.lost = None  # this stopped the run; whether its journal is back, its hello says
        self._described = asyncio.Event()
        self._over: pb.Farewell | None = None
        self._failed = False
        self._recycler = Recycler(KEPT_BYTES)  # of large replies, of all streams
        self.disclosures = Disclosures(
            folder.disclosures, folder.id, settings.differential_privacy, settings.uplink
        )
        if resume is not None:
            self.disclosures.resume(tuple(resume.members))
        self._environments = Environments(folder, self._remarks)
        if resume is not None:
            self._environments.resume(resume.round)
        folder.summary.unlink(missing_ok=True)  # a resumed run has not ended

    def require_key(self, key: PublicKey) -> None:
        """Have the clients use this key and no other; to be called before :meth:`conduct`.

        Raises
        ------
        SettingsError
            The run encrypts nothing, or wants a key of another length, or the clients make their own.
        """
        _check_key(self.settings, key)
        self._public_key = key

    # What the transport calls

    async def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        """Answer a Join. The transport has made sure that the client is who it says it is.

        Raises
        ------
        JoinRefusedError
            With a reason for the person who started the client.
        """
        if request.own_data != self.settings.own_data:
            raise JoinRefusedError(
                "this run wants each client to bring its own data file: start this client with --data FILE"
                if self.settings.own_data
                else "the data of this run come from its settings (data.name): start this client without --data"
            )
        member = self.members.get(request.client)
        assignment = await self.enrolment.join(request, member is not None and member.connected)
        reply = pb.JoinReply(
            run=self.folder.id,
            settings=self.settings.to_json(),
            joined=len(self.enrolment.instances),
            expected=self.enrolment.expected or 0,
        )
        if assignment is not None:
            reply.assignment.CopyFrom(assignment)
        self.disclosures.head("up", request)
        self.disclosures.head("down", reply)
        return reply

    async def work(self, client: str, instance: bytes, stream: Stream, traceparent: str = "") -> None:
        """Serve the Work stream of a client until it ends.

        ``traceparent`` is the trace context that the client opened it with, if any.

        Raises
        ------
        WireError
            The client broke the protocol.
        """
        member = self.members.get(client)
        if member is None and self.enrolment.is_late(client):
            member = self._newcomers.member(client)
        if member is None or self.enrolment.instances.get(client) != instance:
            raise JoinRefusedError(f"client {client!r} has not joined this run, or joined anew meanwhile")
        self._observer.opened(client, traceparent)
        named = {"client": client, "instance": instance, "traceparent": traceparent}
        self.disclosures.opened(client, [name for name, value in named.items() if value])
        conversation = Conversation(
            member,
            stream,
            self.settings.network,
            self.disclosures,
            self._recycler,
            budgets=self.settings.differential_privacy is not None,
        )
        try:
            await conversation.run(lambda hello: self._admit(member, hello))
        except asyncio.CancelledError:
            refusal = self._newcomers.refusal(client, instance)
            if self.members.get(client) is member or not refusal:
                raise
            # The transport would leave a stream open that ends by cancellation from this side.
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            raise JoinRefusedError(refusal) from None

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, and who comes now is told so."""
        return self._over is not None

    async def _admit(self, member: Member, hello: pb.Hello) -> pb.Welcome | pb.Farewell:
        if self._over is not None:
            return self._over
        if self.members.get(member.name) is not member:
            return await self._admit_late(member, hello)
        refusal = self._misfit(member, hello.shard)
        if refusal:
            return self._refused(member, refusal)
        if member.shard is None:
            member.shard = hello.shard
        self._environments.joined(member.name, hello)
        # A client's word cannot make a state of which there is none: it would be lost, and might end the run.
        if member.lost is None and not (self._stateless or member.can_restore(hello)):
            member.lose(
                "its journal of this run is gone or damaged, so what it contributed cannot be restored. Put its "
                "--state folder back and go on with --resume RUN; if it is only the last entry, --resume RUN "
                "--previous goes back behind it"
            )
        if member.lost is not None:
            return pb.Farewell(reason=f"this client is out of run {self.folder.id}: {member.lost}")
        described = sum(other.shard is not None for other in self.members.values())
        self._observer.joined(described, len(self.members))
        if described == len(self.members):
            self._described.set()
        await self._described.wait()
        if self._over is not None:
            return self._over
        return pb.Welcome()

    async def _admit_late(self, member: Member, hello: pb.Hello) -> pb.Welcome | pb.Farewell:
        """Decide on a client that has joined after the fleet was complete; wait for the border of a round."""
        await self._described.wait()
        instance = self.enrolment.instances[member.name]
        refusal = self._newcomers.refusal(member.name, instance) or self._misfit(member, hello.shard)
        if refusal:
            return self._refused(member, refusal)
        member.shard = hello.shard
        self._environments.joined(member.name, hello)
        pause = self._newcomers.pause(member.name)
        log.info(
            "client %s has joined and waits for the next round%s",
            member.name,
            f" after {pause:.0f} s, as it could not be taken in before" if pause else "",
        )
        await self._newcomers.wait(member)
        if self._over is not None:
            late = f"run {self.folder.id} ended before client {member.name} could take part in it"
            return pb.Farewell(reason=late)
        return pb.Welcome()

    def _refused(self, member: Member, refusal: str) -> pb.Farewell:
        self._remarks.add(logging.ERROR, member.name, f"client {member.name} is refused: {refusal}")
        return pb.Farewell(reason=refusal)

    def _misfit(self, member: Member, shard: pb.ShardDescription) -> str:
        """Say why a client's data does not fit the run; empty if it does. Names of classes are never told."""
        if len(shard.class_names) > _CLASS_NAMES or any(
            len(name) > _CLASS_NAME for name in shard.class_names
        ):
            return (
                f"client {member.name} has more than {_CLASS_NAMES:,} names of classes, or one of more than "
                f"{_CLASS_NAME} characters; shorten them in its data file"
            )
        if shard.samples == 0 or shard.features_held == 0:
            return f"client {member.name} has {shard.samples} samples of {shard.features_held} features; it needs some"
        if self._source is not None:  # the server knows the data, and need not believe who came first
            problem = self._source.problem
            for name, mine, ours in (
                ("features", shard.features, problem.features),
                ("classes", shard.classes, problem.classes),
            ):
                if mine != ours:
                    return (
                        f"client {member.name} has {name} {mine}, but the data of this run have {ours}; does that "
                        "machine have the same data set as the server?"
                    )
            return ""
        remedy = "all clients need the same (list the classes in data.classes, and give every file the same columns)"
        others = [other for other in self.members.values() if other.shard is not None and other is not member]
        for other in others[:1]:
            assert other.shard is not None
            for name in ("features", "classes"):
                mine, theirs = getattr(shard, name), getattr(other.shard, name)
                if mine != theirs:
                    return f"client {member.name} has {name} {mine}, but client {other.name} has {theirs}; {remedy}"
            if shard.class_names != other.shard.class_names:
                return f"client {member.name} has other names of classes than client {other.name}; {remedy}"
        return ""

    def _shape(self) -> tuple[int, int]:
        """Return features and classes of the whole problem."""
        if self._source is not None:
            return self._source.problem.features, self._source.problem.classes
        shard = next(iter(self.members.values())).shard
        assert shard is not None
        return shard.features, shard.classes

    # The run

    async def conduct(self) -> Summary:
        """Do the run.

        Returns
        -------
        Summary
            Also written to the run folder.

        Raises
        ------
        FenchelError
            The run stopped early; everything up to the last checkpoint is saved.
        """
        for warning in self.settings.algorithm.warnings:
            log.warning("%s", warning)
        self._observer.conducting(self)
        log.info(BEGINS)
        started = time.perf_counter()
        rounds: Rounds | None = None
        reason, told = "an unexpected error; see the log", "an unexpected error; the log of the server has it"
        try:
            await self._gather()
            rounds = self._rounds()
            self._environments.compare()  # once the libraries that the settings need are loaded
            if self._resume is None and self.settings.seals_secrets:
                await share_secrets(rounds.fleet, self.settings.secrets.designated, self.revoked)
            await rounds.go(fresh=self._resume is None)
            await rounds.close(completed=True)
            reason = told = ""
        except FenchelError as error:
            reason, told = str(error), _for_clients(error)
            raise
        except asyncio.CancelledError:
            reason, told = "interrupted", f"the server was interrupted; {_COME_BACK}"
            raise
        except Exception:
            log.exception("a defect, of Fenchel or of the algorithm")
            raise
        finally:
            self._failed = bool(reason)
            try:
                if rounds is not None and reason:
                    with self._first_error():
                        await rounds.close(completed=False)
            finally:  # the clients hear of the end, also where the disk is full
                summary = self._end(rounds, time.perf_counter() - started, reason, told)
        return summary

    @contextlib.contextmanager
    def _first_error(self) -> Iterator[None]:
        """Raise an error only if none has ended the run yet: a full disk fails file after file, and the first says why.

        The others are logged.
        """
        try:
            yield
        except FenchelError as error:
            if not self._failed:
                self._failed = True
                raise
            log.error("%s", error)

    async def _gather(self) -> None:
        """Wait until every client has joined and described its data."""
        patience = self.settings.network.join_timeout
        for index, name in enumerate(await self.enrolment.completed(patience)):
            self.members.setdefault(name, Member(name, index))
        if self._resume is not None:
            self._described.set()
        try:
            async with asyncio.timeout(patience):
                await self._described.wait()
        except TimeoutError:
            missing = [member.name for member in self.members.values() if member.shard is None]
            raise RunStoppedError(
                f"these clients joined but did not get ready within {patience:g} s (network.join_timeout): "
                f"{', '.join(missing)}; their logs say why"
            ) from None

    def _rounds(self) -> Rounds:
        """Build the server half, its fleet and the evaluator, from the start or from the checkpoint."""
        settings = self.settings
        shape = self._shape()
        fleet = Fleet(
            self.members,
            settings.seed,
            settings.participation,
            settings.network.reply_buffer_bytes,
            settings.network.promised_bytes,
            traced=self._observer.traced,
            waits=self._observer.waits,
            in_flight=InFlight(settings.network.in_flight_bytes, settings.network.max_message_bytes),
        )
        objective = build_objective(settings.objective, no_samples(*shape))
        algorithm = build_half(settings, self._half, fleet, shape, self._public_key)
        if self._source is None and self._resume is None:
            algorithm.check(None)  # now that it is known what the clients hold
        done = 0
        if self._resume is not None:
            algorithm.state = self._resume.state(type(algorithm.state))
            done = self._resume.round
        test = None if self._source is None else self._source.test(settings.objective.dtype)
        evaluator = Evaluator.build(
            settings, fleet, no_samples(*shape) if test is None else test, self._source
        )
        grows = settings.participation.late_joiners == "admit"
        spending = None if settings.differential_privacy is None else Spending(settings, objective)
        figures = (
            *algorithm.figures,
            *(("clients",) if grows else ()),
            *(spending.names if spending else ()),
        )
        if spending is not None and self._resume is not None and exists(self.folder.calls):
            spending.resume(read(self.folder.calls))  # also what was asked after the checkpoint: it was sent
        self.disclosures.spending = spending
        recorder = Recorder(self.folder, figures, done, self._observer.calls, algorithm.client_figures)
        return Rounds(
            settings,
            self.folder,
            fleet,
            algorithm,
            evaluator,
            recorder,
            self._epoch,
            self._observer.row,
            done,
            self._admission,
            self._begins,
            spending,
            self.disclosures,
        )

    def _begins(self, t: int) -> None:
        self._environments.begins(t)
        self._observer.begins(t)

    async def _admission(self, fleet: Fleet, algorithm: Algorithm) -> bool:
        """Take those who wait into the fleet, one after the other; return whether it has grown.

        Where one fails, the others wait for the next border: nobody can hold up a round for longer than it takes to
        find out about one client.
        """
        before = len(fleet.members)
        while (newcomer := self._newcomers.call()) is not None:
            began = time.monotonic()
            cohort = fleet.admit(newcomer)
            fleet.admitting = True
            try:
                await algorithm.admit(cohort)
            except (JoinRefusedError, TooFewRepliesError, WireError) as error:
                fleet.dismiss(newcomer)
                instance = self.enrolment.instances[newcomer.name]
                reason = f"it could not be taken into the run: {error}"
                self._newcomers.turn_away(newcomer, instance, reason, time.monotonic() - began)
                log.error(
                    "client %s could not be taken in: %s. The run goes on without it; started again, it may try "
                    "once more after %.0f s",
                    newcomer.name,
                    error,
                    self._newcomers.pause(newcomer.name),
                )
                break
            finally:
                fleet.admitting = False
            log.info(
                "client %s takes part from round %d on, one of %d clients now",
                newcomer.name,
                fleet.round + 1,
                len(fleet.members),
            )
            self._observer.joined(len(fleet.members), len(fleet.members))
        return len(fleet.members) > before

    def _end(self, rounds: Rounds | None, seconds: float, reason: str, told: str) -> Summary:
        """Tell the clients that the run is over, and why (``told``); write how it ended, and why (``reason``)."""
        done = 0 if rounds is None else rounds.done
        figures = {} if rounds is None else {k: v for k, v in rounds.figures.items() if not math.isnan(v)}
        early = "" if rounds is None else rounds.ended
        summary = Summary(self.folder.id, not reason, done, seconds, reason or early, figures)
        self._over = pb.Farewell(completed=not reason, reason=told)
        self.enrolment.end(f"run {self.folder.id} is over: {told or 'all rounds are done'}")
        self._described.set()  # let those who still wait for the others hear the farewell
        self._newcomers.end()
        for member in self.members.values():
            if member.connected:
                self.disclosures.head("down", self._over)
            member.say_farewell(self._over)
        if reason:
            log.info("the run stopped after round %d: %s", done, reason)
        # After the farewells: on a full disk, this is where it ends.
        with self._first_error(), writing(self.folder.summary):
            temporary = self.folder.summary.with_suffix(".new")
            temporary.write_text(json.dumps(asdict(summary), indent=2) + "\n")
            temporary.replace(self.folder.summary)
        with self._first_error():
            self.disclosures.save()
        with self._first_error():
            self._environments.save_news()
        return summary

    async def farewells(self, patience: float = 5.0) -> None:
        """Wait until every connected client has been told that the run is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while any(member.connected for member in self.members.values()):
                    await asyncio.sleep(0.02)
        with self._first_error():
            self.disclosures.save_news()  # replies that nobody waited for may have come meanwhile


def open_resumed(folder: RunFolder, *, previous: bool = False) -> Checkpoint:
    """Return the checkpoint that a run is to be resumed from.

    Parameters
    ----------
    previous
        Whether it is to be the one before the last, whatever the last one is like.

    Raises
    ------
    CheckpointError
        There is none, they are damaged, or it is another run's.
    """
    found = checkpoints.before_last(folder) if previous else checkpoints.newest(folder)
    if found.run != folder.id:
        raise CheckpointError(
            f"{folder.path}: the checkpoint in it is of run {found.run!r}; was the folder renamed?"
        )
    return found


def _for_clients(error: FenchelError) -> str:
    """Say on the clients' terminals why the run stopped: of the server's own files only that they are to blame."""
    if isinstance(error, StorageError):
        cause = error.__cause__
        why = f" ({cause.strerror})" if isinstance(cause, OSError) and cause.strerror else ""
        return f"the server cannot write its files{why}; {_COME_BACK}"
    if isinstance(error, CheckpointError):
        return f"the server cannot read a file of the run; {_COME_BACK}"
    return str(error)


def _check_key(settings: RunSettings, key: PublicKey) -> None:
    name, bits = settings.algorithm.name, settings.algorithm.key_bits
    if bits is None:
        raise SettingsError(f"{name}, with these settings, encrypts nothing: leave the public key out")
    if settings.seals_secrets:
        raise SettingsError(
            "the clients of this run make their own key (secrets.source: sealed), so no public key can be given"
        )
    if key.bits != bits:
        raise SettingsError(
            f"{name} wants a key of {bits} bits, but the public key has {key.bits}; make another with "
            f"fenchel keys --bits {bits}, or change the settings"
        )
