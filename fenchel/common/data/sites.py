"""Partition into sites such as hospitals, with different sizes, rates of positive samples, and instruments."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Indices, Matrix, is_sparse
from fenchel.common.data.shares import apportion
from fenchel.common.errors import DataError
from fenchel.common.randomness import generator
from fenchel.common.settings.data import SiteSettings, SitesPartition


def sites(positive: NDArray[np.bool_], clients: int, seed: int, settings: SitesPartition) -> list[Indices]:
    """Give each site samples in proportion to its size, of which the fraction ``imratio`` is positive.

    Samples are drawn at random without replacement, and the remaining samples have no holder. With five sites, this is
    the partition into hospitals of docs/specifications/codasca.md, section 4.1.

    Parameters
    ----------
    positive
        Mask of positive samples, shape (n,).

    Returns
    -------
    list[Indices]
        Positions of each site's samples, increasing.

    Raises
    ------
    DataError
        If there is not one site per client, or there are too few samples of either class.
    """
    if len(settings.sites) != clients:
        raise DataError(
            f"{len(settings.sites)} sites given for {clients} clients; give one for each", key="data.partition.sites"
        )
    pools = [np.flatnonzero(positive), np.flatnonzero(~positive)]
    most = _most(settings, len(pools[0]), len(pools[1]))
    total = most if settings.samples is None else settings.samples
    if not clients <= total <= most:
        raise DataError(
            f"{total} samples for {clients} sites; expected {clients} to {most}, as there are {len(pools[0])} "
            f"positive and {len(pools[1])} negative training samples. Change data.partition.samples, the rates of "
            "the sites, or the data set",
            key="data.partition.sites" if settings.samples is None else "data.partition.samples",
        )
    rng = generator(seed, "partition", "sites")
    cuts = [np.cumsum(counts) for counts in _counts(settings, total)]
    dealt = [np.split(rng.permutation(pool), ends)[:-1] for pool, ends in zip(pools, cuts, strict=True)]
    return [np.sort(np.concatenate(both)) for both in zip(*dealt, strict=True)]


def _counts(settings: SitesPartition, total: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of positive and of negative samples of each site, each of shape (clients,)."""
    sizes = apportion(total, np.array([site.size for site in settings.sites]), at_least=1)
    rates = np.array([site.imratio for site in settings.sites])
    positives = np.rint(rates * sizes).astype(np.int64)
    return positives, sizes - positives


def _most(settings: SitesPartition, positives: int, negatives: int) -> int:
    """Return the largest total number of samples for which both classes have enough samples."""
    # Because of rounding, the required numbers are not exactly proportional to the total, so the loop also tries
    # smaller totals.
    total = positives + negatives
    while total >= len(settings.sites):
        needed = [int(counts.sum()) for counts in _counts(settings, total)]
        if needed[0] <= positives and needed[1] <= negatives:
            return total
        fits = min(have / need for have, need in zip((positives, negatives), needed, strict=True) if need)
        total = min(total - 1, int(fits * total) + 1)
    return max(total, 0)


def as_seen(
    features: Matrix, site: SiteSettings, rows: Indices, among: int, rng: np.random.Generator, columns: int
) -> Matrix:
    """Return features as measured by a site's instruments: shifted, with Gaussian noise.

    Parameters
    ----------
    features
        Prepared features of samples of the site, shape (n, m), dense.
    site
        Settings of the site.
    rows
        Positions of the samples among those of the site, shape (n,), so that the noise of a sample is always the same.
    among
        Number of samples of the site.
    rng
        Generator of the noise of all samples of the site.
    columns
        Number of features without the bias. Only these are changed.

    Raises
    ------
    DataError
        If the features are sparse, and the site has noise or a shift.
    """
    if not (site.noise or site.shift):
        return features
    if is_sparse(features):
        raise DataError(
            "noise and shift would make sparse features dense; set both to 0, or use a dense data set",
            key="data.partition.sites",
        )
    seen = features.copy()
    seen[:, :columns] += np.asarray(site.shift, features.dtype)
    if site.noise:
        noise = rng.standard_normal((among, columns))[rows]
        seen[:, :columns] += (site.noise * noise).astype(features.dtype)
    return seen
