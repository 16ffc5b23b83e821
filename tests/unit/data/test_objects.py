"""Data from Python: each kind becomes the file that a person would have written, and a run learns from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp

import fenchel
from fenchel.common.data.files import read_file
from fenchel.common.data.objects import features_in_memory, in_memory
from fenchel.common.data.samples import DataSet
from fenchel.common.errors import DataError
from tests.messages import raises

NAMES = ["age", "dose", "marker"]
RNG = np.random.default_rng(1)
X = RNG.normal(size=(40, 3)).round(2)
Y = (X.sum(axis=1) > 0).astype(np.int64)
WORDS = np.where(Y, "well", "ill")
IMAGES = RNG.integers(0, 256, (6, 4, 5), np.uint8)


def stored(data: Any, folder: Path, label: str | None = None) -> DataSet:
    """Return a data set as clients read it."""
    content = in_memory(data, label)
    path = folder / f"data{content.suffix}"
    content.write(path)
    return read_file(path, label if content.suffix == ".parquet" else None)


def dense(features: Any) -> Any:
    return features.toarray() if isinstance(features, sp.csr_array) else features


@pytest.mark.parametrize(
    "data",
    [
        pytest.param((X, Y), id="arrays"),
        pytest.param((X.tolist(), Y.tolist()), id="lists"),
        pytest.param((X, Y[:, None]), id="labels as a column"),
        pytest.param((sp.coo_array(X), Y), id="sparse"),
        pytest.param({"X": X, "y": Y}, id="mapping"),
        pytest.param((pd.DataFrame(X, columns=NAMES), pd.Series(Y)), id="frame and series"),
        pytest.param(pd.DataFrame(X, columns=NAMES).assign(label=Y), id="frame"),
        pytest.param(
            pd.DataFrame(X, columns=NAMES, index=range(40, 0, -1)).assign(outcome=Y), id="frame with an index"
        ),
        pytest.param(pa.table(dict(zip(NAMES, X.T, strict=True)) | {"label": Y}), id="Arrow"),
    ],
)
def test_every_kind_of_data_has_the_same_samples(data: Any, tmp_path: Path) -> None:
    read = stored(data, tmp_path)
    np.testing.assert_array_equal(dense(read.train.features), X)
    np.testing.assert_array_equal(read.train.labels, Y)


def test_words_and_categories_name_classes(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=NAMES)
    for number, labels in enumerate((WORDS, pd.Series(WORDS), pd.Categorical(WORDS))):
        for data in ((X, np.asarray(labels)), frame.assign(outcome=labels), (frame, labels)):
            (folder := tmp_path / f"{number}{type(data).__name__}").mkdir(exist_ok=True)
            assert stored(data, folder).train.labels.tolist() == WORDS.tolist()


def test_the_label_is_the_column_that_is_named(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=NAMES).assign(outcome=Y)[["outcome", *NAMES]]
    assert stored(frame, tmp_path, "outcome").columns == tuple(NAMES)
    assert stored(frame, tmp_path, "age").columns == ("outcome", "dose", "marker")


def test_images_and_a_test_part_keep_their_form(tmp_path: Path) -> None:
    data = {"X": IMAGES, "y": Y[:6], "X_test": IMAGES[:2], "y_test": Y[:2]}
    read = stored(data, tmp_path)
    assert (read.image, read.peak) == ((1, 4, 5), 255.0)
    assert read.train.features.dtype == np.uint8
    assert read.test is not None
    assert len(read.test) == 2
    sparse = stored({"X": sp.csr_array(X), "y": Y, "X_test": sp.csr_array(X[:3]), "y_test": Y[:3]}, tmp_path)
    assert sparse.test is not None
    np.testing.assert_array_equal(dense(sparse.test.features), X[:3])


def test_tables_in_a_mapping_keep_their_names_and_are_aligned_by_them(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=NAMES)
    data = {"X": frame, "y": Y, "X_test": frame[NAMES[::-1]][:5], "y_test": Y[:5]}
    read = stored(data, tmp_path)
    assert read.test is not None
    assert read.columns == tuple(NAMES)
    np.testing.assert_array_equal(read.train.features, X)
    np.testing.assert_array_equal(read.test.features, X[:5])
    for wrong, column in ((frame[NAMES[:2]], "marker"), (frame.assign(more=1.0), "more")):
        with raises(DataError, source="data", array="X_test", column=column):
            in_memory(data | {"X_test": wrong})
    with raises(DataError, column="label"):
        in_memory({"X": frame.assign(label=Y), "y": Y})
    arrays = stored({"X": X, "y": Y, "X_test": frame[:5], "y_test": Y[:5]}, tmp_path)
    assert arrays.columns is None
    with raises(DataError, column="age"):
        in_memory({"X": pa.table([X[:, 0], X[:, 1]], names=["age", "age"]), "y": Y})


def test_predictions_of_a_run_with_a_table_in_a_mapping_go_by_name(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=NAMES)
    run = fenchel.up(SETTINGS, data={"X": frame, "y": Y}, in_process=True, runs=tmp_path)
    assert np.array_equal(run.decision_function(frame[NAMES[::-1]]), run.decision_function(X))


def test_datasets_of_torch_are_read_sample_by_sample(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    tensors = torch.utils.data.TensorDataset(torch.tensor(X, requires_grad=True), torch.tensor(Y))
    np.testing.assert_array_equal(stored(tensors, tmp_path).train.features, X)
    loader = torch.utils.data.DataLoader(tensors, batch_size=4, shuffle=True)
    np.testing.assert_array_equal(stored(loader, tmp_path).train.features, X)
    assert stored(torch.utils.data.Subset(tensors, [4, 2]), tmp_path).train.labels.tolist() == Y[[4, 2]].tolist()
    np.testing.assert_array_equal(stored((torch.tensor(X), torch.tensor(Y)), tmp_path).train.features, X)

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return iter(zip(IMAGES[:, None], Y.tolist(), strict=False))

    assert stored(Stream(), tmp_path).image == (1, 4, 5)


def test_datasets_of_hugging_face_are_tables_or_images(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    columns = dict(zip(NAMES, X.T, strict=True)) | {"label": Y}
    table = datasets.Dataset.from_dict(columns)
    read = stored(table, tmp_path)
    np.testing.assert_array_equal(read.train.features, X)
    assert read.columns == tuple(NAMES)
    both = stored(datasets.DatasetDict(train=table, test=table.select(range(5))), tmp_path)
    assert both.test is not None
    np.testing.assert_array_equal(both.test.features, X[:5])
    turned = table.select_columns(["label", *NAMES[::-1]])
    both = stored(datasets.DatasetDict(train=table, test=turned), tmp_path)
    assert both.test is not None
    np.testing.assert_array_equal(both.test.features, X)
    form = datasets.Features({"image": datasets.Array2D((4, 5), "uint8"), "digit": datasets.Value("int64")})
    pictures = datasets.Dataset.from_dict({"image": IMAGES, "digit": Y[:6]}, features=form)
    read = stored(pictures, tmp_path, "digit")
    np.testing.assert_array_equal(read.train.features, IMAGES.reshape(6, -1))
    with raises(DataError, column="label"):
        in_memory(pictures.add_column("label", [1] * 6))


def test_what_is_no_data_is_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=NAMES)
    for wrong in (X, 3, object(), (X, Y, X)):
        with raises(DataError, source="data"):
            in_memory(wrong)
    for wrong in ((X, Y[:-1]), (frame, Y[:-1]), (frame, X)):
        with raises(DataError, source="data"):
            in_memory(wrong)
    with raises(DataError, array="y"):
        in_memory((X, [object()] * 40))
    with raises(DataError, array="X"):
        in_memory(([[1, 2], [3]], Y[:2]))
    with raises(DataError, column="label"):
        in_memory((frame.assign(label=Y), Y))


def test_missing_values_are_refused_where_masked_and_where_sparse(tmp_path: Path) -> None:
    masked = np.ma.masked_greater(X, 1)
    for wrong in ((masked, Y), (list(masked), Y), {"X": X, "y": Y, "X_test": masked, "y_test": Y}):
        with raises(DataError, source="data"):
            in_memory(wrong)
    with raises(DataError, array="y"):
        in_memory((X, np.ma.masked_equal(Y, 1)))
    np.testing.assert_array_equal(stored((np.ma.masked_array(X), Y), tmp_path).train.features, X)
    for value in (np.nan, np.inf):
        bad = sp.csr_array(np.where(X > 1, value, X))
        with raises(DataError, source="X"):
            features_in_memory(bad, None)
        with raises(DataError):
            stored((bad, Y), tmp_path)
    with raises(DataError, array="X"):
        features_in_memory(masked, None)


def test_torch_samples_that_are_no_pairs_or_of_different_shapes_are_refused() -> None:
    torch: Any = pytest.importorskip("torch")
    with raises(DataError, source="data"):
        in_memory(torch.utils.data.TensorDataset(torch.tensor(X)))

    class Ragged(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 2

        def __getitem__(self, row: int) -> Any:
            return np.zeros(row + 1), 0

    with raises(DataError, source="data"):
        in_memory(Ragged())


SETTINGS = {
    "name": "given",
    "rounds": 3,
    "clients": 2,
    "objective": {"kind": "logistic", "l2": 0.1},
    "algorithm": {"name": "fedavg", "step_size": 0.5, "local_epochs": 1, "batch_size": 8},
}


def test_a_run_learns_from_data_in_place_of_those_that_its_settings_name(tmp_path: Path) -> None:
    named = SETTINGS | {"data": {"name": "breast_cancer", "scale": "standard", "test_fraction": 0.25}}
    before = {"name": "breast_cancer", "scale": "standard", "test_fraction": 0.25}
    run = fenchel.up(named, data=(X, Y), in_process=True, runs=tmp_path)
    assert named["data"] == before  # the caller's mapping is left alone
    assert run.settings.data.file == run.path / "data" / "all.npz"
    assert (run.model.size, run.settings.data.test_fraction) == (3, 0.25)
    again = fenchel.up(run.settings, in_process=True, runs=tmp_path)
    assert again.model.tobytes() == run.model.tobytes()


def test_each_client_learns_from_the_data_that_a_list_gives_it(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=NAMES).assign(outcome=WORDS)
    file = tmp_path / "north.csv"
    frame[:25].to_csv(file, index=False)
    run = fenchel.up(SETTINGS, data=[file, frame[25:]], label="outcome", in_process=True, runs=tmp_path)
    assert {name: shard.samples for name, shard in run.shards.items()} == {"client-000": 25, "client-001": 15}
    assert run.settings.own_data
    mixed = frame[NAMES[::-1]].assign(more=1.0)  # the model knows its columns by their names
    assert np.array_equal(run.predict(mixed), run.predict(X))


def test_columns_in_another_order_are_refused_unless_the_settings_list_them(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=NAMES).assign(outcome=WORDS)
    data = [frame[:25], frame[25:][["outcome", *NAMES[::-1]]]]
    with pytest.raises(fenchel.FenchelError, match=r"its columns in another order.*data\.columns"):
        fenchel.up(SETTINGS, data=data, label="outcome", in_process=True, runs=tmp_path)
    listed = SETTINGS | {"data": {"columns": NAMES, "classes": sorted(set(WORDS))}}
    run = fenchel.up(listed, data=data, label="outcome", in_process=True, runs=tmp_path)
    same = fenchel.up(SETTINGS, data=[frame[:25], frame[25:]], label="outcome", in_process=True, runs=tmp_path)
    assert run.model.tobytes() == same.model.tobytes()
    kept = SETTINGS | {"data": {"columns": NAMES, "classes": sorted(set(WORDS)), "holdout": 0.2}}
    run = fenchel.up(kept, data=data, label="outcome", in_process=True, runs=tmp_path)
    assert 0 <= run.figures["holdout_accuracy"] <= 1
    with raises(DataError, key="data.columns") as caught:  # FedAvg cannot use a part of a sample
        fenchel.up(
            listed, data=[data[0], data[1].drop(columns=NAMES[0])], label="outcome", in_process=True, runs=tmp_path
        )
    assert f"lacks the columns {NAMES[0]}, but fedavg" in caught.value.problem
    hybrid = {"name": "hybrid-fedavg", "local_steps": 1, "step_size": 0.1}
    with raises(fenchel.SettingsError) as refusal:
        fenchel.up(kept | {"algorithm": hybrid}, data=data, label="outcome", in_process=True, runs=tmp_path)
    assert "data.holdout is 0.2, but with data.columns and hybrid-fedavg" in str(refusal.value)


@pytest.mark.parametrize("named", [3, 2])
def test_another_number_of_clients_than_data_is_warned_of(
    named: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = fenchel.up(SETTINGS | {"clients": named}, data=[(X, Y)] * 2, in_process=True, runs=tmp_path)
    assert run.settings.clients == 2
    warnings = [record.args for record in caplog.records if record.name == "fenchel.deploy.launch.given_data"]
    assert warnings == [(3, 2, 2)] * (named == 3)


def test_a_mistake_in_data_leaves_no_run_folder(tmp_path: Path) -> None:
    for wrong in ((X, Y[:-1]), [(X, Y)] * 3 + [(X, Y[:-1])], [], "nothing.csv", (np.full_like(X, np.nan), Y)):
        with pytest.raises(fenchel.FenchelError):
            fenchel.up(SETTINGS, data=wrong, in_process=True, runs=tmp_path / "runs")
    with raises(fenchel.SettingsError, key="identifier"):
        fenchel.up(SETTINGS, data=(X, Y), identifier="age", in_process=True, runs=tmp_path / "runs")
    with raises(fenchel.SettingsError, key="label, identifier"):
        fenchel.up(SETTINGS, label="age", in_process=True, runs=tmp_path / "runs")
    assert not list((tmp_path / "runs").glob("*"))


@pytest.mark.parametrize("value", ["much", np.nan], ids=["text", "missing"])
def test_a_wrong_value_in_a_table_of_a_list_has_its_row_and_column(value: Any, tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=NAMES).assign(outcome=WORDS)
    wrong = frame.astype({NAMES[1]: object})
    wrong.loc[3, NAMES[1]] = value
    with raises(DataError, source="data[1]", row=4, column=NAMES[1]) as caught:
        fenchel.up(SETTINGS, data=[frame, wrong], label="outcome", in_process=True, runs=tmp_path / "runs")
    assert "Arrow" not in str(caught.value)
    assert not list((tmp_path / "runs").glob("*"))


def test_a_wrong_value_in_arrays_or_in_one_table_names_the_argument(tmp_path: Path) -> None:
    wrong = X.copy()
    wrong[3, 1] = np.nan
    frame = pd.DataFrame(wrong, columns=NAMES).assign(outcome=WORDS)
    for data, label, source in ((frame, "outcome", "data"), ([(X, Y), (wrong, Y)], None, "data[1]")):
        with raises(DataError, source=source, row=4):
            fenchel.up(SETTINGS, data=data, label=label, in_process=True, runs=tmp_path)
