"""Log handlers: by default warnings to the terminal, and records from INFO upwards to the run's ``log.jsonl``."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fenchel.common.untrusted_text import sanitize

_FORMAT = "%(levelname)s %(message)s"
_LONGEST = 8000
"""Largest number of characters of a message, and of each line of a stack trace."""
_TRACE_LINES = 500


class Lines(logging.Formatter):
    """Formatter for terminals: one line per record, followed by the stack trace of a defect."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the message without control characters, which could move the cursor or imitate another record."""
        return sanitize(super().formatMessage(record), _LONGEST)

    def formatException(self, ei: Any) -> str:
        """Return a stack trace without control characters, because error texts may contain untrusted text."""
        return _trace(super().formatException(ei))


class JsonLines(logging.Formatter):
    """Formatter for one JSON object per line: time, level, logger, message, and the stack trace of a defect."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as JSON."""
        entry = {
            "unix": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": sanitize(record.getMessage(), _LONGEST),
        }
        if record.exc_info:
            entry["trace"] = _trace(self.formatException(record.exc_info))
        return json.dumps(entry)


class RunLog(logging.FileHandler):
    """Log file whose write errors, such as a full disk, do not stop the run and are reported once."""

    _told = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Report that a record could not be written."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            self._tell(error)
        else:
            super().handleError(record)

    def close(self) -> None:
        """Close the file, and report an error in writing the remaining records."""
        try:
            super().close()
        except OSError as error:
            self._tell(error)

    def _tell(self, error: OSError) -> None:
        if not self._told:
            self._told = True
            sys.stderr.write(
                f"WARNING {self.baseFilename}: the log cannot be written ({error.strerror}); what is missing there "
                "is lost, the run itself is not. Make room on the disk\n"
            )


def log_to_terminal(level: int) -> None:
    """Send Fenchel's records of at least ``level`` to standard error, in place of all earlier handlers."""
    handler = logging.StreamHandler()
    handler.setLevel(level)
    handler.setFormatter(Lines(_FORMAT))
    logger = logging.getLogger("fenchel")
    logger.setLevel(min(level, logging.INFO))  # a log file contains all records from INFO upwards
    logger.handlers = [handler]
    logger.propagate = False


class _Passed(logging.Handler):
    """Handler that passes records to the program's own handlers at the program's own levels.

    Without this handler, the lower level that a log file requires would flood the program's handlers.

    Attributes
    ----------
    changing
        Lock for changes by runs that begin and end in several threads.
    """

    changing = threading.Lock()

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger, self._own_level, self._least = logger, logger.level, logger.getEffectiveLevel()
        logger.setLevel(min(self._least, logging.INFO))  # a log file contains all records from INFO upwards
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record to the parent logger's handlers, or to standard error if there are none."""
        above = self._logger.parent
        chosen = logging.getLogger(record.name).level  # level that the program set for a part of Fenchel
        if above is not None and (record.levelno >= self._least or (chosen and record.name != self._logger.name)):
            above.callHandlers(record)

    def close(self) -> None:
        """Restore the level and the propagation of the logger."""
        super().close()
        self._logger.setLevel(self._own_level)
        self._logger.propagate = True


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Also append Fenchel's records to a file, for the duration of a ``with`` block.

    If several runs are in progress in one program, each log file contains the records of all runs.
    """
    handler = RunLog(path)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("fenchel")
    with _Passed.changing:
        if logger.propagate:
            logger.addHandler(_Passed(logger))
        elif logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
        logger.addHandler(handler)
    try:
        yield
    finally:
        with _Passed.changing:
            logger.removeHandler(handler)
            if not any(isinstance(each, RunLog) for each in logger.handlers):
                for each in [each for each in logger.handlers if isinstance(each, _Passed)]:
                    logger.removeHandler(each)
                    each.close()
        handler.close()


def _trace(text: str) -> str:
    """Return the last lines of a stack trace, each truncated and without control characters."""
    return "\n".join(sanitize(line, _LONGEST) for line in text.split("\n")[-_TRACE_LINES:])
