"""The package as others install it: one name, beside whatever a user's own folder holds."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPENDENCIES = Path(pytest.__file__).parents[1]
"""The site-packages of this process: all but Fenchel comes from there, as no path file in it is read by another one."""

OWN = ("client.py", "server.py", "report.py", "deploy.py", "common/__init__.py", "proto/__init__.py", "algorithms.py")
"""Modules that a user's folder may hold, with the names of Fenchel's folders."""

MAKE = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"

pytestmark = pytest.mark.cluster


def ran(*words: str | Path, at: Path, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run(words, cwd=at, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


BESIDE = {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
"""Files of a source distribution beside the package."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    built, copy = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("copy")
    # Building writes beside what it builds, and other processes may do so at the same time.
    shutil.copytree(ROOT / "fenchel", copy / "fenchel", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    name = ran(sys.executable, "-c", MAKE, "build_sdist", built, at=copy).splitlines()[-1]
    with tarfile.open(built / name) as archive:
        archive.extractall(built, filter="data")
    return built / name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def site(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site-packages of a new environment with the wheel, which was built from the source distribution."""
    built = tmp_path_factory.mktemp("wheel")
    wheel = ran(sys.executable, "-c", MAKE, "build_wheel", built, at=source).splitlines()[-1]
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    (site,) = home.glob("lib/python*/site-packages")
    pip = (sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"))
    ran(*pip, "install", "--quiet", "--no-deps", "--no-index", built / wheel, at=built)
    return site


@pytest.mark.slow
def test_the_source_distribution_holds_the_package_and_its_c_source_and_little_else(tmp_path: Path) -> None:
    ran("git", "archive", "--format=tar", f"--output={tmp_path / 'main.tar'}", "HEAD", at=ROOT)
    with tarfile.open(tmp_path / "main.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    name = ran(sys.executable, "-c", MAKE, "build_sdist", tmp_path, at=tmp_path).splitlines()[-1]
    with tarfile.open(tmp_path / name) as archive:
        held = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    kept = set(ran("git", "ls-tree", "-r", "--name-only", "HEAD", "fenchel", at=ROOT).split())
    assert "fenchel/common/crypto/residues/_ifma.c" in kept
    assert {each for each in held if not each.startswith("fenchel.egg-info/")} == kept | BESIDE


@pytest.mark.slow
def test_the_metadata_are_those_of_the_project(site: Path) -> None:
    (described,) = site.glob("fenchel-*.dist-info")
    found = email.message_from_string((described / "METADATA").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert found["Version"] == project["version"]
    assert found["License-Expression"] == "Apache-2.0"
    assert found.get_all("Classifier") == project["classifiers"]
    assert found["Description-Content-Type"] == "text/markdown"
    assert found.get_payload() == (ROOT / "README.md").read_text()


def test_a_zip_of_the_repository_which_has_no_links_makes_a_wheel_of_every_file(tmp_path: Path) -> None:
    ran("git", "archive", "--format=zip", f"--output={tmp_path / 'main.zip'}", "HEAD", at=ROOT)
    with zipfile.ZipFile(tmp_path / "main.zip") as archive:
        archive.extractall(tmp_path)  # a link becomes a text file
    assert (tmp_path / "server").read_text() == "fenchel/server"
    wheel = ran(sys.executable, "-c", MAKE, "build_wheel", tmp_path, at=tmp_path).splitlines()[-1]
    with zipfile.ZipFile(tmp_path / wheel) as archive:
        installed = {name for name in archive.namelist() if ".dist-info/" not in name}
    kept = set(ran("git", "ls-tree", "-r", "--name-only", "HEAD", "fenchel", at=ROOT).split())
    compiled = {"fenchel/common/crypto/residues/_ifma.abi3.so"}
    assert installed == kept | (compiled if shutil.which("cc") else set())


@pytest.mark.slow
def test_without_a_compiler_the_wheel_lacks_the_kernel_alone(tmp_path: Path) -> None:
    ran("git", "archive", "--format=tar", f"--output={tmp_path / 'main.tar'}", "HEAD", at=ROOT)
    with tarfile.open(tmp_path / "main.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    words = (sys.executable, "-c", MAKE, "build_wheel", tmp_path)
    wheel = ran(*words, at=tmp_path, CC="no-such-compiler").splitlines()[-1]
    with zipfile.ZipFile(tmp_path / wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
        assert "fenchel/common/crypto/residues/ifma.py" in archive.namelist()


def test_the_links_at_the_top_lead_into_the_package() -> None:
    entries = ran("git", "ls-files", "--stage", at=ROOT).splitlines()
    links = sorted(entry.split()[-1] for entry in entries if entry.startswith("120000"))
    assert links == ["client", "common", "experiments", "proto", "server"]
    assert [ran("git", "show", f":{name}", at=ROOT) for name in links] == [f"fenchel/{name}" for name in links]


@pytest.mark.slow
def test_nothing_but_fenchel_is_installed(site: Path) -> None:
    found = sorted(each.name for each in site.iterdir())
    assert [name for name in found if not name.endswith(".dist-info")] == ["fenchel"]


@pytest.fixture
def folder(site: Path, tmp_path: Path) -> Path:
    """A user's folder, whose own modules must never be imported."""
    (site / "dependencies.pth").write_text(f"{DEPENDENCIES}\n")
    for name in OWN:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("raise SystemExit('a module of the user was imported')\n")
    return tmp_path


@pytest.mark.slow
def test_a_shipped_experiment_runs_beside_modules_of_the_same_names(site: Path, folder: Path) -> None:
    binaries = site.parents[2] / "bin"
    ran(binaries / "fenchel", "up", "fedavg-digits", "--set", "rounds=2", "--runs", folder / "runs", at=folder)
    (run,) = (folder / "runs").iterdir()
    assert (run / "model.npz").exists()
    assert (run / "report.html").exists()


@pytest.mark.slow
def test_a_script_imports_fenchel_beside_modules_of_the_same_names(site: Path, folder: Path) -> None:
    script = folder / "script.py"
    script.write_text(
        "import fenchel, sys\n"
        "run = fenchel.up('fedavg-digits', overrides=['rounds=1', 'clients=2'], in_process=True, runs='runs')\n"
        "print(len(run.metrics))\n"
        "files = [m.__file__ for m in list(sys.modules.values()) if getattr(m, '__file__', None)]\n"
        "assert not [f for f in files if f.startswith(sys.argv[1])], files\n"
    )
    python = site.parents[2] / "bin" / "python"
    assert ran(python, script, folder / "c", at=folder).splitlines()[-1] in ("1", "2")


THEIRS = """
from fenchel.algorithms.fedavg import FedAvg, FedAvgClient, FedAvgSettings

class TheirsSettings(FedAvgSettings):
    name: str = "theirs"

class Theirs(FedAvg):
    Settings = TheirsSettings

class TheirsClient(FedAvgClient):
    pass
"""


@pytest.mark.slow
def test_an_installed_package_adds_an_algorithm_by_an_entry_point(site: Path, folder: Path) -> None:
    (site / "their_algorithms.py").write_text(THEIRS)
    described = site / "theirs-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[fenchel.algorithms]\ntheirs = their_algorithms:Theirs\n")
    fenchel = site.parents[2] / "bin" / "fenchel"
    few = ("--set", "rounds=2", "--clients", "2", "--runs", folder / "runs")
    ran(fenchel, "up", "fedavg-digits", "--set", "algorithm.name=theirs", *few, at=folder)
    ran(fenchel, "up", "fedavg-digits", *few, at=folder)
    theirs, ours = ((run / "model.npz").read_bytes() for run in sorted((folder / "runs").iterdir()))
    assert theirs == ours


@pytest.mark.slow
def test_no_module_of_a_checkout_exists_twice() -> None:
    """What a link at the top leads to must not be imported under its name."""
    code = (
        "import fenchel, os, pathlib, sys\n"
        "for name in fenchel.__all__: getattr(fenchel, name)\n"
        "import fenchel.deploy.cli.main as main; main.application()\n"
        "files = [os.path.realpath(m.__file__) for m in list(sys.modules.values()) if getattr(m, '__file__', None)]\n"
        "own = [f for f in files if f.startswith(sys.argv[1]) and 'site-packages' not in f]\n"
        "assert len(own) == len(set(own)), sorted(f for f in own if own.count(f) > 1)\n"
        "print(len(own))\n"
    )
    assert int(ran(sys.executable, "-c", code, str(ROOT), at=ROOT)) > 100
