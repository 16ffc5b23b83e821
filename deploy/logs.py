"""Where log records go: warnings to the terminal, everything to the run's ``log.jsonl``."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FORMAT = "%(levelname)s %(message)s"


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the stack trace of a defect."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as JSON."""
        entry = {
            "unix": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def log_to_terminal(level: int) -> None:
    """Send Fenchel's records of at least ``level`` to standard error."""
    handler = logging.StreamHandler()
    handler.setLevel(level)
    handler.setFormatter(logging.Formatter(_FORMAT))
    logger = logging.getLogger("fenchel")
    logger.setLevel(logging.INFO)
    logger.handlers = [handler]
    logger.propagate = False


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Also append Fenchel's records to a file, for the duration of a ``with`` block."""
    handler = logging.FileHandler(path)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("fenchel")
    logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
