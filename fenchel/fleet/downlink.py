"""The server's side of the compressed downlink: models with fewer coordinates or fewer bits.

The server continues from the compressed model, so that the server and all clients compute with the same model
(docs/specifications/fedpdm.md, section 2.1, rule 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fenchel.common.arrays import Indices, Vector
from fenchel.common.compression.sparsification import downlink_seed, kept, top_k
from fenchel.common.settings.uplink import Downlink
from fenchel.common.wire.index_sets import seeded_support
from fenchel.common.wire.values import SparseVector


@dataclass(frozen=True)
class ServerDownlink:
    """Compression of the models that the server sends.

    Attributes
    ----------
    settings
        Section ``downlink`` of the settings.
    seed
        Seed of the run.
    """

    settings: Downlink
    seed: int

    def kept(self, model: Vector, t: int) -> Vector:
        """Return the compressed model of round ``t`` as a dense vector, shape (d,); dropped coordinates are zero."""
        if self.settings.is_plain:
            return model
        rounded = model.astype(self.settings.dtype or model.dtype).astype(model.dtype)
        if self.settings.sparsify is None:
            return rounded
        support = self._support(rounded, t)
        remaining = np.zeros_like(rounded)
        remaining[support] = rounded[support]
        return remaining

    def wire(self, model: Vector, t: int) -> Vector | SparseVector:
        """Return the message value for a model, which must be a result of :meth:`kept` for the same round ``t``."""
        sparsifier = self.settings.sparsify
        dtype = self.settings.dtype or model.dtype
        if sparsifier is None:
            return model.astype(dtype, copy=False)
        support = self._support(model, t)
        seed = downlink_seed(self.seed, t) if sparsifier.support == "shared-random" else None
        return SparseVector(support, model[support].astype(dtype), model.size, seed)

    def _support(self, model: Vector, t: int) -> Indices:
        """Return the index set, shape (k_D,), which is the same for a model and for the result of :meth:`kept`."""
        sparsifier = self.settings.sparsify
        assert sparsifier is not None
        count = kept(sparsifier.keep, model.size)
        if sparsifier.support == "top-k":
            return top_k(model, count)
        return seeded_support(downlink_seed(self.seed, t), model.size, count)
