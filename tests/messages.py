"""Expected errors and log records, by their types and attributes, never by their text.

The rendered text of the most frequent mistakes is tested in ``tests/unit/test_rendered_messages.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

_E = TypeVar("_E", bound=BaseException)


@contextmanager
def raises(
    kind: type[_E] | tuple[type[_E], ...], *, file: str = "", **attributes: Any
) -> Iterator[pytest.ExceptionInfo[_E]]:
    """Expect an error of a type and with these attributes.

    Parameters
    ----------
    kind
        Expected type.
    file
        Expected last part of the path that is the error's ``source``.
    **attributes
        Expected attributes of the error, such as ``source``, ``row`` or ``client``; paths may be given for texts.
    """
    with pytest.raises(kind) as caught:
        yield caught
    error: Any = caught.value
    assert not file or Path(error.source).name == file, f"source of: {error}"
    for name, expected in attributes.items():
        found = getattr(error, name)
        assert found == (str(expected) if isinstance(expected, Path) else expected), f"{name} of: {error}"


def logged(caplog: pytest.LogCaptureFixture, level: int, *arguments: object) -> bool:
    """Return whether a record of this level was logged with all of these arguments."""
    return any(
        record.levelno == level
        and {str(each) for each in arguments}
        <= {str(each) for each in (record.args if isinstance(record.args, tuple) else (record.args,))}
        for record in caplog.records
    )
