"""Rare positive samples, groups of classes and sites: disjoint, with the rates that were asked for, the same always."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import TypeAdapter

from benchmarks import codasca_digits_data
from fenchel.common.data.blocks import ClientBlock
from fenchel.common.data.imbalance import imbalanced, positive_classes, positives_beside
from fenchel.common.data.partition import partition
from fenchel.common.data.source import DataSource
from fenchel.common.data.table import partition_table
from fenchel.common.errors import DataError, SettingsError
from fenchel.common.settings.data import DataSettings, Partition
from fenchel.common.settings.run import validate
from fenchel.report.render.partition import draw
from tests.messages import raises

ADAPTER: TypeAdapter[Partition] = TypeAdapter(Partition)
Labels = NDArray[np.int64]

LABELS = st.lists(st.integers(0, 7), min_size=2, max_size=300).map(lambda found: np.array(found, np.int64))
POSITIVE = [4, 5, 6, 7]
HIGH = [5, 6, 7, 8, 9]


def divide(
    labels: Labels, clients: int, seed: int = 0, positive: list[int] | None = None, **kind: Any
) -> list[ClientBlock]:
    mask = np.isin(labels, POSITIVE if positive is None else positive)
    return partition(labels, clients, seed, ADAPTER.validate_python(kind), features=3, positive=mask)


def source(positive: list[int] | None = None, seed: int = 0, **keys: Any) -> DataSource:
    return DataSource.open(DataSettings.model_validate({"name": "digits"} | keys), seed, positive)


def samples_of(parts: list[ClientBlock]) -> NDArray[np.int64]:
    return np.concatenate([part.samples for part in parts])


# How many positive samples


@given(negatives=st.integers(0, 10**6), percent=st.integers(1, 99))
def test_one_more_positive_sample_would_be_too_many(negatives: int, percent: int) -> None:
    kept = positives_beside(negatives, percent / 100)
    assert 100 * kept <= percent * (kept + negatives)
    assert 100 * (kept + 1) > percent * (kept + 1 + negatives)


def test_the_authors_numbers_of_positives() -> None:
    assert [positives_beside(500, imratio) for imratio in (0.1, 0.3)] == [55, 214]


@given(labels=LABELS, clients=st.integers(1, 8), seed=st.integers(0, 3), percent=st.integers(1, 60))
def test_only_positives_go_and_each_client_has_the_rate_within_a_sample(
    labels: Labels, clients: int, seed: int, percent: int
) -> None:
    imratio = percent / 100
    positive = np.isin(labels, POSITIVE)
    try:
        before = divide(labels, clients, seed, kind="iid")
        after = imbalanced(before, positive, imratio, seed)
    except DataError as error:
        assert error.key in ("data.partition", "data.imbalance", "data.imbalance.imratio")
        return
    for whole, part in zip(before, after, strict=True):
        assert set(part.samples.tolist()) <= set(whole.samples.tolist())
        assert (np.diff(part.samples) > 0).all()
        negatives = whole.samples[~positive[whole.samples]]
        np.testing.assert_array_equal(part.samples[~positive[part.samples]], negatives)
        expected = min(positives_beside(len(negatives), imratio), len(whole.samples) - len(negatives))
        assert positive[part.samples].sum() == expected
    assert samples_of(imbalanced(before, positive, imratio, seed)).tolist() == samples_of(after).tolist()


def test_a_rate_that_changes_nothing_is_refused() -> None:
    labels = np.repeat([0, 5], [90, 10])
    with raises(DataError, key="data.imbalance.imratio"):
        imbalanced([ClientBlock(np.arange(100))], labels == 5, 0.3, 0)
    with raises(DataError, key="data.imbalance", client="1"):
        imbalanced([ClientBlock(np.arange(90)), ClientBlock(np.arange(90, 100))], labels == 5, 0.3, 0)


# Groups of classes


@given(labels=LABELS, clients=st.integers(1, 20), seed=st.integers(0, 3))
def test_every_client_has_a_group_of_either_side_and_no_class_is_on_two_while_there_are_enough(
    labels: Labels, clients: int, seed: int
) -> None:
    try:
        parts = divide(labels, clients, seed, kind="class-groups")
    except DataError as error:
        assert error.key == "data.partition"
        return
    assert sorted(samples_of(parts).tolist()) == list(range(len(labels)))
    for positive in (False, True):
        present = np.unique(labels[np.isin(labels, POSITIVE) == positive])
        holds = np.array([np.isin(present, labels[part.samples]) for part in parts])
        groups, holders = holds.sum(axis=1), holds.sum(axis=0)
        assert groups.min() >= 1
        assert groups.max() - groups.min() <= 1
        assert holders.max() - holders.min() <= 1
        if clients <= len(present):
            assert holders.tolist() == [1] * len(present), "no class on two clients"
        else:
            assert groups.tolist() == [1] * clients, "shared classes, one of a side for each client"
    for label in np.unique(labels):
        shares = [int((labels[part.samples] == label).sum()) for part in parts]
        held = [share for share in shares if share]
        assert max(held) - min(held) <= 1
    again = divide(labels, clients, seed, kind="class-groups")
    assert samples_of(again).tolist() == samples_of(parts).tolist()


@pytest.mark.parametrize(("clients", "groups"), [(16, [4] * 2 + [3] * 14), (8, [7] * 2 + [6] * 6)])
def test_fifty_classes_of_a_side_are_dealt_as_in_the_authors_program(clients: int, groups: list[int]) -> None:
    labels = np.repeat(np.arange(100), 500)
    parts = divide(labels, clients, positive=list(range(50, 100)), kind="class-groups")
    found = [np.unique(labels[part.samples]) for part in parts]
    assert [int((classes < 50).sum()) for classes in found] == groups
    assert [int((classes >= 50).sum()) for classes in found] == groups
    for part in imbalanced(parts, labels >= 50, 0.1, 0):
        rate = (labels[part.samples] >= 50).mean()
        assert 0.1 - 1 / len(part.samples) < rate <= 0.1


# Sites

SITES = st.lists(
    st.builds(
        lambda size, imratio: {"size": size, "imratio": imratio},
        st.sampled_from([1, 2.5, 10, 300]),
        st.sampled_from([0.0, 0.01, 0.1, 0.342, 0.5, 1.0]),
    ),
    min_size=1,
    max_size=6,
)


@given(labels=LABELS, sites=SITES, seed=st.integers(0, 3))
def test_sites_have_their_sizes_and_rates_within_a_sample_and_as_many_samples_as_there_are(
    labels: Labels, sites: list[dict[str, float]], seed: int
) -> None:
    positive = np.isin(labels, POSITIVE)
    have = np.array([positive.sum(), (~positive).sum()])
    try:
        parts = divide(labels, len(sites), seed, kind="sites", sites=sites)
    except DataError as error:
        assert error.key in ("data.partition", "data.partition.sites")
        return
    rows = samples_of(parts)
    assert len(np.unique(rows)) == len(rows)
    sizes = np.array([len(part.samples) for part in parts])
    found = np.array([positive[part.samples].sum() for part in parts])
    rates = np.array([site["imratio"] for site in sites])
    assert (np.abs(found - rates * sizes) <= 0.5).all()
    due = len(rows) * np.array([site["size"] for site in sites]) / sum(site["size"] for site in sites)
    if (due >= 1).all():
        assert (np.abs(sizes - due) < 1).all()
    # With half a sample of rounding at each site, a tenth more would not have been there.
    needed = np.array([(rates * due).sum(), ((1 - rates) * due).sum()])
    assert (needed * 1.1 + len(sites) > have).any()
    if len(rows) > len(sites):
        fewer = divide(labels, len(sites), seed, kind="sites", sites=sites, samples=len(sites))
        assert len(samples_of(fewer)) == len(sites)


HALVES = [{"size": 1, "imratio": 0.5}] * 2


@pytest.mark.parametrize(
    ("counts", "clients", "kind", "key"),
    [
        ((100, 3), 4, {"kind": "class-groups"}, ""),
        ((20, 0), 2, {"kind": "class-groups"}, ""),
        ((90, 10), 3, {"kind": "sites", "sites": HALVES}, ".sites"),
        ((90, 10), 2, {"kind": "sites", "sites": HALVES, "samples": 30}, ".samples"),
        ((90, 10), 2, {"kind": "sites", "sites": HALVES, "samples": 1}, ".samples"),
        ((20, 0), 2, {"kind": "sites", "sites": HALVES}, ".sites"),
    ],
)
def test_classes_that_are_too_small_are_refused(
    counts: tuple[int, int], clients: int, kind: dict[str, Any], key: str
) -> None:
    with raises(DataError, key=f"data.partition{key}"):
        divide(np.repeat([0, 5], counts), clients, **kind)


def sites_of_digits(**keys: Any) -> DataSource:
    sites = [
        {"size": 3, "imratio": 0.3},
        {"size": 2, "imratio": 0.0, "noise": 0.5, "shift": -1.0},
        {"size": 1, "imratio": 0.2, "shift": 0.25},
    ]
    return source([7, 8, 9], scale="unit-interval", partition={"kind": "sites", "sites": sites}, **keys)


def test_a_site_sees_its_samples_brighter_and_with_noise_the_same_each_time() -> None:
    data = sites_of_digits(bias=1.0)
    plain = data.training().features
    assert isinstance(plain, np.ndarray)
    seen = [data.shard(client, 3, np.float32) for client in range(3)]
    changes = [np.asarray(shard.features) - plain[shard.samples_held] for shard in seen]
    assert np.abs(changes[0]).max() < 1e-6
    assert changes[1][:, :-1].mean() == pytest.approx(-1.0, abs=0.02)
    assert changes[1][:, :-1].std() == pytest.approx(0.5, abs=0.02)
    np.testing.assert_allclose(changes[2][:, :-1], 0.25, atol=1e-6)
    assert all(np.asarray(shard.features)[:, -1].tolist() == [1.0] * shard.samples for shard in seen)
    again = sites_of_digits(bias=1.0).shard(1, 3, np.float32)
    np.testing.assert_array_equal(again.features, seen[1].features)
    test = data.test()
    assert test is not None
    assert float(np.asarray(test.features).max()) == 1.0, "the test set is nobody's"


def test_a_held_out_sample_looks_as_it_would_have_looked_in_training() -> None:
    whole = sites_of_digits().shard(1, 3)
    divided = sites_of_digits(holdout=0.25)
    kept, held = divided.shard(1, 3), divided.holdout(1, 3)
    assert held is not None
    features = dict(zip(whole.samples_held.tolist(), np.asarray(whole.features), strict=True))
    for shard in (kept, held):
        for row, values in zip(shard.samples_held.tolist(), np.asarray(shard.features), strict=True):
            np.testing.assert_array_equal(values, features.pop(row))
    assert features == {}


# From settings to shards


@pytest.mark.parametrize(
    "kind", [{"kind": "zipf", "exponent": 1}, {"kind": "class-groups"}, {"kind": "dirichlet", "alpha": 0.05}], ids=str
)
def test_any_partition_can_be_made_imbalanced_and_the_test_set_stays(kind: dict[str, Any]) -> None:
    balanced = source(HIGH).test()
    data = source(HIGH, partition=kind, imbalance={"imratio": 0.1})
    test = data.test()
    assert test is not None
    assert balanced is not None
    np.testing.assert_array_equal(test.labels, balanced.labels)
    rates = partition_table(data, 5).rates
    assert rates is not None
    assert max(rates) <= 0.1
    if kind["kind"] != "dirichlet":  # with which some have fewer positives from the beginning
        assert all(0.1 - 1 / size < rate for size, rate in zip(data.sizes(5), rates, strict=True))


def test_the_table_marks_positive_classes_and_counts_what_is_left_out(tmp_path: Path) -> None:
    data = source(HIGH, partition={"kind": "class-groups"}, imbalance={"imratio": 0.1})
    table = partition_table(data, 5)
    assert table.marked_names == (*"01234", *(f"{c} +" for c in range(5, 10)))
    assert table.positives is not None
    assert table.positives.tolist() == [np.isin(data.shard(k, 5).labels, range(5, 10)).sum() for k in range(5)]
    assert table.left_out == data.problem.samples - table.counts.sum() > 0
    draw(table, tmp_path / "table.png")
    assert (tmp_path / "table.png").stat().st_size > 10_000
    assert (table.shared_classes, partition_table(source(), 3).rates) == (0, None)
    assert partition_table(source([5, 6, 7], partition={"kind": "class-groups"}), 5).shared_classes == 2


def test_who_is_positive_must_be_known() -> None:
    section: dict[str, Any] = {"imbalance": {"imratio": 0.1}}
    with raises(DataError, key="data.imbalance"):
        source(**section)
    with raises(DataError, key="data.partition.kind: class-groups"):
        source(partition={"kind": "class-groups"})
    with raises(SettingsError, key="objective.positive"):
        source([3, 12], **section)
    with raises(SettingsError, key="objective.positive"):
        source(list(range(10)), **section)
    assert source([3], **section).positive == (3,)
    assert source(binarise={"positive": [3]}, **section).positive == (1,)
    assert source().positive is None
    assert positive_classes(0, None, "") is None


def test_the_server_may_not_evaluate_on_samples_that_nobody_trains_on() -> None:
    run: dict[str, Any] = {
        "rounds": 1,
        "clients": 2,
        "objective": {"kind": "binary", "positive": [8]},
        "algorithm": {"name": "codasca"},
        "evaluation": {"training": True},
    }
    sites = {"kind": "sites", "sites": [{"size": 1, "imratio": 0.1}] * 2}
    for keys in ({"imbalance": {"imratio": 0.05}}, {"partition": sites}):
        with raises(SettingsError, source="settings"):
            validate(run | {"data": {"name": "digits"} | keys})


# A column that says who holds what


@pytest.mark.parametrize("form", ["csv", "npz"])
def test_a_column_of_the_file_says_who_holds_what_also_after_the_test_set_was_drawn(tmp_path: Path, form: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((90, 2)), np.arange(90) % 2
    wards = np.array(["north", "east", "south"])[(x[:, 0] * 3).astype(int)]
    path = tmp_path / f"wards.{form}"
    if form == "npz":
        np.savez(path, X=x, y=y, ward=wards)
    else:
        rows = [f"{w},{a!r},{b!r},{c}" for w, (a, b), c in zip(wards, x.tolist(), y, strict=True)]
        path.write_text("\n".join(["ward,first,second,ill", *rows]))
    settings = DataSettings.model_validate(
        {"file": path, "samples": 60, "partition": {"kind": "column", "column": "ward"}}
    )
    data = DataSource.open(settings, 4)
    assert data.problem.features == 2
    for client, low in enumerate([1 / 3, 0, 2 / 3]):  # east, north, south
        first = np.asarray(data.shard(client, 3).features)[:, 0]
        assert ((low <= first) & (first < low + 1 / 3)).all()
    assert sum(data.shard(client, 3).samples for client in range(3)) == 60
    with raises(DataError, key="data.partition.column", column="ward"):
        data.shard(0, 2)
    other = settings.model_copy(update={"partition": settings.partition.model_copy(update={"column": "room"})})
    named: dict[str, Any] = {"array" if form == "npz" else "column": "room"}
    with raises(DataError, source=path, **named):
        DataSource.open(other, 4)


# The recipe of the specification, section 8


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("arrangement", ["disjoint", "skew"])
def test_a_run_on_the_archive_trains_on_the_shards_of_the_recipe(
    tmp_path: Path, seed: int, arrangement: codasca_digits_data.Arrangement
) -> None:
    path = tmp_path / "digits.npz"
    codasca_digits_data.write(path, seed, arrangement)
    parts, test = codasca_digits_data.shards(seed, arrangement)
    section = DataSettings.model_validate(codasca_digits_data.data_section(path))
    data = DataSource.open(section, 0, HIGH)
    for client, part in enumerate(parts):
        shard = data.shard(client, 5)
        np.testing.assert_array_equal(shard.features, part.features)
        np.testing.assert_array_equal(shard.labels, part.labels)
        classes = np.unique(part.labels)
        assert (classes < 5).sum() == 1
        assert arrangement == "skew" or (classes >= 5).sum() == 1
    held_out = data.test()
    assert held_out is not None
    np.testing.assert_array_equal(held_out.features, test.features)
    assert held_out.samples == 539


def test_the_recipe_gives_the_numbers_of_the_specification() -> None:
    disjoint, _ = codasca_digits_data.shards(0)
    sizes = [len(part.labels) for part in disjoint]
    assert (min(sizes), max(sizes)) == (132, 148)
    p = np.mean([(part.labels >= 5).mean() for part in disjoint])
    assert p == pytest.approx(0.0979469011, abs=5e-11)
    skew, _ = codasca_digits_data.shards(0, "skew")
    rates = [float((part.labels >= 5).mean()) for part in skew]
    assert [round(min(rates), 3), round(max(rates), 2)] == [0.008, 0.20]
