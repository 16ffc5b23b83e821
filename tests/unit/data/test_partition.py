"""Partitions: disjoint, complete, the same every time, and nobody goes empty."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import TypeAdapter

from fenchel.common.data.blocks import ClientBlock
from fenchel.common.data.partition import partition
from fenchel.common.data.shares import apportion, fill
from fenchel.common.errors import DataError
from fenchel.common.settings.data import Partition
from tests.messages import raises

ADAPTER: TypeAdapter[Partition] = TypeAdapter(Partition)

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=200).map(lambda found: np.array(found, np.int64))

KINDS = st.one_of(
    st.just({"kind": "iid"}),
    st.builds(lambda k: {"kind": "classes", "per_client": k}, st.integers(1, 6)),
    st.builds(lambda k: {"kind": "label-shards", "per_client": k}, st.integers(1, 4)),
    st.builds(
        lambda alpha, least: {"kind": "dirichlet", "alpha": alpha, "min_samples": least},
        st.sampled_from([1e-4, 0.01, 0.5, 1000.0]),
        st.integers(1, 5),
    ),
    st.builds(
        lambda z, alpha: {"kind": "zipf", "exponent": z, "alpha": alpha},
        st.floats(0, 10),
        st.sampled_from([None, 1e-4, 0.1, 1000.0]),
    ),
)


def divide(labels: NDArray[Any], clients: int, seed: int = 0, features: int = 7, **kind: Any) -> list[ClientBlock]:
    return partition(labels, clients, seed, ADAPTER.validate_python(kind), features=features)


def per_client(labels: NDArray[Any], parts: list[ClientBlock]) -> NDArray[np.int64]:
    """Samples of each class (columns) of each client (rows)."""
    return np.stack([np.bincount(labels[part.samples], minlength=10) for part in parts])


@given(labels=LABELS, clients=st.integers(1, 40), seed=st.integers(0, 5), kind=KINDS)
def test_every_sample_has_one_holder_and_every_client_a_sample_or_the_numbers_are_named(
    labels: NDArray[np.int64], clients: int, seed: int, kind: dict[str, Any]
) -> None:
    try:
        parts = divide(labels, clients, seed, **kind)
    except DataError as error:
        text = str(error)
        assert "data.partition" in text
        assert str(clients) in text or "per_client" in text
        assert "use " in text
        return
    assert len(parts) == clients
    assert all(len(part.samples) > 0 for part in parts)
    assert all((np.diff(part.samples) > 0).all() for part in parts)
    assert sorted(np.concatenate([part.samples for part in parts]).tolist()) == list(range(len(labels)))
    assert min(map(len, (part.samples for part in parts))) >= kind.get("min_samples", 1)
    for mine, again in zip(parts, divide(labels, clients, seed, **kind), strict=True):
        np.testing.assert_array_equal(mine.samples, again.samples)


def test_a_partition_keeps_the_draws_of_earlier_releases() -> None:
    parts = divide(np.arange(12) % 3, 3, 7, kind="iid")
    assert [part.samples.tolist() for part in parts] == [[1, 3, 10, 11], [2, 5, 7, 8], [0, 4, 6, 9]]
    other = divide(np.arange(12) % 3, 3, 8, kind="iid")
    assert [part.samples.tolist() for part in parts] != [part.samples.tolist() for part in other]


@pytest.mark.parametrize(("clients", "k"), [(100, 2), (20, 4), (10, 1), (5, 2), (7, 10)])
def test_classes_gives_every_client_exactly_k_classes_and_holders_even_shares(clients: int, k: int) -> None:
    labels = np.repeat(np.arange(10), np.arange(300, 800, 50))
    counts = per_client(labels, divide(labels, clients, kind="classes", per_client=k))
    assert ((counts > 0).sum(axis=1) == k).all()
    for column in counts.T:
        shares = column[column > 0]
        assert shares.max() - shares.min() <= 1


MNIST = np.repeat(np.arange(10), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
ADULT = np.repeat([0, 1], [24_720, 7_841])


@pytest.mark.parametrize("seed", range(3))
def test_classes_with_600_samples_uses_up_mnist_in_100_equal_clients_of_4_labels(seed: int) -> None:
    parts = divide(MNIST, 100, seed, kind="classes", per_client=4, samples=600)
    counts = per_client(MNIST, parts)
    assert (counts.sum(axis=1) == 600).all()
    assert ((counts > 0).sum(axis=1) == 4).all()
    assert len(set(np.concatenate([part.samples for part in parts]).tolist())) == 60_000
    assert 100 < counts[counts > 0].min() < counts.max() < 200, "shares are not far from 150"


def test_classes_with_325_samples_gives_24_clients_of_adult_the_rich_and_76_the_others() -> None:
    parts = divide(ADULT, 100, kind="classes", per_client=1, samples=325)
    counts = per_client(ADULT, parts)[:, :2]
    assert sorted(counts.tolist()) == [[0, 325]] * 24 + [[325, 0]] * 76
    assert len(set(np.concatenate([part.samples for part in parts]).tolist())) == 32_500
    counts = per_client(ADULT, divide(ADULT, 100, kind="classes", per_client=1))
    assert [(counts[:, c] > 0).sum() for c in (0, 1)] == [76, 24]
    assert counts.sum(axis=1).min() > 320


@given(labels=LABELS, clients=st.integers(1, 10), k=st.integers(1, 3), samples=st.integers(1, 20))
def test_classes_with_samples_gives_what_it_says_or_names_the_numbers(
    labels: NDArray[np.int64], clients: int, k: int, samples: int
) -> None:
    try:
        parts = divide(labels, clients, kind="classes", per_client=k, samples=max(samples, k))
    except DataError as error:
        assert "data.partition" in str(error)
        return
    counts = per_client(labels, parts)
    assert (counts.sum(axis=1) == max(samples, k)).all()
    assert ((counts > 0).sum(axis=1) == k).all()
    assert (counts.sum(axis=0) <= np.bincount(labels, minlength=10)).all()


QUADRANTS: dict[str, Any] = {"kind": "grid", "sample_groups": 1, "feature_groups": 4, "layout": "quadrants"}


@pytest.mark.parametrize(
    ("labels", "clients", "kind", "key"),
    [
        (np.arange(9), 10, {"kind": "iid"}, ""),
        (np.arange(100) % 10, 3, {"kind": "classes", "per_client": 1}, "per_client"),
        (MNIST, 100, {"kind": "classes", "per_client": 4, "samples": 601}, "samples"),
        (np.arange(32_600) % 2, 100, {"kind": "classes", "per_client": 1, "samples": 327}, "samples"),
        (np.zeros(9, np.int64), 5, {"kind": "grid", "sample_groups": 2, "feature_groups": 3}, ""),
        (np.zeros(3, np.int64), 4, QUADRANTS, "layout"),  # of 7 features
    ],
)
def test_what_cannot_be_divided_is_refused(labels: NDArray[Any], clients: int, kind: dict[str, Any], key: str) -> None:
    with raises(DataError, key=f"data.partition.{key}".rstrip(".")):
        divide(labels, clients, **kind)


@given(draw=st.integers(0, 2**32 - 1), rows=st.integers(1, 8), columns=st.integers(1, 5))
def test_a_table_is_filled_whenever_there_is_one(draw: int, rows: int, columns: int) -> None:
    random = np.random.default_rng(draw)
    cells = random.random((rows, columns)) < 0.6
    cells[np.arange(rows), random.integers(0, columns, rows)] = True
    total = int(cells.sum(axis=1).max()) + int(random.integers(0, 10))
    # A table that exists: every row dealt at random over its open cells; its column sums are the stock.
    table = cells.astype(np.int64)
    for row in range(rows):
        extra = random.choice(np.flatnonzero(cells[row]), total - table[row].sum())
        np.add.at(table[row], extra, 1)
    found = fill(cells, total, table.sum(axis=0))
    assert found is not None
    assert (found.sum(axis=1) == total).all()
    assert (found.sum(axis=0) <= table.sum(axis=0)).all()
    assert ((found > 0) == cells).all()
    assert fill(cells, total, table.sum(axis=0) - np.eye(columns, dtype=np.int64)[0]) is None


def test_label_shards_leave_a_client_few_classes() -> None:
    labels = np.repeat(np.arange(10), 60)
    counts = per_client(labels, divide(labels, 20, kind="label-shards", per_client=2))
    assert (counts.sum(axis=1) == 30).all()
    assert ((counts > 0).sum(axis=1) <= 4).all()


def test_a_small_alpha_concentrates_classes_and_a_large_one_spreads_them() -> None:
    labels = np.repeat(np.arange(10), 600)
    largest = {}
    for alpha in (0.01, 1000.0):
        counts = per_client(labels, divide(labels, 10, kind="dirichlet", alpha=alpha))
        largest[alpha] = (counts.max(axis=0) / 600).mean()
    assert largest[0.01] > 0.9
    assert largest[1000.0] < 0.15


@pytest.mark.parametrize("alpha", [None, 0.1])
@pytest.mark.parametrize("exponent", [0.0, 0.3, 0.7])
def test_zipf_sizes_follow_the_law_by_largest_remainder(exponent: float, alpha: float | None) -> None:
    labels = np.arange(60_000) % 10
    sizes = np.array([len(p.samples) for p in divide(labels, 30, kind="zipf", exponent=exponent, alpha=alpha)])
    law = np.arange(1, 31) ** -exponent
    assert (np.abs(sizes - 60_000 * law / law.sum()) < 1).all()
    assert sizes[0] / sizes[-1] == pytest.approx(30**exponent, rel=0.01)


def test_zipf_draws_the_classes_of_each_client_from_its_own_proportions() -> None:
    labels = np.arange(60_000) % 10
    plain = per_client(labels, divide(labels, 30, kind="zipf", exponent=0.5))
    drawn = per_client(labels, divide(labels, 30, kind="zipf", exponent=0.5, alpha=0.1))
    share = [(counts.max(axis=1) / counts.sum(axis=1)).mean() for counts in (plain, drawn)]
    assert share[0] < 0.15
    assert share[1] > 0.5


@given(samples=st.integers(1, 40), features=st.integers(1, 30), groups=st.integers(1, 6), blocks=st.integers(1, 6))
def test_a_grid_gives_every_cell_one_holder(samples: int, features: int, groups: int, blocks: int) -> None:
    kind: dict[str, Any] = {"kind": "grid", "sample_groups": groups, "feature_groups": blocks}
    held = np.zeros((samples, features), int)
    try:
        parts = divide(np.zeros(samples, np.int64), groups * blocks, features=features, **kind)
    except DataError:
        assert groups > samples or blocks > features
        return
    for part in parts:
        assert part.features is not None
        assert len(part.samples) > 0
        assert (np.diff(part.features) == 1).all()
        held[np.ix_(part.samples, part.features)] += 1
    assert (held == 1).all()
    for k in range(groups):  # the first clients hold the first feature group
        first = parts[k].features
        assert first is not None
        assert first[0] == 0
        np.testing.assert_array_equal(parts[k].samples, parts[-groups + k].samples)


def test_quadrants_are_the_quarters_of_the_image_and_the_bias_is_in_the_last() -> None:
    parts = partition(np.zeros(3, np.int64), 4, 0, ADAPTER.validate_python(QUADRANTS), features=17, bias=True)
    quarters = [part.features.tolist() for part in parts if part.features is not None]
    assert quarters == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15, 16]]
    parts = divide(np.zeros(3, np.int64), 4, features=25, **QUADRANTS)
    assert [len(part.features) for part in parts if part.features is not None] == [4, 6, 6, 9]


def ragged(dense: NDArray[Any], groups: int, blocks: int, seed: int = 0) -> list[ClientBlock]:
    settings = ADAPTER.validate_python({"kind": "ragged", "sample_groups": groups, "feature_groups": blocks})
    matrix = sp.csr_array(dense)
    labels = np.zeros(len(dense), np.int64)
    return partition(labels, groups * blocks, seed, settings, features=dense.shape[1], matrix=lambda: matrix)


@given(seed=st.integers(0, 50), groups=st.integers(1, 3), blocks=st.integers(1, 4))
def test_ragged_gives_every_value_one_holder_in_shares_that_differ_by_one(seed: int, groups: int, blocks: int) -> None:
    dense = np.random.default_rng(seed).integers(0, 3, size=(12, 9))
    matrix = sp.csr_array(dense)
    try:
        parts = ragged(dense, groups, blocks, seed)
    except DataError as error:
        text = str(error)
        assert "would hold no value" in text
        return
    cells = [part.cells for part in parts if part.cells is not None]
    assert sorted(np.concatenate(cells).tolist()) == list(range(matrix.nnz))
    row = np.repeat(np.arange(12), np.diff(matrix.indptr))
    shares = np.stack([np.bincount(row[mine], minlength=12) for mine in cells]).reshape(groups, blocks, 12)
    assert ((shares.sum(axis=1) > 0).sum(axis=0) <= 1).all()
    mine = shares.sum(axis=1).argmax(axis=0)
    of_group = shares[mine, :, np.arange(12)]
    assert (of_group.max(axis=1) - of_group.min(axis=1) <= 1).all()


def test_ragged_gives_different_samples_of_a_client_different_features() -> None:
    parts = ragged(np.ones((40, 10)), 1, 2)
    cells = parts[0].cells
    assert cells is not None
    columns = [set((cells[cells // 10 == row] % 10).tolist()) for row in range(40)]
    assert all(len(found) == 5 for found in columns)
    assert len({frozenset(found) for found in columns}) > 20


def test_apportion_is_the_largest_remainder_method() -> None:
    assert apportion(10, np.array([47, 16, 15.8, 12, 6.1, 3.1])).tolist() == [5, 2, 1, 1, 1, 0]
    assert apportion(10, np.array([97, 1, 1, 1]), at_least=1).tolist() == [7, 1, 1, 1]
    assert apportion(10, np.array([97, 1, 2]), at_most=np.array([4, 9, 9])).tolist() == [4, 3, 3]
