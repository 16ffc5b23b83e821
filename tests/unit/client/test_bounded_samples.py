"""Samples are shortened to the public norm on which the noise depends, whatever the form of the matrix."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from fenchel.client.privacy.protection import bounded
from fenchel.common.data.shard import Shard


@pytest.mark.parametrize("size", [1e-25, 1.0, 1e20])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_samples_are_shortened_to_the_norm_also_if_squares_leave_single_precision(size: float, is_sparse: bool) -> None:
    rows = (size * np.array([[3.0, 0.0, 4.0], [0.0, 0.3, 0.4]])).astype(np.float32)
    features = sp.csr_array(rows) if is_sparse else rows
    shard = Shard(features, np.zeros(2, np.int64), 2, 3, np.arange(2))
    found = bounded(shard, size).features
    assert found.dtype == np.float32
    dense = found.toarray() if isinstance(found, sp.csr_array) else found
    expected = np.array([[0.6, 0.0, 0.8], [0.0, 0.3, 0.4]])
    np.testing.assert_allclose(dense.astype(np.float64) / size, expected, rtol=1e-6)
