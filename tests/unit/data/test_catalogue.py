"""Named data sets: where they are looked for, how they are downloaded, imported and checked."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fenchel.common.data import readers
from fenchel.common.data.catalogue import (
    CATALOGUE,
    UNPUBLISHED,
    PublicFile,
    cache_folder,
    data_folders,
    import_files,
    known_names,
    load,
    locate,
)
from fenchel.common.data.fetch import entry_of, fetch
from fenchel.common.data.npz import read_divided_npz
from fenchel.common.data.source import DataSource
from fenchel.common.errors import ChecksumError, DataError, StorageError
from fenchel.common.settings.data import DataSettings
from tests.messages import raises

NAMES = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]


def idx(array: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return gzip.compress(header + array.tobytes())


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FENCHEL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def public(tmp_path: Path) -> Path:
    """A folder with a tiny data set in the four files of MNIST: 6 training and 4 test images, 2 classes."""
    folder = tmp_path / "public"
    folder.mkdir()
    for samples, names in ((6, NAMES[:2]), (4, NAMES[2:])):
        (folder / names[0]).write_bytes(idx(np.arange(samples * 12, dtype=np.uint8).reshape(samples, 3, 4)))
        (folder / names[1]).write_bytes(idx((np.arange(samples) % 2).astype(np.uint8)))
    return folder


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def url(public: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(public))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def tiny(url: str, public: Path, **changes: Any) -> Any:
    files = tuple(
        PublicFile(name, url + name, hashlib.sha256((public / name).read_bytes()).hexdigest()) for name in NAMES
    )
    numbers = {"train": 6, "test": 4, "features": 12, "classes": 2}
    return replace(CATALOGUE["mnist"], name="tiny", files=files, **(numbers | changes))


def test_a_download_is_checked_reported_and_kept_as_one_file(url: str, public: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    path = fetch(tiny(url, public), progress=lambda *step: told.append(step))
    assert path == cache_folder() / "tiny" / "data.npz"
    assert [entry.name for entry in path.parent.iterdir()] == ["data.npz"]
    dataset = load("tiny")
    assert dataset.test is not None
    assert (len(dataset.train), len(dataset.test), dataset.image) == (6, 4, (1, 3, 4))
    sizes = {name: (public / name).stat().st_size for name in NAMES}
    assert {name: (done, total) for name, done, total in told} == {n: (s, s) for n, s in sizes.items()}


def test_a_download_with_another_checksum_is_refused_and_not_kept(url: str, public: Path, tmp_path: Path) -> None:
    entry = tiny(url, public)
    (public / NAMES[1]).write_bytes(idx(np.zeros(6, np.uint8)))
    found = hashlib.sha256((public / NAMES[1]).read_bytes()).hexdigest()
    expected = entry.files[1].sha256
    with raises(ChecksumError, source=f"{url}{NAMES[1]}", found=found, expected=expected):
        fetch(entry)
    assert list((cache_folder() / "tiny").iterdir()) == []


def test_a_download_without_a_known_checksum_is_checked_by_its_numbers(url: str, public: Path, tmp_path: Path) -> None:
    entry = tiny(url, public, train=7)
    entry = replace(entry, files=tuple(replace(file, sha256=None) for file in entry.files))
    with raises(DataError, source=", ".join(url + name for name in NAMES)):
        fetch(entry)
    assert locate("tiny") is None


def test_a_failed_download_is_told_by_its_address(url: str, public: Path, tmp_path: Path) -> None:
    entry = tiny(url, public)
    bases = (url, "http://127.0.0.1:9/", f"file://{public}/")
    (gone := public / NAMES[2]).rename(public / "gone")
    for base in bases:
        files = tuple(replace(file, url=base + file.name) for file in entry.files)
        failed = gone.name if base == url else NAMES[0]
        with raises(DataError, source=base + failed):
            fetch(replace(entry, files=files))


def test_what_is_installed_needs_no_download_and_other_sets_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fetch(CATALOGUE["digits"]) is None
    assert locate("digits") == {}
    assert load("digits").train.features.shape == (1797, 64)
    monkeypatch.setenv("FENCHEL_DATA", str(tmp_path))
    assert data_folders() == (tmp_path, cache_folder())
    monkeypatch.delenv("FENCHEL_DATA")
    assert data_folders() == (cache_folder(),)


def test_public_files_are_found_with_underscores_and_without_their_compression(
    public: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCHEL_DATA", str(tmp_path / "data"))
    folder = tmp_path / "data" / "fashion_mnist"
    folder.mkdir(parents=True)
    for name in NAMES:
        (folder / name.removesuffix(".gz")).write_bytes(gzip.decompress((public / name).read_bytes()))
    found = locate("fashion-mnist")
    assert found is not None
    assert list(found) == NAMES
    with raises(DataError, source=", ".join(str(path) for path in found.values())):
        load("fashion-mnist")
    (folder / NAMES[3].removesuffix(".gz")).unlink()
    assert locate("fashion-mnist") is None, "incomplete"


def test_what_is_not_there_is_refused_and_how_to_import_it_told(public: Path, tmp_path: Path) -> None:
    assert known_names() == [*CATALOGUE]
    for name in ("mnist", "pets", "rcv1-subset"):
        with raises(DataError, key="data.name"):
            load(name)
    assert entry_of("adult").name == "adult"
    for name in ("imagenet", "rcv1-subset"):
        with raises(DataError, source=name):
            entry_of(name)
    with raises(DataError, source=", ".join(NAMES)):
        import_files("mnist", [public / name for name in NAMES])
    for name in ("../up", "UPPER", "", "a/b"):
        with raises(DataError, place=""):  # it is not about the file
            import_files(name, [tmp_path / "a.csv"])


def test_an_imported_file_becomes_a_name_with_its_test_part(public: Path, tmp_path: Path) -> None:
    path = import_files("my-images", [public / name for name in NAMES])
    assert path == cache_folder() / "my-images" / "data.npz"
    assert known_names() == [*CATALOGUE, "my-images"]
    settings = DataSettings.model_validate({"name": "my-images", "scale": "unit-interval"})
    source = DataSource.open(settings, 0)
    test = source.test()
    assert test is not None
    assert (source.problem.samples, test.samples) == (6, 4)
    with raises(DataError, key="data.test_fraction"):
        DataSource.open(settings.model_copy(update={"test_fraction": 0.2}), 0)


@pytest.fixture
def divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tiny file in the form of the RCV1 subset, and a catalogue that describes it: 3 + 2 rows."""
    folder = cache_folder() / "rcv1"
    folder.mkdir(parents=True)
    path = folder / "rcv1_binary_subset.npz"
    labels = np.array([1, -1, 1, -1, 1], np.int8)
    np.savez(path, y=labels, data=np.arange(1.0, 6), indices=np.arange(5), indptr=np.arange(6))
    entry = UNPUBLISHED["rcv1-subset"]
    file = replace(entry.files[0], sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    entry = replace(
        entry, train=3, test=2, features=7, files=(file,),
        read=partial(read_divided_npz, features=7, train=3),
    )  # fmt: skip
    monkeypatch.setattr("fenchel.common.data.catalogue.UNPUBLISHED", {entry.name: entry})
    return path


def test_a_file_without_a_public_address_is_read_from_the_folder_that_has_it(divided: Path) -> None:
    assert known_names() == [*CATALOGUE, "rcv1-subset"]
    dataset = load("rcv1-subset")
    assert dataset.test is not None
    assert sp.csr_array(dataset.train.features).toarray().tolist() == np.diag(np.arange(1.0, 8))[:3].tolist()
    assert sp.csr_array(dataset.test.features).toarray().tolist() == [[0, 0, 0, 4, 0, 0, 0], [0, 0, 0, 0, 5, 0, 0]]
    assert (dataset.train.labels.tolist(), dataset.test.labels.tolist()) == ([1, -1, 1], [-1, 1])
    assert locate("rcv1") is None, "it is not what its publisher calls rcv1.binary"
    (divided.parent / "a.csv").write_text("x,kind\n1,cat\n2,dog\n")
    import_files("rcv1-subset", [divided.parent / "a.csv"], label="kind")
    assert load("rcv1-subset").train.labels.tolist() == ["cat", "dog"], "an import under its name comes first"
    (divided.parent.parent / "rcv1-subset" / "data.npz").unlink()
    np.savez(divided, y=np.ones(5), data=np.ones(5), indices=np.arange(5), indptr=np.arange(6))
    with raises(ChecksumError, source=divided, found=hashlib.sha256(divided.read_bytes()).hexdigest()):
        load("rcv1-subset")


@pytest.mark.parametrize(
    ("changes", "column"),
    [
        ({"indptr": np.arange(3)}, ""),
        ({"indices": np.array([0, 1, 2, 3, 9])}, ""),
        ({"y": np.ones(4)}, ""),
        ({"data": np.array([1, np.nan, 1, 1, 1])}, "2"),
    ],
)
def test_a_divided_archive_is_checked(tmp_path: Path, changes: dict[str, Any], column: str) -> None:
    arrays = {"data": np.ones(5), "indices": np.arange(5), "indptr": np.arange(6), "y": np.ones(5)} | changes
    np.savez(tmp_path / "a.npz", **arrays)
    with raises(DataError, source=tmp_path / "a.npz", column=column):
        read_divided_npz(tmp_path / "a.npz", features=7, train=3)
    np.savez(tmp_path / "b.npz", indptr=np.arange(6), y=np.ones(5))
    with raises(DataError, source=tmp_path / "b.npz"):
        read_divided_npz(tmp_path / "b.npz", features=7, train=3)


def test_every_public_file_has_an_https_address_or_a_checksum() -> None:
    for entry in CATALOGUE.values():
        for file in entry.files:
            assert file.url.startswith("https://") or file.sha256
            assert file.url.endswith(file.name)
            assert file.sha256 is None or len(file.sha256) == 64


def test_adult_is_one_hot_encoded_in_a_stable_order(tmp_path: Path) -> None:
    row = "39, {}, 77516, Bachelors, 13, Single, Clerk, Husband, White, Male, 2174, 0, 40, Cuba, {}\n"
    (tmp_path / "adult.data").write_text(row.format("State-gov", "<=50K") + row.format("Private", ">50K") + "\n")
    (tmp_path / "adult.test").write_text("|1x3 Cross validator\n" + row.format("Never-seen", ">50K."))
    dataset = CATALOGUE["adult"].read(tmp_path / "adult.data", tmp_path / "adult.test")
    assert dataset.test is not None
    numbers = [39, 77516, 13, 2174, 0, 40]
    ones = [1] * 7
    assert np.asarray(dataset.train.features).tolist() == [[*numbers, 0, 1, *ones], [*numbers, 1, 0, *ones]]
    assert np.asarray(dataset.test.features).tolist() == [[*numbers, 0, 0, *ones]]
    assert dataset.test.labels.tolist() == [">50K"]


@pytest.mark.parametrize(("name", "labels", "batches"), [("10", 1, 5), ("100", 2, 1)])
def test_an_archive_of_cifar_is_read_plane_by_plane(tmp_path: Path, name: str, labels: int, batches: int) -> None:
    """Of two labels the last one, which is the fine one, is kept."""
    members = [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)] + [
        "cifar-10-batches-bin/test_batch.bin"
    ]
    members = members if name == "10" else ["cifar-100-binary/train.bin", "cifar-100-binary/test.bin"]
    records = b"".join(bytes([19, i][-labels:]) + bytes([i]) * 1024 + bytes([2]) * 1024 + bytes(1024) for i in (7, 8))
    path = tmp_path / f"cifar-{name}-binary.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            info = tarfile.TarInfo(member)
            info.size = len(records)
            archive.addfile(info, io.BytesIO(records))
    dataset = CATALOGUE[f"cifar{name}"].read(path)
    assert dataset.test is not None
    assert (dataset.train.labels.tolist(), dataset.test.labels.tolist()) == ([7, 8] * batches, [7, 8])
    assert np.asarray(dataset.test.features)[:, [0, 1024, 3071]].tolist() == [[7, 2, 0], [8, 2, 0]]
    assert (dataset.image, dataset.peak) == ((3, 32, 32), 255.0)
    path.write_bytes(path.read_bytes()[:100])
    with raises(DataError, source=path):
        CATALOGUE[f"cifar{name}"].read(path)


