"""Record of the computing environments of a run's server and clients, and comparison between them."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field

from fenchel.common.environment import SERVER, Environment, differences, differences_text
from fenchel.common.errors import TooManyFilesError
from fenchel.common.storage.environment_record import EnvironmentRecord
from fenchel.common.storage.run_folder import RunFolder
from fenchel.fleet.metering.throttled_log import ThrottledLog
from fenchel.proto import fenchel_pb2 as pb

log = logging.getLogger("fenchel.server")

_CONSEQUENCE = (
    "The run continues, but its model is reproducible to the last bit only if all environments are equal and stay "
    "so. Use the same versions everywhere, and the same OPENBLAS_CORETYPE for equal kernels"
)


@dataclass
class Environments:
    """Computing environments of the server and the clients of one run, with their record in the run folder."""

    folder: RunFolder
    throttled_log: ThrottledLog
    _record: EnvironmentRecord = field(default_factory=EnvironmentRecord)
    _round: int = 1  # round from which the next recorded change is valid
    _compared: bool = False
    _news: bool = False

    def resume(self, done: int) -> None:
        """Continue the record of a run after round ``done``."""
        self._record = EnvironmentRecord.load(self.folder.environments)
        self._round = done + 1

    def joined(self, client: str, hello: pb.Hello) -> None:
        """Record the environment that a client reports. Warn if it has changed, or differs from the server's.

        Clients that join before the first round are compared with the server later, by :meth:`compare`.
        """
        environment = Environment.received(hello.environment)
        is_new = client not in self._record.latest
        self._update(client, environment)
        if is_new and self._compared:
            pair = {SERVER: self._record.latest[SERVER], client: environment}
            if found := differences(pair):
                self._warn(client, f"client {client} has another environment: {differences_text(found)}")

    def compare(self) -> None:
        """Record the environment of the server, warn if the environments are not all equal, and write the record."""
        self._update(SERVER, Environment.current())
        self._compared = True
        if found := differences(self._record.latest):
            log.warning("the computing environments of this run differ: %s. %s", differences_text(found), _CONSEQUENCE)
        self._save_soon()

    def begins(self, t: int) -> None:
        """Write the record if it has changed, and record later changes as valid from round ``t``."""
        self._round = t
        self._save_soon()

    def save_news(self) -> None:
        """Write the record if it has changed."""
        if self._news:
            self._record.save(self.folder.environments, self.folder.id)
            self._news = False

    def _save_soon(self) -> None:
        # a failed write is retried before the next round or at the end of the run
        with contextlib.suppress(TooManyFilesError):
            self.save_news()

    def _update(self, participant: str, environment: Environment) -> None:
        self._news = self._news or self._record.latest.get(participant) != environment
        for change in self._record.update(participant, environment, self._round):
            self._warn(participant, str(change))

    def _warn(self, participant: str, what: str) -> None:
        self.throttled_log.add(logging.WARNING, participant, f"{what}. {_CONSEQUENCE}")
