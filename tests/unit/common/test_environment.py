"""Environments are what processes really compute with, and are compared and kept as they are."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from fenchel.common.crypto.residues.choice import backend_of
from fenchel.common.environment import SERVER, Environment, differences, differences_text
from fenchel.common.errors import CheckpointError
from fenchel.common.storage.environment_record import EnvironmentRecord
from fenchel.proto import fenchel_pb2 as pb
from tests.messages import raises

HERE = Environment("0.1.0", "3.11.7", "2.4.6", "1.17.1", "", "openblas 0.3.31", "Haswell", "X86_V3", "x86_64", 1)
THERE = replace(HERE, kernel="SkylakeX", threads=2)
TELL = "import json; from dataclasses import asdict; from fenchel.common.environment import Environment; "
TELL += "print(json.dumps(asdict(Environment.current())))"


def elsewhere(**variables: str) -> Environment:
    """Return the environment of another process."""
    told = subprocess.run(
        [sys.executable, "-c", TELL], env=os.environ | variables, capture_output=True, check=True, text=True
    )
    return Environment(**json.loads(told.stdout))


def test_the_current_environment_names_the_libraries_that_are_loaded() -> None:
    here = Environment.current()
    assert (here.numpy, here.scipy, here.python) == (np.__version__, scipy.__version__, platform.python_version())
    torch = sys.modules.get("torch")
    assert here.torch == ("" if torch is None else str(torch.__version__))
    for pool in threadpool_info():
        if pool["user_api"] == "blas":
            assert f"{pool['internal_api']} {pool['version']}" in here.blas.split(", ")
            assert pool.get("architecture", "") in here.kernel.split(", ")


def test_a_library_that_is_loaded_late_is_limited_and_named_too() -> None:
    """SciPy brings a library of its own, which is loaded when it is needed."""
    script = (
        "import json, threadpoolctl\n"
        "from fenchel.common.environment import Environment, one_thread\n"
        "with one_thread():\n"
        "    named = Environment.current().blas\n"
        "    import scipy.linalg\n"
        "    threads = [pool['num_threads'] for pool in threadpoolctl.threadpool_info()]\n"
        "    print(json.dumps([threads, named, Environment.current().blas]))\n"
    )
    variables = os.environ | {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", script], env=variables, capture_output=True, check=True, text=True)
    threads, before, after = json.loads(done.stdout)
    assert set(threads) == {1}
    assert before == after


def test_a_report_has_every_instruction_set_that_numpy_may_find() -> None:
    """NumPy 2.1 names more than a hundred characters of them on processors with AVX-512."""
    avx512 = [f"AVX512{name}" for name in ["F", "CD", "_KNL", "_KNM", "_SKX", "_CLX", "_CNL", "_ICL", "_SPR"]]
    simd = ", ".join(["SSSE3", "SSE41", "POPCNT", "SSE42", "AVX", "F16C", "XOP", "FMA4", "FMA3", "AVX2", *avx512])
    there = replace(HERE, simd=simd)
    assert Environment.received(there.message()) == there


def test_threads_are_those_that_are_allowed_now() -> None:
    with threadpool_limits(1):
        assert Environment.current().threads == 1


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the names of kernels are those of x86-64")
@pytest.mark.skipif("openblas" not in Environment.current().blas, reason="not computed by OpenBLAS")
def test_another_kernel_and_more_threads_are_seen() -> None:
    one = elsewhere(OPENBLAS_CORETYPE="Prescott", OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    other = elsewhere(OPENBLAS_CORETYPE="Nehalem", OPENBLAS_NUM_THREADS="2", OMP_NUM_THREADS="2")
    expected = {"kernel", "threads"} if (os.cpu_count() or 1) > 1 else {"kernel"}
    assert set(differences({"a": one, "b": other})) == expected
    assert one.threads == 1


def test_a_processor_without_any_of_numpys_extensions_has_an_environment_too() -> None:
    found = Environment.current().simd
    assert elsewhere(NPY_DISABLE_CPU_FEATURES=found.replace(",", "")).simd == ""


def test_an_environment_travels_as_it_is() -> None:
    assert Environment.received(HERE.message()) == HERE
    assert Environment.received(pb.Environment.FromString(THERE.message().SerializeToString())) == THERE
    assert Environment.received(pb.Hello().environment) == Environment()
    assert {field.name for field in fields(Environment)} == {field.name for field in pb.Environment.DESCRIPTOR.fields}


@given(text=st.text(max_size=300), threads=st.integers(0, 2**32 - 1))
def test_whatever_a_client_reports_is_printable_and_short(text: str, threads: int) -> None:
    names = [field.name for field in fields(Environment) if field.name != "threads"]
    told = Environment.received(pb.Environment(**dict.fromkeys(names, text), threads=threads))
    assert told.threads == threads
    for name in names:
        assert getattr(told, name).isprintable()
        assert len(getattr(told, name)) <= 83


def test_differences_name_attributes_values_and_participants() -> None:
    everyone = {SERVER: HERE, **{f"client-{i:03}": HERE for i in range(9)}, "south": THERE}
    found = differences(everyone)
    assert list(found) == ["kernel", "threads"]
    assert differences({"a": HERE, "b": Environment()})["kernel"] == {"Haswell": ["a"], "": ["b"]}
    assert found["kernel"] == {"Haswell": [name for name in everyone if name != "south"], "SkylakeX": ["south"]}
    assert differences_text(found) == (
        "kernel: Haswell (the server, client-000, client-001, client-002, client-003 and 5 more), SkylakeX (south); "
        "threads: 1 (the server, client-000, client-001, client-002, client-003 and 5 more), 2 (south)"
    )


def test_a_thousand_clients_with_values_of_their_own_fit_a_line() -> None:
    everyone = {f"client-{i:04}": replace(HERE, kernel=f"{i:080}", blas=f"{i:080}") for i in range(1000)}
    told = differences_text(differences(everyone))
    assert len(told) < 1500
    assert told.count("995 more values") == 2


def test_the_backend_of_encryption_is_recorded_and_makes_no_difference() -> None:
    assert Environment.current().paillier == backend_of("fenchel")
    slow, fast = replace(HERE, paillier="gmp"), replace(HERE, paillier="ifma")
    assert differences({"a": slow, "b": fast}) == {}
    record = EnvironmentRecord()
    assert record.update("a", slow, 0) == record.update("b", fast, 0) == record.update("a", fast, 1) == []
    record.update("a", slow, 2)
    assert record.warnings == []
    assert record.described["paillier"] == "gmp (a), ifma (b)"


def test_pytorch_is_compared_where_it_is_loaded() -> None:
    loaded, other = replace(HERE, torch="2.13.0"), replace(HERE, torch="2.14.0")
    assert differences({"a": HERE, "b": loaded}) == {}
    assert differences({"a": HERE, "b": loaded, "c": other}) == {"torch": {"2.13.0": ["b"], "2.14.0": ["c"]}}


def test_a_record_keeps_who_changed_what_and_when(tmp_path: Path) -> None:
    record = EnvironmentRecord()
    assert record.update(SERVER, HERE, 1) == record.update("north", HERE, 1) == record.update("north", HERE, 5) == []
    (kernel, threads) = record.update("north", THERE, 12)
    assert asdict(kernel) == {
        "participant": "north",
        "round": 12,
        "attribute": "kernel",
        "before": "Haswell",
        "after": "SkylakeX",
    }
    assert threads.attribute == "threads"
    assert len(record.warnings) == 3, "a difference now, and two changes"
    record.save(tmp_path / "environments.json", "run")
    assert EnvironmentRecord.load(tmp_path / "environments.json") == record
    kept = json.loads((tmp_path / "environments.json").read_text())
    assert [(group["server"], group["clients"]) for group in kept["environments"]] == [(True, []), (False, ["north"])]
    assert record.described["kernel"] == "Haswell (the server), SkylakeX (north)"
    assert record.described["numpy"] == "2.4.6"


def test_a_participant_that_keeps_changing_fills_neither_the_record_nor_the_place_of_others() -> None:
    record = EnvironmentRecord()
    record.update(SERVER, HERE, 1)
    record.update(SERVER, THERE, 2)
    of_the_server = list(record.changes)
    for t in range(1000):
        record.update("restless", replace(HERE, kernel=f"kernel {t}"), t)
    assert record.changes[: len(of_the_server)] == of_the_server
    assert len(record.changes) < len(of_the_server) + 20
    assert record.changes[-1].after == "kernel 999"


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"run": "x"}', b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_record_is_refused_and_a_missing_one_is_empty(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "environments.json"
    assert EnvironmentRecord.load(path) == EnvironmentRecord()
    path.write_bytes(content)
    with raises(CheckpointError, file="environments.json"):
        EnvironmentRecord.load(path)
