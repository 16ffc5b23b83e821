"""Readers of NumPy and IDX files, which never unpickle, and a writer of NumPy archives (``.npz``).

NumPy's own reader allocates what a header announces before it reads. These readers allocate what they have read.
"""

from __future__ import annotations

import io
import math
import re
import tempfile
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy
from numpy.typing import NDArray

from fenchel.common.arrays import is_sparse
from fenchel.common.data.compressed import opened
from fenchel.common.data.identifiers import checked
from fenchel.common.data.limits import UNLIMITED, DataLimits
from fenchel.common.data.samples import DataSet, Samples, flatten_images, samples, widen
from fenchel.common.errors import DataError

FEATURES = ("X", "x", "features", "images", "X_train", "x_train", "train_images")
_LABELS = ("y", "labels", "target", "y_train", "train_labels")
TEST_FEATURES = ("X_test", "x_test", "test_images")
_TEST_LABELS = ("y_test", "test_labels")
_SPARSE = ("data", "indices", "indptr", "shape")
NAMES = "feature_names"

_LONGEST_HEADER = 10_000
_PIECES = {zipfile.ZIP_STORED: 1 << 20, zipfile.ZIP_DEFLATED: 1 << 20, zipfile.ZIP_LZMA: 1 << 12}
"""Bytes of an array that are read at once, by compression. For LZMA these are compressed bytes, which decompress to at
most 28 MB; for bzip2 they might decompress to gigabytes."""
_VALUE_BYTES = 8
"""Largest size in bytes of the float to which a value of any type is converted."""
_HEADER = re.compile(
    rb"\{'descr': '(?P<type>[<>|=]?[a-zA-Z][0-9]{0,9})', 'fortran_order': (?P<fortran>True|False), "
    rb"'shape': \((?P<shape>[0-9, ]*)\),? *\}\s*"
)

_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_npz(
    path: Path, holder: str | None = None, identifier: str | None = None, limits: DataLimits = UNLIMITED
) -> DataSet:
    """Read a data set from a NumPy archive.

    Parameters
    ----------
    path
        An archive with dense features (``X``, ``features``, ``images``, ``x_train``) or CSR features (``data``,
        ``indices``, ``indptr``, ``shape``), with labels (``y``, ``labels``, ``y_train``), and optionally a test part
        (``X_test`` or ``test_data``, ..., ``test_shape``; ``y_test``) and names of the features (``feature_names``).
    holder
        Name of an array of shape (n,) with the holder of each training sample; ``None`` for none.
    identifier
        Name of an array of shape (n,) with the identifiers of the training samples; ``None`` for none.
    limits
        Limits on the size of all arrays together.

    Returns
    -------
    DataSet
        Data set. Images, which are arrays of three or four dimensions, are flattened to rows.

    Raises
    ------
    DataError
        If the file is damaged or exceeds the limits, or an array is missing or has an unexpected shape or type.
    """
    arrays = read_arrays(path, limits)
    features, image = _features(arrays, FEATURES, "", path)
    if features is None:
        raise DataError(
            f"the file has no features; expected an array named {', '.join(FEATURES[:4])}, or "
            f"{', '.join(_SPARSE)}, found {', '.join(arrays) or 'nothing'}",
            source=path,
        )
    train = samples(features, _labels(arrays, _LABELS, path), str(path))
    if holder is not None:
        train = replace(train, holders=_words(arrays, holder, len(train), path, "data.partition.column"))
    test_features, _ = _features(arrays, TEST_FEATURES, "test_", path)
    test = None
    if test_features is not None:
        name = next((name for name in TEST_FEATURES if name in arrays), "test_data")
        test = samples(test_features, _labels(arrays, _TEST_LABELS, path), str(path), name)
    if "image" in arrays:
        image = _image(arrays["image"], train, path)
    peak = 255.0 if image is not None and train.features.dtype == np.uint8 else None
    if "peak" in arrays:
        peak = _positive(arrays["peak"], path)
    made = joined(train, test, image, peak, str(path))
    if NAMES in arrays:
        made = replace(made, columns=_column_names(arrays[NAMES], made.features, path), label="y")
    if identifier is None:
        return made
    words = _words(arrays, identifier, len(train), path, "--id")
    return replace(made, identifiers=checked([str(each) for each in words.tolist()], path, array=identifier))


