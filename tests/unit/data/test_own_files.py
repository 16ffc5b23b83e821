"""Files that clients bring: sample identifiers, and columns of which a client holds some."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.sparse as sp

from fenchel.common.data import own_file
from fenchel.common.data.shard import Shard
from fenchel.common.errors import DataError
from fenchel.common.settings.data import DataSettings
from tests.messages import raises

COLUMNS = ("age", "dose", "weight", "marker")


def load_own(
    path: Path, label: str | None = None, *, identifier: str | None = None, dtype: Any = np.float64, **keys: Any
) -> Shard:
    settings = DataSettings.model_validate({"name": "own"} | keys)
    return own_file.load_own(path, settings, label=label, identifier=identifier, dtype=dtype)


def dense(shard: Shard) -> Any:
    return shard.features.toarray() if isinstance(shard.features, sp.csr_array) else shard.features


@pytest.fixture
def laboratory(tmp_path: Path) -> Path:
    """Two of the four columns, not in their order, around identifiers and label."""
    path = tmp_path / "laboratory.csv"
    path.write_text("marker,patient,outcome,dose\n40,007,well,10\n41,12,ill,11\n42, B-3 ,well,12\n")
    return path


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_identifiers_are_text_as_written_and_no_feature(laboratory: Path) -> None:
    shard = load_own(laboratory, "outcome", identifier="patient")
    assert shard.sample_ids == shard.identifiers == ("007", "12", "B-3")
    np.testing.assert_array_equal(dense(shard), [[40, 10], [41, 11], [42, 12]])
    assert (shard.total_features, shard.features_held) == (2, None)


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_identifiers_of_a_parquet_file(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "x.parquet"
    names = pa.array([3, 1, 2]) if kind == pa.int64() else pa.array(["3", "1", "2"]).cast(kind)
    pyarrow.parquet.write_table(pa.table({"id": names, "a": [1.0, 2.0, 3.0], "label": [0, 1, 0]}), path)
    assert load_own(path, identifier="id").sample_ids == ("3", "1", "2")


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("id,a,y\np,1,0\n,2,1\n", 2),
        ("id,a,y\np,1,0\n  ,2,1\n", 2),
        ("id,a,y\nanna,1,0\nq,2,1\nanna,3,0\n", 3),
        ("id,a,y\nanna,1,0\nanna ,2,1\n", 2),
        ("name,a,y\np,1,0\n", None),
    ],
)
def test_identifiers_that_cannot_be_used_are_refused_by_row(tmp_path: Path, table: str, row: int | None) -> None:
    path = written(tmp_path, "x.csv", table)
    with raises(DataError, source=path, column="id", key="--id", row=row) as refusal:
        load_own(path, "y", identifier="id")
    assert "anna" not in str(refusal.value)  # who a sample is stays out of messages and logs


def test_a_column_is_label_or_identifier_and_only_tables_have_columns(tmp_path: Path) -> None:
    with raises(DataError, source=tmp_path / "x.csv", column="y", key="--id"):
        load_own(written(tmp_path, "x.csv", "a,y\n1,0\n"), "y", identifier="y")
    with raises(DataError, source=tmp_path / "x.svm", column="id"):
        load_own(written(tmp_path, "x.svm", "1 1:1\n"), "id")
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pa.table({"id": [0.5, 1.5], "a": [1.0, 2.0], "label": [0, 1]}), path)
    with raises(DataError, source=path, column="id", key="--id"):
        load_own(path, identifier="id")


SPARSE = "1 1:1 3:2\n0 2:5\n\n1 # no value\n"


@pytest.mark.parametrize("name", ["x.libsvm", "x.libsvm.gz", "x.txt"])
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_identifiers_of_a_libsvm_file_are_the_lines_of_a_file_beside_it(tmp_path: Path, name: str, end: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(SPARSE.encode()) if name.endswith(".gz") else SPARSE.encode())
    beside = tmp_path / "x.ids"
    beside.write_bytes(f"007{end or chr(10)} 12 {end or chr(10)}Zoë{end}".encode())
    shard = load_own(path, identifier=str(beside), columns=4)
    assert shard.sample_ids == ("007", "12", "Zoë")
    assert shard.features_held is not None
    np.testing.assert_array_equal(shard.features_held, [0, 1, 2])


@pytest.mark.parametrize(
    ("lines", "row"),
    [
        (b"anna\nb\n", None),
        (b"anna\nb\nc\nd", None),
        (b"", None),
        (b"anna\nb\nanna", 3),
        (b"anna\n \nc", 2),
        (b"anna\n\xff\nc", None),
    ],
)
def test_a_file_of_identifiers_that_cannot_be_used_is_refused(tmp_path: Path, lines: bytes, row: int | None) -> None:
    path, beside = written(tmp_path, "x.libsvm", SPARSE), tmp_path / "x.ids"
    beside.write_bytes(lines)
    with raises(DataError, source=beside, key="--id", row=row) as refusal:
        load_own(path, identifier=str(beside))
    assert "anna" not in str(refusal.value)
    for no_list in (tmp_path / "patient", path):  # the name of a column, or the data
        with raises(DataError, key="--id", source=no_list):
            load_own(path, identifier=str(no_list))


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "CSR"])
@pytest.mark.parametrize("ids", [np.array([3, 1, 2]), np.array(["3", " 1", "2"])], ids=["numbers", "words"])
def test_identifiers_of_an_archive_are_an_array(tmp_path: Path, sparse: bool, ids: Any) -> None:
    matrix = sp.csr_array(np.array([[1.0, 0, 2], [0, 5, 0], [0, 0, 0]]))
    parts = {name: getattr(matrix, name) for name in ("data", "indices", "indptr", "shape")}
    np.savez(tmp_path / "x.npz", y=[0, 1, 0], patient=ids, **(parts if sparse else {"X": matrix.toarray()}))
    shard = load_own(tmp_path / "x.npz", identifier="patient")
    assert shard.sample_ids == ("3", "1", "2")
    assert shard.features.shape == (3, 3)


@pytest.mark.parametrize(
    ("ids", "key", "row"),
    [
        (np.array(["anna", "b"]), "--id", None),
        (np.array([1.0, 2.0, 3.0]), "--id", None),
        (np.array([[1, 2, 3]]), "--id", None),
        (np.array(["anna", "b", "anna"]), "--id", 3),
        (np.array(["anna", "", "c"]), "--id", 2),
        (np.array(["anna", "b", None]), "", None),  # Python objects, which no archive may hold
    ],
    ids=str,
)
def test_an_array_of_identifiers_that_cannot_be_used_is_refused(
    tmp_path: Path, ids: Any, key: str, row: int | None
) -> None:
    np.savez(tmp_path / "x.npz", X=np.eye(3), y=[0, 1, 0], patient=ids)
    with raises(DataError, source=tmp_path / "x.npz", key=key, array="patient", row=row) as refusal:
        load_own(tmp_path / "x.npz", identifier="patient")
    assert "anna" not in str(refusal.value)
    np.savez(tmp_path / "y.npz", X=np.eye(3), y=[0, 1, 0])
    with raises(DataError, source=tmp_path / "y.npz", key="--id", array="person"):
        load_own(tmp_path / "y.npz", identifier="person")


def test_a_file_may_hold_some_of_the_columns_in_any_order(laboratory: Path) -> None:
    shard = load_own(laboratory, "outcome", identifier="patient", columns=COLUMNS)
    assert shard.total_features == 4
    assert shard.features_held is not None
    np.testing.assert_array_equal(shard.features_held, [1, 3])
    np.testing.assert_array_equal(dense(shard), [[10, 40], [11, 41], [12, 42]])


def test_a_file_with_all_the_columns_holds_all_features(tmp_path: Path) -> None:
    path = written(tmp_path, "x.csv", "weight,y,marker,age,dose\n3,0,4,1,2\n7,1,8,5,6\n")
    shard = load_own(path, "y", columns=COLUMNS, scale=["unit-rows"], bias=1.0)
    assert (shard.total_features, shard.features_held) == (5, None)
    rows = np.array([[1, 2, 3, 4], [5, 6, 7, 8]]) / np.sqrt([[30], [174]])
    np.testing.assert_allclose(dense(shard), np.hstack([rows, [[1], [1]]]))


def test_normalise_subtracts_given_means_and_divides_by_given_deviations(tmp_path: Path, laboratory: Path) -> None:
    path = written(tmp_path, "x.csv", "age,weight,y\n30,60,0\n50,90,1\n")

    def normalised(**given: Any) -> Any:
        return dense(load_own(path, "y", scale="normalise", normalise=given)).tolist()

    assert normalised(mean=10, std=2) == [[10, 25], [20, 40]]
    assert normalised(mean=[30, 60], std=[20, 30]) == [[0, 0], [1, 1]]
    assert normalised(mean={"weight": 60}, std={"age": 10}) == [[3, 0], [5, 30]]
    assert normalised() == [[30, 60], [50, 90]]
    some = load_own(  # columns that other files hold may be named
        laboratory,
        "outcome",
        identifier="patient",
        columns=COLUMNS,
        scale="normalise",
        normalise={"mean": {"age": 50, "marker": 40}, "std": {"dose": 10}},
    )
    expected: Any = [[1, 0], [1.1, 1], [1.2, 2]]
    np.testing.assert_allclose(dense(some), expected)


def test_constants_that_do_not_fit_the_columns_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "x.csv", "age,weight,y\n30,60,0\n50,90,1\n")
    sparse = written(tmp_path, "x.svm", "1 1:1\n-1 2:1\n")
    np.savez(tmp_path / "x.npz", X=np.ones((2, 2)), y=np.array([0, 1]))
    given: list[tuple[Path, dict[str, Any], str]] = [
        (path, {"mean": [1, 2, 3]}, "data.normalise.mean"),
        (path, {"std": {"size": 2}}, "data.normalise.std"),
        (tmp_path / "x.npz", {"mean": {"age": 3}}, "data.normalise.mean"),
    ]
    for file, constants, key in given:
        with raises(DataError, source=file, key=key):
            load_own(file, scale="normalise", normalise=constants)
    with raises(DataError, key="data.normalise"):  # zeros would be zeros no more
        load_own(sparse, scale="normalise", normalise={"mean": 1})
    assert dense(load_own(sparse, scale="normalise", normalise={"std": 4})).tolist() == [[0.25, 0], [0, 0.25]]


def test_the_bias_belongs_to_whoever_holds_the_last_column(laboratory: Path) -> None:
    with_last = load_own(laboratory, "outcome", identifier="patient", columns=COLUMNS, bias=2.0)
    assert with_last.features_held is not None
    np.testing.assert_array_equal(with_last.features_held, [1, 3, 4])
    np.testing.assert_array_equal(dense(with_last)[:, 2], [2, 2, 2])
    path = written(laboratory.parent, "y.csv", "age,y\n1,0\n2,1\n")
    without = load_own(path, "y", columns=COLUMNS, bias=2.0)
    assert without.features_held is not None
    np.testing.assert_array_equal(without.features_held, [0])
    assert with_last.total_features == without.total_features == 5


def test_columns_that_do_not_fit_those_of_the_run_are_refused(laboratory: Path) -> None:
    np.savez(laboratory.with_name("x.npz"), X=np.ones((3, 4)), y=np.array([0, 1, 0]))
    assert load_own(laboratory.with_name("x.npz"), columns=4).features_held is None
    path = written(laboratory.parent, "x.svm", "1 1:1\n-1 3:1\n")
    given: list[tuple[Path, dict[str, Any], str]] = [
        (laboratory, {"columns": ("age", "dose")}, "data.columns"),
        (laboratory, {"columns": 4}, "data.columns"),  # the file has names
        (laboratory, {"columns": COLUMNS, "scale": ["unit-rows"]}, "data.scale"),  # others hold parts of the rows
        (laboratory.with_name("x.npz"), {"columns": 3}, "data.columns"),
        (laboratory.with_name("x.npz"), {"columns": 5}, "data.columns"),
        (path, {"columns": COLUMNS}, "data.columns"),
        (path, {"columns": 2}, ""),
    ]
    for path, keys, key in given:
        names: dict[str, Any] = {"label": "outcome", "identifier": "patient"} if path == laboratory else {}
        with raises(DataError, source=path, key=key):
            load_own(path, **names, **keys)


def test_columns_of_a_libsvm_file_go_by_number_and_those_that_occur_are_held(tmp_path: Path) -> None:
    path = written(tmp_path, "x.svm", "1 2:5 4:6\n-1 4:7\n1 2:8 3:0\n")
    shard = load_own(path, columns=5)
    assert shard.total_features == 5
    assert shard.features_held is not None
    np.testing.assert_array_equal(shard.features_held, [1, 3])
    np.testing.assert_array_equal(dense(shard), [[5, 6], [0, 7], [8, 0]])
    assert load_own(written(tmp_path, "y.svm", "1 1:1\n-1 2:1\n"), columns=2).features_held is None
    with raises(DataError, source=tmp_path / "z.svm"):
        load_own(written(tmp_path, "z.svm", "1\n-1\n"), columns=2)
