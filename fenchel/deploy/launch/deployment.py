"""Deployment of a federation by one command: a server in this process, and clients that a launcher starts."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from fenchel.client.trust_limits import TrustLimits
from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.data.catalogue import data_folders, locate
from fenchel.common.errors import (
    INTERRUPTED,
    CheckpointError,
    FenchelError,
    RunStoppedError,
    SettingsError,
    error_class,
)
from fenchel.common.settings.link import Link
from fenchel.common.settings.registry import half, is_outside, keeps_no_state
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.storage.store import write_text
from fenchel.common.tls.credentials import Credentials
from fenchel.deploy.address import Address
from fenchel.deploy.certificates.keys import CLIENTS, SERVER, make_keys_apart, read_public
from fenchel.deploy.certificates.making import make_all
from fenchel.deploy.launch.bundle import Bundle
from fenchel.deploy.launch.given_data import OwnFiles, check_own
from fenchel.deploy.launch.launchers.interface import ClientProcess, Launcher, Requirements, Site
from fenchel.deploy.launch.launchers.local import LocalLauncher
from fenchel.deploy.launch.names import client_names
from fenchel.deploy.launch.words import option_words
from fenchel.deploy.netem.proxies import NetworkProxies, how_it_ended, last_words, relaying, size_of
from fenchel.server.checkpoint import Checkpoint
from fenchel.server.coordinator import Coordinator
from fenchel.server.membership.secret_exchange import check_designated
from fenchel.server.telemetry.observer import Observer
from fenchel.server.telemetry.summary import Summary
from fenchel.server.transport.service import serve

MAX_PROCESSES = 16
"""Default limit on the number of client processes. Additional clients share processes."""

_PAUSES = (0.0, 0.0, 2.0, 10.0)  # delays before the successive starts of a client process, in seconds

_GRACE = 10.0  # grace period for a client process to exit, in seconds


@dataclass
class Deployment:
    """Federation with a server in this process and clients in processes that a launcher starts.

    Parameters
    ----------
    processes
        Number of client processes; by default one for each client, up to :data:`MAX_PROCESSES`.
    secure
        Whether clients connect by TLS, with temporary certificates for this run.
    launcher
        Engine that starts client processes; ``None`` for the engine ``local``.
    restarts
        Largest number of restarts of a client process that was killed or interrupted.
    own
        Data file of each client, if clients bring their own data.
    """

    settings: RunSettings
    folder: RunFolder
    clients: int
    processes: int | None = None
    secure: bool = True
    launcher: Launcher | None = None
    restarts: int = 3
    resume: Checkpoint | None = None
    own: OwnFiles | None = None
    observer: Observer | None = None
    say: Callable[[str], None] = lambda words: None

    def __post_init__(self) -> None:
        self.settings = self.settings.anchored()

    async def run(self) -> Summary:
        """Execute the run, and return its summary after all client processes have exited."""
        self.check()
        completed = False
        earlier = {log: log.stat().st_size for log in self._logs.glob("*.log")}  # of the run before it was resumed
        try:
            summary = await self._bring_up()
            completed = True
        except RunStoppedError:
            if trace := _first_trace(self._logs, earlier):
                self.say(trace)
            raise
        finally:
            if completed or not self.folder.can_be_resumed:
                shutil.rmtree(self._keys, ignore_errors=True)  # without a run to resume, the keys are useless
        return summary

    def plan(self) -> Iterator[str]:
        """Yield the command or manifest that would start each client process on the engine."""
        self.check()
        launcher = self.launcher or self._local()
        identities: dict[str, Credentials | None] = dict.fromkeys(client_names(self.clients))
        for process in self._client_processes("SERVER:PORT", "JOURNALS", identities):
            yield launcher.plan(process)

    def check(self) -> None:
        """Raise a SettingsError for settings that client processes of this deployment cannot fulfil."""
        if self.processes is not None and not (isinstance(self.processes, int) and self.processes > 0):
            raise SettingsError(
                f"{self.processes!r} is not a number of client processes; give 1 or more", key="processes"
            )
        check_own(self.own, self.settings, self.clients)
        if self.settings.seals_secrets and not self.secure:
            raise SettingsError(
                "sealed needs certificates of the clients; leave --insecure out, or use secrets.source: file",
                key="secrets.source",
            )
        if self.settings.secrets.designated is not None:
            check_designated(self.settings.secrets.designated, client_names(self.clients))
        if self.launcher is not None and not self.secure:
            raise SettingsError(
                "--insecure is allowed only with --on local; leave --insecure out, or use --on local", key="--insecure"
            )
        if self.settings.links is not None and self.launcher is not None and not self.launcher.on_this_machine:
            raise SettingsError(
                "the links are emulated on one machine, but other machines have real ones; leave links out, or "
                "use --on local or docker",
                key="links",
            )
        self._linked()

    async def _bring_up(self) -> Summary:
        write_text(self.folder.settings, self.settings.to_yaml(), sync=self.settings.checkpoint.sync)
        coordinator = Coordinator(self.settings, self.folder, resume=self.resume, observer=self.observer)
        launcher = self.launcher or self._local()
        site = await launcher.open(self._requirements())
        completed = False
        try:
            summary = await self._conduct(coordinator, launcher, site)
            completed = True
            return summary
        finally:
            try:
                await launcher.close(remove_journals=completed and not self._is_private)
            except FenchelError as error:  # only report a failed clean-up, so as not to hide the run's outcome
                self.say(f"something of the run may be left where its clients were: {error}")

    def _requirements(self) -> Requirements:
        """Return the requirements of the run on an engine."""
        name = self.settings.data.name or ""
        return Requirements(
            run=self.folder.id,
            processes=len(self.groups),
            journals=self.folder.journals.absolute(),
            stateless=keeps_no_state(self.settings.algorithm) and not self._is_private,
            data=next((folder for folder in data_folders() if locate(name, (folder,))), None),
            files=(*TrustLimits.agreeing_to(self.settings).files, *(() if self.own is None else self.own.paths)),
        )

    @property
    def _is_private(self) -> bool:
        """True if journals contain privacy ledgers, which clients need after a restart and keep beyond the run."""
        return self.settings.differential_privacy is not None

    async def _conduct(self, coordinator: Coordinator, launcher: Launcher, site: Site) -> Summary:
        """Generate keys and certificates, start the server, and run the clients."""
        # A separate process generates the keys, so that the server never holds the private key.
        public_key = await self._public_key()
        if public_key is not None:
            coordinator.require_key(public_key)
        identities: dict[str, Credentials | None] = dict.fromkeys(client_names(self.clients))
        credentials = None
        if self.secure:
            self.say(f"making certificates for {self.clients} clients")
            credentials, identities = _certified(site, list(identities))
        listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(
            serve(coordinator, str(Address(site.listen, site.port)), credentials, listening.set_result)
        )
        awaited: set[asyncio.Future[Any]] = {serving, listening}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            return serving.result()
        server = Address(site.dial, listening.result())
        return await self._with_clients(coordinator, serving, launcher, site, server, identities)

    def _local(self) -> LocalLauncher:
        """Return the local launcher, whose fork server imports the client half of a built-in algorithm only once."""
        name = self.settings.algorithm.name
        return LocalLauncher(() if is_outside(name) else (half(name, "client").__module__,))

    @property
    def _keys(self) -> Path:
        """Folder of the run's keys, below the journals, because clients own the keys and need them in a resumed run."""
        return self.folder.journals / "keys"

    @property
    def _gives_keys(self) -> bool:
        return self.settings.algorithm.key_bits is not None and not self.settings.seals_secrets

    async def _public_key(self) -> PublicKey | None:
        """Generate the run's keys, or find those of a resumed run, and return the public key; ``None`` without keys."""
        bits = self.settings.algorithm.key_bits
        if bits is None or not self._gives_keys:
            return None
        if self.resume is None:
            self.say(f"making a key of {bits} bits for the clients")
            return await make_keys_apart(self._keys, bits, self.settings.algorithm.encryption_implementation)
        if not (self._keys / CLIENTS).exists():
            raise CheckpointError(
                "the file with the clients' keys is missing, so the clients cannot continue this run; restore it "
                "from a copy, or begin a new run",
                source=self._keys / CLIENTS,
            )
        return read_public(self._keys / SERVER)

    async def _with_clients(
        self,
        coordinator: Coordinator,
        serving: asyncio.Task[Summary],
        launcher: Launcher,
        site: Site,
        server: Address,
        identities: Mapping[str, Credentials | None],
    ) -> Summary:
        clients: dict[asyncio.Task[None], Collection[str]] = {}  # names of the clients in each process
        # After a refusal, a process continues with its other clients, so its exit does not report the refusal.
        watching = {asyncio.create_task(coordinator.admission.raise_refusal())}
        try:
            async with self._links(site, server) as relays:
                self.say(f"starting {len(self.groups)} client processes")
                dialled = None
                if relays is not None:
                    watching.add(asyncio.create_task(relays.watch()))
                    dialled = {name: Address(site.dial, relays.ports.get(name, server.port)) for name in identities}
                for process in self._client_processes(str(server), site.state, identities, dialled):
                    running = asyncio.create_task(self._run_clients(launcher, process))
                    clients[running] = process.bundle.identities
                waiting: set[asyncio.Task[Any]] = {serving, *clients, *watching}
                while not serving.done():
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        # A client restarted at the end of the run is refused, which is not an error of the run.
                        if coordinator.admission.is_over or task is serving:
                            continue
                        names = clients.get(task)
                        if names and all(map(coordinator.admission.goes_on_without, names)):
                            continue
                        if (error := task.exception()) is not None:
                            if isinstance(error, Exception):
                                coordinator.stop_because_of(error, names or ())
                            serving.cancel()
                            await asyncio.gather(serving, return_exceptions=True)
                            raise error
                await asyncio.wait(clients, timeout=10.0)
                return serving.result()
        finally:
            for task in (serving, *clients, *watching):
                task.cancel()
            await asyncio.gather(serving, *clients, *watching, return_exceptions=True)

    async def _run_clients(self, launcher: Launcher, process: ClientProcess) -> None:
        """Run a client process until it succeeds, with restarts after interruptions, or raise its error."""
        for restart in range(self.restarts + 1):
            await asyncio.sleep(_PAUSES[min(restart, len(_PAUSES) - 1)])
            begin = size_of(process.log)
            handle = await launcher.start(process)
            try:
                code = await handle.ended()
            except asyncio.CancelledError:
                handle.stop()
                try:
                    async with asyncio.timeout(_GRACE):
                        await handle.ended()
                except TimeoutError:  # a hanging or suspended process does not react to SIGTERM
                    handle.stop(now=True)
                    await handle.ended()
                raise
            if code == 0:
                return
            is_final = code is not None and code > 0 and code != INTERRUPTED
            if is_final or restart == self.restarts:
                raise _client_error(list(process.bundle.identities), code, process.log, begin)

    @property
    def _logs(self) -> Path:
        return self.folder.path / "clients"

    def _linked(self) -> dict[str, Link]:
        links = self.settings.links
        return {} if links is None else links.of_clients(client_names(self.clients))

    @asynccontextmanager
    async def _links(self, site: Site, server: Address) -> AsyncIterator[NetworkProxies | None]:
        """Run the network emulation proxies of clients with links in a ``with`` block; yield ``None`` without links."""
        links = self._linked()
        self._logs.mkdir(mode=0o700, exist_ok=True)  # error texts may hold data
        if not links:
            yield None
            return
        self.say(f"putting links between the server and {len(links)} of {self.clients} clients")
        async with relaying(
            links,
            str(Address(site.listen, server.port)),  # proxies run on this machine, and dial the server locally
            listen=site.listen,
            seed=self.settings.seed,
            log=self._logs / "links.log",
            passed=self.folder.path / "links.json",
        ) as relays:
            yield relays

    @property
    def groups(self) -> list[Sequence[str]]:
        """Names of the clients of each process, in groups whose sizes differ by at most one."""
        number = self.processes or min(self.clients, MAX_PROCESSES)
        size, larger = divmod(self.clients, number)
        starts = [group * size + min(group, larger) for group in range(number + 1)]
        return [client_names(stop - start, start) for start, stop in pairwise(starts) if start < stop]

    def _client_processes(
        self,
        server: str,
        state: str,
        identities: Mapping[str, Credentials | None],
        relays: Mapping[str, Address] | None = None,
    ) -> Iterator[ClientProcess]:
        """Yield a description of each client process of the run.

        Parameters
        ----------
        relays
            Address of each client's network emulation proxy, by client id; by default clients dial the server.
        """
        numbers = {name: number for number, name in enumerate(client_names(self.clients))}
        for number, group in enumerate(self.groups):
            dialled = None if relays is None else [relays[name] for name in group]
            words = ["client", server, *option_words({"--bundle": "-", "--state": state, "--relay": dialled})]
            if self.own is not None:
                words += self.own.words([numbers[name] for name in group])
            bundle = Bundle(
                identities={name: identities[name] for name in group},
                secrets=self._keys / CLIENTS if self._gives_keys else None,
            )
            log = self._logs / f"{group[0]}.log"
            yield ClientProcess(number=number, words=[*words, *self._agreed()], bundle=bundle, log=log)

    def _agreed(self) -> list[str]:
        """Return the options that set the clients' trust limits to the requirements of the settings."""
        agreed = TrustLimits.agreeing_to(self.settings)
        return option_words(
            {
                "--allow": agreed.code,
                "--allow-file": agreed.files,
                "--allow-data": agreed.data,
                "--max-message-bytes": agreed.message_bytes,
                "--max-journal-bytes": agreed.journal_bytes,
                "--least-group": agreed.least_group,
            }
        )


