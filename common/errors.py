"""One tree of errors.

Every error that a person can cause or cure is a :class:`FenchelError`. Its text is one paragraph for
that person: what was wrong, where, what was expected, what to do. The command line prints the text
without a stack trace and exits with :attr:`FenchelError.exit_code`; ``docs/exit-codes.md`` lists them.
Anything else that escapes is a defect of Fenchel and keeps its stack trace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar


class FenchelError(Exception):
    """Base of all errors that Fenchel raises on purpose."""

    exit_code: ClassVar[int] = 1
    diverged: bool = False
    """True if the error is about numbers that are not finite: as a rule the run has diverged."""


class SettingsError(FenchelError):
    """The settings, or the words of a command line, cannot be accepted.

    Parameters
    ----------
    problem
        What is wrong, and what to do; without the key.
    key
        Dotted key of the setting to blame, or the option of a command line; empty if it is no single one.
    source
        Where the settings came from, such as a file; empty if that goes without saying.
    """

    exit_code = 2

    def __init__(self, problem: str = "", *, key: str = "", source: str = "") -> None:
        apart = "" if problem.startswith("\n") else " "
        place = ": ".join(filter(None, (source, key)))
        super().__init__(f"{place}:{apart}{problem}" if place else problem)
        self.problem = problem
        self.key = key
        self.source = source


class DivergedError(SettingsError):
    """A local solver's iterates have left the range of numbers: its steps, or those of the algorithm, are too long."""

    diverged = True


class MissingDependencyError(SettingsError):
    """A setting needs an optional library that is not installed."""


class DataError(FenchelError):
    """A data file, a data set or a partition cannot be used."""

    exit_code = 3


class ContradictingLabelsError(DataError):
    """Clients that hold the same samples have different labels for them.

    Attributes
    ----------
    contradictions
        How many samples have more than one label.
    clients, rows
        Two clients that contradict each other, and in which row of its data each has one of these samples,
        counted from 1.
    """

    def __init__(
        self, text: str, contradictions: int = 0, clients: tuple[str, ...] = (), rows: tuple[int, ...] = ()
    ) -> None:
        super().__init__(text)
        self.contradictions, self.clients, self.rows = contradictions, clients, rows


class CredentialError(FenchelError):
    """A certificate or key is missing, unreadable, or of another authority."""

    exit_code = 4


class JoinRefusedError(FenchelError):
    """The server did not admit this client: protocol version, identity or shard."""

    exit_code = 5


class AnotherRunError(JoinRefusedError):
    """The server shows a client another run than the one that it has taken part in.

    Parameters
    ----------
    message
        For people.
    joined
        Id of the run that the client has taken part in.
    shown
        Id of the run that the server has now.
    """

    def __init__(self, message: str, *, joined: str = "", shown: str = "") -> None:
        super().__init__(message)
        self.joined = joined
        self.shown = shown


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

    Parameters
    ----------
    text
        For people.
    failures
        What clients said that could not answer, by client id.
    diverged
        Whether what they said looks as if the run had diverged.
    """

    def __init__(
        self, text: str = "", failures: Mapping[str, str] | None = None, *, diverged: bool = False
    ) -> None:
        super().__init__(text)
        self.failures = dict(failures or {})
        self.diverged = diverged


class LostStateError(RunStoppedError):
    """A client's journal, or its key of the exchange, is gone, so its part of the run cannot be restored."""


class CheckpointError(FenchelError):
    """A run folder, checkpoint or journal cannot be read or belongs to another run."""

    exit_code = 8


class StorageError(FenchelError):
    """A file of a run or of a client cannot be written: the disk is full, or the folder must not be changed."""

    exit_code = 12


class WireError(FenchelError):
    """A received message is not what the protocol allows or not what was asked for."""

    exit_code = 9


class PayloadError(WireError):
    """A payload is malformed, or its names, types, shapes or values differ from what was asked for."""


class NotFiniteError(PayloadError):
    """A value is not finite."""

    diverged = True


class PhaseError(WireError):
    """A client's algorithm could not answer a phase; the text is the client's own account."""


class EncryptionError(FenchelError):
    """Values cannot be encrypted, or ciphertexts cannot be combined or opened: range, key, layout or additions."""

    exit_code = 10


class OutOfRangeError(EncryptionError):
    """A value is too large for its slot in a ciphertext, or not finite.

    Parameters
    ----------
    message
        For people.
    finite
        Whether the value is finite: then the range may be too narrow, else the run has diverged.
    """

    def __init__(self, message: str = "", *, finite: bool = True) -> None:
        super().__init__(message)
        self.diverged = not finite


class PrivacyBudgetError(FenchelError):
    """A client does not send an upload: nothing protects it enough, or its budget is spent."""

    exit_code = 11


class BudgetSpentError(PrivacyBudgetError):
    """A client sends no more: the next upload would cost more privacy than is left of its budget.

    Parameters
    ----------
    message
        For people.
    epsilon
        Of all uploads, with the one that is not sent.
    allowed
        Largest epsilon of all uploads.
    """

    def __init__(self, message: str, *, epsilon: float = math.nan, allowed: float = math.nan) -> None:
        super().__init__(message)
        self.epsilon = epsilon
        self.allowed = allowed
