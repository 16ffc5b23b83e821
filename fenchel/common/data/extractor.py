"""Features of images by a frozen network, computed once and cached on disk.

Each machine has the network's weights in a file, and weights are never sent. The cache has one row for each image, and
its key is a hash of the weights, the settings and the data. Processes compute only missing rows, so a restarted client
or a run with another partition repeats no computation.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import logging
import math
import os
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Indices, is_sparse
from fenchel.common.data.catalogue import cache_folder, checksum
from fenchel.common.data.resnet import FEATURES, Weights, features, read_weights
from fenchel.common.data.samples import RawMatrix
from fenchel.common.errors import DataError, FenchelError, MissingDependencyError
from fenchel.common.settings.data import ExtractorSettings

log = logging.getLogger("fenchel")

VARIABLE = "FENCHEL_EXTRACTOR"
"""Environment variable for the path of the file of weights, which overrides ``data.extractor.file``."""

BATCH = 64
"""Number of images in a batch."""


def feature_folder() -> Path:
    """Return the folder of cached features, a sibling of the cache of data sets."""
    return cache_folder().parent / "features"


@dataclass(frozen=True)
class Extractor:
    """Frozen network for images of one shape.

    Attributes
    ----------
    settings
        Section ``data.extractor`` of the settings.
    image
        Numbers of channels, rows and columns.
    peak
        Largest possible value of a pixel.
    """

    settings: ExtractorSettings
    image: tuple[int, int, int]
    peak: float

    @classmethod
    def of(
        cls, settings: ExtractorSettings, image: tuple[int, int, int] | None, peak: float | None, where: str
    ) -> Extractor:
        """Return the extractor for a data set, without reading the file of weights.

        Raise a ``DataError`` unless the data set has images of one or three channels with a known largest value.
        """
        if image is None or peak is None or image[0] not in (1, 3):
            raise DataError(
                f"{settings.network} needs images of one or three channels with a known largest pixel value (such "
                "as a NumPy file of bytes), which this data set does not have; remove data.extractor, or use such "
                "a data set",
                source=where,
                key="data.extractor",
            )
        return cls(settings, image, peak)

    @property
    def path(self) -> Path:
        """Path of the file of weights."""
        return Path(os.environ.get(VARIABLE) or self.settings.file).expanduser()

    @property
    def lack(self) -> FenchelError | None:
        """Return the error of a missing file or library, or ``None`` if features can be computed."""
        if importlib.util.find_spec("torch") is None:
            return MissingDependencyError(
                "the extractor needs torch, which is not installed; install it with pip install 'fenchel[torch]'",
                key="data.extractor",
            )
        if not self.path.is_file():
            return DataError(
                f"the weights of {self.settings.network} are not on this machine; put their file here "
                f"(docs/data.md names its source), or name another path with ${VARIABLE}",
                source=self.path,
                key="data.extractor.file",
            )
        return None

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the file of weights. Raise a ``ChecksumError`` if it is not that of the settings."""
        remedy = "put the run's file of weights here"
        return checksum(self.path, self.settings.sha256, remedy, key="data.extractor.sha256")

    def compute(self, images: NDArray[np.generic], threads: int = 1) -> NDArray[np.float32]:
        """Return the features of images, shape (n, 512), float32.

        Parameters
        ----------
        images
            Images as stored, shape (n, pixels).
        threads
            Number of threads of torch, which is set for the whole process.
        """
        import torch

        torch.set_num_threads(threads)
        result = np.empty((len(images), FEATURES), np.float32)
        for start in range(0, len(images), BATCH):
            pixels = images[start : start + BATCH].astype(np.float32) / np.float32(self.peak)
            batch = torch.from_numpy(pixels.reshape(-1, *self.image)).expand(-1, 3, -1, -1)
            result[start : start + BATCH] = features(self._weights, batch, self.settings.size).numpy()
        return result

    @cached_property
    def _weights(self) -> Weights:
        return read_weights(self.path)


@dataclass(frozen=True)
class Extracted:
    """Features of images, cached on disk.

    Attributes
    ----------
    extractor
        Extractor of the features.
    images
        Images as stored, shape (n, pixels).
    """

    extractor: Extractor
    images: RawMatrix

    def take(self, rows: Indices, threads: int = 1) -> NDArray[np.float32]:
        """Return the features of the images at ``rows``, shape (k, 512), and compute and cache missing ones.

        Raise the error :attr:`Extractor.lack` if the weights or torch are missing, or a ``DataError`` if the weights or
        the cache are damaged.
        """
        if (lack := self.extractor.lack) is not None:
            raise lack
        kept, done = self._kept
        missing = rows[done[rows] == 0]
        if missing.size:
            log.info(
                "computing the features of %d images with %s; they are stored in %s",
                missing.size,
                self.extractor.settings.network,
                feature_folder(),
            )
        for start in range(0, missing.size, BATCH):
            batch = missing[start : start + BATCH]
            images = self.images[batch]
            kept[batch] = self.extractor.compute(images.toarray() if is_sparse(images) else images, threads)
            done[batch] = 1  # set after the features are written, as other processes read every batch marked as done
        return np.array(kept[rows])

    @cached_property
    def _kept(self) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Return arrays shared between processes: features, shape (n, 512), and the mask of computed rows, (n,)."""
        images = int(self.images.shape[0])
        folder, key = feature_folder(), self._key
        folder.mkdir(parents=True, exist_ok=True)
        return (
            _shared(folder / f"{key}.features.npy", np.float32, (images, FEATURES)),
            _shared(folder / f"{key}.done.npy", np.uint8, (images,)),
        )

    @property
    def _key(self) -> str:
        """Return a hash of everything that the features depend on."""
        settings, images = self.extractor.settings, self.images
        arrays = (images.data, images.indices, images.indptr) if is_sparse(images) else (images,)
        about = (settings.network, settings.size, self.extractor.checksum, self.extractor.image, self.extractor.peak)
        found = hashlib.sha256(repr((about, [(array.dtype.str, array.shape) for array in arrays])).encode())
        for array in arrays:
            found.update(np.ascontiguousarray(array).data)
        return found.hexdigest()[:32]


def _shared(path: Path, dtype: type[np.generic], shape: tuple[int, ...]) -> NDArray[Any]:
    """Open a writable array on disk, shared between processes, and create it with zeros if it does not exist."""
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as temporary:
            fresh = Path(temporary) / path.name
            np.lib.format.open_memmap(fresh, mode="w+", dtype=dtype, shape=shape).flush()
            with contextlib.suppress(FileExistsError):  # created by another process
                os.link(fresh, path)
    # NumPy's own reader would trust a damaged header.
    written = io.BytesIO()
    about = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(written, about)
    header, size = written.getvalue(), path.stat().st_size
    with path.open("rb") as file:
        whole = file.read(len(header)) == header and size == len(header) + np.dtype(dtype).itemsize * math.prod(shape)
    if not whole:
        raise DataError(
            "the stored features are damaged, or of another version of NumPy; remove the file, and they are "
            "computed again",
            source=path,
        )
    return np.memmap(path, dtype, mode="r+", offset=len(header), shape=shape)
