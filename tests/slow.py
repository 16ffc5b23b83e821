"""What ``make test`` leaves to ``make test-all``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def rest_slow(cases: Iterable[Any], fast: int = 1) -> list[Any]:
    """Return the cases of a parametrised test, all but the first ``fast`` of them marked slow."""
    marked = list(cases)
    for place in range(fast, len(marked)):
        case = marked[place]
        if isinstance(case, type(pytest.param())):
            marked[place] = pytest.param(*case.values, marks=[*case.marks, pytest.mark.slow], id=case.id)
        else:
            values = case if isinstance(case, tuple) else (case,)
            marked[place] = pytest.param(*values, marks=pytest.mark.slow)
    return marked
