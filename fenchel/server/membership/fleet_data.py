"""The data of all clients of a run, as far as the server learns about them, and checks that they fit each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fenchel.common.data.preparation import Preparation
from fenchel.common.data.samples import listed
from fenchel.common.data.shard import are_modest, digest_of
from fenchel.common.data.source import DataSource, Problem
from fenchel.common.errors import JoinRefusedError
from fenchel.common.settings.data import DataSettings
from fenchel.common.untrusted_text import sanitize
from fenchel.fleet.client_record import ClientRecord
from fenchel.proto import fenchel_pb2 as pb

_SAME_COLUMNS = "give all files the same columns"
_DIGEST = 32  # length in bytes of the digest of the column names
_CLASS_NAMES = 10_000  # largest number of class names that a client may send
_CLASS_NAME = 200  # largest number of characters of a class name
_UNCHANGED = ("samples", "features", "features_held", "classes", "class_names")  # as weights and privacy depend on them


class FleetData:
    """Descriptions of the data of all clients of a run.

    Parameters
    ----------
    members
        Client records of the run, which hold the descriptions.
    source
        Data set of the server; ``None``: each client brings its own.
    settings
        Section ``data`` of the settings.

    Attributes
    ----------
    column_names
        Column names of the clients' own files, without label and identifiers; empty: not known.
    """

    def __init__(self, members: Mapping[str, ClientRecord], source: DataSource | None, settings: DataSettings) -> None:
        self._members = members
        self._source = source
        self._settings = settings
        shards = [member.shard for member in members.values() if member.shard is not None]
        self.column_names = next((tuple(shard.column_names) for shard in shards if shard.column_names), ())
        self._column_digest = next((shard.column_digest for shard in shards if shard.column_digest), b"")

    def shape(self) -> tuple[int, int]:
        """Return the numbers of features and classes of the problem."""
        if self._source is not None:
            return self._source.problem.features, self._source.problem.classes
        shard = self._one_described
        return shard.features, shard.classes

    def preparation(self) -> Preparation:
        """Return the preparation of samples for the model, as far as the server knows it."""
        if self._source is not None:
            return self._source.preparation
        shard, listed = self._one_described, self._settings.columns
        columns = listed if isinstance(listed, tuple) else self.column_names
        return Preparation(self._settings, self._stored(shard), tuple(shard.class_names), columns=columns or None)

    @property
    def _one_described(self) -> pb.ShardDescription:
        return next(member.shard for member in self._members.values() if member.shard is not None)

    def _stored(self, shard: pb.ShardDescription) -> int:
        """Return the number of columns in the data file, without the bias, which is added to them."""
        return shard.features - (self._settings.bias is not None)

    def describe(self, member: ClientRecord, shard: pb.ShardDescription) -> None:
        """Store a client's description of its data, with only one copy of the column names, which all clients share."""
        if self._source is None and shard.column_digest and not self._column_digest:
            self.column_names, self._column_digest = tuple(shard.column_names), shard.column_digest
        else:
            del shard.column_names[:]
        member.describe(shard)

    def check(self, member: ClientRecord, shard: pb.ShardDescription) -> None:
        """Check that a client's data fit the run.

        Raises
        ------
        JoinRefusedError
            If they do not. The text contains no names of classes or columns, which other clients must not see;
            ``confidential`` has those of columns.
        """
        self._check_sound(member, shard)
        if self._members.get(member.name) is member and member.shard is not None:
            _check_unchanged(member.name, member.shard, shard)
        if self._source is not None:
            # compare with the data set rather than with other clients
            whose, remedy = "the server's copy of the data set", "use the same data set on both machines"
            remedies = {"features": remedy, "classes": remedy}
            self._check_equal(member.name, shard, whose, self._source.problem, remedies)
            return
        self._check_columns(member.name, shard)
        described = (other for other in self._members.values() if other.shard is not None and other is not member)
        other = next(described, None)  # comparing with one client suffices: all that joined have equal values
        if other is not None and other.shard is not None:
            whose, remedy = f"client {other.name}", "list the classes of all clients in data.classes"
            self._check_equal(member.name, shard, whose, other.shard, {"features": _SAME_COLUMNS, "classes": remedy})
            if shard.class_names != other.shard.class_names:
                raise JoinRefusedError(f"client {member.name} has other class names than {whose}; {remedy}")

    def _check_sound(self, member: ClientRecord, shard: pb.ShardDescription) -> None:
        """Refuse a description that is too long, contradicts itself, or is of no data at all."""
        if len(shard.class_names) > _CLASS_NAMES or any(len(name) > _CLASS_NAME for name in shard.class_names):
            raise JoinRefusedError(
                f"client {member.name} has more than {_CLASS_NAMES:,} class names, or one of more than "
                f"{_CLASS_NAME} characters; shorten them in its data file"
            )
        names, digest = shard.column_names, shard.column_digest
        fits = are_modest(names) and len(names) == self._stored(shard) and digest_of(names) == digest
        if len(digest) not in (0, _DIGEST) or (names and not fits):
            raise JoinRefusedError(
                f"client {member.name} sent an invalid digest of its column names; install the same version of Fenchel "
                "on both sides"
            )
        if shard.samples == 0 or shard.features_held == 0:
            raise JoinRefusedError(
                f"client {member.name} has {shard.samples} samples of {shard.features_held} features, but needs at "
                "least one of each; check its data file"
            )

    def _check_columns(self, client: str, shard: pb.ShardDescription) -> None:
        """Refuse a data file whose columns differ from the run's, if both are known."""
        if not shard.column_digest or not self._column_digest or shard.column_digest == self._column_digest:
            return
        mine, ours = tuple(shard.column_names), self.column_names
        found, expected = self._stored(shard), self._stored(self._one_described)
        remedy = _SAME_COLUMNS
        if sorted(mine) == sorted(ours):
            how = "its columns in another order than" if mine else "other columns, or in another order, than"
            remedy += " in the same order, or list the columns in data.columns, and files are read by column name"
        elif found != expected:
            how = f"{found} columns of features, not {expected} as"
        else:
            place = next((place for place, (a, b) in enumerate(zip(mine, ours, strict=False)) if a != b), 0)
            how = f"other columns (the first is feature {place + 1}, not counting label and identifiers) than"
        raise JoinRefusedError(
            f"the data file of client {client} has {how} those of earlier clients; {remedy}",
            confidential=_difference(client, mine, ours),
        )

    def _check_equal(
        self,
        client: str,
        shard: pb.ShardDescription,
        whose: str,
        theirs: pb.ShardDescription | Problem,
        remedies: Mapping[str, str],
    ) -> None:
        """Refuse data with other numbers of features or classes than those of the run."""
        bias = int(self._settings.bias is not None)  # not a feature of the data file
        for name, appended in (("features", bias), ("classes", 0)):
            mine, ours = getattr(shard, name) - appended, getattr(theirs, name) - appended
            if mine != ours:
                raise JoinRefusedError(f"client {client} has {mine} {name}, but {whose} has {ours}; {remedies[name]}")


def _difference(client: str, mine: Sequence[str], ours: Sequence[str]) -> str:
    """Return a text with the columns that only the client has, or only the run; empty if they are not known."""
    if not (mine and ours):
        return ""
    kept, known = set(ours), set(mine)
    differences = (
        ("that earlier files lack", [name for name in mine if name not in kept]),
        ("of earlier files that it lacks", [name for name in ours if name not in known]),
    )
    found = [
        f"columns {whose}: {listed([sanitize(name, 60) for name in names])}" for whose, names in differences if names
    ]
    return f"the data file of client {client} has {'; '.join(found)}" if found else ""


def _check_unchanged(client: str, before: pb.ShardDescription, now: pb.ShardDescription) -> None:
    """Refuse a client that comes back with other data. A late joiner may change its data until it is in the fleet."""
    for name in _UNCHANGED:
        old, new = getattr(before, name), getattr(now, name)
        if new != old:
            how = "" if name == "class_names" else f": {old} before, {new} now"
            raise JoinRefusedError(
                f"the data of client {client} have changed during the run ({name.replace('_', ' ')}{how}); "
                "start it with the data that it began with"
            )
