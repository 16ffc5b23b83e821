"""A new folder for an algorithm runs as it is, in one process and in several, and its own test passes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fenchel
from fenchel.common.errors import SettingsError
from fenchel.deploy.cli.new import new
from tests.messages import raises

ROOT = Path(__file__).parents[3]
NAME = "my_momentum_of_tests"
PATIENCE = 840  # seconds; what takes six may take minutes on a machine that stands still in between

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    new(NAME)
    yield tmp_path / NAME
    sys.modules.pop(NAME, None)


def ran(folder: Path, *words: str) -> str:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1"}
    words = (sys.executable, "-m", *words)
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            said, complaints = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # it says where it hangs
            said, complaints = process.communicate()
    assert process.returncode == 0, said + complaints
    return said


def test_nothing_of_the_template_is_left(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [f"{NAME}.py", f"test_{NAME}.py", "settings.yaml", "README.md"]
    )
    text = "".join(path.read_text() for path in folder.iterdir())
    assert "my_algorithm" not in text
    assert "MyAlgorithm" not in text
    assert "MyMomentumOfTestsClient(" in text


def test_a_name_that_contains_the_class_of_the_template_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    new("MyAlgorithm_2")
    settings = (tmp_path / "MyAlgorithm_2" / "settings.yaml").read_text()
    assert 'algorithm: {name: "MyAlgorithm_2:MyAlgorithm2",' in settings
    assert (tmp_path / "MyAlgorithm_2" / "test_MyAlgorithm_2.py").exists()


def test_its_code_is_as_that_of_fenchel(folder: Path) -> None:
    for words in (("check", "--select", "E,F,W,I,B,UP,D", "--ignore", "D203,D213"), ("format", "--check")):
        ran(folder, "ruff", *words, "--no-cache", "--line-length", "120", ".")


@pytest.mark.slow
@pytest.mark.cluster
def test_it_learns_the_same_in_one_process_and_in_several(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = json.loads(ran(folder, "fenchel", "up", "settings.yaml", "--json"))
    assert summary["completed"]
    monkeypatch.syspath_prepend(str(folder))
    run = fenchel.up(folder / "settings.yaml", in_process=True)
    assert run.model.tobytes() == fenchel.Run(folder / summary["folder"]).model.tobytes()
    assert run.figures["holdout_accuracy"] > 0.9
    assert run.figures["update_norm"] > 0


@pytest.mark.slow
@pytest.mark.cluster
def test_its_own_test_passes(folder: Path) -> None:
    assert "2 passed" in ran(folder, "pytest", "--durations=0", "-o", "faulthandler_timeout=60")


@pytest.mark.parametrize(
    "name", ["class", "none", "1st", "my-method", "a/b", "_", "ünï", "x" * 65, "", "os", "numpy", "fedavg"]
)
def test_a_name_that_no_module_can_have_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with raises(SettingsError, key=name):
        new(name)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_left_as_it_is(folder: Path) -> None:
    (folder / "settings.yaml").write_text("mine")
    with raises(SettingsError, source=NAME):
        new(NAME)
    assert (folder / "settings.yaml").read_text() == "mine"
