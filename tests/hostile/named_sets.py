"""The files of named data sets as targets for fuzzing, and what an extractor reads.

Where a reader takes several files, the first byte of an input says which one is its rest; the others are right.
"""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import io
import lzma
import random
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from fenchel.common.data import readers
from fenchel.common.data.extractor import _shared
from fenchel.common.data.files import read_file
from fenchel.common.data.npz import read_divided_npz
from fenchel.common.errors import DataError
from tests.hostile.mutation import damaged
from tests.hostile.parser import Parser, void

MEMORY = 256 << 20

_PACKED: Mapping[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    ".gz": (lambda content: gzip.compress(content, 1, mtime=0), gzip.decompress),
    ".bz2": (bz2.compress, bz2.decompress),
    ".xz": (lambda content: lzma.compress(content, preset=0), lzma.decompress),
}


def named_sets(folder: Path) -> Iterator[Parser]:
    """Return the targets; files are made in a folder of which nothing else is in need."""
    yield _compressed(folder / "compressed")
    yield _cifar(folder / "archives")
    rows = (
        "39, Private, 77516, Bachelors, 13, Never, Adm, Not, White, Male, 2174, 0, 40, Peru, <=50K",
        "50, ?, 83311, Masters, 14, Once, Exec, Husband, Black, Male, 0, 0, 13, Chad, >50K",
    )
    adult = {
        "adult.data": "\n".join([*rows, *rows]).encode(),
        "adult.test": ("|1x3 Cross validator\n" + ".\n".join(rows) + ".\n").encode(),
    }
    yield several("data, Adult", folder / "adult", adult, readers.read_adult, 15)
    forests = "\n".join(",".join(map(str, [*range(n, n + 54), n])) for n in (1, 2, 3)).encode()
    yield several("data, Covertype", folder / "covtype", {"covtype.data": forests}, readers.read_covtype, 10)
    words = {"news20.binary": b"+1 1:0.5 1355191:2\n-1 2:1e-3\n"}
    yield several("data, news20", folder / "news20", words, readers.read_news20, 10)
    news = {"rcv1_train.binary": b"+1 1:0.5 47236:2\n-1 2:1e-3\n", "rcv1_test.binary": b"-1 2:0.25\n1 3:1\n"}
    yield several("data, rcv1", folder / "rcv1", news, readers.read_rcv1, 10)
    subset = io.BytesIO()
    np.savez(
        subset,
        data=np.ones(4, np.float32),
        indices=np.array([0, 3, 1, 2], np.int32),
        indptr=np.array([0, 2, 3, 4]),
        y=np.array([1, 0, 1], np.int8),
    )
    yield several(
        "data, subset",
        folder / "subset",
        {"rcv1.npz": subset.getvalue()},
        partial(read_divided_npz, features=4, train=2),
        15,
    )
    yield _features(folder / "features")
    if importlib.util.find_spec("torch") is not None:
        yield weights(folder / "weights")


def several(name: str, folder: Path, whole: Mapping[str, bytes], read: Callable[..., object], weight: int) -> Parser:
    folder.mkdir()

    def parse(data: bytes) -> None:
        place = data[0] % len(whole) if data else 0
        for number, (file, content) in enumerate(whole.items()):
            (folder / file).write_bytes(data[1:] if number == place else content)
        void(read(*(folder / file for file in whole)))

    seeds = tuple(bytes([place]) + content for place, content in enumerate(whole.values()))
    return Parser(name, seeds, parse, (DataError,), weight, memory=MEMORY)


def _compressed(folder: Path) -> Parser:
    """Return the reader of a compressed table: the first byte of an input says how it is compressed."""
    folder.mkdir()
    table = b"a,b,label\n" + b"".join(b"%d,%d,%d\n" % (n, n * n, n % 2) for n in range(20))
    suffixes = list(_PACKED)

    def parse(data: bytes) -> None:
        path = folder / f"x.csv{suffixes[data[0] % len(suffixes)] if data else ''}"
        path.write_bytes(data[1:])
        void(read_file(path))

    seeds = tuple(bytes([place]) + _PACKED[suffix][0](table) for place, suffix in enumerate(suffixes))
    several = bytes([1]) + bz2.compress(table[:20]) + bz2.compress(table[20:])
    raw = bytes([2]) + lzma.compress(table, format=lzma.FORMAT_ALONE)
    return Parser("data, compressed", (*seeds, several, raw), parse, (DataError,), 25, memory=MEMORY,
                  change=_inside(lambda data: suffixes[data[0] % len(suffixes)]))  # fmt: skip


