"""The admission of clients to a run, at its start, after a disconnection and as late joiners."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable

from fenchel.algorithms.server_half import Algorithm
from fenchel.common.data.source import DataSource
from fenchel.common.errors import JoinRefusedError, RunStoppedError, TooFewRepliesError, WireError
from fenchel.common.settings.registry import keeps_no_state
from fenchel.common.settings.run import RunSettings
from fenchel.common.wire.buffer_pool import KEPT_BYTES, BufferPool
from fenchel.common.wire.stream import Stream
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.fleet import Fleet
from fenchel.fleet.metering.limits import Limits
from fenchel.fleet.metering.throttled_log import ThrottledLog
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.checkpoint import Checkpoint
from fenchel.server.disclosure.record import DisclosureRecord
from fenchel.server.membership.environments import Environments
from fenchel.server.membership.fleet_data import FleetData
from fenchel.server.membership.late_joiners import LateJoiners
from fenchel.server.membership.registration import Registration
from fenchel.server.stream.client_stream import ClientStream

log = logging.getLogger("fenchel.server")

# longest wait in seconds for the delivery of farewells: the longest back-off of a client (5 s) and a connection
_FAREWELL_SECONDS = 6.0
_REMINDER_SECONDS = 15.0  # period in seconds of the warnings that name clients that are not ready
_NAMES = 20  # largest number of clients named in a warning


class Admission:
    """Admission of clients to one run.

    Parameters
    ----------
    settings
        Settings of the run.
    run
        Id of the run.
    source
        Data set; ``None``: each client brings its own.
    resume
        Checkpoint that the run is resumed from; ``None``: a new run.
    epoch
        Epoch of the sequence numbers: 0 for a new run, and higher after each resume.
    disclosures
        Disclosure record of the run.
    environments
        Record of the computing environments.
    throttled_log
        Log for refusals.
    limits
        Limits on the server's resources.
    joined
        Function that is called with the numbers of clients ready and expected, each time that a client is ready: at its
        first stream and at each further one.
    opened
        Function that is called for each stream with the client's id and the stream's trace context.

    Attributes
    ----------
    members
        Client records of the run, in the order of ids. The fleet shares this dictionary.
    data
        Data of all clients, as they describe them.
    registration
        Registration of the clients.
    """

    def __init__(
        self,
        settings: RunSettings,
        run: str,
        source: DataSource | None,
        resume: Checkpoint | None,
        *,
        epoch: int,
        disclosures: DisclosureRecord,
        environments: Environments,
        throttled_log: ThrottledLog,
        limits: Limits,
        joined: Callable[[int, int | None], None],
        opened: Callable[[str, str], None],
    ) -> None:
        self._settings = settings
        self._run = run
        self._resumed = resume is not None
        self._disclosures = disclosures
        self._environments = environments
        self._throttled_log = throttled_log
        self._limits = limits
        self._joined = joined
        self._opened = opened
        self._stateless = keeps_no_state(settings.algorithm)
        expected = None if settings.clients == "auto" else settings.clients
        names = () if resume is None else tuple(resume.members)
        late_joiners = settings.participation.late_joiners
        self.registration = Registration(expected, settings.network.settle, names, late_joiners)
        self._late_joiners = LateJoiners(epoch)
        self.members: dict[str, ClientRecord] = {} if resume is None else resume.restore()
        if settings.participation.on_lost_state == "stop":
            for member in self.members.values():
                member.forget_loss()
        self.data = FleetData(self.members, source, settings.data)
        self._described = asyncio.Event()
        self._refused = asyncio.Event()
        self._refusal: JoinRefusedError | None = None
        self._over: pb.Farewell | None = None
        self._present: set[str] = set()  # clients that this process has admitted
        self._gone: set[str] = set()  # clients whose processes have ended
        self._returning: set[str] = set()  # clients whose connection broke just before the end
        self._buffer_pool = BufferPool(KEPT_BYTES)  # memory for large replies, shared by all streams

    # Calls by the transport

    async def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        """Register a client, whose identity the transport has verified, and return the reply to its ``Join`` call.

        A client whose process ends by an error withdraws by the same call.

        Raises
        ------
        JoinRefusedError
            If the client cannot take part in this run.
        """
        if request.withdrawn:
            return self._withdraw(request)
        if request.own_data != self._settings.own_data:
            raise JoinRefusedError(
                "this run wants each client to bring its own data file: start this client with --data FILE"
                if self._settings.own_data
                else "the data of this run come from its settings (data.name): start this client without --data"
            )
        member = self.members.get(request.client)
        assignment = await self.registration.join(request, member=member)
        reply = pb.JoinReply(
            run=self._run,
            settings=self._settings.to_json(),
            joined=self.registration.joined,
            expected=self.registration.expected or 0,
        )
        if assignment is not None:
            reply.assignment.CopyFrom(assignment)
        self._disclosures.head("up", request)
        self._disclosures.head("down", reply)
        return reply

    def _withdraw(self, request: pb.JoinRequest) -> pb.JoinReply:
        self._disclosures.head("up", request)
        if self.registration.withdraw(request):
            error = self.registration.withdrawn[request.client]
            self._throttled_log.add(
                logging.WARNING,
                request.client,
                f"client {request.client} has ended by an error ({error}; see its log); start it again when that is "
                "corrected",
            )
        return pb.JoinReply(run=self._run)

    async def work(self, client: str, instance: bytes, stream: Stream, traceparent: str = "") -> None:
        """Serve the ``Work`` stream of a client until it ends.

        Parameters
        ----------
        client
            Id of the client.
        instance
            Id of the client's process, from its registration.
        stream
            Frames in both directions.
        traceparent
            Trace context of the stream; empty without tracing.

        Raises
        ------
        JoinRefusedError
            If the client has not joined, has joined again with another process, or was turned away.
        WireError
            If the client breaks the protocol.
        """
        member = self.members.get(client)
        if member is None and self.registration.is_late(client):
            member = self._late_joiners.record(client)
        if member is None or self.registration.instances.get(client) != instance:
            raise JoinRefusedError(
                f"client {client!r} has not joined this run, or joined again meanwhile; start it again"
            )
        self._opened(client, traceparent)
        named = {"client": client, "instance": instance, "traceparent": traceparent}
        self._disclosures.opened(client, [name for name, value in named.items() if value])
        client_stream = ClientStream(
            member,
            stream,
            largest=self._settings.network.max_message_bytes,
            limits=self._limits,
            disclosures=self._disclosures,
            buffer_pool=self._buffer_pool,
            budgets=self._settings.differential_privacy is not None,
        )
        before = member.streams
        try:
            await client_stream.run(lambda hello: self._admit(member, hello))
        except asyncio.CancelledError:
            if self.members.get(client) is member:
                raise
            try:
                self._late_joiners.check_welcome(client, instance)
            except JoinRefusedError:
                # End the cancelled task normally: gRPC would leave the stream open if it ended as cancelled.
                task = asyncio.current_task()
                assert task is not None
                task.uncancel()
                raise
            raise
        finally:
            if member.streams > before and member.serving is asyncio.current_task() and self._awaits(member):
                self._throttled_log.add(
                    logging.WARNING, client, f"client {client} disconnected; its replies count again once it is back"
                )

    def _awaits(self, member: ClientRecord) -> bool:
        return self._over is None and member.farewell is None and member.takes_part

    @property
    def is_over(self) -> bool:
        """True if the run has ended. A client that connects after that receives a farewell."""
        return self._over is not None

    def goes_on_without(self, client: str) -> bool:
        """Return True if a client is lost and the run continues without it (``participation.on_lost_state``)."""
        member = self.members.get(client)
        is_lost = member is not None and member.lost is not None
        return is_lost and self._settings.participation.on_lost_state == "continue"

    async def _admit(self, member: ClientRecord, hello: pb.Hello) -> pb.Welcome | pb.Farewell:
        if self._over is not None:
            self._returning.discard(member.name)
            return member.farewell or self._over
        late = self.members.get(member.name) is not member
        try:
            if late:
                await self._described.wait()
                self._late_joiners.check_welcome(member.name, self.registration.instances[member.name])
            self.data.check(member, hello.shard)
        except JoinRefusedError as error:
            reason = error.confidential or str(error)
            self._throttled_log.add(logging.ERROR, member.name, f"client {member.name} is refused: {reason}")
            self._refusal = error
            self._refused.set()
            return pb.Farewell(reason=str(error))
        if late:
            return await self._admit_late(member, hello)
        if member.shard is None:
            self.data.describe(member, hello.shard)
        self._environments.joined(member.name, hello)
        # Ignore the hello if the algorithm has no client state: a false hello could mark the client as lost.
        if member.lost is None and not (self._stateless or member.can_restore(hello)):
            member.mark_lost(
                "its journal of this run is missing or damaged, so its part of the run cannot be restored. "
                "Restore its --state folder and continue with --resume RUN, or, if only the last entry is lost, "
                "with --resume RUN --previous"
            )
        if member.lost is not None:
            return pb.Farewell(reason=f"this client is lost to run {self._run}: {member.lost}")
        self._present.add(member.name)
        self._joined(len(self._present), len(self.members))
        if all(other.shard is not None for other in self.members.values()):
            self._described.set()
        await self._described.wait()
        if self._over is not None:
            self._returning.discard(member.name)
            return self._over
        again = " again" if member.streams else ""
        self._throttled_log.add(logging.INFO, member.name, f"client {member.name} is connected{again}")
        return pb.Welcome()

    async def _admit_late(self, member: ClientRecord, hello: pb.Hello) -> pb.Welcome | pb.Farewell:
        """Wait until a late joiner is in the fleet, and return a welcome, or a farewell if the run ends first."""
        self.data.describe(member, hello.shard)
        self._environments.joined(member.name, hello)
        pause = self._late_joiners.pause(member.name)
        log.info(
            "client %s joined, and takes part from the next round%s",
            member.name,
            f" after {pause:.0f} s, because it could not be admitted before" if pause else "",
        )
        await self._late_joiners.wait(member)
        try:  # the admission may have failed before this task continued
            self._late_joiners.check_welcome(member.name, self.registration.instances[member.name])
        except JoinRefusedError as error:
            return pb.Farewell(reason=str(error))
        if self._over is not None:
            late = f"run {self._run} ended before client {member.name} could take part in it"
            return pb.Farewell(reason=late)
        return pb.Welcome()

    # Calls by the run

    async def raise_refusal(self) -> None:
        """Wait until a client of the run is refused because its data do not fit, and raise the refusal."""
        await self._refused.wait()
        assert self._refusal is not None
        raise self._refusal

    async def gather(self) -> None:
        """Wait until every client has joined and described its data.

        Raises
        ------
        RunStoppedError
            If the clients take longer than ``network.join_timeout`` to join or to describe their data.
        """
        patience = self._settings.network.join_timeout
        for name in await self.registration.completed(patience):
            self.members.setdefault(name, ClientRecord(name))
        if self._resumed:
            self._described.set()
            await self._catch_up(patience)
        try:
            async with asyncio.timeout(patience):
                while not self._described.is_set():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_REMINDER_SECONDS):
                            await self._described.wait()
                            return
                    log.warning("clients that joined but are not ready yet: %s; see their logs", self._missing())
        except TimeoutError:
            raise RunStoppedError(
                f"clients that joined but were not ready within {patience:g} s (network.join_timeout): "
                f"{self._missing()}; see their logs"
            ) from None

    async def _catch_up(self, patience: float) -> None:
        """Wait for clients whose backlog would stop the resumed run at the next promise, at most ``patience`` seconds.

        All clients are disconnected when a run is resumed.
        """
        limit = self._settings.network.promised_bytes
        behind = [member.name for member in self.members.values() if member.owed_bytes >= limit]
        if not behind or self._settings.participation.on_lost_state == "continue":
            return
        log.info("waiting for clients whose backlogs exceed network.promised_bytes: %s", ", ".join(behind[:_NAMES]))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while any(self.members[name].owed_bytes >= limit for name in behind):
                    await asyncio.sleep(0.1)

    def _missing(self) -> str:
        """Return the names of clients that have not described their data, as a text with at most 20 names."""
        ended = {name: f"{name} (ended: {error})" for name, error in self.registration.withdrawn.items()}
        names = [ended.get(member.name, member.name) for member in self.members.values() if member.shard is None]
        return ", ".join(names[:_NAMES]) + (f" and {len(names) - _NAMES} more" if len(names) > _NAMES else "")

    async def admit_late_joiners(self, fleet: Fleet, algorithm: Algorithm) -> bool:
        """Add the waiting late joiners to the fleet, one after another. Return True if the fleet has grown.

        After a failed admission, the other late joiners wait for the end of the next round. So each round is delayed by
        at most one failed admission.
        """
        before = len(fleet.members)
        while (late_joiner := self._late_joiners.pop_ready()) is not None:
            began = time.monotonic()
            cohort = fleet.admit(late_joiner)
            try:
                await algorithm.admit(cohort)
            except (JoinRefusedError, TooFewRepliesError, WireError) as error:
                fleet.dismiss(late_joiner)
                instance = self.registration.instances[late_joiner.name]
                reason = f"it could not be admitted to the run: {error}"
                self._late_joiners.turn_away(late_joiner, instance, reason, time.monotonic() - began)
                log.error(
                    "client %s could not be admitted: %s. The run continues without it; restart the client to try "
                    "again, after %.0f s at the earliest",
                    late_joiner.name,
                    error,
                    self._late_joiners.pause(late_joiner.name),
                )
                break
            log.info(
                "client %s takes part from round %d on; the run now has %d clients",
                late_joiner.name,
                fleet.round + 1,
                len(fleet.members),
            )
            self._joined(len(fleet.members), len(fleet.members))
        return len(fleet.members) > before

    def expect_no_return(self, clients: Iterable[str]) -> None:
        """Record that the processes of clients have ended, so that :meth:`farewells` does not wait for them."""
        self._gone.update(clients)

    def end(self, farewell: pb.Farewell) -> None:
        """Refuse further registrations, and send a farewell to every client of the run, now or when it connects."""
        self._over = farewell
        self.registration.end(f"run {self._run} is over: {farewell.reason or 'all rounds are done'}")
        self._described.set()  # release clients that wait for the fleet, so that they receive the farewell
        self._late_joiners.end()
        oldest = time.time() - _FAREWELL_SECONDS
        for member in self.members.values():
            if member.farewell is not None:
                continue  # the client is out of the run
            if not member.connected and member.changed_unix > oldest and member.name not in self._gone:
                self._returning.add(member.name)
            member.say_farewell(farewell)

    async def farewells(self) -> None:
        """Wait a few seconds for the delivery of the farewells.

        The wait includes clients whose connection broke just before the end, as otherwise they would dial the server
        in vain until their patience ends.
        """
        if not self.is_over:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_SECONDS):
                while self._returning or any(member.connected for member in self.members.values()):
                    await asyncio.sleep(0.02)
