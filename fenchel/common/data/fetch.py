"""Downloads of named data sets from their public sources."""

from __future__ import annotations

import http.client
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from fenchel.common.data.catalogue import CANONICAL, CATALOGUE, Entry, PublicFile, cache_folder, checksum, verify
from fenchel.common.data.npz import write_npz
from fenchel.common.errors import DataError

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Callback with the file name, the bytes so far and the total bytes (``None`` if unknown)."""

_CHUNK = 1 << 18
_TIMEOUT = 30.0
"""Longest wait for the next bytes of a source, in seconds."""


def fetch(entry: Entry, progress: Progress | None = None) -> Path | None:
    """Download a data set, check it, and store it in the cache.

    Parameters
    ----------
    entry
        Entry of the catalogue.
    progress
        Callback for the progress of each file.

    Returns
    -------
    Path | None
        Path ``NAME/data.npz`` in the cache, or ``None`` for data that is installed with Fenchel.

    Raises
    ------
    DataError
        If a download fails, or the files do not contain the expected data.
    """
    if not entry.files:
        return None
    folder = cache_folder() / entry.name
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as temporary:
        files = {}
        for file in entry.files:
            files[file.name] = Path(temporary) / file.name
            _download(file, files[file.name], entry.name, progress)
        dataset = entry.read(*files.values())
    verify(dataset, entry, ", ".join(file.url for file in entry.files))
    write_npz(folder / CANONICAL, dataset)
    return folder / CANONICAL


def entry_of(name: str) -> Entry:
    """Return the catalogue's entry for a name, or raise a ``DataError`` if there is none."""
    if name not in CATALOGUE:
        raise DataError(f"this data set has no public source; those with one are {', '.join(CATALOGUE)}", source=name)
    return CATALOGUE[name]


def _download(file: PublicFile, target: Path, name: str, progress: Progress | None) -> None:
    remedy = (
        f"download it by another way and hand it over with `fenchel data import {name} FILE...`, or put it "
        f"into a folder {name} of the folder that $FENCHEL_DATA names"
    )
    if not file.url.startswith(("https://", "http://")):
        raise DataError("not an address that starts with https:// or http://", source=file.url)
    done = 0
    try:
        # S310 does not apply: only http and https pass the check above.
        with urllib.request.urlopen(file.url, timeout=_TIMEOUT) as reply, target.open("wb") as stream:  # noqa: S310
            length = reply.headers.get("Content-Length", "")
            total = int(length) if length.isdigit() else None
            while chunk := reply.read(_CHUNK):
                stream.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(file.name, done, total)
    except urllib.error.HTTPError as error:
        with error:
            raise DataError(f"the server answered {error.code} {error.reason}; {remedy}", source=file.url) from error
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"the download failed: {error}; {remedy}", source=file.url) from error
    if total is not None and done != total:
        raise DataError(f"only {done} of {total} bytes arrived; try again, or {remedy}", source=file.url)
    checksum(target, file.sha256, f"the file was changed or damaged, and is not kept; {remedy}", file.url)
