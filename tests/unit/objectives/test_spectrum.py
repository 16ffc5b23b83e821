"""The bound on the largest eigenvalue is a bound, and a close one."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.arrays import Dense
from fenchel.common.objectives import spectrum
from fenchel.common.objectives.spectrum import largest_eigenvalue


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32 - 1), st.booleans())
def test_a_small_matrix_has_an_exact_eigenvalue(rows: int, columns: int, seed: int, sparse: bool) -> None:
    x = np.random.default_rng(seed).standard_normal((rows, columns))
    exact = np.linalg.norm(x, 2) ** 2 / rows
    assert largest_eigenvalue(sp.csr_array(x) if sparse else x) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("seed", range(3))
def test_a_large_matrix_has_a_bound_at_most_two_per_cent_above(
    monkeypatch: pytest.MonkeyPatch, sparse: bool, dtype: type, seed: int
) -> None:
    monkeypatch.setattr(spectrum, "EXACT_UP_TO", 10)
    x: Dense = np.random.default_rng(seed).standard_normal((300, 200)).astype(dtype)
    exact = np.linalg.norm(x.astype(np.float64), 2) ** 2 / 300
    bound = largest_eigenvalue(sp.csr_array(x) if sparse else x)
    assert exact <= bound <= 1.02 * exact


def test_the_bound_never_exceeds_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectrum, "EXACT_UP_TO", 10)
    x = np.outer(np.arange(1.0, 41), np.ones(30))  # of rank one: the eigenvalue is the trace
    assert largest_eigenvalue(x) == pytest.approx(np.sum(x**2) / 40, rel=1e-12)


def test_an_empty_matrix_and_a_zero_one_have_eigenvalue_zero() -> None:
    assert largest_eigenvalue(np.empty((0, 4))) == 0
    assert largest_eigenvalue(np.empty((4, 0))) == 0
    assert largest_eigenvalue(np.zeros((4, 3))) == 0
