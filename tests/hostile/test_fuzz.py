"""A slice of ``make fuzz``, and what it has found: each of these inputs once did what no input may do."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import os
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fenchel.common.errors import PayloadError, WireError
from fenchel.common.wire.reader import Assembly
from tests.complexity import FACTOR, LINEAR, growth
from tests.hostile.fuzz import fuzz
from tests.hostile.memory import peak, resident
from tests.hostile.mutation import BOMB
from tests.hostile.parser import Parser
from tests.hostile.parsers import parsers
from tests.messages import raises

INPUTS = 15_000
PATIENCE = 1.0  # seconds for one parser


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Parser]]:
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        yield {parser.name: parser for parser in parsers(tmp_path_factory.mktemp("fuzz"), loop)}


NAMES = (
    *("frames", "messages", "descriptors", "broken streams", "supports", "ciphertexts", "requests", "server streams"),
    *("client streams", "web requests", "settings, JSON", "settings, YAML", "policies", "tunings", "solvers"),
    *("devices", "links", "addresses", "initial models", "data, csv", "data, libsvm", "data, npz"),
    *("data, parquet", "data, IDX", "data, csv.gz", "data, identifiers", "data, mammography"),
    *("data, differences", "data, compressed", "data, CIFAR", "data, Adult", "data, Covertype"),
    *("data, news20", "data, rcv1"),
    *("data, subset", "features", "certificates", "identities", "revocation lists", "issued certificates"),
    *("tokens", "signing requests"),
    *("secrets", "bundles", "public keys", "exchanges", "own secrets", "sealed boxes"),
    *("store", "checkpoints", "journals"),
    *("ledgers", "accounts", "summaries", "models", "tables"),
)


def test_every_parser_is_tried(targets: dict[str, Parser]) -> None:
    # Weights need torch: test_fuzz_weights.py.
    assert tuple(name for name in targets if name != "weights") == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_damaged_inputs_are_read_or_refused(name: str, targets: dict[str, Parser]) -> None:
    target = targets[name]
    target.parse(target.seeds[0])  # the first is right
    weights = sum(each.weight for each in targets.values())
    count = fuzz(target, INPUTS * target.weight // weights, seed=0, patience=PATIENCE)
    assert not count.findings, "\n\n".join(f"{each.data!r}\n{each.what}" for each in count.findings[:3])
    assert count.inputs > 20
    assert count.reasons > 1, "nothing was refused: the inputs are not damaged enough"


_SHAPE = b"{'descr': '<f8', 'fortran_order': False, 'shape': (%d,), }\n" % 2**50
_HUGE = b"\x93NUMPY\1\0" + len(_SHAPE).to_bytes(2, "little") + _SHAPE


def _array(content: NDArray[np.float32]) -> bytes:
    """Return an array as NumPy keeps it."""
    made = io.BytesIO()
    np.save(made, content)
    return made.getvalue()


def _archive(content: bytes) -> bytes:
    """Return an archive with one member, as a model is kept."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("model.npy", content)
    return made.getvalue()


