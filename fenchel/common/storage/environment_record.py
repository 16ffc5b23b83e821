"""Record of the computing environments of a run, stored in the run folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from fenchel.common.environment import INDIFFERENT, SERVER, Environment, differences, differences_text, values_text
from fenchel.common.errors import CheckpointError
from fenchel.common.storage.store import write_text

_CHANGES = 10  # limit on the recorded changes of each participant, so that no client can flood the record


@dataclass(frozen=True)
class Change:
    """Change of one attribute of a participant's environment during a run.

    Attributes
    ----------
    participant
        Id of a client, or ``SERVER``.
    round
        First round that may have been computed with the new value.
    attribute
        Name of a field of :class:`fenchel.common.environment.Environment`.
    before, after
        Values of the attribute, empty if they are not known.
    """

    participant: str
    round: int
    attribute: str
    before: str
    after: str

    def __str__(self) -> str:
        name = "the server" if self.participant == SERVER else f"client {self.participant}"
        return (
            f"{name} computes with {self.attribute} {self.after or 'unknown'} from round {self.round} on, and "
            f"computed with {self.before or 'unknown'} before"
        )


class _AlikeClients(BaseModel):
    """Group of participants with equal environments."""

    model_config = ConfigDict(strict=True)

    server: bool
    clients: list[str]
    environment: Environment


class _File(BaseModel):
    """Content of the file (docs/run-folder.md)."""

    model_config = ConfigDict(strict=True)

    run: str
    environments: list[_AlikeClients]
    changes: list[Change]


@dataclass
class EnvironmentRecord:
    """Environments of a run's participants.

    Attributes
    ----------
    latest
        Latest known environment by participant, the id of a client or ``SERVER``.
    changes
        Changes during the run: the latest few of each participant.
    """

    latest: dict[str, Environment] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def update(self, participant: str, environment: Environment, t: int) -> list[Change]:
        """Record the environment that a participant has from round ``t`` on, and return the changes."""
        before = self.latest.get(participant)
        self.latest[participant] = environment
        if before is None or before == environment:
            return []
        old, new = before.known(), environment.known()
        news = [
            Change(participant, t, attribute, old[attribute], new[attribute])
            for attribute in old
            if attribute not in INDIFFERENT and old[attribute] != new.get(attribute, old[attribute])
        ]
        others = [change for change in self.changes if change.participant != participant]
        mine = [change for change in self.changes if change.participant == participant]
        self.changes = others + (mine + news)[-_CHANGES:]
        return news

    @property
    def described(self) -> dict[str, str]:
        """Values of the environments by attribute, with the participants for values that differ."""
        found = differences(self.latest, ignored=())
        some = next(iter(self.latest.values()), Environment()).known()
        equal = {attribute: value for attribute, value in some.items() if value}
        return equal | {attribute: values_text(whose) for attribute, whose in found.items()}

    @property
    def warnings(self) -> list[str]:
        """Warnings about the comparison of this run with others, one sentence each."""
        found = differences(self.latest)
        between = [f"the computing environments of this run differ: {differences_text(found)}"] if found else []
        return between + [str(change) for change in self.changes]

    def save(self, path: Path, run: str) -> None:
        """Write the record of run ``run`` to a file, which is replaced atomically."""
        groups: dict[Environment, _AlikeClients] = {}
        for participant, environment in sorted(self.latest.items()):
            group = groups.setdefault(environment, _AlikeClients(server=False, clients=[], environment=environment))
            if participant == SERVER:
                group.server = True
            else:
                group.clients.append(participant)
        content = _File(run=run, environments=list(groups.values()), changes=self.changes)
        write_text(path, content.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> EnvironmentRecord:
        """Read the file of a run; raise ``CheckpointError`` if it is unreadable.

        A run of an older version has no such file, and its record is empty.
        """
        try:
            content = _File.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return cls()
        except (OSError, ValidationError) as error:
            raise CheckpointError(
                f"the record of computing environments cannot be read ({error}); restore it from a copy, or move "
                "it away to begin a new one",
                source=path,
            ) from None
        latest: dict[str, Environment] = {}
        for group in content.environments:
            names = [SERVER, *group.clients] if group.server else group.clients
            latest |= dict.fromkeys(names, group.environment)
        return cls(latest, content.changes)
