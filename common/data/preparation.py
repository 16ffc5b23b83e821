"""What is done to features as stored before an algorithm sees them: a network, fitted steps, a bias."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock

import numpy as np
from numpy.typing import DTypeLike

from fenchel.common.arrays import Indices, Matrix
from fenchel.common.data import scaling
from fenchel.common.data.extractor import Extracted, Extractor
from fenchel.common.data.samples import RawMatrix, Samples
from fenchel.common.errors import DataError, FenchelError


@dataclass(frozen=True)
class Preparation:
    """Turns features as stored into those of a shard; safe to share between threads."""

    steps: tuple[scaling.Step, ...]  # fitted on all training samples
    bias: float | None  # value of the appended constant feature; ``None`` appends none
    extractor: Extractor | None = None  # a frozen network that makes features of images; ``None``: there is none
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)
    _extracted: dict[int, Extracted] = field(default_factory=dict, repr=False, compare=False)

    @property
    def lack(self) -> FenchelError | None:
        """What is missing on this machine to compute features with the network of the settings; ``None``: nothing."""
        return None if self.extractor is None else self.extractor.lack

    def features(self, samples: Samples, rows: Indices | None, dtype: DTypeLike) -> Matrix:
        """Return prepared features of some samples, shape (n, m).

        rows: which of them, shape (n,); ``None`` for all of them, which are not copied then.
        dtype: floating type of the result.
        """
        stored: RawMatrix
        if self.extractor is None:
            stored = samples.features if rows is None else samples.features[rows]
        else:
            stored = self._of_network(samples).take(np.arange(len(samples)) if rows is None else rows)
        return scaling.apply(self.steps, stored, dtype, self.bias)

    def extract(self, samples: Samples, threads: int) -> None:
        """Compute the features of all images that nobody has computed yet."""
        self._of_network(samples).take(np.arange(len(samples)), threads)

    def _of_network(self, samples: Samples) -> Extracted:
        """Return the features that the network makes of training samples or of the test set; each is opened once."""
        if self.extractor is None:
            raise DataError("the settings name no network, so there are no features to compute", key="data.extractor")
        with self._lock:
            if id(samples.features) not in self._extracted:
                self._extracted[id(samples.features)] = Extracted(self.extractor, samples.features)
            return self._extracted[id(samples.features)]
