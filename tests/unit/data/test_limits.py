"""Small files that announce, or decompress to, more than a machine has: an error, and hardly any memory."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from fenchel.client.local_data import OwnFile
from fenchel.common.data.catalogue import import_files
from fenchel.common.data.files import read_file, read_files
from fenchel.common.data.limits import DataLimits, within_memory
from fenchel.common.errors import DataError
from fenchel.deploy.cli.main import application
from tests.conftest import MakeSettings
from tests.messages import raises
from tests.slow import rest_slow

LIMIT = 16 << 20
ALLOWED = 10 * LIMIT
HUGE = 256 << 20
"""Bytes that each of the files below takes at least, if it is read."""


def zeros(path: Path, kind: int = zipfile.ZIP_DEFLATED) -> None:
    """Write a NumPy archive of zeros, of one byte each."""
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, shape in (("X", (HUGE // 8, 1)), ("y", (HUGE // 8,))):
            with archive.open(f"{name}.npy", "w") as member:
                header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
                member.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
                for _ in range(HUGE // 8 >> 20):
                    member.write(bytes(1 << 20))


def many(piece: bytes, compress: Callable[[bytes], bytes]) -> bytes:
    """Return a compressed file that repeats a piece, as streams one after the other."""
    stream = piece * ((1 << 23) // len(piece))
    return compress(stream) * (HUGE // len(stream) + 1)


def parquet(path: Path) -> None:
    rows = HUGE // 8
    column = pa.array(np.zeros(rows))
    pa.parquet.write_table(pa.table({"a": column, "label": column}), path)


def long_words(path: Path) -> None:
    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(4096, np.int32)), pa.array(["x" * (HUGE // 4096)]))
    pa.parquet.write_table(pa.table({"a": np.zeros(4096), "label": words}), path)


def lists(path: Path) -> None:
    offsets = pa.array(np.array([0, HUGE // 8], np.int32))
    pa.parquet.write_table(pa.table({"a": pa.ListArray.from_arrays(offsets, np.zeros(HUGE // 8)), "label": [1]}), path)


FILES: dict[str, Callable[[Path], object]] = {
    "wide.libsvm": lambda path: path.write_text("1 2000000000:1"),
    "zeros.npz": zeros,
    "bzip2.npz": lambda path: zeros(path, zipfile.ZIP_BZIP2),
    "lzma.npz": lambda path: zeros(path, zipfile.ZIP_LZMA),
    "zeros.parquet": parquet,
    "words.parquet": long_words,
    "lists.parquet": lists,
    "line.libsvm.bz2": lambda path: path.write_bytes(many(b"1 ", bz2.compress)),
    "rows.libsvm.bz2": lambda path: path.write_bytes(many(b"1\n", bz2.compress)),
    "pairs.libsvm.bz2": lambda path: path.write_bytes(many(b"1 1:1 2:1 3:1 4:1 5:1 6:1 7:1 8:1\n", bz2.compress)),
    "no-form.xz": lambda path: path.write_bytes(many(bytes(1), lzma.compress)),
    "header.csv.gz": lambda path: path.write_bytes(many(b"a,", gzip.compress)),
    "rows.csv.bz2": lambda path: path.write_bytes(many(b"1,2\n", bz2.compress)),
    "columns.csv": lambda path: path.write_text(",".join(map(str, range(HUGE // 4096)))),
}

ROWS = 600  # of the files that are not hostile

READ = """
import json, sys
from pathlib import Path
from fenchel.common.data.files import read_file
from fenchel.common.data.limits import DataLimits
from fenchel.common.errors import DataError

def peak():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))

start = peak()
try:
    read_file(Path(sys.argv[1]), limits=DataLimits(bytes=int(sys.argv[2])))
except DataError as error:
    print(json.dumps([error.problem, peak() - start]))
