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
    owner: str
    serial: str
    confidential: str
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


def error_class(exit_code: int) -> type[FenchelError] | None:
    """Return the most general class of errors with which a command ends with this code; ``None`` if there is none."""
    kinds = (kind for kind in FenchelError.__subclasses__() if kind.exit_code != FenchelError.exit_code)
    return next((kind for kind in kinds if kind.exit_code == exit_code), None)


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
    """Divergence of a local solver or a trial: values are not finite or too large, mostly due to large steps."""

    diverged = True


class MissingDependencyError(SettingsError):
    """Error for a setting that needs an optional library, which is not installed."""


class DataError(FenchelError):
    """Error in a data file, a data set or its partition over the clients."""

    exit_code = 3


class ContradictingLabelsError(DataError):
    """Error in the labels of clients that hold the same samples with different labels.

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
    """Error of a file that is not the published one, or not the one that the settings name.

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
    """Error of a certificate or key that is missing, unreadable, or of another authority."""

    exit_code = 4


class RevokedError(CredentialError):
    """Error of a certificate that was revoked, or that cannot be read, so that it could be.

    Attributes
    ----------
    owner, serial
        Name of the certificate's owner, and the serial number in hexadecimal digits.
    """

    owner: str = ""
    serial: str = ""


class JoinRefusedError(FenchelError):
    """Refusal by the server to admit this client, because of its protocol version, identity or shard.

    Attributes
    ----------
    confidential
        Text for the server's log alone, which no client receives, such as names of columns. Empty: the error's own.
    """

    exit_code = 5
    confidential: str = ""


class AnotherRunError(JoinRefusedError):
    """Refusal by the client to take part in another run than the one that it has joined.

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
    """Refusal by the server to admit a client whose identity another connected client uses."""


class UnreachableError(FenchelError):
    """Error for a server or other peer that could not be reached within the allowed time."""

    exit_code = 6


class RunStoppedError(FenchelError):
    """End of a run before its last round. The progress is saved."""

    exit_code = 7


class TooFewRepliesError(RunStoppedError):
    """End of a run in which fewer clients than ``participation.min_replies`` answered a phase in time.

    ``diverged`` is true if the errors of clients suggest that the run has diverged.

    Attributes
    ----------
    failures
        Errors of the clients that could not answer, by client id.
    """

    failures: Mapping[str, str] = MappingProxyType({})


class LostStateError(RunStoppedError):
    """End of a run with a client whose journal, or key of the secret exchange, is lost and cannot be restored."""


class CheckpointError(FenchelError):
    """Error of a run folder, checkpoint or journal that cannot be read, or belongs to another run."""

    exit_code = 8


class StorageError(FenchelError):
    """Error in writing a file of a run or of a client: the disk is full, or the folder is read-only."""

    exit_code = 12


class TooManyFilesError(StorageError):
    """Error in opening a file, because this process or machine has reached its limit of open files."""

    exit_code = 13


class WireError(FenchelError):
    """Error of a received message that violates the protocol or does not match the request."""

    exit_code = 9


class PayloadError(WireError):
    """Error of a payload that is malformed, or whose names, types, shapes or values differ from the schema."""


class NotFiniteError(PayloadError):
    """Error of a value that is not finite."""

    diverged = True


class PhaseError(WireError):
    """Error that a client reports, in its own words, for a phase that failed or that it is not allowed to answer."""


class EncryptionError(FenchelError):
    """Error of values that cannot be encrypted, or ciphertexts that cannot be combined or decrypted.

    The cause is a range, key, layout or number of additions that does not fit.
    """

    exit_code = 10


class OutOfRangeError(EncryptionError):
    """Error of a value that is too large for its slot in a ciphertext, or not finite (``diverged`` is true)."""


class PrivacyBudgetError(FenchelError):
    """Refusal by a client to send an upload that lacks protection, or exceeds the client's privacy budget."""

    exit_code = 11


class BudgetSpentError(PrivacyBudgetError):
    """Refusal by a client to send any more, because its next upload would exceed its privacy budget.

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