def test_differences_of_pixels_become_the_pixels(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), np.uint8)
    red, green, blue = np.moveaxis(images, 3, 0)
    planes = np.stack([green, red - green, blue - green])
    for axis in (3, 2):
        planes = np.diff(planes, axis=axis, prepend=np.uint8(0))
    files = {name: tmp_path / name for name in ("labels.npz", "train3_x.npy.xz", "test2_x.npy.xz")}
    for name, part in (("train3_x.npy.xz", slice(3)), ("test2_x.npy.xz", slice(3, 5))):
        with lzma.open(files[name], "wb") as stream:
            np.save(stream, planes[:, part])
    np.savez(files["labels.npz"], train3_y=np.arange(3), test2_y=np.arange(2))
    dataset = readers.read_cifar_differences(*files.values())
    assert dataset.test is not None
    found = np.concatenate([dataset.train.features, dataset.test.features])
    np.testing.assert_array_equal(found.reshape(5, 3, 32, 32), images.transpose(0, 3, 1, 2))
    assert (dataset.train.labels.tolist(), dataset.test.labels.tolist()) == ([0, 1, 2], [0, 1])


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((3, 2, 32, 32)),
        np.zeros((2, 2), np.uint8),
        np.zeros((4, 2, 32, 32), np.uint8),
        np.zeros((3, 0, 32, 32), np.uint8),
        np.array([None]),
        b"",
        b"PK no array",
        None,
    ],
    ids=lambda found: found if isinstance(found, str) else "",
)
def test_damaged_differences_are_refused(tmp_path: Path, array: Any) -> None:
    files = {name: tmp_path / name for name in ("labels.npz", "train2_x.npy")}
    labels: dict[str, Any] = {} if array is None else {"train2_y": np.arange(2)}
    np.savez(files["labels.npz"], **labels)
    if isinstance(array, bytes):
        files["train2_x.npy"].write_bytes(array)
    else:
        given = np.zeros((3, 2, 32, 32), np.uint8) if array is None else array
        np.save(files["train2_x.npy"], given, allow_pickle=True)
    source, missing = ("train2_x.npy", "") if labels else ("labels.npz", "train2_y")
    with raises(DataError, source=files[source], array=missing):
        readers.read_cifar_differences(files["labels.npz"], files["train2_x.npy"], files["train2_x.npy"])


@pytest.mark.parametrize(
    "text", ["", "\n\n", "1,2,7\n", "1,2,nan\n", "1,2,'1'\n3,'1'\n", "1,1e400,1\n", "1\n", "0.5,1,'yes'\n"], ids=repr
)
def test_a_damaged_mammography_table_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mammography.csv"
    path.write_text("0.5,1,2,3,4,5,'-1'\n-0.5,1,2,3,4,5,'1'\n")
    dataset = readers.read_mammography(path)
    assert dataset.train.labels.tolist() == [-1, 1]
    assert np.asarray(dataset.train.features)[:, 0].tolist() == [0.5, -0.5]
    path.write_text(text)
    with raises(DataError, source=path):
        readers.read_mammography(path)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("a,label\n" + "1,x\n2,y\n" * 5)
    (tmp_path / "cache").touch()
    with raises(StorageError, source=str(cache_folder() / "own" / "data.npz")):
        import_files("own", [tmp_path / "own.csv"])
