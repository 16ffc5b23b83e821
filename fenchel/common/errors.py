"""Errors that a user or operator can cause or cure.

Every such error is a :class:`FenchelError`. Its type says what kind of thing is wrong, its attributes say where, and
:meth:`FenchelError.__str__` composes its text. The command line prints the text without a stack trace and exits with
:attr:`FenchelError.exit_code` (``docs/errors.md`` lists the codes). Code and tests examine types and attributes, never
the text. Any other exception that escapes is a defect of Fenchel and keeps its stack trace.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping
from os import PathLike
from types import MappingProxyType
from typing import ClassVar, Self, TypedDict, Unpack

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C or SIGTERM ended."""


class Place(TypedDict, total=False):
    """Location of an error. Each part is optional and becomes an attribute of the error.

    Attributes
    ----------
    source
        File, URL or other origin of the problem.
    row
        Row of a table, or line of a text, counted from 1.
    column
        Name of a column.
    key
        Dotted key of a setting, field of a file, or option of a command line.
    round
        Round, counted from 1.
    phase
        Name of a phase.
    client
        Name of a client.
    array
        Name of an array in a message or a file.
    """

    source: str | PathLike[str]
    row: int
    column: str
    key: str
    round: int
    phase: str
    client: str
    array: str


class Details(Place, total=False):
    """Location of an error, with the attributes of the derived classes below."""

    problems: tuple[tuple[str, str], ...]
    contradictions: int
    clients: tuple[str, ...]
    rows: tuple[int, ...]
    found: str
    expected: str
    joined: str
    shown: str
    failures: Mapping[str, str]
    diverged: bool
    epsilon: float
    allowed: float


_PLACES = (
    (("source", "{}"), ("row", "row {}"), ("column", "column {!r}")),
    (("key", "{}"),),
    (("round", "round {}"), ("phase", "phase {!r}"), ("client", "client {}"), ("array", "array {!r}")),
)
"""Parts of a location in the order of its text: those of a file, of the settings and of a run."""


class FenchelError(Exception):
    """Base class of all errors that Fenchel raises on purpose.

    The class says what kind of thing is wrong, and the attributes say where. Programs should examine these, as the text
    of an error may change with any version. ``docs/errors.md`` lists all classes.

    Parameters
    ----------
    problem : str, default ""
        Description of the problem and its remedy, without the location.
    **details
        Values of the attributes below and of further attributes of a derived class.

    Attributes
    ----------
    problem : str
        The description, without the location.
    exit_code : int
        Exit code of a command that ends with this error, from 1 to 255.
    diverged : bool
        True if numbers are not finite, as a rule because the run has diverged.
    source : str
        File, URL or other origin of the problem. Each part of the location is empty or ``None`` if it is not known.
    row : int or None
        Row of a table, or line of a text, counted from 1.
    column : str
        Name of a column.
    key : str
        Dotted key of a setting, field of a file, or option of a command.
    round : int or None
        Round, counted from 1.
    phase : str
        Name of a phase of the algorithm.
    client : str
        Name of a client.
    array : str
        Name of an array in a message or a file.

    Examples
    --------
    >>> import fenchel
    >>> error = fenchel.DataError("-3 is not an age", source="ages.csv", row=3)
    >>> print(error)
    ages.csv, row 3: -3 is not an age
    >>> error.exit_code
    3
    """

    exit_code: ClassVar[int] = 1
    diverged: bool = False

    source: str = ""
    row: int | None = None
    column: str = ""
    key: str = ""
    round: int | None = None
    phase: str = ""
    client: str = ""
    array: str = ""

    def __init__(self, problem: str = "", **details: Unpack[Details]) -> None:
        super().__init__(problem)
        self.problem = problem
        if "source" in details:
            details["source"] = str(details["source"])
        self.__dict__.update(details)

    @property
    def place(self) -> str:
        """Location of the problem as text, such as ``ages.csv, row 3``. Empty if it is not known."""
        named = self.__dict__
        groups = (
            ", ".join(form.format(named[name]) for name, form in group if named.get(name) not in (None, ""))
            for group in _PLACES
        )
        return ": ".join(filter(None, groups))

    def at(self, **place: Unpack[Place]) -> Self:
        """Add to the location of the error.

        Parameters
        ----------
        **place
            Parts, by name: ``source``, ``row``, ``column``, ``key``, ``round``, ``phase``, ``client``, ``array``.

        Returns
        -------
        FenchelError
            The error itself, to be raised again.
        """
        self.__dict__.update(place)
        return self

    def __str__(self) -> str:
        if not (place := self.place):
            return self.problem
        return f"{place}:{'' if self.problem.startswith(chr(10)) else ' '}{self.problem}"


