"""Random numbers that privacy rests on: nobody else can redo them, and a retry of the same work draws the same."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.client.privacy.randomness import SECRET_BYTES, PrivateRandomness
from fenchel.common.errors import CheckpointError
from fenchel.common.wire.payload import digest
from tests.messages import raises

ONE, OTHER = PrivateRandomness(bytes(SECRET_BYTES)), PrivateRandomness(bytes([1]) * SECRET_BYTES)
CONTEXT = ("noise", 3, b"occasion", "model")
SCALE = 2.0**40  # so that no two numbers are the same by chance


def drawn(source: PrivateRandomness, context: tuple[str | int | bytes, ...] = CONTEXT) -> set[Any]:
    """Numbers for the noise and for mini-batches."""
    noise = source.discrete_gaussian(1000, SCALE, *context)
    return {*noise.tolist(), *source.generator(*context).random(99).tolist()}


def test_the_same_secret_and_the_same_work_give_the_same_numbers() -> None:
    assert drawn(ONE) == drawn(PrivateRandomness(bytes(SECRET_BYTES)))
    assert not drawn(ONE) & drawn(OTHER)
    louder = ONE.discrete_gaussian(1000, 1.5 * SCALE, *CONTEXT)
    assert not drawn(ONE) & set(louder.tolist()), "nor does a louder noise use the same ones"


@pytest.mark.parametrize(
    "context",
    [
        ("batches", 3, b"occasion", "model"),
        ("noise", 4, b"occasion", "model"),
        ("noise", 3, b"other", "model"),
        ("noise", 3, b"occasion", "control"),
        ("noise", "3", b"occasion", "model"),
        ("noise", 3, "occasion", "model"),
        ("noise", 3, b"occasionmodel"),
        ("noise", 3, b"occasionm", "odel"),
        ("noise", 3, b"occasion", "model", ""),
    ],
)
def test_other_work_gets_other_numbers(context: tuple[str | int | bytes, ...]) -> None:
    assert not drawn(ONE) & drawn(ONE, context)


def test_the_secret_is_drawn_once_and_kept_where_only_its_owner_reads(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "client"
    first = PrivateRandomness.kept_in(folder)
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(first.secret) == SECRET_BYTES == 32
    assert file.read_bytes() == first.secret
    assert PrivateRandomness.kept_in(folder) == first
    assert PrivateRandomness.kept_in(tmp_path / "other").secret != first.secret
    assert PrivateRandomness.kept_in(None).secret != PrivateRandomness.kept_in(None).secret


@pytest.mark.parametrize("content", [b"", b"x" * (SECRET_BYTES - 1), b"x" * (SECRET_BYTES + 1)])
def test_a_damaged_secret_is_refused_and_not_replaced(content: bytes, tmp_path: Path) -> None:
    PrivateRandomness.kept_in(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    with raises(CheckpointError, file="own.secret"):
        PrivateRandomness.kept_in(tmp_path)
    assert file.read_bytes() == content


def test_a_digest_stands_for_names_values_and_where_they_end() -> None:
    x = np.arange(4.0)
    made = [
        digest("solve", {"model": x}),
        digest("solve", {"model": x + 1e-12}),
        digest("solve", {"other": x}),
        digest("train", {"model": x}),
        digest("solve", {"model": x.astype(np.float32)}),
        digest("solve", {"model": x.reshape(2, 2)}),
        digest("solve", {"model": x}, {"dual": x}),
        digest("solve", {"model": x, "dual": x}),
        digest("sol", "ve", {"model": x}),
        digest("solve"),
    ]
    assert len(set(made)) == len(made)
    assert all(len(each) == 32 for each in made)
    assert digest("solve", {"model": x.copy()}) == made[0]
