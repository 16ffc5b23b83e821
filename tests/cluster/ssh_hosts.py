"""Machines that ssh reaches: network namespaces of this one, each with a server of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

SSHD = "/usr/sbin/sshd"


class NoHostsError(Exception):
    """Namespaces, or servers of ssh in them, cannot be had here."""


@dataclass(frozen=True)
class Hosts:
    """Hosts by their addresses, with what ssh must know to reach them."""

    namespaces: Mapping[str, str]  # by address
    folder: Path

    def engine(self, **more: Any) -> dict[str, Any]:
        """Return settings of the engine."""
        options = (
            "User=root",
            f"IdentityFile={self.folder}/user_key",
            "IdentitiesOnly=yes",
            f"UserKnownHostsFile={self.folder}/known_hosts",
            "GlobalKnownHostsFile=/dev/null",
        )
        return {"hosts": list(self.namespaces), "options": list(options), "state": str(self.folder / "state")} | more

    def switch(self, address: str, *, on: bool) -> None:
        """Cut a host off the network, or connect it again."""
        _run("ip", "-n", self.namespaces[address], "link", "set", "eth0", "up" if on else "down")

    def processes(self, address: str) -> list[psutil.Process]:
        """Return what runs on a host, but for its listening server."""
        listed = _run("ip", "netns", "pids", self.namespaces[address]).split()
        listening = (self.folder / f"{address}.pid").read_text().strip()
        found = []
        for pid in listed:
            if pid != listening:
                with suppress(psutil.NoSuchProcess):
                    found.append(psutil.Process(int(pid)))
        return found


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


@contextmanager
def hosts(folder: Path, number: int = 2) -> Iterator[Hosts]:
    """Make hosts, and remove them at the end."""
    if os.geteuid() != 0 or not Path(SSHD).exists() or shutil.which("ip") is None:
        raise NoHostsError("namespaces with servers of ssh need root, iproute2 and openssh-server")
    run = secrets.token_hex(3)
    subnet = f"10.{secrets.randbelow(100) + 100}.{secrets.randbelow(256)}"
    bridge = f"fb{run}"
    namespaces = {f"{subnet}.{i + 2}": f"fn{run}{i}" for i in range(number)}
    folder.chmod(0o700)
    for key in ("host_key", "user_key"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
    public = " ".join((folder / "host_key.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text("".join(f"{address} {public}\n" for address in namespaces))
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    try:
        try:
            _run("ip", "link", "add", bridge, "type", "bridge")
        except subprocess.CalledProcessError as error:
            raise NoHostsError(f"namespaces with servers of ssh cannot be made: {error.stderr.strip()}") from None
        _run("ip", "address", "add", f"{subnet}.1/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for i, (address, namespace) in enumerate(namespaces.items()):
            _run("ip", "netns", "add", namespace)
            _run("ip", "link", "add", f"fv{run}{i}", "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _run("ip", "link", "set", f"fv{run}{i}", "master", bridge, "up")
            _run("ip", "-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
            _run("ip", "-n", namespace, "link", "set", "eth0", "up")
            _run("ip", "-n", namespace, "link", "set", "lo", "up")
            settings = {
                "ListenAddress": address,
                "PidFile": str(folder / f"{address}.pid"),
                "AuthorizedKeysFile": str(folder / "user_key.pub"),
                "StrictModes": "no",
                "UsePAM": "no",
                "PasswordAuthentication": "no",
                "PermitRootLogin": "prohibit-password",
            }
            # A home of their own, so that no shell of a host runs what the user's shells do at their start.
            settings["SetEnv"] = f"HOME={folder}"
            if kernel := os.environ.get("OPENBLAS_CORETYPE"):  # or hosts would round in their own way
                settings["SetEnv"] += f" OPENBLAS_CORETYPE={kernel}"
            options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
            _run("ip", "netns", "exec", namespace, SSHD, "-f", "/dev/null", "-h", str(folder / "host_key"), *options)
        yield Hosts(namespaces, folder)
    finally:
        for namespace in namespaces.values():
            with suppress(subprocess.CalledProcessError):
                for pid in _run("ip", "netns", "pids", namespace).split():
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), 9)
                _run("ip", "netns", "delete", namespace)
        with suppress(subprocess.CalledProcessError):
            _run("ip", "link", "delete", bridge)