class SettingsError(FenchelError):
    """Error in settings, in options of a command line or in arguments of a function.

    Attributes
    ----------
    problems : tuple of (str, str)
        Dotted key and description of each problem, if several are reported at once. Empty by default.
    """

    exit_code = 2
    problems: tuple[tuple[str, str], ...] = ()


class DivergedError(SettingsError):
    """A local solver's iterates have left the range of numbers: its steps, or those of the algorithm, are too long."""

    diverged = True


class MissingDependencyError(SettingsError):
    """A setting needs an optional library that is not installed."""


class DataError(FenchelError):
    """Error in a data file, a data set or its partition over the clients."""

    exit_code = 3


class ContradictingLabelsError(DataError):
    """Clients that hold the same samples have different labels for them.

    Attributes
    ----------
    contradictions
        Number of samples with more than one label.
    clients
        Ids of two clients that contradict each other.
    rows
        Row of one such sample in the data of each of these clients, counted from 1.
    """

    contradictions: int = 0
    clients: tuple[str, ...] = ()
    rows: tuple[int, ...] = ()


class ChecksumError(DataError):
    """A file is not the one that was published, or that the settings name.

    Attributes
    ----------
    found
        SHA-256 of the file.
    expected
        Expected SHA-256.
    """

    found: str = ""
    expected: str = ""


class CredentialError(FenchelError):
    """A certificate or key is missing, unreadable, or of another authority."""

    exit_code = 4


class JoinRefusedError(FenchelError):
    """The server did not admit this client because of its protocol version, identity or shard."""

    exit_code = 5


class AnotherRunError(JoinRefusedError):
    """The server now conducts another run than the one that the client has joined.

    Attributes
    ----------
    joined
        Id of the run that the client has joined.
    shown
        Id of the run that the server conducts.
    """

    joined: str = ""
    shown: str = ""


class IdentityInUseError(JoinRefusedError):
    """Another client with this identity is connected."""


class UnreachableError(FenchelError):
    """The other side could not be reached for as long as the settings allow."""

    exit_code = 6


class RunStoppedError(FenchelError):
    """The run ended before its last round. Its progress is saved."""

    exit_code = 7


class TooFewRepliesError(RunStoppedError):
    """Fewer clients than ``participation.min_replies`` answered a phase in time.

    ``diverged`` is true if the errors of clients suggest that the run has diverged.

    Attributes
    ----------
    failures
        Errors of the clients that could not answer, by client id.
    """

    failures: Mapping[str, str] = MappingProxyType({})


class LostStateError(RunStoppedError):
    """A client has lost its journal or its key of the secret exchange, so its part of the run cannot be restored."""


class CheckpointError(FenchelError):
    """A run folder, checkpoint or journal cannot be read or belongs to another run."""

    exit_code = 8


class StorageError(FenchelError):
    """A file of a run or of a client cannot be written: the disk is full, or the folder must not be changed."""

    exit_code = 12


class TooManyFilesError(StorageError):
    """A file cannot be opened for now, because this process or machine has reached its limit of open files."""

    exit_code = 13


class WireError(FenchelError):
    """A received message violates the protocol or does not match the request."""

    exit_code = 9


class PayloadError(WireError):
    """A payload is malformed, or its names, types, shapes or values differ from the schema."""


class NotFiniteError(PayloadError):
    """A value is not finite."""

    diverged = True


class PhaseError(WireError):
    """A client could not or may not answer a phase. The text is the client's own error."""


class EncryptionError(FenchelError):
    """Values cannot be encrypted, or ciphertexts cannot be combined or opened: range, key, layout or additions."""

    exit_code = 10


class OutOfRangeError(EncryptionError):
    """A value is too large for its slot in a ciphertext, or not finite, in which case ``diverged`` is true."""


class PrivacyBudgetError(FenchelError):
    """A client refuses to send an upload that is not protected enough, or exceeds its privacy budget."""

    exit_code = 11


class BudgetSpentError(PrivacyBudgetError):
    """A client sends nothing more, because its next upload would exceed its privacy budget.

    Attributes
    ----------
    epsilon
        Epsilon of all uploads, including the one that is not sent.
    allowed
        Largest epsilon allowed for all uploads.
    """

    epsilon: float = math.nan
    allowed: float = math.nan


def too_many_files(error: BaseException) -> bool:
    """Return whether an error shows that this process or machine has too many open files."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