def read_divided_npz(path: Path, *, features: int, train: int) -> DataSet:
    """Read a NumPy archive of sparse rows, in which the training samples precede the test samples.

    Parameters
    ----------
    path
        An archive with ``data``, ``indices`` and ``indptr`` of a CSR matrix, and labels ``y``.
    features
        Number of features. An array ``shape`` in the archive is ignored.
    train
        Number of training samples.

    Raises
    ------
    DataError
        If the file is damaged, or has no more rows than ``train``.
    """
    arrays = read_arrays(path)
    rows = arrays["indptr"].size - 1 if "indptr" in arrays else 0
    if rows <= train:
        raise DataError(
            f"the file has {rows} sparse rows; expected {train} for training and more for the test; copy it again",
            source=path,
        )
    matrix, _ = _features(arrays | {"shape": np.array([rows, features])}, (), "", path)
    if matrix is None:
        raise DataError(f"the file has no feature matrix; expected the arrays {', '.join(_SPARSE[:3])}", source=path)
    whole = samples(matrix, _labels(arrays, _LABELS, path), str(path))
    first, rest = (
        Samples(scipy.sparse.csr_array(whole.features[part]), whole.labels[part])
        for part in (slice(train), slice(train, None))
    )
    return DataSet(first, rest)


def joined(
    train: Samples, test: Samples | None, image: tuple[int, int, int] | None, peak: float | None, where: str
) -> DataSet:
    """Combine training and test samples into a data set.

    Zero columns are appended to sparse samples, so that both have equal numbers of features. Raise a ``DataError`` if
    the numbers of features still differ.
    """
    if test is None:
        return DataSet(train, None, image, peak)
    width = max(int(train.features.shape[1]), int(test.features.shape[1]))
    train, test = widen(train, width), widen(test, width)
    if train.features.shape[1] != test.features.shape[1]:
        raise DataError(
            f"the training samples have {train.features.shape[1]} features, but the test samples "
            f"{test.features.shape[1]}; expected the same number",
            source=where,
        )
    return DataSet(train, test, image, peak)


