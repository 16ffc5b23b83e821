"""Errors that a person can cause or cure.

Every such error is a :class:`FenchelError`: its type says what kind of thing is wrong, its attributes say
where, and its text is composed here, in :meth:`FenchelError.__str__`. The command line prints the text
without a stack trace and exits with :attr:`FenchelError.exit_code` (``docs/errors.md`` lists the codes).
Code and tests look at types and attributes, never at the text. Any other exception that escapes is a defect
of Fenchel and keeps its stack trace.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping
from os import PathLike
from types import MappingProxyType
from typing import ClassVar, Self, TypedDict, Unpack

INTERRUPTED = 130
"""Exit code of a command that was ended by Ctrl-C or SIGTERM."""


class Place(TypedDict, total=False):
    """Location of an error; each part is optional and becomes an attribute of the error.

    Attributes
    ----------
    source
        File, URL or other origin of what is wrong.
    row
        Of a table, or line of a text, counted from 1.
    column
        Name of a column.
    key
        Dotted key of a setting, a field of a file, or an option of a command line.
    round
        Counted from 1.
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
    """A location, and what only some kinds of errors know: see the attributes of the classes below."""

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
"""Parts of a place as people read them: those of a file, of the settings and of a run."""


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
        How many samples have more than one label.
    clients
        Two clients that contradict each other.
    rows
        In which row of its data, counted from 1, each of them has one of these samples.
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
        What it should be.
    """

    found: str = ""
    expected: str = ""


class CredentialError(FenchelError):
    """A certificate or key is missing, unreadable, or of another authority."""

    exit_code = 4


class JoinRefusedError(FenchelError):
    """The server did not admit this client: protocol version, identity or shard."""

    exit_code = 5


class AnotherRunError(JoinRefusedError):
    """The server shows a client another run than the one that it has taken part in.

    Attributes
    ----------
    joined
        Id of the run that the client has taken part in.
    shown
        Id of the run that the server has now.
    """

    joined: str = ""
    shown: str = ""


class IdentityInUseError(JoinRefusedError):
    """Another client with this identity is connected now."""


class UnreachableError(FenchelError):
    """The other side could not be reached for as long as the settings allow."""

    exit_code = 6


class RunStoppedError(FenchelError):
    """The run ended before its last round; everything so far is saved."""

    exit_code = 7


class TooFewRepliesError(RunStoppedError):
    """Fewer clients than ``participation.min_replies`` answered a phase in time.

    ``diverged`` is true if the accounts of those that could not look as if the run had diverged.

    Attributes
    ----------
    failures
        Accounts of the clients that could not answer, by client id.
    """

    failures: Mapping[str, str] = MappingProxyType({})


class LostStateError(RunStoppedError):
    """A client's journal, or its key of the exchange, is gone, so its part of the run cannot be restored."""


class CheckpointError(FenchelError):
    """A run folder, checkpoint or journal cannot be read or belongs to another run."""

    exit_code = 8


class StorageError(FenchelError):
    """A file of a run or of a client cannot be written: the disk is full, or the folder must not be changed."""

    exit_code = 12


class TooManyFilesError(StorageError):
    """A file cannot be opened, as this process, or the machine, has as many open as it may; later it can."""

    exit_code = 13


class WireError(FenchelError):
    """A received message is not what the protocol allows or not what was asked for."""

    exit_code = 9


class PayloadError(WireError):
    """A payload is malformed, or its names, types, shapes or values differ from what was asked for."""


class NotFiniteError(PayloadError):
    """A value is not finite."""

    diverged = True


class PhaseError(WireError):
    """A client could not answer a phase, or may not; the text is the client's own account."""


class EncryptionError(FenchelError):
    """Values cannot be encrypted, or ciphertexts cannot be combined or opened: range, key, layout or additions."""

    exit_code = 10


class OutOfRangeError(EncryptionError):
    """A value is too large for its slot in a ciphertext, or not finite, which ``diverged`` says."""


class PrivacyBudgetError(FenchelError):
    """A client does not send an upload: nothing protects it enough, or its budget is spent."""

    exit_code = 11


class BudgetSpentError(PrivacyBudgetError):
    """A client sends no more: the next upload would cost more privacy than is left of its budget.

    Attributes
    ----------
    epsilon
        Of all uploads, with the one that is not sent.
    allowed
        Largest epsilon of all uploads.
    """

    epsilon: float = math.nan
    allowed: float = math.nan


def too_many_files(error: BaseException) -> bool:
    """Return whether a file could not be opened because this process, or the machine, has too many open."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
