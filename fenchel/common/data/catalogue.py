"""Catalogue of named data sets: their public sources, and their files on this machine."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import platformdirs

from fenchel.common.data import readers
from fenchel.common.data.compressed import COMPRESSIONS
from fenchel.common.data.files import read_files
from fenchel.common.data.limits import ORDINARY, UNLIMITED, DataLimits
from fenchel.common.data.npz import read_divided_npz, read_npz, write_npz
from fenchel.common.data.samples import DataSet
from fenchel.common.errors import ChecksumError, DataError, StorageError
from fenchel.common.settings.data import NAME_PATTERN

CANONICAL = "data.npz"
"""Name of a data set's file in the cache."""

DATA_VARIABLE = "FENCHEL_DATA"
"""Environment variable with the path of a folder that has a subfolder for each data set."""


@dataclass(frozen=True)
class PublicFile:
    """File of a public source.

    Attributes
    ----------
    name
        Name of the file, at the source and on this machine.
    url
        Public address; empty if the file cannot be downloaded.
    sha256
        Checksum in hexadecimal digits; ``None`` if none is known.
    """

    name: str
    url: str
    sha256: str | None


@dataclass(frozen=True)
class Entry:
    """Named data set.

    Attributes
    ----------
    name
        Name in ``data.name``.
    title
        Short description.
    licence
        Licence as stated by the source.
    train, test
        Numbers of training and test samples; ``test`` is 0 if no test set is published.
    features, classes
        Numbers of features and classes.
    files
        Public files; empty if the data is installed with Fenchel.
    read
        Function that reads the files, given their paths in the order of ``files``.
    folder
        Subfolder of the files in a folder of data sets; empty for the name of the data set.
    """

    name: str
    title: str
    licence: str
    train: int
    test: int
    features: int
    classes: int
    files: tuple[PublicFile, ...]
    read: Callable[..., DataSet]
    folder: str = ""


def _public(base: str, **checksums: str | None) -> tuple[PublicFile, ...]:
    return tuple(PublicFile(name, base + name, sha256) for name, sha256 in checksums.items())


def _idx(base: str, *checksums: str) -> tuple[PublicFile, ...]:
    """Return the files of a data set in the form of MNIST: training images and labels, test images and labels."""
    names = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    return _public(base, **dict(zip(names, checksums, strict=True)))


def _read_idx(*files: Path) -> DataSet:
    return read_files(files, limits=UNLIMITED)


_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"

_ENTRIES = (
    Entry("digits", "handwritten digits, 8x8 (installed)", "CC BY 4.0 (UCI)",
          1797, 0, 64, 10, (), partial(readers.bundled, "digits", (1, 8, 8), 16.0)),
    Entry("breast_cancer", "breast cancer diagnosis (installed)", "CC BY 4.0 (UCI)",
          569, 0, 30, 2, (), partial(readers.bundled, "breast_cancer")),
    Entry("mnist", "handwritten digits, 28x28", "CC BY-SA 3.0",
          60_000, 10_000, 784, 10, _idx(
              "https://storage.googleapis.com/cvdf-datasets/mnist/",
              "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
              "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
              "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
              "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
          ), _read_idx),
    Entry("fashion-mnist", "articles of clothing, 28x28", "MIT",
          60_000, 10_000, 784, 10, _idx(
              "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
              "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
              "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
              "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
              "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
          ), _read_idx),
    Entry("kmnist", "cursive Japanese characters, 28x28", "CC BY-SA 4.0",
          60_000, 10_000, 784, 10, _idx(
              "https://codh.rois.ac.jp/kmnist/dataset/kmnist/",
              "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
              "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
              "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
              "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
          ), _read_idx),
    Entry("cifar10", "photographs of ten kinds of things, 32x32 in colour", "none stated",
          50_000, 10_000, 3072, 10, _public("https://www.cs.toronto.edu/~kriz/", **{
              "cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
          }), readers.read_cifar10),
    Entry("cifar100", "photographs of a hundred kinds of things, 32x32 in colour", "none stated",
          50_000, 10_000, 3072, 100, _public("https://www.cs.toronto.edu/~kriz/", **{
              "cifar-100-binary.tar.gz": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
          }), readers.read_cifar100),
    Entry("pneumoniamnist", "chest X-rays of children, 28x28: pneumonia or not (MedMNIST)", "CC BY 4.0",
          4_708, 624, 784, 2, _public("https://zenodo.org/records/10519652/files/", **{
              "pneumoniamnist.npz": None,
          }), read_npz),
    Entry("mammography", "spots in mammograms: calcification or not", "none stated",
          11_183, 0, 6, 2, _public("https://raw.githubusercontent.com/jbrownlee/Datasets/master/", **{
              "mammography.csv": "7d3dea3f075f30bbdbb8980e7725684059b4fe3d0f850fadd0f635f6993d8730",
          }), readers.read_mammography, folder="imbalanced"),
    Entry("adult", "income above 50,000 dollars, from a census", "CC BY 4.0 (UCI)",
          32_561, 16_281, 108, 2, _public(_UCI + "adult/", **{
              "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
              "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
          }), readers.read_adult),
    Entry("covtype", "forest cover types", "CC BY 4.0 (UCI)",
          581_012, 0, 54, 7, _public(_UCI + "covtype/", **{
              "covtype.data.gz": "614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
          }), readers.read_covtype),
    Entry("news20", "newsgroup messages, two classes (LIBSVM news20.binary)", "CC BY 4.0 (UCI)",
          19_996, 0, 1_355_191, 2, _public(_LIBSVM, **{"news20.binary.bz2": None}), readers.read_news20),
    Entry("rcv1", "Reuters news, two classes (LIBSVM rcv1.binary)", "research use, none stated",
          20_242, 677_399, 47_236, 2, _public(_LIBSVM, **{
              "rcv1_train.binary.bz2": None, "rcv1_test.binary.bz2": None,
          }), readers.read_rcv1),
)  # fmt: skip