def _claim(size: bytes) -> bytes:
    """Return CIFAR-10's archive, of which the first member says that so many bytes of notes follow."""
    header = bytearray(tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin").tobuf(tarfile.GNU_FORMAT))
    header[124:136], header[156:157], header[148:156] = size, b"x", b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return b"\0" + gzip.compress(bytes(header) + bytes(1024), mtime=0)


YAML = ("settings, YAML", "policies", "tunings", "solvers", "devices")
IDX_HEADER = bytes.fromhex("00000809")  # nine sides
LONG: dict[str, tuple[str, Callable[[int], bytes], int]] = {
    "a number of thousands of digits": ("policies", lambda n: b"maximum_epsilon: " + b"9" * n, 5000),
    "lists in lists without end": ("solvers", lambda n: b"[" * n, 20_000),
    "a solver of many digits": ("solvers", lambda n: b"{kind: " + b"7" * n + b"}", 5000),
    "settings in settings without end": ("settings, JSON", lambda n: b'{"data":' * n, 100_000),
    "a device of many digits": ("devices", lambda n: b"frequency: " + b"9" * n, 50_000),
    "a rate of many digits, and no unit that there is": ("links", lambda n: b"upload=" + b"9" * n + b"x", 50_000),
    "a round trip of many blanks": ("links", lambda n: b"rtt=9" + b" " * n + b"x", 50_000),
    "the same from a server": (
        "settings, JSON",
        lambda n: b'{"links": {"default": {"rtt": "' + b"9" * n + b'x"}}}',
        50_000,
    ),
    "a port of many digits": ("addresses", lambda n: b"localhost:" + b"9" * n, 50_000),
    "lists of revoked certificates that do not end": (
        "revocation lists",
        lambda n: b"-----BEGIN X509 CRL-----\n" * n,
        40_000,
    ),
    "an account in lists without end": ("accounts", lambda n: b"[" * n, 100_000),
    "a summary in lists without end": ("summaries", lambda n: b"[" * n, 100_000),
    "a list of certificates in lists without end": ("issued certificates", lambda n: b"[" * n + b"\n", 100_000),
}
"""Inputs as long as one likes: the parser, what makes one, and how long it was when it was found."""
FOUND: dict[str, tuple[str, bytes]] = {
    **{f"{name} of aliases of aliases": (name, BOMB) for name in YAML},
    **{f"{name} that hold themselves": (name, b"rounds: &a {x: [*a]}") for name in YAML},
    **{what: (name, make(size)) for what, (name, make, size) in LONG.items()},
    "a day that does not exist": ("settings, YAML", b"rounds: 2026-13-45"),
    "an image of no pixels and endless sides": ("data, IDX", IDX_HEADER + b"\xff" * 32 + bytes(4)),
    "a model in no form that there is": ("models", _archive(b"\x93NUMPY\1\0\6\0{'a':(")),
    "a model that is no array": ("initial models", _archive(b"no array")),
    "a model whose header takes all memory": ("models", _archive(_HUGE)),
    "an archive that claims gigabytes of notes": ("data, CIFAR", _claim(b"77777777777\0")),
    "an archive whose notes are longer than numbers": ("data, CIFAR", _claim(b"\x80\x7f" + b"\xff" * 10)),
    "features of terabytes": ("features", _HUGE),
    "features of another shape": ("features", _array(np.ones((4, 9), np.float32))),
    "features that end too early": ("features", _array(np.ones((4, 8), np.float32))[:-1]),
}


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found_is_refused(what: str, targets: dict[str, Parser]) -> None:
    name, data = FOUND[what]
    target = targets[name]
    if what not in LONG:  # which takes its time under this watch
        tracemalloc.start()
    try:
        with raises(target.refusals):
            target.parse(data)
        assert tracemalloc.get_traced_memory()[1] < target.memory, "what is only claimed takes no memory"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("what", LONG)
def test_what_is_long_takes_no_more_than_its_share_of_time(what: str, targets: dict[str, Parser]) -> None:
    name, make, size = LONG[what]
    target = targets[name]
    data = {n: make(n) for n in (size // FACTOR, size // FACTOR * FACTOR)}

    def parse(n: int) -> None:
        with contextlib.suppress(*target.refusals):
            target.parse(data[n])

    assert growth(parse, size // FACTOR) < LINEAR


@given(size=st.integers(0, 50), pieces=st.lists(st.tuples(st.sampled_from("adr"), st.binary(max_size=30)), max_size=8))
def test_an_assembly_takes_chunks_in_any_manner_or_refuses_them(size: int, pieces: list[tuple[str, bytes]]) -> None:
    assembly = Assembly(size)
    with contextlib.suppress(WireError):
        for action, piece in pieces:
            if action == "a":
                assembly.add(memoryview(piece))
            elif action == "r":
                assembly.rewind(len(piece))
            if assembly.complete:
                assert len(assembly.body()) == size
                break


def test_a_parser_that_fails_is_found_out() -> None:
    def parse(data: bytes) -> None:
        if data[:1] == b"!":
            raise PayloadError("no")
        if len(data) % 2:
            raise KeyError("found")

    count = fuzz(Parser("x", (b"!bcd", b"abcd"), parse, (PayloadError,), 1), 400, seed=1)
    assert count.inputs == 400
    assert count.findings
    assert all(len(each.data) % 2 and each.data[:1] != b"!" for each in count.findings)
    assert "KeyError: 'found'" in count.findings[0].what


@pytest.mark.parametrize("what", ["hang", "time", "memory"])
def test_a_parser_that_takes_too_much_is_found_out(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.hostile.fuzz.HANGS", 1.0)
    held: list[bytearray] = []

    def parse(data: bytes) -> None:
        if what == "memory" and not held:
            # What earlier tests have given back is taken first, and is no finding.
            given_back = peak(os.getpid()) - resident(os.getpid())
            held.append(bytearray(b"x") * (given_back + (200 << 20)))
        while what == "hang" and data == b"slow":
            pass
        if what == "time" and data == b"slow":
            sum(n * n for n in range(15_000_000))

    count = fuzz(Parser("x", (b"slow",), parse, (PayloadError,), 1, memory=64 << 20), 2, seed=1)
    assert [each.what.partition(" ")[0] for each in count.findings] == ["took"]
