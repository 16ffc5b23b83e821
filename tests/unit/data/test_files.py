"""Data files: what is read is what was written, and bad files are refused with the place of the fault."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file

from fenchel.common.data.files import read_file, read_files
from fenchel.common.data.npz import read_idx, read_npz, write_npz
from fenchel.common.data.samples import DataSet, Samples
from fenchel.common.errors import DataError
from tests.messages import raises

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def dense(part: Samples) -> Any:
    return part.features.toarray() if isinstance(part.features, sp.csr_array) else part.features


def test_features_of_libsvm_are_counted_from_0_where_0_occurs_unless_they_must_not_be(tmp_path: Path) -> None:
    x = np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]])
    for zero_based in (True, False):
        path = tmp_path / f"{zero_based}.svm"
        dump_svmlight_file(x, [0, 1], str(path), zero_based=zero_based)
        np.testing.assert_array_equal(sp.csr_array(read_file(path).train.features).toarray(), x)
    with raises(DataError, row=2):
        read_file(tmp_path / "True.svm", first=1)
    assert read_file(tmp_path / "False.svm", first=1).features == 3


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_a_column_that_numbers_the_rows_is_no_feature(tmp_path: Path, name: str) -> None:
    with raises(DataError, file="x.csv"):
        read_file(written(tmp_path, "x.csv", f"{name},a,label\n0,1.5,1\n1,2.5,0\n"))
    kept = read_file(written(tmp_path, "y.csv", f"{name},a,label\n0,1.5,1\n2,2.5,0\n"))
    assert kept.columns == (name, "a")
    assert read_file(written(tmp_path, "z.csv", "n,a,label\n0,1.5,1\n1,2.5,0\n")).columns == ("n", "a")


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_libsvm_file_is_read_as_scikit_learn_wrote_it_however_compressed(tmp_path: Path, suffix: str) -> None:
    rng = np.random.default_rng(0)
    features = sp.csr_array(rng.random((30, 12)) * (rng.random((30, 12)) < 0.3))
    labels = rng.integers(-1, 2, 30).astype(float)
    plain = io.BytesIO()
    dump_svmlight_file(sp.csr_matrix(features), labels, plain, zero_based=False)
    path = written(tmp_path, f"train.libsvm{suffix}", COMPRESS[suffix](plain.getvalue()))
    part = read_file(path, features=12).train
    np.testing.assert_allclose(dense(part), features.toarray(), rtol=1e-12)
    np.testing.assert_array_equal(part.labels, labels)
    part = read_file(written(tmp_path, "a9a.t", "-1 3:1 11:0.5 # note\n\n+1 5:1 \n")).train  # known by its first line
    assert (part.features.shape, part.labels.tolist()) == ((2, 11), [-1.0, 1.0])


@pytest.mark.parametrize(
    ("content", "row", "column"),
    [
        ("+1 1:2\nspam 1:2\n", 2, ""),
        ("+1 1:2\n-1 1:two\n", 2, ""),
        ("+1 1:2\n-1 1\n", 2, ""),
        ("+1 1:2 1:3\n", 1, ""),
        ("+1 7:2 3:3\n", 1, ""),
        ("+1 -1:2\n", 1, ""),
        ("+1 0:2 0:3\n", 1, ""),
        ("+1 99999999999:2\n", 1, ""),
        ("+1 1:nan\n", None, "1"),
        ("# nothing\n", None, ""),
        ("", None, ""),
        ("1\n2\n", None, ""),
    ],
)
def test_a_bad_libsvm_line_is_named(tmp_path: Path, content: str, row: int | None, column: str) -> None:
    path = written(tmp_path, "bad.libsvm", content)
    with raises(DataError, source=path, row=row, column=column):
        read_file(path)


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize(
    ("content", "label"),
    [
        ("kind,a,b\nyes,30,1.5\nno,40,2\n", "kind"),  # the header names the label
        ("30,1.5,yes\n40,2,no\n", None),  # the last column
        ("label;a;b\nyes;30;1.5\nno;40;2\n", None),  # wherever it stands
    ],
)
def test_a_csv_file_is_read_with_a_header_or_without(
    tmp_path: Path, suffix: str, content: str, label: str | None
) -> None:
    part = read_file(written(tmp_path, f"h.csv{suffix}", COMPRESS[suffix](content.encode())), label=label).train
    assert part.labels.tolist() == ["yes", "no"]
    np.testing.assert_array_equal(part.features, [[30, 1.5], [40, 2]])


@pytest.mark.parametrize(
    ("content", "label", "columns"),
    [
        ("400,410,outcome\n1,2,ill\n3,4,well\n5,6,ill\n", "outcome", ("400", "410")),  # the name is known
        ("400,410,label\n1,2,ill\n3,4,well\n5,6,ill\n", None, ("400", "410")),
        ("400,label,410\n1,0,2\n3,1,4\n", None, ("400", "410")),
        ("400,410,y\n1,2,0\n3,4,1\n", None, ("400", "410")),  # a text above numbers
        ("0,1,2,outcome\n1,2,3,0\n3,4,5,1\n", None, ("0", "1", "2")),
        ("1,2,ill\n3,4,well\n5,6,ill\n", None, ("column 1", "column 2")),  # a class that occurs again
        ("1,2,dead\n3,4,well\n5,6,well\n", "column 3", ("column 1", "column 2")),
        ("1,2,TRUE\n3,4,FALSE\n5,6,TRUE\n", None, ("column 1", "column 2")),
        ("1,2,ill\n", None, ("column 1", "column 2")),
    ],
)
def test_a_first_line_with_numbers_and_texts_is_a_header_or_a_sample(
    tmp_path: Path, content: str, label: str | None, columns: tuple[str, ...]
) -> None:
    dataset = read_file(written(tmp_path, "x.csv", content), label)
    assert dataset.columns == columns
    assert len(dataset.train) == content.count("\n") - (columns[0] != "column 1")


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("400,410,outcome\n1,2,ill\n3,4,well\n5,6,ill\n", {"row": 1, "column": "outcome"}),  # or a rare class
        ("1,?,0\n3,4,1\n", {"row": 1, "column": "column 2"}),
        ("1,Unknown,ill\n3,4,ill\n", {"row": 1, "column": "column 2"}),
    ],
)
def test_a_first_line_that_may_be_a_sample_is_no_header(tmp_path: Path, content: str, place: dict[str, Any]) -> None:
    path = written(tmp_path, "x.csv", content)
    with raises(DataError, source=path, **place):
        read_file(path)


def test_holders_in_csv_are_texts_unless_integers_are_unambiguous(tmp_path: Path) -> None:
    for words, expected in (
        (["01", "1", " 1"], ["01", "1", "1"]),
        (["10", " 2", "-3"], [10, 2, -3]),
        (["a", "b ", "a"], ["a", "b", "a"]),
    ):
        rows = "".join(f"{word},{row},0\n" for row, word in enumerate(words))
        holders = read_file(written(tmp_path, "x.csv", "who,a,y\n" + rows), holder="who").train.holders
        assert holders is not None
        assert holders.tolist() == expected
    for missing in ("", " ", "NA"):
        path = written(tmp_path, "x.csv", f"who,a,y\n1,2,0\n{missing},4,1\n")
        with raises(DataError, source=path, column="who", row=2, key="data.partition.column"):
            read_file(path, holder="who")


@pytest.mark.parametrize("words", [("TRUE", "FALSE"), ("true", "false"), ("True", "0")])
def test_classes_in_csv_have_the_names_that_are_written(tmp_path: Path, words: tuple[str, str]) -> None:
    rows = "".join(f"{row},{word}\n" for row, word in enumerate(words))
    assert read_file(written(tmp_path, "x.csv", "a,y\n" + rows)).train.labels.tolist() == list(words)


def test_only_an_empty_text_is_a_missing_label(tmp_path: Path) -> None:
    content = "a,country\n1,NA\n2,DE\n"
    assert read_file(written(tmp_path, "x.csv", content)).train.labels.tolist() == ["NA", "DE"]
    for line, column in (("3,", "country"), (",DE", "a"), ("NA,DE", "a")):
        path = written(tmp_path, "x.csv", f"{content}{line}\n")
        with raises(DataError, source=path, column=column, row=3):
            read_file(path)
    for missing in ("", "NA"):  # among numbers, the text is no class
        path = written(tmp_path, "x.csv", f"a,y\n1,0\n2,{missing}\n3,1\n")
        with raises(DataError, source=path, column="y", row=2):
            read_file(path)


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("a,y\n1,m\u00e4nnlich\n", {"row": 1, "column": "y"}),
        ("a,gr\u00f6\u00dfe,y\n1,2,0\n", {"row": None, "column": ""}),
        ("y,a\nw,1\nm\u00e4nnlich,2\n", {"row": 2, "column": "y"}),
    ],
)
def test_a_csv_file_that_is_not_utf_8_is_refused_where_it_is_not(
    tmp_path: Path, content: str, place: dict[str, Any]
) -> None:
    for identifier in (None, "y"):
        path = written(tmp_path, "x.csv", content.encode("cp1252"))
        with raises(DataError, source=path, **place):
            read_file(path, identifier=identifier)
    for encoding in ("utf-8", "utf-8-sig"):
        assert len(read_file(written(tmp_path, "x.csv", content.encode(encoding)), "y").train) > 0


@pytest.mark.parametrize(
    ("content", "label", "column", "row"),
    [
        ("a,b,y\n1,2,0\n1,red,1\n", None, "b", 2),
        ("a,b,y\n1,2,0\n1,,1\n", None, "b", 2),
        ("a,b,y\n1,2,0\n1,inf,1\n", None, "b", 2),
        ("a,b,y\n1,2,0\n1,2\n", None, "", None),
        ("a,b,y\n1,2,0\n1,2,\n", None, "y", 2),
        ("a,b,y\n1,2,0\n", "z", "z", None),
        ("a,a,y\n1,2,0\n", None, "a", None),
        ("a,b,y\n", None, "", None),
        ("y\n1\n", "y", "", None),
        ("", None, "", None),
    ],
)
def test_a_bad_csv_names_its_column_and_row(
    tmp_path: Path, content: str, label: str | None, column: str, row: int | None
) -> None:
    path = written(tmp_path, "bad.csv", content)
    with raises(DataError, source=path, column=column, row=row):
        read_file(path, label=label)


def test_all_columns_with_wrong_values_of_a_table_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, "bad.csv", "id,age,hours,ward,label\nP1,3,1,A,yes\nP2,4,,A,no\n")
    with raises(DataError, source=path, column="id", row=1) as caught:
        read_file(path)
    assert "--id" in caught.value.problem
    assert caught.value.problem.endswith("'hours' (row 2), 'ward' (row 1)")


def test_parquet_columns_keep_their_names_and_single_precision(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = {"outcome": ["b", "a", "b"], "x": pa.array([1, 2, 3], pa.float32())}
    pyarrow.parquet.write_table(pa.table(table), path)
    part = read_file(path, label="outcome").train
    assert part.labels.tolist() == ["b", "a", "b"]
    assert part.features.dtype == np.float32
    pyarrow.parquet.write_table(pa.table({"born": pa.array([1], pa.date32()), "y": [1]}), path)
    with raises(DataError, row=1, column="born"):
        read_file(path)


def test_an_archive_survives_a_round_trip_dense_and_sparse(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (5, 6), dtype=np.uint8)
    images = DataSet(
        Samples(pixels, np.array(["a", "b", "a", "b", "a"])),
        Samples(pixels[:2], np.array(["a", "b"])),
        (1, 2, 3),
        255.0,
    )
    write_npz(tmp_path / "i" / "data.npz", images)
    back = read_npz(tmp_path / "i" / "data.npz")
    assert back.test is not None
    assert (back.image, back.peak) == ((1, 2, 3), 255.0)
    assert back.train.features.dtype == np.uint8
    np.testing.assert_array_equal(back.train.features, pixels)
    assert back.test.labels.tolist() == ["a", "b"]

    sparse = sp.csr_array(rng.random((5, 9)) * (rng.random((5, 9)) < 0.4))
    both = DataSet(Samples(sparse, np.arange(5)), Samples(sparse[:2], np.arange(2)))
    write_npz(tmp_path / "s.npz", both)
    back = read_npz(tmp_path / "s.npz")
    assert back.test is not None
    np.testing.assert_array_equal(dense(back.train), sparse.toarray())
    np.testing.assert_array_equal(dense(back.test), sparse[:2].toarray())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["i", "s.npz"]


def test_images_become_rows_channel_after_channel(tmp_path: Path) -> None:
    pixels = np.arange(2 * 5 * 6 * 3, dtype=np.uint8).reshape(2, 5, 6, 3)
    np.savez(tmp_path / "x.npz", x_train=pixels, y_train=np.array([[0], [1]]))
    dataset = read_file(tmp_path / "x.npz")
    assert dataset.image == (3, 5, 6)
    assert dataset.peak == 255.0
    np.testing.assert_array_equal(dense(dataset.train)[1].reshape(3, 5, 6)[2], pixels[1, :, :, 2])


def test_an_archive_of_python_objects_is_refused_and_never_unpickled(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return (Path(tmp_path / "exploded").touch, ())  # type: ignore[return-value]

    np.savez(tmp_path / "x.npz", X=np.array([[Bomb()]], dtype=object), y=np.array([1]), allow_pickle=True)
    with raises(DataError, source=tmp_path / "x.npz", array="X"):
        read_npz(tmp_path / "x.npz")
    assert not (tmp_path / "exploded").exists()
    pickle.loads(pickle.dumps(Bomb()))
    assert (tmp_path / "exploded").exists()  # so the test would have seen it


def test_an_array_that_announces_more_than_there_is_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 8), }"
    header += b" " * (117 - len(header)) + b"\n"
    member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\0" * 64
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("X.npy", member)
    with raises(DataError, source=tmp_path / "x.npz", array="X"):
        read_npz(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("arrays", "place"),
    [
        ({"z": np.ones(3)}, {}),
        ({"X": np.ones((3, 2))}, {}),
        ({"X": np.ones((3, 2)), "y": np.ones(4)}, {}),
        ({"X": np.array([[1.0, np.nan]]), "y": np.ones(1)}, {"row": 1, "column": "2"}),
        ({"X": np.ones((3, 2)), "y": np.ones(3), "X_test": np.ones((1, 3)), "y_test": np.ones(1)}, {}),
        (
            {"X": np.ones((3, 2)), "y": np.ones(3), "X_test": np.array([["a"]]), "y_test": np.ones(1)},
            {"array": "X_test"},
        ),
        ({"X": np.ones((3, 2)), "y": np.ones(3), "image": np.array([1, 2, 2])}, {"array": "image"}),
        ({"X": np.array([["a"]]), "y": np.ones(1)}, {}),
        (
            {
                "data": np.ones(2),
                "indices": np.array([0, 9]),
                "indptr": np.array([0, 2]),
                "shape": np.array([1, 3]),
                "y": np.ones(1),
            },
            {},
        ),
    ],
)
def test_an_archive_that_is_no_data_set_is_refused(
    tmp_path: Path, arrays: dict[str, Any], place: dict[str, Any]
) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    with raises(DataError, **{"source": tmp_path / "x.npz", "row": None, "column": "", "array": ""} | place):
        read_npz(tmp_path / "x.npz")


def idx(array: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def test_idx_images_and_labels_are_paired_and_the_test_files_found_by_name(tmp_path: Path) -> None:
    pixels = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
    labels = np.array([2, 0, 1], np.uint8)
    files = [
        written(tmp_path, "t10k-labels-idx1-ubyte", idx(labels[:2])),
        written(tmp_path, "train-images-idx3-ubyte.gz", gzip.compress(idx(pixels))),
        written(tmp_path, "t10k-images-idx3-ubyte", idx(pixels[:2])),
        written(tmp_path, "train-labels-idx1-ubyte", idx(labels)),
    ]
    dataset = read_files(files)
    assert dataset.test is not None
    assert (dataset.image, dataset.peak) == ((1, 4, 5), 255.0)
    np.testing.assert_array_equal(dataset.train.features, pixels.reshape(3, 20))
    assert dataset.test.labels.tolist() == [2, 0]


@pytest.mark.parametrize("content", [b"", b"\0\0\x08", b"\0\0\x08\x01\0\0\0\x05abc", b"\0\0\x07\x01\0\0\0\x01a"])
def test_a_damaged_idx_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path, "x-ubyte", content)
    with raises(DataError, source=path):
        read_idx(path)


def test_libsvm_files_are_stacked_and_widened_to_the_same_features(tmp_path: Path) -> None:
    files = [
        written(tmp_path, "part1.svm", "1 1:1\n"),
        written(tmp_path, "part2.svm", "-1 5:1\n"),
        written(tmp_path, "part.t.svm", "1 7:1\n"),
    ]
    dataset = read_files(files)
    assert dataset.test is not None
    assert dataset.train.features.shape == (2, 7)
    assert dataset.test.features.shape == (1, 7)
    assert dataset.train.labels.tolist() == [1, -1]


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    files = [written(tmp_path, "a.csv", "1,2,0\n"), written(tmp_path, "b.csv", "1,2,3,0\n")]
    with raises(DataError, source=files[0]):
        read_files(files)
    test = written(tmp_path, "a.test.csv", "1,2,0\n")
    with raises(DataError, source=test):
        read_files([test])


@pytest.mark.parametrize("name", ["x.gz", "x.csv.bz2", "x.libsvm.xz", "x.npz", "x.parquet", "x.doc"])
def test_a_missing_or_damaged_file_and_one_of_no_known_form_are_refused(tmp_path: Path, name: str) -> None:
    with raises(DataError, source=tmp_path / name):
        read_file(tmp_path / name)
    path = written(tmp_path, name, b"PAR1 but not compressed at all")
    with raises(DataError, source=path):
        read_file(path)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_files_of_a_set_are_aligned_by_column_name(tmp_path: Path, suffix: str) -> None:
    def table(name: str, **columns: list[float]) -> Path:
        path = tmp_path / f"{name}.{suffix}"
        if suffix == "csv":
            rows = zip(*columns.values(), strict=True)
            path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
        else:
            pyarrow.parquet.write_table(pa.table(columns), path)
        return path

    test = table("p_test", weight=[90.0, 80.0], age=[1.0, 2.0], ill=[1, 0])
    files = [test, table("p1", age=[3.0], weight=[70.0], ill=[1]), table("p2", ill=[0], weight=[60.0], age=[4.0])]
    dataset = read_files(files)
    assert dataset.test is not None
    assert dense(dataset.train).tolist() == [[3, 70], [4, 60]]
    assert dense(dataset.test).tolist() == [[1, 90], [2, 80]]
    assert (dataset.train.labels.tolist(), dataset.test.labels.tolist()) == ([1, 0], [1, 0])
    write_npz(tmp_path / "data.npz", dataset)
    assert read_npz(tmp_path / "data.npz").columns == ("age", "weight")
    for wrong, column in (({"ag": [5.0]}, "age"), ({"age": [5.0], "dose": [1.0]}, "dose")):
        other = table("p3", **wrong, weight=[60.0], ill=[0])
        with raises(DataError, source=other, column=column):
            read_files([*files, other])


def test_files_without_column_names_are_stacked_by_position(tmp_path: Path) -> None:
    files = [written(tmp_path, "a.csv", "a,b,y\n1,2,0\n"), written(tmp_path, "b.csv", "3,4,1\n5,6,0\n")]
    assert dense(read_files(files).train).tolist() == [[1, 2], [3, 4], [5, 6]]
    assert read_files(files[1:]).columns is None


def test_an_archive_needs_a_name_for_each_feature(tmp_path: Path) -> None:
    for names in (["a"], ["a", "a"], [1, 2]):
        np.savez(tmp_path / "x.npz", X=np.ones((1, 2)), y=np.ones(1), feature_names=np.array(names))
        with raises(DataError, source=tmp_path / "x.npz", array="feature_names"):
            read_npz(tmp_path / "x.npz")
