"""A laboratory for runs of HyFDCA."""

from __future__ import annotations

from pathlib import Path

import pytest

from fenchel.keys.shared import Secrets
from tests.algorithms.hybrid import KEY_BITS, Laboratory


@pytest.fixture(scope="session")
def secrets() -> Secrets:
    """Secrets with a key that can be broken."""
    return Secrets.generate(KEY_BITS, for_tests=True)


@pytest.fixture
def laboratory(tmp_path: Path, secrets: Secrets) -> Laboratory:
    """Where runs are done."""
    return Laboratory(tmp_path, secrets)
