"""A state that is frozen and thawed is the same state, in memory of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fenchel.common.errors import CheckpointError
from fenchel.common.storage import store
from fenchel.common.storage.state import freeze, thaw
from fenchel.common.wire.values import SparseVector
from tests.messages import raises


@dataclass
class Anything:
    content: Any


@dataclass
class Two:
    first: Any
    second: Any


def alike(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, np.ndarray):
        return (
            isinstance(theirs, np.ndarray)
            and (mine.dtype, mine.shape, mine.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())
            and not np.shares_memory(mine, theirs)
            and theirs.flags.writeable
        )
    if isinstance(mine, SparseVector):
        return (
            isinstance(theirs, SparseVector)
            and alike(mine.indices, theirs.indices)
            and alike(mine.values, theirs.values)
            and mine.size == theirs.size
        )
    if isinstance(mine, list):
        return len(mine) == len(theirs) and all(map(alike, mine, theirs))
    if isinstance(mine, dict):
        return list(mine) == list(theirs) and all(alike(mine[key], theirs[key]) for key in mine)
    return type(mine) is type(theirs) and (mine == theirs or mine != mine)


LEAVES: st.SearchStrategy[Any] = st.one_of(
    hnp.arrays("float64", st.integers(0, 4)),
    hnp.arrays("bool", ()),
    st.builds(lambda size: SparseVector(np.arange(size), np.ones(size), size + 1), st.integers(0, 3)),
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.sampled_from(["a", "a/b", "b", "~1", "/", ""]), st.text(max_size=2)), inner, max_size=3
        ),
    ),
    max_leaves=8,
)


@given(content=TREES)
@example(content={"a": {"b": np.zeros(1)}, "a/b": np.ones(1)})
@example(content={"a/b": {"c": np.zeros(1)}, "a": {"b/c": np.ones(1)}})
def test_a_state_of_any_structure_survives_the_file(tmp_path: Path, content: Any) -> None:
    store.write(tmp_path / "state", freeze(Anything(content)))
    assert alike(content, thaw(Anything, store.read(tmp_path / "state")).content)


def test_numpy_scalars_become_numbers() -> None:
    assert thaw(Two, freeze(Two(np.float32(0.5), np.int64(3)))) == Two(0.5, 3)


@pytest.mark.parametrize("content", [(1, 2), {1: 2}, {3}, object(), 1j, [{"deep": (1,)}]])
def test_what_cannot_be_kept_is_refused_by_the_name_of_its_field(content: Any) -> None:
    with pytest.raises(TypeError):
        freeze(Anything(content))


@pytest.mark.parametrize(
    "structure",
    [
        *("", "nonsense", "[]", "3", '{"content": 3}', '{"content": {}}', None),
        *('{"content": {"array": "gone"}}', '{"content": {"array": "number"}}'),
        *(str(freeze(Two(1, 1))["structure"]), '{"first": {"value": 1}}'),
    ],
)
def test_a_structure_that_no_state_has_is_refused(structure: str | None) -> None:
    values = {"number": 1.0} | ({} if structure is None else {"structure": structure})
    with raises(CheckpointError):
        thaw(Anything, values)
