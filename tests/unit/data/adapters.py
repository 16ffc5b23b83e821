"""From the subsets and rebuilds of public data sets that some machines hold to the form that Fenchel imports.

Each function reads a folder of such files, writes general files into a scratch folder and imports them under
the data set's name; the library itself knows nothing of these files.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fenchel.common.data.catalogue import import_files


def news20(source: Path, scratch: Path, cache: Path) -> Path:
    """``news20.binary``, rebuilt: presence features with rows of unit length, columns delta-coded."""
    with np.load(source / "news20" / "news20_binary.npz") as stored:
        indptr, columns, labels = stored["indptr"], np.cumsum(stored["dcol"]), stored["y"]
    held = np.diff(indptr)
    values = np.repeat(1 / np.sqrt(np.maximum(held, 1)), held)
    shape = np.array([len(labels), 1_355_191])
    return _imported("news20", scratch, cache, data=values, indices=columns, indptr=indptr, shape=shape, y=labels)


def covtype(source: Path, scratch: Path, cache: Path) -> Path:
    """A random sample of Covertype; the archive is in a general form already."""
    return import_files("covtype", [source / "covtype" / "covtype_sample.npz"], cache)


def rcv1(source: Path, scratch: Path, cache: Path) -> Path:
    """Rows with the features and labels of ``rcv1.binary``; the first 20,242 are the training set."""
    with np.load(source / "rcv1" / "rcv1_binary_subset.npz") as stored:
        data, indices, indptr, labels = (stored[name] for name in ("data", "indices", "indptr", "y"))
    rows, width = 20_242, 47_236
    cut = indptr[rows]
    return _imported(
        "rcv1", scratch, cache,
        data=data[:cut], indices=indices[:cut], indptr=indptr[: rows + 1], shape=np.array([rows, width]),
        y=labels[:rows],
        test_data=data[cut:], test_indices=indices[cut:], test_indptr=indptr[rows:] - cut,
        test_shape=np.array([len(labels) - rows, width]), y_test=labels[rows:],
    )  # fmt: skip


def kmnist(source: Path, scratch: Path, cache: Path) -> Path:
    """The test images of Kuzushiji-MNIST, as data to train on: the training images are not there."""
    with np.load(source / "kmnist" / "kmnist-test-imgs.npz") as stored:
        images = stored["arr_0"]
    with np.load(source / "kmnist" / "kmnist-test-labels.npz") as stored:
        labels = stored["arr_0"]
    return _imported("kmnist", scratch, cache, images=images, labels=labels)


def cifar10(source: Path, scratch: Path, cache: Path) -> Path:
    """A part of CIFAR-10 whose planes were stored as differences of neighbours and colours."""
    folder = source / "cifar10"
    with np.load(folder / "labels.npz") as stored:
        train, test = stored["train20k_y"], stored["test5k_y"]
    arrays = {"x_train": _pixels(folder / "train20k_x.npy.xz"), "x_test": _pixels(folder / "test5k_x.npy.xz")}
    return _imported("cifar10", scratch, cache, **arrays, y_train=train, y_test=test)


def _pixels(path: Path) -> NDArray[np.uint8]:
    with lzma.open(path) as stream:
        planes = np.load(stream).cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
    return np.stack([planes[0] + planes[1], planes[0], planes[0] + planes[2]], axis=1)


def _imported(name: str, scratch: Path, cache: Path, **arrays: NDArray[Any]) -> Path:
    path = scratch / f"{name}.npz"
    # The stubs think that an array could be passed for the keyword allow_pickle.
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return import_files(name, [path], cache)


ADAPTERS: dict[str, Callable[[Path, Path, Path], Path]] = {
    "news20": news20,
    "covtype": covtype,
    "rcv1": rcv1,
    "kmnist": kmnist,
    "cifar10": cifar10,
}