def _certified(site: Site, names: Sequence[str]) -> tuple[Credentials, dict[str, Credentials | None]]:
    """Make certificates for the server and the clients of a run, and return them. Their files are removed at once."""
    with tempfile.TemporaryDirectory(prefix="fenchel-") as folder:
        make_all(Path(folder), [site.dial], names)
        return replace(Credentials.load(Path(folder, "server")), folder=None), {
            name: Credentials.load(Path(folder, name)) for name in names
        }


def _client_error(names: Sequence[str], code: int | None, log: Path, begin: int) -> FenchelError:
    """Return the error with which a client process has ended, from its exit code and the end of its log."""
    kind = None if code is None else error_class(code)
    _, is_told, problem = f"\n{last_words(log, begin)}".rpartition("\nerror: ")  # as the command line shows errors
    if kind is not None and is_told and len(names) == 1:
        return kind(problem, client=names[0])
    who = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    if kind is not None and is_told:
        return kind(f"the process of {who}: {problem}")
    return RunStoppedError(f"the process of {who} {how_it_ended(code, log, begin)}")


def _first_trace(logs: Path, earlier: Mapping[Path, int]) -> str:
    """Return the first traceback of users' own code in the clients' logs, empty if there is none.

    Parameters
    ----------
    earlier
        Sizes in bytes of the logs that were there before, whose old tracebacks are left out.
    """
    for log in sorted(logs.glob("*.log")):
        lines = log.read_bytes()[earlier.get(log, 0) :].decode(errors="replace").splitlines()
        begins = [number for number, line in enumerate(lines) if line.startswith("Traceback ")]
        if begins:
            first = begins[0]
            ends = next((n for n in range(first + 1, len(lines)) if not lines[n].startswith(" ")), len(lines) - 1)
            return "\n".join([f"in {log.stem}:", *lines[first : ends + 1]])
    return ""
