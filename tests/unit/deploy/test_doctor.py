"""``fenchel doctor``: what it finds is there, and what is missing has a remedy."""

from __future__ import annotations

import json
import platform
import socket
from pathlib import Path

import pytest

from fenchel.common.errors import MissingDependencyError
from fenchel.deploy.cli import doctor as module
from fenchel.deploy.cli.doctor import doctor
from fenchel.deploy.launch.launchers.choice import ENGINES, launcher
from tests.messages import raises


def found(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    doctor(as_json=True)
    return {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}


def test_it_tells_of_this_machine_and_of_every_engine(capsys: pytest.CaptureFixture[str]) -> None:
    findings = found(capsys)
    assert f"Python {platform.python_version()}" in findings["fenchel"]["found"]
    assert "kernel" in findings["linear algebra"]["found"]
    assert {f"--on {engine}" for engine in ENGINES} <= set(findings)
    assert all(finding["found"] for finding in findings.values())
    doctor()
    assert "--on local" in capsys.readouterr().out


def test_what_is_missing_has_a_remedy_and_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    findings = found(capsys)
    assert findings["--on local"]["found"] == "installed"
    assert findings["--on ssh"]["found"] == "missing"
    assert all(findings[subject]["remedy"] for subject in ("--on ssh", "Docker", "GPU"))
    with raises(MissingDependencyError, key="--on ssh"):
        launcher("ssh", hosts="a")


def test_a_port_in_use_is_seen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(module, "DEFAULT_LISTEN", f"0.0.0.0:{port}")
        assert found(capsys)[f"port {port}"]["remedy"]
    assert not found(capsys)[f"port {port}"]["remedy"]


def test_a_docker_engine_that_does_not_answer_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = tmp_path / "docker"
    command.write_text("#!/bin/sh\nexit 1\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert found(capsys)["Docker"]["remedy"]