CATALOGUE: Mapping[str, Entry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""All named data sets by name."""

_RCV1_SUBSET = PublicFile(
    "rcv1_binary_subset.npz", "", "8e603d180b2eba4e1e0eea066aaccb62f2bf6a0027380d43e4731c11a3a2212e"
)


def _cifar_differences(**checksums: str) -> tuple[PublicFile, ...]:
    names = {part: "labels.npz" if part == "labels" else f"{part}_x.npy.xz" for part in checksums}
    return tuple(PublicFile(names[part], "", checksum) for part, checksum in checksums.items())


UNPUBLISHED: Mapping[str, Entry] = MappingProxyType({
    "cifar10-subset": Entry(
        "cifar10-subset", "photographs, 32x32 in colour: a part of cifar10", "none stated",
        20_000, 5_000, 3072, 10, _cifar_differences(
            labels="6769bdb144e4d021af408d1ef2e4fdb48577ed3d4075bbac23cfcd32c4a2f8b5",
            train20k="c9b670ff6bc1744430d2d6f5b46779ae23b91df327060f6729f2ff7c9f97fa92",
            test5k="d14ce3301d29df12151173948728de71496a3b1fd5624d403b00a4e29389ebcd",
        ), readers.read_cifar_differences, folder="cifar10",
    ),
    "cifar100-subset": Entry(
        "cifar100-subset", "photographs, 32x32 in colour: a part of cifar100", "none stated",
        25_000, 5_000, 3072, 100, _cifar_differences(
            labels="09a37ee75b09bce43ebc95b66d68f7250e1369300c93c373b75d86077d48d3a7",
            train25k="e5f0c6110127683819f188d28fedd8867141e2df250e17948e9befafceb114cf",
            test5k="c2f75e4cb9059792eca188701837cf8ef5987c275b142da66314d08cc0857f68",
        ), readers.read_cifar_differences, folder="cifar100",
    ),
    "rcv1-subset": Entry(
        "rcv1-subset", "Reuters news, two classes: other documents than those of rcv1", "research use, none stated",
        20_242, 3_507, 47_236, 2, (_RCV1_SUBSET,),
        # The first 20,242 of the documents are the training samples.
        partial(read_divided_npz, features=readers.RCV1_FEATURES, train=20_242), folder="rcv1",
    ),
})  # fmt: skip
"""Parts of public data sets by name. They have no public address, so they are read from this machine only."""


def cache_folder() -> Path:
    """Return the folder of downloaded and imported data sets."""
    return Path(platformdirs.user_cache_dir("fenchel")) / "data"


def data_folders() -> tuple[Path, ...]:
    """Return the folders to search for data sets, in order: ``$FENCHEL_DATA`` if it is set, and the cache."""
    given = os.environ.get(DATA_VARIABLE)
    return (*([Path(given)] if given else []), cache_folder())


def known_names() -> list[str]:
    """Return the names in the catalogue, and then the sorted names of all other data sets on this machine."""
    imported = {path.parent.name for folder in data_folders() for path in folder.glob(f"*/{CANONICAL}")}
    imported |= {name for name in UNPUBLISHED if locate(name) is not None}
    return [
        *CATALOGUE,
        *sorted(name for name in imported if name.replace("_", "-") not in CATALOGUE and name not in CATALOGUE),
    ]


def locate(name: str, folders: tuple[Path, ...] | None = None) -> Mapping[str, Path] | None:
    """Find a data set on this machine.

    Parameters
    ----------
    name
        Name of the data set.
    folders
        Folders to search; by default ``$FENCHEL_DATA`` and the cache.

    Returns
    -------
    Mapping[str, Path] | None
        Files by name: ``data.npz`` of an import or download, or the public files (compressed or not). Empty for data
        that is installed with Fenchel; ``None`` if the data set is not on this machine.
    """
    entry = CATALOGUE.get(name) or UNPUBLISHED.get(name)
    for root in data_folders() if folders is None else folders:
        for own in (name, name.replace("-", "_")):
            if (root / own / CANONICAL).is_file():
                return {CANONICAL: root / own / CANONICAL}
            if entry is None or not entry.files:
                continue
            folder = root / (entry.folder or own)
            found = {file.name: _variant(folder / file.name) for file in entry.files}
            complete = {name: path for name, path in found.items() if path is not None}
            if len(complete) == len(found):
                return complete
    return {} if entry is not None and not entry.files else None


def _variant(path: Path) -> Path | None:
    """Return the path of a file, or of its plain or otherwise compressed version, or ``None`` if none exists."""
    plain = path.with_suffix("") if path.suffix in COMPRESSIONS else path
    variants = [path, plain, *(plain.with_name(plain.name + suffix) for suffix in COMPRESSIONS)]
    return next((variant for variant in variants if variant.is_file()), None)


def load(name: str) -> DataSet:
    """Load a named data set from this machine, without a download.

    Raise a ``DataError`` if the data set is unknown, not on this machine, or its files are damaged.
    """
    entry = CATALOGUE.get(name) or UNPUBLISHED.get(name)
    files = locate(name)
    if files is not None and CANONICAL in files:
        return read_npz(files[CANONICAL])
    if entry is None:
        raise DataError(
            f"the data set {name!r} is unknown (known: {', '.join(known_names())}); make it from your own "
            f"files with `fenchel data import {name} FILE...`",
            key="data.name",
        )
    if files is None:
        fetched = f"`fenchel data fetch {name}` downloads it, "
        if name in UNPUBLISHED:
            fetched = f"{' and '.join(file.name for file in entry.files)} have no public address; "
        raise DataError(
            f"the data set {name} is not on this machine (searched: "
            f"{', '.join(str(folder / (entry.folder or name)) for folder in data_folders())}); {fetched}`fenchel data "
            f"import {name} FILE...` imports your own files",
            key="data.name",
        )
    if name in UNPUBLISHED:
        remedy = "download the file again, or import your own under another name with `fenchel data import NAME FILE`"
        for file in entry.files:
            checksum(files[file.name], file.sha256, remedy)
    dataset = entry.read(*files.values())
    verify(dataset, entry, ", ".join(str(path) for path in files.values()))
    return dataset


def checksum(path: Path, expected: str | None, remedy: str, source: Path | str | None = None, key: str = "") -> str:
    """Return the SHA-256 of a file, or raise a ``ChecksumError`` if another one is expected.

    Parameters
    ----------
    path
        Path of the file.
    expected
        Expected checksum in hexadecimal digits; ``None`` for any.
    remedy
        What to do about another checksum, for the error.
    source
        Where the file came from, for the error; ``None`` for the path.
    key
        Setting of the expected checksum, for the error.
    """
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if expected is not None and found != expected:
        raise ChecksumError(
            f"the SHA-256 is {found}, expected {expected}; {remedy}",
            source=source or path,
            key=key,
            found=found,
            expected=expected,
        )
    return found


def verify(dataset: DataSet, entry: Entry, where: str) -> None:
    """Raise a ``DataError`` unless a data set has the numbers of samples, features and classes of its entry."""
    test = 0 if dataset.test is None else len(dataset.test)
    found = (len(dataset.train), test, dataset.features, len(set(dataset.train.labels.tolist())))
    expected = (entry.train, entry.test, entry.features, entry.classes)
    if found != expected:
        words = "{} training samples, {} test samples, {} features, {} classes"
        raise DataError(
            f"the file has {words.format(*found)}; expected {words.format(*expected)}, as {entry.name} has",
            source=where,
        )


def import_files(name: str, files: list[Path], label: str | None = None, limits: DataLimits = ORDINARY) -> Path:
    """Import files of any known format into the cache as a named data set, for ``data.name``.

    Parameters
    ----------
    name
        Name of lower-case letters, digits, dots, dashes and underscores. It may be a name of the catalogue.
    files
        Files to import. If these are exactly the public files of the data set with this name, they must contain the
        numbers of samples, features and classes in the catalogue. Other files may contain any data.
    label
        Name of the label column, for CSV and Parquet.
    limits
        Limits on the size of each file, unless they are public files of the catalogue.

    Returns
    -------
    Path
        Path of the new file ``data.npz``.

    Raises
    ------
    DataError
        If the name is invalid, or the files cannot be read as a data set.
    StorageError
        If the data set cannot be written.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise DataError(f"{name!r} cannot be the name of a data set; use lower-case letters, digits, dots and dashes")
    entry = CATALOGUE.get(name)
    given = {path.name: path for path in files}
    if entry is not None and entry.files and set(given) == {file.name for file in entry.files}:
        dataset = entry.read(*(given[file.name] for file in entry.files))
        verify(dataset, entry, ", ".join(given))
    else:
        dataset = read_files(files, label, limits)
    target = cache_folder() / name / CANONICAL
    try:
        write_npz(target, dataset)
    except OSError as error:
        raise StorageError(
            f"the data set cannot be written ({error.strerror}); make room, or name another folder by $XDG_CACHE_HOME",
            source=target,
        ) from None
    return target
