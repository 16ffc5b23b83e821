"""The data of all clients of a run, as far as the server learns about them, and checks that they fit each other."""

from __future__ import annotations

from collections.abc import Mapping

from fenchel.common.data.preparation import Preparation
from fenchel.common.data.shard import are_modest, digest_of
from fenchel.common.data.source import DataSource, Problem
from fenchel.common.errors import JoinRefusedError
from fenchel.common.settings.data import DataSettings
from fenchel.fleet.client_record import ClientRecord
from fenchel.proto import fenchel_pb2 as pb

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
            If they do not. The text contains no names of classes or columns.
        """
        self._check_sound(member, shard)
        if self._members.get(member.name) is member and member.shard is not None:
            _check_unchanged(member.name, member.shard, shard)
        if self._source is not None:
            # compare with the data set rather than with other clients
            where = "the server's copy of the data set"
            _check_equal(member.name, shard, where, self._source.problem, "use the same data set on both machines")
            return
        described = (other for other in self._members.values() if other.shard is not None and other is not member)
        other = next(described, None)  # comparing with one client suffices: all that joined have equal values
        if other is not None and other.shard is not None:
            remedy = (
                "all clients need the same features and classes; list the classes in data.classes, and give every file "
                "the same columns"
            )
            _check_equal(member.name, shard, f"client {other.name}", other.shard, remedy)
            if shard.class_names != other.shard.class_names:
                raise JoinRefusedError(f"client {member.name} has other class names than client {other.name}; {remedy}")
        self._check_columns(member.name, shard)

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
        if sorted(mine) == sorted(ours):
            how = "its columns in another order" if mine else "other columns, or in another order,"
        else:
            place = next((place for place, (a, b) in enumerate(zip(mine, ours, strict=False)) if a != b), 0)
            how = f"other columns (the first is feature {place + 1}, not counting label and identifiers)"
        raise JoinRefusedError(
            f"the data file of client {client} has {how} than those of earlier clients; give all files the "
            "same columns, or list the columns in data.columns, and files are read by column name"
        )


def _check_equal(
    client: str, shard: pb.ShardDescription, whose: str, theirs: pb.ShardDescription | Problem, remedy: str
) -> None:
    """Refuse data with other numbers of features or classes than those of the run."""
    for name in ("features", "classes"):
        mine, ours = getattr(shard, name), getattr(theirs, name)
        if mine != ours:
            raise JoinRefusedError(f"client {client} has {mine} {name}, but {whose} has {ours}; {remedy}")


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
