"""The coordinator of a run, from the first registration to the summary."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial

from fenchel.algorithms.registry import server_half
from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.defects import user_frames
from fenchel.common.errors import CheckpointError, FenchelError, SettingsError, StorageError, TooManyFilesError
from fenchel.common.objectives.factory import build_objective
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.run_folder import BEGINS, RunFolder
from fenchel.common.storage.store import write_text
from fenchel.common.storage.tables import exists, read
from fenchel.fleet.fleet import Fleet
from fenchel.fleet.memory_budget import MemoryBudget
from fenchel.fleet.metering.limits import Limits
from fenchel.fleet.metering.throttled_log import ThrottledLog
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server import checkpoint as checkpoints
from fenchel.server.checkpoint import Checkpoint
from fenchel.server.checkpointer import until_written
from fenchel.server.disclosure.record import DisclosureRecord
from fenchel.server.evaluation import Evaluator
from fenchel.server.membership.admission import Admission
from fenchel.server.membership.environments import Environments
from fenchel.server.membership.secret_exchange import share_secrets
from fenchel.server.preflight import build_half, check_run, no_samples, open_data
from fenchel.server.privacy_budget import PrivacyBudget
from fenchel.server.rounds import Rounds
from fenchel.server.telemetry.deferred_writer import DeferredWriter
from fenchel.server.telemetry.objective_growth import ObjectiveGrowth
from fenchel.server.telemetry.observer import Observer, Observers
from fenchel.server.telemetry.recorder import Recorder
from fenchel.server.telemetry.summary import Summary

log = logging.getLogger("fenchel.server")

_COME_BACK = "start this client again when the server is available"


class Coordinator:
    """Coordinator of one run on the server, which gathers clients, conducts rounds and writes the run folder.

    Parameters
    ----------
    settings
        Validated settings of the run.
    folder
        Run folder.
    resume
        Checkpoint to resume from; ``None``: a new run.
    observer
        Receiver of the run's events.
    public_key
        Public key that the clients must use; ``None``: the algorithm gets it from the clients.
    limits
        Limits on the server's resources. Default: those for the number of clients, if it is fixed in the settings and
        late joiners are refused, otherwise those for an unknown number.
    keeps_clients
        True if clients of an interrupted run receive no farewell, so that they wait for the server that resumes it.

    Raises
    ------
    SettingsError, DataError
        If the run is not possible with its settings, data and public key.
    CheckpointError
        If a file of a resumed run cannot be read.
    """

    def __init__(
        self,
        settings: RunSettings,
        folder: RunFolder,
        *,
        resume: Checkpoint | None = None,
        observer: Observer | None = None,
        public_key: PublicKey | None = None,
        limits: Limits | None = None,
        keeps_clients: bool = False,
    ) -> None:
        self.settings = settings
        self.folder = folder
        self._observer = Observers() if observer is None else Observers(observer)
        self._public_key: PublicKey | None = None
        if public_key is not None:
            self.require_key(public_key)
        self._resume = resume
        self._keeps_clients = keeps_clients
        self._epoch = 0 if resume is None else resume.epoch + 1
        self._half = server_half(settings.algorithm.name)
        self._source = open_data(settings)
        expected = None if settings.clients == "auto" else settings.clients
        closed = settings.participation.late_joiners == "refuse"
        self.limits = limits or Limits.of(expected if closed else None)
        names = () if resume is None else tuple(resume.members)
        for caution in check_run(settings, self._source, len(names) or expected):
            log.warning("%s", caution)
        self.least_clients = len(names) or expected or 1
        self._failed = False
        self._cause: Exception | None = None  # error of a client for which the run is cancelled
        self.disclosures = DisclosureRecord(
            folder.disclosures, folder.id, settings.differential_privacy, settings.uplink
        )
        if resume is not None:
            self.disclosures.resume(tuple(resume.members))
        self._throttled_log = ThrottledLog()
        self._environments = Environments(folder, self._throttled_log)
        if resume is not None:
            self._environments.resume(resume.round)
        self.admission = Admission(
            settings,
            folder.id,
            self._source,
            resume,
            epoch=self._epoch,
            disclosures=self.disclosures,
            environments=self._environments,
            throttled_log=self._throttled_log,
            limits=self.limits,
            joined=self._observer.joined,
            opened=self._observer.stream_opened,
        )

    def require_key(self, key: PublicKey) -> None:
        """Require all clients to use a public key. Call this before :meth:`run`.

        Raises
        ------
        SettingsError
            If the algorithm uses no public key, the clients generate their own, or the key has another size.
        """
        _check_key(self.settings, key)
        self._public_key = key

    def stop_because_of(self, error: Exception, clients: Iterable[str] = ()) -> None:
        """Record the reason for which the caller is about to cancel :meth:`run`.

        Parameters
        ----------
        error
            Error of a client that ends the run.
        clients
            Ids of the clients whose processes have ended. The end of the run does not wait for them.
        """
        self._cause = self._cause or error
        self.admission.expect_no_return(clients)

    async def run(self, check_certificate: Callable[[bytes], None] = lambda certificate: None) -> Summary:
        """Conduct the run, queue the farewells to its clients, and write and return its summary.

        Parameters
        ----------
        check_certificate
            Function of a certificate (PEM) that raises ``RevokedError`` if it was revoked.

        Raises
        ------
        FenchelError
            If the run fails. Clients receive the reason, unless too many files are open on the server.
        """
        self.folder.summary.unlink(missing_ok=True)  # a summary marks an ended run, and this run may be a resumed one
        for warning in self.settings.algorithm.warnings:
            log.warning("%s", warning)
        started = time.perf_counter()
        rounds: Rounds | None = None
        reason = "an unexpected error; see the log"
        farewell: str | None = "an unexpected error; see the log of the server"
        try:
            self._observer.begun(self)
            log.info(BEGINS)
            await self.admission.gather()
            rounds = self._rounds()
            self._environments.compare()  # compared only now, because the settings determine which libraries are loaded
            if self._resume is None and self.settings.seals_secrets:
                await share_secrets(rounds.fleet, self.settings.secrets.designated, check_certificate)
            await rounds.go(fresh=self._resume is None)
            await rounds.close(completed=True)
            reason = farewell = ""
        except TooManyFilesError as error:
            # Send no farewell: clients reconnect once a supervisor has restarted the server.
            reason, farewell = str(error), None
            raise
        except FenchelError as error:
            reason, farewell = str(error), reason_for_clients(error)
            raise
        except asyncio.CancelledError:
            if self._cause is None:
                reason, farewell = "interrupted", f"the server was interrupted; {_COME_BACK}"
            else:
                if isinstance(self._cause, FenchelError):
                    reason = str(self._cause)
                farewell = f"another client of the run has failed; {_COME_BACK}"
            if self._keeps_clients:
                farewell = None
            raise
        except Exception as error:
            # The command itself prints the traceback of a defect in an algorithm from outside Fenchel.
            level = logging.ERROR if user_frames(error) is None else logging.INFO
            log.log(level, "a defect, of Fenchel or of the algorithm", exc_info=True)
            raise
        finally:
            self._failed = bool(reason)
            try:
                if rounds is not None and reason:
                    with self._first_error():
                        await rounds.close(completed=False)
            finally:  # send farewells even if closing fails, for example on a full disk
                summary = await self._end(rounds, time.perf_counter() - started, reason, farewell)
        return summary

    @contextlib.contextmanager
    def _first_error(self) -> Iterator[None]:
        """Raise only the first error that ends the run, and log later ones.

        A full disk makes one file after another fail, and the first error gives the reason.
        """
        try:
            yield
        except FenchelError as error:
            if not self._failed:
                self._failed = True
                raise
            log.error("%s", error)

    def _rounds(self) -> Rounds:
        """Build the rounds with server half, fleet and evaluator, in the initial state or that of the checkpoint."""
        settings = self.settings
        shape = self.admission.data.shape()
        writer = DeferredWriter()
        fleet = Fleet(
            members=self.admission.members,
            seed=settings.seed,
            participation=settings.participation,
            network=settings.network,
            memory_budget=MemoryBudget(settings.network.in_flight_bytes, settings.network.max_message_bytes),
            traced=self._observer.trace_context,
            meanwhile=writer.schedule,
            round=0 if self._resume is None else self._resume.round,
        )
        objective = build_objective(settings.objective, no_samples(*shape))
        algorithm = build_half(settings, self._half, fleet, shape, self._public_key)
        if self._source is None and self._resume is None:
            algorithm.check(None)  # the check needs the clients' descriptions of their data
        done = 0
        if self._resume is not None:
            algorithm.state = self._resume.state(type(algorithm.state))
            done = self._resume.round
        test = None if self._source is None else self._source.test(settings.objective.dtype)
        evaluator = Evaluator.build(settings, fleet, no_samples(*shape) if test is None else test, self._source)
        grows = settings.participation.late_joiners == "admit"
        privacy_budget = (
            None
            if settings.differential_privacy is None
            else PrivacyBudget(settings, objective, self.admission.members)
        )
        figures = (
            *algorithm.figures,
            *(("clients",) if grows else ()),
            *(privacy_budget.names if privacy_budget else ()),
        )
        if privacy_budget is not None and self._resume is not None and exists(self.folder.calls):
            privacy_budget.resume(read(self.folder.calls), done)
        self.disclosures.privacy_budget = privacy_budget
        recorder = Recorder(
            folder=self.folder,
            figures=figures,
            kept_rounds=done,
            on_calls=self._observer.calls,
            client_figures=algorithm.client_figures,
        )
        growth = ObjectiveGrowth(settings.objective.starts_near_one)
        if done and exists(self.folder.metrics):
            before = read(self.folder.metrics).slice(0, done)
            growth.resume(before["objective"].to_pylist(), before["test_loss"].to_pylist())
        return Rounds(
            settings=settings,
            folder=self.folder,
            fleet=fleet,
            algorithm=algorithm,
            evaluator=evaluator,
            recorder=recorder,
            preparation=self.admission.data.preparation(),
            writer=writer,
            done=done,
            admission=self.admission.admit_late_joiners,
            disclosures=self.disclosures,
            begins=self._environments.begins,
            observer=self._observer,
            throttled_log=self._throttled_log,
            privacy_budget=privacy_budget,
            growth=growth,
            epoch=self._epoch,
        )

    async def _end(self, rounds: Rounds | None, seconds: float, reason: str, farewell: str | None) -> Summary:
        """End the run: send farewells to the clients, and write the summary.

        ``reason`` is empty if the run is complete. The last argument is the reason for the clients, without paths of
        the server's files. If it is ``None``, they receive no farewell, as if the server had been killed.
        """
        done = 0 if rounds is None else rounds.done
        figures = {} if rounds is None else {k: v for k, v in rounds.figures.items() if not math.isnan(v)}
        early = "" if rounds is None else rounds.ended
        summary = Summary(self.folder.id, not reason, done, seconds, reason or early, figures)
        if farewell is not None:
            self.admission.end(pb.Farewell(completed=not reason, reason=farewell))
        if reason:
            log.info("the run stopped after round %d: %s", done, reason)
        else:
            log.info("the run is complete after round %d", done)
        # Write the summary only after the farewells, because writing fails on a full disk.
        known = {name: figure for name, figure in figures.items() if math.isfinite(figure)}  # JSON has no infinity
        text = json.dumps(asdict(replace(summary, figures=known)), indent=2, allow_nan=False) + "\n"
        try:
            await self._write("the summary", partial(write_text, self.folder.summary, text, sync=True))
            await self._write("the disclosure record", self.disclosures.save)
            await self._write("the record of environments", self._environments.save_news)
        finally:
            with contextlib.suppress(FenchelError):  # the run has ended, so an observer cannot stop it
                # in a thread, so that the event loop continues to send farewells
                await asyncio.to_thread(self._observer.ended, summary)
        return summary

    async def _write(self, what: str, write: Callable[[], None]) -> None:
        """Write a file at the end of the run. Retry while too many files are open, unless the run has failed."""
        with self._first_error():
            if self._failed:
                write()
            else:
                await until_written(what, write, self._throttled_log)

    async def farewells(self) -> None:
        """Wait a few seconds for the delivery of the farewells, and save the disclosure record."""
        await self.admission.farewells()
        # The record must also contain replies that arrived while farewells were sent.
        await self._write("the disclosure record", self.disclosures.save_news)


def open_resumed(folder: RunFolder, *, previous: bool = False) -> Checkpoint:
    """Return the checkpoint from which to resume a run.

    Parameters
    ----------
    folder
        Run folder.
    previous
        True to resume from the previous checkpoint, which then replaces the last one, even if the last one is intact.

    Raises
    ------
    CheckpointError
        If no checkpoint is usable, or it belongs to another run.
    """
    found = checkpoints.before_last(folder) if previous else checkpoints.newest(folder)
    if found.run != folder.id:
        raise CheckpointError(
            f"the checkpoint in the folder is of run {found.run!r}, so the folder was renamed; give it that name again",
            source=folder.path,
        )
    return found


def reason_for_clients(error: FenchelError) -> str:
    """Return the reason for a failure that clients receive, without paths of the server's files."""
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
        raise SettingsError(f"{name} encrypts nothing with these settings, so a public key has no use; leave it out")
    if settings.seals_secrets:
        raise SettingsError(
            "the clients of this run make their own key (secrets.source: sealed); leave the public key out"
        )
    if key.bits != bits:
        raise SettingsError(
            f"{name} needs a key of {bits} bits, but the public key has {key.bits}; make another with fenchel keys "
            f"--bits {bits}, or change the settings"
        )
