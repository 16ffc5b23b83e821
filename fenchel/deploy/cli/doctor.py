"""Command ``fenchel doctor``: capabilities of this machine, missing parts, and remedies."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.util import find_spec

from rich.console import Console
from rich.table import Table

from fenchel.common.errors import SettingsError
from fenchel.deploy.cli.options import DEFAULT_LISTEN, JsonOption
from fenchel.deploy.cli.printing import print_json
from fenchel.deploy.launch.launchers.choice import ENGINES, launcher_type

_PATIENCE = 10.0  # timeout for an external program, in seconds


@dataclass(frozen=True)
class Finding:
    """Finding on this machine: a subject, its state, and a remedy for a missing part."""

    subject: str
    found: str
    remedy: str = ""


def doctor(as_json: JsonOption = False) -> None:
    """Show this machine's capabilities for runs, missing parts, and remedies."""
    findings = [*_machine(), *_engines()]
    if as_json:
        print_json([asdict(finding) for finding in findings], indent=2)
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        table.add_row(finding.subject, finding.found, finding.remedy)
    Console(highlight=False, markup=False).print(table)


def _machine() -> Iterator[Finding]:
    from fenchel.common.environment import Environment

    here = Environment.current()
    yield Finding("fenchel", f"{here.fenchel}, Python {here.python} ({sys.executable})")
    yield Finding("linear algebra", f"{here.blas}, kernel {here.kernel or 'unknown'}, {here.machine}")
    yield Finding(
        "processors", str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    )
    yield _encryption()
    yield _open_files()
    yield _gpu()
    yield _docker()
    yield _port()
    yield Finding("clock", f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC", *_unsynchronised())


def _encryption() -> Finding:
    from fenchel.common.crypto.residues.ifma import check_available

    try:
        check_available()
    except SettingsError as error:
        return Finding("encryption", f"backend gmp: {error.problem}")
    return Finding("encryption", "backend ifma, eight ciphertexts at a time")


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Finding("open files", f"{soft:,}, at most {'any number' if hard == resource.RLIM_INFINITY else f'{hard:,}'}")


def _gpu() -> Finding:
    if find_spec("torch") is None:
        return Finding("GPU", "not looked for, as PyTorch is not installed", "pip install 'fenchel[torch]'")
    from fenchel.common.objectives.networks.factory import gpus

    return Finding("GPU", ", ".join(gpus()) or "PyTorch sees none")


def _docker() -> Finding:
    if shutil.which("docker") is None:
        return Finding("Docker", "not installed", "https://docs.docker.com/engine/install")
    code, version = _answer("docker", "version", "--format", "{{.Server.Version}}")
    if code != 0:
        return Finding("Docker", "its engine does not answer", "start it, or join its group: docker info says why")
    return Finding("Docker", f"engine {version}")


def _port() -> Finding:
    host, _, port = DEFAULT_LISTEN.rpartition(":")
    try:
        socket.create_server((host, int(port))).close()
    except OSError as error:
        return Finding(f"port {port}", f"not free ({error.strerror})", "give another one: fenchel server --listen")
    return Finding(f"port {port}", "free")


def _unsynchronised() -> tuple[str, ...]:
    """Return a remedy if the system clock is known not to be synchronised."""
    code, synced = _answer("timedatectl", "show", "--property", "NTPSynchronized", "--value")
    return (
        ("not synchronised, and certificates go by it: timedatectl set-ntp true",)
        if (code, synced) == (0, "no")
        else ()
    )


def _engines() -> Iterator[Finding]:
    for engine in ENGINES:
        lacks = launcher_type(engine).missing()
        yield Finding(f"--on {engine}", "missing" if lacks else "installed", "; ".join(lacks))


def _answer(*command: str) -> tuple[int | None, str]:
    """Run a program; return its exit code (``None`` without an answer in time) and its output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None, ""
    return done.returncode, done.stdout.strip()
