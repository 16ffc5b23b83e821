"""Random numbers that privacy rests on: nobody else can redo them, and a retry of the same work draws the same."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from client.randomness import SECRET, SECRET_BYTES, PrivateRandomness, digest
from common.errors import CheckpointError

ONE, OTHER = PrivateRandomness(bytes(SECRET_BYTES)), PrivateRandomness(bytes([1]) * SECRET_BYTES)
CONTEXT = ("noise", 3, b"occasion", "model")


def test_the_same_secret_and_the_same_work_give_the_same_numbers() -> None:
    again = PrivateRandomness(bytes(SECRET_BYTES))
    assert ONE.normal(1000, *CONTEXT).tobytes() == again.normal(1000, *CONTEXT).tobytes()
    assert ONE.generator(*CONTEXT).random(9).tobytes() == again.generator(*CONTEXT).random(9).tobytes()


def test_another_secret_gives_other_numbers() -> None:
    assert not np.isin(ONE.normal(1000, *CONTEXT), OTHER.normal(1000, *CONTEXT)).any()
    assert not np.isin(ONE.generator(*CONTEXT).random(99), OTHER.generator(*CONTEXT).random(99)).any()


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
    assert not np.isin(ONE.normal(100, *CONTEXT), ONE.normal(100, *context)).any()
    assert not np.isin(ONE.generator(*CONTEXT).random(100), ONE.generator(*context).random(100)).any()


def test_more_numbers_begin_with_the_same_ones() -> None:
    assert ONE.normal(10, *CONTEXT).tolist() == ONE.normal(1000, *CONTEXT)[:10].tolist()
    assert ONE.normal(0, *CONTEXT).shape == (0,)


def test_they_are_normal_and_independent() -> None:
    drawn = ONE.normal(200_000, *CONTEXT)
    assert drawn.dtype == np.float64
    assert np.isfinite(drawn).all()
    assert stats.kstest(drawn, "norm").pvalue > 1e-4
    m = drawn.size
    assert abs(drawn.mean()) < 5 / np.sqrt(m)
    assert abs(drawn.var() - 1) < 5 * np.sqrt(2 / m)
    assert abs(np.mean(drawn[1:] * drawn[:-1])) < 5 / np.sqrt(m)
    assert 4 < np.abs(drawn).max() < 7
    other = ONE.normal(m, "noise", 4, b"occasion", "model")
    assert abs(np.mean(drawn * other)) < 5 / np.sqrt(m)


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


def test_a_process_that_died_while_it_wrote_leaves_nothing_that_counts(tmp_path: Path) -> None:
    (tmp_path / "own.new").write_bytes(b"half")
    kept = PrivateRandomness.kept_in(tmp_path)
    assert len(kept.secret) == SECRET_BYTES
    assert PrivateRandomness.kept_in(tmp_path) == kept
    assert [file.name for file in tmp_path.iterdir()] == [SECRET]


@pytest.mark.parametrize("content", [b"", b"x" * (SECRET_BYTES - 1), b"x" * (SECRET_BYTES + 1)])
def test_a_damaged_secret_is_refused_and_not_replaced(content: bytes, tmp_path: Path) -> None:
    PrivateRandomness.kept_in(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    with pytest.raises(CheckpointError) as refusal:
        PrivateRandomness.kept_in(tmp_path)
    assert str(file) in str(refusal.value)
    assert f"has {len(content)} bytes, not {SECRET_BYTES}; it is damaged" in str(refusal.value)
    assert file.read_bytes() == content


def test_the_secret_shows_nowhere_by_accident() -> None:
    assert "01" not in repr(OTHER)
    assert repr(OTHER) == "PrivateRandomness()"


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
