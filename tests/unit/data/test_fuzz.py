"""Whatever a data file holds, reading it gives samples or a :class:`DataError`, nothing else."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fenchel.common.data.files import read_file
from fenchel.common.data.samples import Samples
from fenchel.common.errors import DataError
from tests.messages import raises

fuzz = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def read(path: Path) -> Samples | None:
    """Return the training samples; none where a :class:`DataError` that names the file says why not."""
    try:
        return read_file(path).train
    except DataError as error:
        assert error.source == str(path)
        return None


def lines(words: list[bytes], separator: bytes) -> st.SearchStrategy[bytes]:
    """Return texts of a few lines, of these words and any others."""
    word = st.one_of(st.sampled_from(words), st.binary(max_size=6))
    return st.lists(st.lists(word, max_size=5).map(separator.join), max_size=6).map(b"\n".join)


LIBSVM = lines([b"1", b"-1", b"3:1", b"7:0.5", b"0:1", b"x", b":", b"1:", b"1:2:3", b"9:1e999", b"#", b"1_0:1"], b" ")
CSV = lines([b"1", b"-2.5", b"", b"a", b'"q"', b'"', b"nan", b"2020-01-01", b"true"], b",")


@fuzz
@given(form=st.sampled_from(["libsvm", "csv"]), content=st.one_of(LIBSVM, CSV, st.binary(max_size=60)))
@example(form="libsvm", content=b"1 1:1\n1 \xb2:1")
def test_whatever_a_text_file_holds_only_a_data_error_escapes(tmp_path: Path, form: str, content: bytes) -> None:
    part = read(written(tmp_path, f"fuzz.{form}", content))
    if part is not None:
        values = part.features.data if isinstance(part.features, sp.csr_array) else part.features
        assert np.isfinite(values).all()


@fuzz
@given(data=st.data())
def test_however_an_archive_is_damaged_only_a_data_error_escapes(tmp_path: Path, data: st.DataObject) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, X=np.arange(6.0).reshape(3, 2), y=np.arange(3))
    content = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = written(tmp_path, "fuzz.npz", bytes(content[: data.draw(st.integers(1, len(content)))]))
    part = read(path)
    assert part is None or part.features.shape[0] == len(part.labels)


@fuzz
@given(header=st.text("{}()[]'<>:,0123456789 descrfotan_shpFlTu|iO-\n", max_size=90), body=st.binary(max_size=40))
def test_whatever_the_header_of_an_array_says_only_a_data_error_escapes(
    tmp_path: Path, header: str, body: bytes
) -> None:
    text = header.encode()
    path = tmp_path / "fuzz.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body)
    with raises(DataError, source=path):
        read_file(path)
