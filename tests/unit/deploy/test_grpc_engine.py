"""Processes of Fenchel's own set up gRPC and linear algebra; a program that imports Fenchel is left as it is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fenchel.deploy.launch import grpc_engine
from tests.slow import rest_slow

_WATCH = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print("gRPC is imported with", os.environ.get("GRPC_EXPERIMENTS"))

sys.meta_path.insert(0, Watch())
"""

_SET = (
    grpc_engine.VARIABLE,
    "GRPC_VERBOSITY",
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "KMP_DUPLICATE_LIB_OK",
)

_SERVE = """
import asyncio, grpc

async def serve():
    server = grpc.aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await server.stop(None)

asyncio.run(serve())
"""


_COMMAND = """
import sys
from fenchel.deploy.cli.main import main
sys.argv = ["fenchel", "--help"]
main()
"""


def python(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != grpc_engine.VARIABLE}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=True)


@pytest.mark.parametrize(
    "entry",
    rest_slow(
        [
            _COMMAND,
            "import benchmarks.round_trip, benchmarks.scale",
            "import benchmarks.load",
            "import benchmarks.instrumentation",
            "import benchmarks.large_model",
            "import benchmarks.peers.fenchel_fedavg",
        ],
        2,
    ),
)
def test_the_engine_is_chosen_before_grpc_is_imported(entry: str) -> None:
    assert python(_WATCH + entry).stdout.startswith(f"gRPC is imported with {grpc_engine.POLLED}\n")


@pytest.mark.parametrize(
    "module",
    rest_slow(
        [
            "fenchel",
            "fenchel.deploy.cli.main",
            "fenchel.deploy.launch.deployment",
            "fenchel.deploy.launch.in_process",
            "fenchel.server.transport.service",
            "fenchel.client.client_process",
        ],
        2,
    ),
)
def test_an_import_leaves_the_environment_as_it_was(module: str) -> None:
    compare = f"import os; before = dict(os.environ); import {module}; print(dict(os.environ) == before)"
    bare = {name: value for name, value in os.environ.items() if name not in _SET}
    done = subprocess.run([sys.executable, "-c", compare], env=bare, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_a_process_of_the_command_line_computes_on_one_thread() -> None:
    watched = "import atexit, os; atexit.register(lambda: print(os.environ.get('OMP_NUM_THREADS')))\n" + _COMMAND
    bare = {name: value for name, value in os.environ.items() if name not in _SET}
    done = subprocess.run([sys.executable, "-c", watched], env=bare, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n1\n")


def test_what_fenchel_is_compared_with_has_grpc_as_it_comes() -> None:
    """Its processes inherit the variables of this one."""
    said = f"import os; print(os.environ.get({grpc_engine.VARIABLE!r}))"
    assert python("import benchmarks.peers.__main__\n" + said).stdout == "None\n"
    assert python(_WATCH + "import benchmarks.bare_echo_processes").stdout == "gRPC is imported with None\n"


def test_the_installed_version_knows_what_it_is_told() -> None:
    """Otherwise each process would say so. Then the choice must be made anew for that version."""
    done = python("from fenchel.deploy.launch import grpc_engine; grpc_engine.choose()\n" + _SERVE)
    assert done.stderr == ""
    unknown = python(_SERVE, **{grpc_engine.VARIABLE: "-no_engine_has_this_name"})
    assert "Unknown experiment" in unknown.stderr, "the check above finds nothing"


@pytest.mark.parametrize(
    ("version", "before", "after"),
    [
        ("1.85.1", None, grpc_engine.POLLED),
        ("1.85.0", "tcp_rcv_lowat", "tcp_rcv_lowat"),
        ("1.85.1", "", ""),
        ("1.86.0", None, None),
        ("1.850.0", None, None),
    ],
)
def test_another_wish_and_other_versions_are_respected(
    monkeypatch: pytest.MonkeyPatch, version: str, before: str | None, after: str | None
) -> None:
    monkeypatch.delenv(grpc_engine.VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(grpc_engine.VARIABLE, before)
    grpc_engine.choose(version)
    assert os.environ.get(grpc_engine.VARIABLE) == after
    monkeypatch.delenv(grpc_engine.VARIABLE, raising=False)
