"""Damaged weights of a frozen network: read, or refused."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest

from fenchel.common.errors import DataError
from tests.hostile.fuzz import fuzz
from tests.hostile.named_sets import weights
from tests.messages import raises

torch = pytest.importorskip("torch")


@pytest.mark.filterwarnings("ignore")
def test_damaged_weights_are_read_or_refused(tmp_path: Path) -> None:
    target = weights(tmp_path / "weights")
    for seed in target.seeds:
        target.parse(seed)
    count = fuzz(target, 300, seed=0, patience=2.0)
    assert not count.findings, "\n\n".join(f"{each.data!r}\n{each.what}" for each in count.findings[:3])
    assert count.inputs > 20
    assert count.reasons > 5


def test_a_text_that_claims_gigabytes_takes_no_memory(tmp_path: Path) -> None:
    """Once it was read by so many bytes, whatever the file has."""
    target = weights(tmp_path / "weights")
    _, old_form = target.seeds
    name = b"conv1.weight"
    true, claimed = (b"X" + struct.pack("<I", size) + name for size in (len(name), 2**32 - 1))
    assert old_form.count(true) == 1
    tracemalloc.start()
    try:
        with raises(DataError, file="resnet18.pth"):
            target.parse(old_form.replace(true, claimed))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