def csr_arrays(matrix: Any, prefix: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of a sparse matrix in the CSR format by their names in an archive, each after ``prefix``."""
    csr: scipy.sparse.csr_array = scipy.sparse.csr_array(matrix)
    stored = (csr.data, csr.indices, csr.indptr, np.array(csr.shape))
    return {prefix + name: array for name, array in zip(_SPARSE, stored, strict=True)}


def write_npz(path: Path, dataset: DataSet) -> None:
    """Write a data set in the format of :func:`read_npz`, and replace ``path`` atomically."""
    arrays: dict[str, NDArray[Any]] = {}
    for part, features, labels, prefix in ((dataset.train, "X", "y", ""), (dataset.test, "X_test", "y_test", "test_")):
        if part is None:
            continue
        arrays[labels] = part.labels
        if is_sparse(part.features):
            arrays |= csr_arrays(part.features, prefix)
        else:
            arrays[features] = part.features
    if dataset.columns is not None:
        arrays[NAMES] = np.array(dataset.columns, dtype=str)
    if dataset.image is not None:
        arrays["image"] = np.array(dataset.image)
    if dataset.peak is not None:
        arrays["peak"] = np.array(dataset.peak)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".partial", delete=False) as stream:
        partial = Path(stream.name)
        try:
            # NumPy's stubs allow an array for the keyword allow_pickle.
            np.savez(stream, **arrays)  # type: ignore[arg-type]
            stream.flush()
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def read_arrays(path: Path, limits: DataLimits = UNLIMITED) -> dict[str, NDArray[Any]]:
    """Read all arrays of a NumPy archive.

    An array whose header does not match its number of bytes is rejected before memory is allocated.

    Parameters
    ----------
    limits
        Limits on the size of all arrays together.

    Raises
    ------
    DataError
        If the file is missing, is no archive of numbers and strings, or exceeds the limits.
    """
    arrays = {}
    member = ""
    taken = 0
    try:
        with opened(path, limits) as stream, zipfile.ZipFile(stream) as archive:
            limits.require_bytes(sum(info.file_size for info in archive.infolist()), path)
            for info in archive.infolist():
                member = info.filename.removesuffix(".npy")
                if info.compress_type not in _PIECES:
                    raise ValueError(f"compressed by method {info.compress_type}; expected none, deflate or LZMA")
                with archive.open(info) as content:
                    dtype, shape, fortran = _announced(content, info.file_size)
                    taken += math.prod(shape) * max(dtype.itemsize, _VALUE_BYTES)
                    limits.require_bytes(taken, path)
                    arrays[member] = _array(
                        content, dtype, shape, fortran=fortran, piece_bytes=_PIECES[info.compress_type]
                    )
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        ValueError,
        zlib.error,
        EOFError,
        TypeError,
    ) as error:
        raise DataError(
            f"the file is not a NumPy archive of plain arrays: {error}", source=path, array=member
        ) from error
    return arrays


def read_npy(path: Path) -> NDArray[Any]:
    """Read one NumPy array (``.npy``), plain or compressed, or raise a ``DataError``."""
    with opened(path) as stream:
        content = stream.read()
    try:
        rest = io.BytesIO(content)
        dtype, shape, fortran = _announced(rest, len(content))
        return _array(rest, dtype, shape, fortran=fortran, piece_bytes=len(content))
    except (ValueError, TypeError) as error:
        raise DataError(
            f"the file is not a NumPy array of numbers or texts ({error}); write it with numpy.save", source=path
        ) from error


def read_idx(path: Path, limits: DataLimits = UNLIMITED) -> NDArray[Any]:
    """Read one array in the IDX format of MNIST, plain or compressed, or raise a ``DataError``."""
    with opened(path, limits) as stream:
        content = stream.read()
    dtype = _IDX_TYPES.get(content[2]) if len(content) >= 4 and content[:2] == b"\0\0" else None
    if dtype is None or len(content) < 4 + 4 * content[3]:
        raise DataError(
            f"the file starts with {content[:4].hex(' ') or 'nothing'}; expected an IDX header (00 00 08 ..)",
            source=path,
        )
    offset = 4 + 4 * content[3]
    shape = tuple(int(n) for n in np.frombuffer(content[4:offset], ">u4"))
    expected = offset + math.prod(shape) * np.dtype(dtype).itemsize
    if len(content) != expected:
        raise DataError(
            f"the file has {len(content)} bytes, but the shape {shape} of its header takes {expected}; download it "
            "again",
            source=path,
        )
    limits.require_bytes(math.prod(shape) * _VALUE_BYTES, path)
    try:
        array = np.frombuffer(content, dtype, offset=offset).reshape(shape)
    except ValueError:  # the other dimensions of an empty array multiply to more than NumPy's limit
        raise DataError(
            f"the shape {shape} of the file's header exceeds the limits of NumPy, so the file is damaged; download it "
            "again",
            source=path,
        ) from None
    return array.astype(array.dtype.newbyteorder("="))


def is_idx(path: Path) -> bool:
    """Return whether the name is that of an IDX file, such as ``train-images-idx3-ubyte.gz``."""
    return bool(re.search(r"idx[0-9]|ubyte", path.name.lower()))


def _announced(content: IO[bytes], size: int) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """Read the header of an array file of ``size`` bytes, and return dtype, shape, and whether in Fortran order."""
    start = content.read(8)
    width = {1: 2, 2: 4, 3: 4}.get(start[6]) if len(start) == 8 and start.startswith(b"\x93NUMPY") else None
    if width is None:
        raise ValueError(f"starts with {start[:8].hex(' ')}; expected the header of an array")
    length = int.from_bytes(content.read(width), "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"announces a header of {length} bytes; expected at most {_LONGEST_HEADER}")
    # NumPy's own reader passes the header to Python's parser, which fails in many ways for a malformed one.
    header = _HEADER.fullmatch(content.read(length))
    if header is None:
        raise ValueError("has a header that does not name one plain type, the order and the shape")
    dtype = np.dtype(header["type"].decode())
    if dtype.hasobject:
        raise ValueError("holds Python objects; expected numbers or strings")
    shape = tuple(int(n) for n in header["shape"].split(b",") if n.strip())
    announced = 8 + width + length + math.prod(shape) * dtype.itemsize
    if size != announced:
        raise ValueError(f"announces shape {shape} of {dtype}, {announced} bytes, but there are {size}")
    return dtype, shape, header["fortran"] == b"True"


def _array(
    content: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...], *, fortran: bool, piece_bytes: int
) -> NDArray[Any]:
    """Read the values of an array."""
    data = bytearray()
    while piece := content.read(piece_bytes):
        data += piece
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"ends after {len(data)} bytes")
    flat = np.frombuffer(data, dtype) if data else np.empty(0, dtype)
    array = flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
    return np.ascontiguousarray(array, dtype.newbyteorder("="))


def _features(
    arrays: dict[str, NDArray[Any]], names: tuple[str, ...], prefix: str, path: Path
) -> tuple[Any, tuple[int, int, int] | None]:
    name = next((name for name in names if name in arrays), None)
    if name is not None:
        return flatten_images(arrays[name])
    if not all(prefix + part in arrays for part in _SPARSE):
        return None, None
    data, indices, indptr, shape = (arrays[prefix + part] for part in _SPARSE)
    integers = all(part.dtype.kind in "iu" for part in (indices, indptr, shape))
    if shape.shape != (2,) or not integers or data.dtype.kind not in "biuf":
        raise DataError(
            f"{', '.join(prefix + part for part in _SPARSE)} do not describe a CSR matrix of numbers, with integers "
            "as indices and shape; write it with scipy.sparse.save_npz",
            source=path,
        )
    try:
        matrix = scipy.sparse.csr_array((data, indices, indptr), shape=(int(shape[0]), int(shape[1])))
        matrix.check_format(full_check=True)
    except (ValueError, IndexError, OverflowError, TypeError) as error:
        raise DataError(
            f"{prefix}data, {prefix}indices and {prefix}indptr are not a CSR matrix: {error}", source=path
        ) from error
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix, None


def _labels(arrays: dict[str, NDArray[Any]], names: tuple[str, ...], path: Path) -> NDArray[Any]:
    for name in names:
        if name in arrays:
            return arrays[name]
    raise DataError(
        f"the file has no labels; expected an array named {', '.join(names)}, found {', '.join(arrays)}", source=path
    )


def _words(arrays: dict[str, NDArray[Any]], name: str, count: int, path: Path, key: str) -> NDArray[Any]:
    """Return an array of strings or integers, shape (count,), or raise a ``DataError``."""
    if name not in arrays:
        raise DataError(
            f"the file has no array of this name; its arrays are {', '.join(arrays)}", source=path, key=key, array=name
        )
    words = arrays[name]
    if words.shape != (count,) or words.dtype.kind not in "iuU":
        raise DataError(
            f"the array has shape {words.shape} and type {words.dtype}; expected strings or whole numbers, one for "
            f"each of {count} samples",
            source=path,
            key=key,
            array=name,
        )
    return words


def _column_names(array: NDArray[Any], features: int, path: Path) -> tuple[str, ...]:
    if array.shape != (features,) or array.dtype.kind != "U" or len(np.unique(array)) < features:
        raise DataError(
            f"the array has shape {array.shape} and type {array.dtype}; expected a different name for each of "
            f"{features} features",
            source=path,
            array=NAMES,
        )
    return tuple(array.tolist())


def _image(array: NDArray[Any], train: Samples, path: Path) -> tuple[int, int, int]:
    if array.shape != (3,) or array.dtype.kind not in "iu" or math.prod(array.tolist()) != train.features.shape[1]:
        raise DataError(
            f"{array.tolist()} given; expected channels, rows and columns of an image of {train.features.shape[1]} "
            "pixels",
            source=path,
            array="image",
        )
    channels, height, width = (int(n) for n in array)
    return channels, height, width


def _positive(array: NDArray[Any], path: Path) -> float:
    if array.size != 1 or array.dtype.kind not in "iuf" or not 0 < float(array.reshape(())) < math.inf:
        raise DataError(
            "the array is not one positive number; expected the largest possible pixel value", source=path, array="peak"
        )
    return float(array.reshape(()))
