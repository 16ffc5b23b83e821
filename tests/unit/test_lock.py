"""Lock files: all that is installed is in them, with hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
DEVELOPMENT, IMAGE, BUILD = "requirements.lock", "deploy/requirements.lock", "deploy/build.lock"

_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)([^\\\n]*)((?:\\\n[^\\\n]*)*)", re.MULTILINE)


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def locked(path: str) -> dict[str, dict[str, tuple[str, list[str]]]]:
    """Version and hashes by name and marker: some versions are only for some versions of Python."""
    text = (ROOT / path).read_text()
    found: dict[str, dict[str, tuple[str, list[str]]]] = {}
    for name, version, marker, rest in _PINNED.findall(text):
        hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})\b", rest)
        found.setdefault(name_of(name), {})[marker.strip()] = version, hashes
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", " "))]
    assert sum(map(len, found.values())) == len(lines), "each line that begins a requirement pins one version"
    return found


@pytest.mark.parametrize("path", [DEVELOPMENT, IMAGE, BUILD])
def test_every_library_is_locked_with_hashes(path: str) -> None:
    found = locked(path)
    assert found
    assert [name for name, versions in found.items() if not all(hashes for _, hashes in versions.values())] == []


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        (DEVELOPMENT, PROJECT["project"]["dependencies"] + EXTRAS["dev"] + PROJECT["build-system"]["requires"]),
        (IMAGE, PROJECT["project"]["dependencies"] + EXTRAS["privacy"] + EXTRAS["metrics"] + EXTRAS["otel"]),
        (BUILD, PROJECT["build-system"]["requires"]),
    ],
)
def test_every_dependency_is_locked(path: str, wanted: list[str]) -> None:
    found = locked(path)
    assert [each for each in wanted if name_of(each) not in found] == []


@pytest.mark.parametrize("path", [IMAGE, BUILD])
def test_all_lock_files_have_the_same_versions_and_files(path: str) -> None:
    development = locked(DEVELOPMENT)
    assert {name: found for name, found in locked(path).items() if development[name] != found} == {}


def test_torch_stays_out() -> None:
    assert not {"torch", "torchvision"} & locked(DEVELOPMENT).keys()


def test_whatever_installs_from_a_lock_file_checks_hashes() -> None:
    for place in ("Makefile", "deploy/Dockerfile", "docs/separate-machines.md"):
        text = (ROOT / place).read_text()
        calls = [line for line in text.splitlines() if re.search(r"(pip.*install|\$\(PIP\)).*\.lock", line)]
        assert calls
        assert [line for line in calls if "--require-hashes" not in line] == []
        assert "-c requirements.lock" not in text.replace("$(COMPILE) -c requirements.lock", "")
