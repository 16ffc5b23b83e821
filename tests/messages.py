"""Expected errors: their types and attributes in the tests, their rendered text in one snapshot.

``tests/messages.json`` holds the text of every :class:`FenchelError` that a test expects with :func:`raises`.
A test says what must be true of an error by its type and attributes; a change of words changes the snapshot
alone, which ``pytest --update-messages`` writes anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import currently_in_test_context

from fenchel.common.errors import FenchelError

SNAPSHOT = Path(__file__).with_name("messages.json")
UPDATE = "FENCHEL_UPDATE_MESSAGES"
"""Environment variable that ``--update-messages`` sets, for the processes of pytest-xdist, too."""

_E = TypeVar("_E", bound=BaseException)

_found: dict[str, set[str]] = {}  # by test, in this process

# What differs from one machine or run to the next; numbers with decimals depend on rounding.
_VARYING = (
    (re.compile(re.escape(tempfile.gettempdir()) + r"/[^\s:'\",;)]*/"), "…/"),
    (re.compile(re.escape(tempfile.gettempdir()) + r"/[^\s:'\",;)]*"), "…"),
    (re.compile(r"(\d+\.\d+\.\d+\.\d+|localhost|\[::1\])(:|', )\d+"), r"\1\2PORT"),
    (re.compile(r"\b\d{8}-\d{6}-([\w-]+)-[0-9a-f]{4}\b"), r"DATE-\1-HEX"),
    (re.compile(r"0x[0-9a-f]{6,}|\b[0-9a-f]{16,}\b"), "HEX"),
    (re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d)?)?"), "DATE"),
    (re.compile(r"-?(?<![\d.])\d[\d,]*\.\d+(e[+-]?\d+)?(?![\d.]*\d)|-?\b\d+e[+-]?\d+"), "#"),
)


@contextmanager
def raises(
    kind: type[_E] | tuple[type[_E], ...], *, snapshot: bool = True, **attributes: Any
) -> Iterator[pytest.ExceptionInfo[_E]]:
    """Expect an error of a type, with these attributes, and with the text that the snapshot holds.

    Parameters
    ----------
    kind
        Expected type.
    snapshot
        False if the text depends on timing, on the machine, or on the order of tests.
    **attributes
        Expected attributes of the error, such as ``source``, ``row`` or ``client``; paths may be given for texts.
    """
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    for name, expected in attributes.items():
        found = getattr(error, name)
        assert found == (str(expected) if isinstance(expected, Path) else expected), f"{name} of: {error}"
    named = "PYTEST_CURRENT_TEST" in os.environ  # not while tests are collected
    if snapshot and named and isinstance(error, FenchelError) and not currently_in_test_context():
        _compare(_normal(str(error)))


def logged(caplog: pytest.LogCaptureFixture, level: int, *arguments: object) -> bool:
    """Return whether a record of this level was logged with all of these arguments."""
    return any(
        record.levelno == level
        and {str(each) for each in arguments}
        <= {str(each) for each in (record.args if isinstance(record.args, tuple) else (record.args,))}
        for record in caplog.records
    )


def _normal(text: str) -> str:
    for pattern, replacement in _VARYING:
        text = pattern.sub(replacement, text)
    return text


def _compare(text: str) -> None:
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]
    if os.environ.get(UPDATE):
        _found.setdefault(test, set()).add(text)
        return
    assert text in _known().get(test, []), (
        "the text of this error is not in tests/messages.json; look at it, and if it is right, run this test "
        f"with --update-messages: {text}"
    )


@cache
def _known() -> dict[str, list[str]]:
    known: dict[str, list[str]] = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    return known


def save() -> None:
    """Write the texts that this process has found, beside those that others write."""
    with SNAPSHOT.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        kept = json.loads(file.read() or "{}") | {test: sorted(texts) for test, texts in _found.items()}
        file.truncate(0)
        json.dump(dict(sorted(kept.items())), file, indent=1, ensure_ascii=False)
        file.write("\n")
