"""Engines by their names: what each can be told, and what it would start."""

from __future__ import annotations

import csv
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from typer.testing import CliRunner

from fenchel.common.errors import SettingsError
from fenchel.common.settings.run import load
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.cli.main import application
from fenchel.deploy.launch.bundle import Bundle
from fenchel.deploy.launch.deployment import Deployment
from fenchel.deploy.launch.launchers.choice import ENGINES, launcher, launcher_type
from fenchel.deploy.launch.launchers.docker import DockerLauncher, DockerSettings, _mounts
from fenchel.deploy.launch.launchers.interface import ClientProcess, Requirements
from fenchel.deploy.launch.launchers.kubernetes import KubernetesLauncher, KubernetesSettings
from fenchel.deploy.launch.launchers.slurm import SlurmLauncher, SlurmSettings, _processors
from fenchel.deploy.launch.launchers.slurm_job import SlurmJob
from fenchel.deploy.launch.launchers.survey import Survey
from tests.messages import raises

PROCESS = ClientProcess(
    number=1, words=["client", "here:7443", "--bundle", "-"], bundle=Bundle(identities={"a": None}), log=Path("log")
)


@pytest.fixture
def engines_are_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let commands of engines be found, which no test here runs."""
    for name in ("ssh", "sbatch", "srun", "scontrol", "docker"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "no such engine": ("condor", {}, "--on"),
    "hosts of this machine": ("local", {"hosts": "a,b"}, "hosts"),
    "processors that ssh cannot reserve": ("ssh", {"hosts": "a", "cpus": 2}, "cpus"),
    "no hosts": ("ssh", {}, "hosts"),
    "a folder that no shell expands": ("ssh", {"hosts": "a", "engine": {"state": "~/journals"}}, "state"),
    "no folder": ("ssh", {"hosts": "a", "engine": {"state": ""}}, "state"),
    "half a processor of Slurm": ("slurm", {"cpus": 0.5}, "cpus"),
    "an unknown key": ("slurm", {"engine": {"queue": "long"}}, "queue"),
}


@pytest.mark.usefixtures("engines_are_here")
@pytest.mark.parametrize("case", WRONG)
def test_what_an_engine_does_not_have_is_an_error(case: str) -> None:
    on, options, key = WRONG[case]
    with raises(SettingsError, key=key):
        launcher(on, **options)


def engine_of(on: str) -> Any:
    kind: Any = launcher_type(on)
    return kind() if on == "local" else kind(kind.Settings(**({"hosts": ["a"]} if on == "ssh" else {})))


@pytest.mark.parametrize("on", ENGINES)
def test_every_engine_shows_what_it_would_start(on: str) -> None:
    assert "here:7443" in engine_of(on).plan(PROCESS)


@pytest.mark.parametrize("on", ENGINES)
def test_links_are_emulated_on_this_machine_only(on: str, tmp_path: Path) -> None:
    linked = Deployment(load(Path("quickstart"), ["links.default=lte"]), RunFolder(tmp_path), 4, launcher=engine_of(on))
    with nullcontext() if on in {"local", "docker"} else raises(SettingsError, key="links"):
        linked.check()


def test_a_pod_is_confined_and_reads_its_bundle_from_a_secret_of_its_name() -> None:
    engine = KubernetesLauncher(KubernetesSettings(claim="journals", data="sets", gpus=1, nodes={"zone": "north"}))
    pod = yaml.safe_load(engine.plan(PROCESS))
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["bundle"]["secret"]["secretName"] == pod["metadata"]["name"]
    assert volumes["journals"]["persistentVolumeClaim"]["claimName"] == "journals"
    assert volumes["data"]["persistentVolumeClaim"] == {"claimName": "sets", "readOnly": True}
    assert spec["nodeSelector"] == {"zone": "north"}
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert container["args"][-4:] == ["--bundle", "/bundle/bundle", "--retry-for", "120"]


def test_a_container_is_confined() -> None:
    engine = DockerLauncher(DockerSettings(cpus=1.5, gpus=1, memory="2g", options=("--env=A=1",)))
    for option in ("read-only", "cap-drop=ALL", "cpus=1.5", "gpus=1", "memory=2g", "env=A=1", "log-driver=none"):
        assert f" --{option} " in engine.plan(PROCESS)


def test_a_file_with_a_comma_in_its_name_is_mounted(tmp_path: Path) -> None:
    file, journals = tmp_path / 'north, "old".csv', tmp_path / "journals"
    required = Requirements(run="run", processes=1, journals=journals, stateless=False, files=[file])
    fields = [next(csv.reader([option.removeprefix("--mount=")])) for option in _mounts(required)]
    assert fields[0] == ["type=bind", f"src={journals}", f"dst={journals}"]
    assert fields[1] == ["type=bind", f"src={file}", f"dst={file}", "readonly"]


def test_a_step_reserves_and_one_that_is_started_again_shares() -> None:
    engine = SlurmLauncher(SlurmSettings(cpus=3, gpus=2))
    assert "--cpus-per-task=3" in engine.plan(PROCESS)
    assert "--gpus=2" in engine.plan(PROCESS)
    assert "--overlap" not in engine.plan(PROCESS)
    engine._started.add(PROCESS.number)
    assert "--overlap" in engine.plan(PROCESS)


@pytest.mark.parametrize(("text", "expected"), [("3,1(x2)", [3, 1, 1]), ("8", [8]), ("", [])])
def test_processors_of_an_allocation_are_counted(text: str, expected: list[int]) -> None:
    assert list(_processors(text)) == expected


def job(folder: Path, **settings: Any) -> SlurmJob:
    return SlurmJob(
        settings=SlurmSettings(python="echo", **settings),
        name="hospitals",
        processes=4,
        always=["--on", "slurm"],
        beginning=["quickstart", "--set", "name=a b"],
        runs=folder,
    )


def test_a_job_asks_for_what_the_settings_say(tmp_path: Path) -> None:
    script = job(tmp_path, partition="long", gpus=1, nodes=2, options=["--constraint=avx512"]).script()
    for option in ("partition=long", "ntasks=4", "nodes=2", "gpus-per-task=1", "constraint=avx512", "requeue"):
        assert f"#SBATCH --{option}\n" in script
    assert "--account" not in script


@pytest.mark.parametrize(
    "settings", [{"partition": "a b"}, {"account": "x\n"}, {"time": "1:00\nrm"}, {"options": ["--exclusive\nrm"]}]
)
def test_what_would_end_a_directive_of_a_job_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="pattern|expected a time"):
        SlurmSettings(**settings)


def test_a_time_that_yaml_reads_as_a_number_is_refused_with_the_way_to_write_it() -> None:
    with pytest.raises(ValidationError, match="quotes"):
        SlurmSettings(**yaml.safe_load("time: 2:00:00"))
    for time in ("2:00:00", "90", "1:30", "2-12", "2-12:30:00", "UNLIMITED", "infinite"):
        assert SlurmSettings(time=time).time == time
    for time in ("tomorrow", "2 hours", "2:00:00:00"):
        with pytest.raises(ValidationError, match="expected a time"):
            SlurmSettings(time=time)


def test_a_job_begins_a_run_and_then_goes_on_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "run folders"
    script = job(folder).script()

    def said() -> str:
        return subprocess.run(
            ["bash"], input=script, env={"SLURM_JOB_ID": "7", "PATH": "/usr/bin:/bin"}, text=True, capture_output=True
        ).stdout.strip()

    assert said() == f"-P -m fenchel up --on slurm --runs {folder}/job-7 quickstart --set name=a b"
    checkpoint = folder / "job-7" / "run" / "checkpoint" / "latest"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    assert said() == f"-P -m fenchel up --on slurm --resume {folder}/job-7/run"


@pytest.mark.usefixtures("engines_are_here")
def test_a_dry_run_prints_and_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    for words in (["--on", "slurm"], ["--on", "ssh", "--hosts", "a"], []):
        result = CliRunner().invoke(application(), ["up", "quickstart", "--dry-run", *words])
        assert result.exit_code == 0, result.output
        assert "srun" in result.output or "#SBATCH --ntasks=4" in result.output or "client SERVER:PORT" in result.output
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("line", ["", "null", "[]", "{}", '{"host": 1}', "[" * 100_000, "7"])
def test_a_line_that_is_no_survey_is_none(line: str) -> None:
    assert not Survey.read(line)


def test_an_address_that_no_resolver_takes_is_a_problem_of_the_survey() -> None:
    assert "a..b" not in Survey.take("localhost", 1, "").problem
    assert Survey.take("a..b", 1, "").problem


def test_a_survey_is_read_as_it_was_taken(tmp_path: Path) -> None:
    taken = Survey.take("127.0.0.1", 1, str(tmp_path))
    assert Survey.read(f"welcome\n{taken.line()}\n\n{taken.line()}\nbye\n") == [taken, taken]
    assert taken.shares
    assert taken.problem