def _cifar(folder: Path) -> Parser:
    """Return the readers of CIFAR's archives: the first byte of an input says of which."""
    folder.mkdir()
    kinds = (("cifar-10-binary.tar.gz", readers.read_cifar10), ("cifar-100-binary.tar.gz", readers.read_cifar100))
    ten = {f"cifar-10-batches-bin/data_batch_{n}.bin": bytes([n]) + bytes(3072) for n in range(1, 6)}
    ten["cifar-10-batches-bin/test_batch.bin"] = bytes([0]) + b"\xff" * 3072
    hundred = {f"cifar-100-binary/{part}.bin": bytes([1, 2]) + bytes(3072) for part in ("train", "test")}

    def parse(data: bytes) -> None:
        name, read = kinds[data[0] % 2 if data else 0]
        (folder / name).write_bytes(data[1:])
        void(read(folder / name))

    seeds = tuple(
        bytes([place]) + gzip.compress(_tar(members, form), 1, mtime=0)
        for place, members in enumerate((ten, hundred))
        for form in (tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)
    )
    return Parser("data, CIFAR", seeds, parse, (DataError,), 25, memory=MEMORY, change=_inside(lambda data: ".gz"))


def _tar(members: Mapping[str, bytes], form: int) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as archive:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            if form == tarfile.PAX_FORMAT:
                about.pax_headers = {"comment": "é" * 40, "mtime": "1.5"}
            elif form == tarfile.GNU_FORMAT:
                about.linkname = "x" * 120
            archive.addfile(about, io.BytesIO(content))
    return made.getvalue()


def _inside(suffix: Callable[[bytes], str]) -> Callable[[random.Random, bytes, Sequence[bytes]], bytes]:
    """Return a change that damages what is compressed more often than what it is compressed to."""

    def change(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
        if len(data) > 1 and chance.random() < 0.7:
            pack, unpack = _PACKED[suffix(data)]
            try:
                content = unpack(data[1:])
            except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error):
                return damaged(chance, data, others)
            return data[:1] + pack(_damaged_header(chance, content))
        return damaged(chance, data, others)

    return change


def _damaged_header(chance: random.Random, content: bytes) -> bytes:
    """Damage a file; of a tar archive, often a member's header, with a checksum that is right again."""
    headers = [at for at in range(0, len(content), 512) if content[at + 257 : at + 262] == b"ustar"]
    if not headers or chance.random() < 0.4:
        return damaged(chance, content, [content])
    at = chance.choice(headers)
    block = bytearray(damaged(chance, content[at : at + 512], [content[at : at + 512]])[:512].ljust(512, b"\0"))
    if chance.random() < 0.5:  # the size of the member, in eight or in base 256
        block[124:136] = chance.choice(
            (b"77777777777\0", b"-0000000001\0", b"00000000000\0", b"\x80" + bytes(10) + b"\xff",
             b"\xff" * 12, b"\x80\x7f" + b"\xff" * 10, b"\xff" * 11 + b"\0")
        )  # fmt: skip
    if chance.random() < 0.3:
        block[156] = chance.choice(b"0123456789LKxgSV\0")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return content[:at] + bytes(block) + content[at + 512 :]


def _features(folder: Path) -> Parser:
    """Return the reader of the features that were computed before."""
    folder.mkdir()
    path = folder / "x.features.npy"
    shape = (4, 8)

    def parse(data: bytes) -> None:
        path.write_bytes(data)
        found = _shared(path, np.float32, shape)
        assert (found.shape, found.dtype.str) == (shape, "<f4")
        void(np.array(found))

    kept = io.BytesIO()
    np.save(kept, np.ones(shape, np.float32))
    return Parser("features", (kept.getvalue(),), parse, (DataError,), 15)


def weights(folder: Path) -> Parser:
    """Return the reader of a frozen network; of its weights each is one number that is there many times."""
    import torch

    from fenchel.common.data.resnet import _shapes, read_weights

    folder.mkdir()
    path = folder / "resnet18.pth"
    number = torch.ones(())
    state = {name: number.expand(shape) for name, shape in _shapes().items()}
    seeds = []
    for zipped in (True, False):
        written = io.BytesIO()
        torch.save(state, written, _use_new_zipfile_serialization=zipped)
        seeds.append(written.getvalue())

    def parse(data: bytes) -> None:
        path.write_bytes(data)
        for name, tensor in read_weights(path).items():
            assert tensor.dtype == torch.float32
            assert tuple(tensor.shape) == _shapes()[name]
            void(tensor)

    return Parser("weights", tuple(seeds), parse, (DataError,), 15, memory=MEMORY)