"""


@pytest.mark.parametrize("name", rest_slow(FILES, 4))
def test_a_small_file_that_becomes_a_huge_one_is_refused_before_it_takes_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    FILES[name](path)
    assert path.stat().st_size < 1 << 20
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path), str(LIMIT)], capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr
    problem, taken = json.loads(done.stdout)
    assert problem
    assert taken < ALLOWED


def archive(folder: Path) -> Path:
    path = folder / "x.npz"
    np.savez(path, X=np.ones((ROWS, 3), np.uint8), y=np.arange(ROWS) % 2)
    return path


def table(folder: Path, name: str) -> Path:
    path = folder / name
    columns = {"a": np.ones(ROWS), "b": np.ones(ROWS), "c": np.ones(ROWS), "label": np.arange(ROWS) % 2}
    if path.suffix == ".parquet":
        pa.parquet.write_table(pa.table(columns), path, use_dictionary=False)
    else:
        rows = zip(*columns.values(), strict=True)
        path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]))
    return path


def libsvm(folder: Path) -> Path:
    path = folder / "x.libsvm"
    path.write_text("".join(f"{row % 2} 1:1 2:1 3:1\n" for row in range(ROWS)))
    return path


def test_the_limit_of_bytes_is_that_of_values_with_eight_bytes_each(tmp_path: Path) -> None:
    for path in (archive(tmp_path), table(tmp_path, "x.csv"), table(tmp_path, "x.parquet")):
        enough = 40_000 if path.suffix == ".parquet" else ROWS * 4 * 8  # Parquet has headers of its own
        assert read_file(path, limits=DataLimits(bytes=enough)).features == 3
        with raises(DataError, source=path):
            read_file(path, limits=DataLimits(bytes=ROWS * 4 * 8 - 1))


def test_text_is_limited_as_it_is_when_decompressed(tmp_path: Path) -> None:
    plain = libsvm(tmp_path)
    packed = tmp_path / "x.libsvm.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    size = max(plain.stat().st_size, ROWS * (3 * 12 + 16))
    for path in (plain, packed):
        assert len(read_file(path, limits=DataLimits(bytes=size)).train) == ROWS
        with raises(DataError, source=path):
            read_file(path, limits=DataLimits(bytes=size - 1))
        with raises(DataError, source=path):
            read_file(path, limits=DataLimits(bytes=plain.stat().st_size - 1))


@pytest.mark.parametrize("name", ["x.npz", "x.csv", "x.parquet", "x.libsvm"])
def test_every_form_is_limited_in_its_features(name: str, tmp_path: Path) -> None:
    path = archive(tmp_path) if name == "x.npz" else libsvm(tmp_path) if name == "x.libsvm" else table(tmp_path, name)
    for features in (3, 4):
        assert read_files([path], limits=DataLimits(features)).features == 3
    with raises(DataError, source=path):
        read_file(path, limits=DataLimits(2))


def test_the_limits_of_a_client_are_its_own(tmp_path: Path, make_settings: MakeSettings) -> None:
    settings = make_settings(data={"name": "own"})
    path = libsvm(tmp_path)
    assert OwnFile(path, limits=DataLimits(3)).of(settings, 0, 3).shard.features.shape == (ROWS, 3)
    with raises(DataError, source=path):
        OwnFile(path, limits=DataLimits(2)).of(settings, 0, 3)


def test_an_import_is_limited_as_its_options_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = libsvm(tmp_path)
    with raises(DataError, source=path):
        import_files("mine", [path], limits=DataLimits(2))
    words = ["data", "import", "mine", str(path)]
    for option, least in (("--max-features", 3), ("--max-data-bytes", 40_000)):
        refused = CliRunner().invoke(application(), [*words, option, str(least // 2)])
        assert isinstance(refused.exception, DataError)
        assert CliRunner().invoke(application(), [*words, option, str(least)]).exit_code == 0


def test_memory_that_is_not_there_is_an_error_of_the_file() -> None:
    with raises(DataError, source="x.csv"), within_memory(Path("x.csv")):
        raise MemoryError
