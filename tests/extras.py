"""Each extra by itself: a new environment with the wheel and one extra does a job that needs the extra.

``make extras`` runs this for all extras but the large ones; ``python -m tests.extras WHEEL torch ray`` for those named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LARGE = ("dev", "onnx", "ray", "torch")
"""Extras that are tried only where they are named: they take up to six gigabytes."""

CORE = "none"
"""Stands for an environment without extras."""

SHORT = ("--set", "rounds=2")
SPLIT = ("--set", "data.test_split=scikit-learn", "--set", "data.test_fraction=0.2")
PHE = ("algorithm.encryption.implementation=phe", "data.samples=40", "rounds=1")
PRIVATE = "{mechanism: clip-update, clip: 1, budget: 8, uploads: 2, delta: 0.0001}"

PANDAS = """
import fenchel, pandas
run = fenchel.up("fedavg-digits", overrides=["rounds=2"], in_process=True)
assert isinstance(run.metrics, pandas.DataFrame) and len(run.metrics) == 2
"""

ONNX = """
import fenchel, numpy, onnx.reference
run = fenchel.up("quickstart", overrides=["rounds=2"], in_process=True)
graph = onnx.reference.ReferenceEvaluator(run.model_for("onnx"))
samples = numpy.random.default_rng(0).normal(size=(5, 30)).astype(run.model.dtype)
numpy.testing.assert_allclose(*graph.run(["scores"], {"samples": samples}), run.decision_function(samples), rtol=1e-4)
"""

# What the libraries of trackers read back of the files that they wrote.
TENSORBOARD = """
import glob
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
(file,) = glob.glob("runs/*/tensorboard/events.out.tfevents.*")
assert [scalar.step for scalar in EventAccumulator(file).Reload().Scalars("objective")] == [1, 2]
"""
MLFLOW = """
import mlflow
client = mlflow.MlflowClient()
(run,) = client.search_runs([client.get_experiment_by_name("fenchel").experiment_id])
assert run.info.status == "FINISHED" and run.data.params["rounds"] == "2", run
assert [metric.step for metric in client.get_metric_history(run.info.run_id, "objective")] == [1, 2]
"""

# A cluster of this machine alone, which ends with the command.
RAY = """
import fenchel, ray
cluster = ray.init(num_cpus=4, include_dashboard=False).address_info["gcs_address"]
run = fenchel.up("fedavg-digits", overrides=["rounds=2"], on="ray", engine={"address": cluster})
assert run.completed
"""

# There is no cluster, so the error shows that its client was called.
KUBERNETES = """
import fenchel, pathlib
pathlib.Path("kubeconfig").write_text('''
current-context: none
contexts: [{name: none, context: {cluster: none, user: none}}]
clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: none, user: {}}]
''')
try:
    fenchel.up("fedavg-digits", overrides=["rounds=2"], on="kubernetes")
except fenchel.FenchelError as error:
    print(error)
"""


@dataclass(frozen=True)
class Job:
    """A command that needs an extra, and a text that it must print or a file that it must write."""

    words: tuple[str, ...]
    prints: str = ""
    writes: str = ""
    variables: tuple[tuple[str, str], ...] = ()


def settings(*overrides: str) -> tuple[str, ...]:
    """Return the words that override settings on a command line."""
    return tuple(word for each in overrides for word in ("--set", each))


UP = ("fenchel", "up")
TUNE = ("fenchel", "tune", "tune-fedavg-digits", "--in-process", "--trials", "4", *SHORT)
CLUSTER = (("KUBECONFIG", "kubeconfig"),)
STORE = (("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db"),)
COLLECTOR = (("OTEL_TRACES_EXPORTER", "otlp"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"))

JOBS: dict[str, tuple[Job, ...]] = {
    CORE: (
        Job(("fenchel", "--version"), prints="fenchel "),
        Job((*UP, "quickstart", *SHORT, "--runs", "runs"), prints="completed", writes="runs/*/report.html"),
        Job(("fenchel", "doctor"), prints="fenchel[kubernetes]"),
    ),
    "plots": (Job(("fenchel", "data", "show", "quickstart", "--picture", "shards.png"), writes="shards.png"),),
    "sklearn": (Job((*UP, "fedavg-digits", *SHORT, *SPLIT), prints="completed"),),
    "pandas": (Job(("python", "-c", PANDAS)),),
    "phe": (
        Job(("fenchel", "keys", "--implementation", "phe", "keys"), writes="keys/*"),
        Job((*UP, "quickstart", *settings(*PHE)), prints="completed"),
    ),
    "privacy": (Job((*UP, "fedavg-digits", *SHORT, *settings(f"differential_privacy={PRIVATE}")), prints="completed"),),
    "metrics": (Job((*UP, "fedavg-digits", *SHORT, "--metrics", "127.0.0.1:0"), prints="completed"),),
    # There is no collector, so the warning shows that spans were made and sent.
    "otel": (Job((*UP, "fedavg-digits", *SHORT), prints="traces cannot be sent to", variables=COLLECTOR),),
    "optuna": (Job((*TUNE, "--runs", "runs"), writes="runs/*/best.yaml"),),
    "tensorboard": (
        Job((*UP, "quickstart", *SHORT, "--runs", "runs", "--track", "tensorboard"), prints="completed"),
        Job(("python", "-c", TENSORBOARD)),
    ),
    "mlflow": (
        Job((*UP, "quickstart", *SHORT, "--track", "mlflow"), prints="completed", variables=STORE),
        Job(("python", "-c", MLFLOW), variables=STORE),
    ),
    "wandb": (
        Job(
            (*UP, "quickstart", *SHORT, "--runs", "runs", "--track", "wandb"),
            prints="completed",
            writes="runs/*/wandb/offline-run-*/run-*.wandb",
        ),
    ),
    "kubernetes": (
        Job(("fenchel", "doctor"), prints="--on kubernetes  installed"),
        Job(("python", "-c", KUBERNETES), prints="the cluster does not answer", variables=CLUSTER),
    ),
    "ray": (Job(("fenchel", "doctor"), prints="--on ray         installed"), Job(("python", "-c", RAY))),
    "onnx": (Job(("python", "-c", ONNX)),),
    "torch": (Job((*UP, "mlp-digits", *SHORT, "--clients", "4"), prints="completed"),),
}


def extras() -> list[str]:
    """Return the names of all extras."""
    return list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


class FailedError(Exception):
    """A job that did not do what it must."""


def done(words: tuple[str | Path, ...], at: Path, job: Job | None = None) -> str:
    """Run a command in a folder and return all that it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OTEL_", "FENCHEL_"))}
    environment = kept | {"COLUMNS": "200"} | dict(job.variables if job else ())
    process = subprocess.run(
        words, cwd=at, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if process.returncode:
        raise FailedError(f"{' '.join(map(str, words))}: exit code {process.returncode}\n{process.stdout}")
    return process.stdout


def tried(wheel: Path, extra: str, folder: Path) -> str:
    """Install the wheel with an extra, do its jobs, and return the size of the environment."""
    venv.create(folder / "environment", with_pip=False)
    binaries = folder / "environment" / "bin"
    pip = (sys.executable, "-m", "pip", "--python", str(binaries / "python"))
    wanted = str(wheel) if extra == CORE else f"{wheel}[{extra}]"
    done((*pip, "install", "--quiet", "--disable-pip-version-check", "--no-compile", wanted), folder)
    packages = json.loads(done((*pip, "list", "--format=json", "--disable-pip-version-check"), folder).splitlines()[-1])
    done((*pip, "check"), folder)
    files = [path.stat().st_size for path in (folder / "environment" / "lib").rglob("*") if path.is_file()]
    work = folder / "work"
    work.mkdir()
    for job in JOBS.get(extra, (Job(("fenchel", "--version")),)):
        printed = done((binaries / job.words[0], *job.words[1:]), work, job)
        if job.prints not in printed:
            raise FailedError(f"{' '.join(job.words)} does not print {job.prints!r}:\n{printed}")
        if job.writes and not list(work.glob(job.writes)):
            raise FailedError(f"{' '.join(job.words)} does not write {job.writes}:\n{printed}")
    return f"{len(packages)} packages, {sum(files) / 1e6:.0f} MB"


def main() -> None:
    """Try the extras that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("extras", nargs="*", help=f"{CORE}: no extra; by default all but {', '.join(LARGE)}")
    options = parser.parse_args()
    chosen = options.extras or [CORE, *(name for name in extras() if name not in LARGE)]
    failed = False
    for extra in chosen:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="fenchel-extra-") as folder:
            try:
                result = tried(options.wheel.resolve(), extra, Path(folder))
            except FailedError as error:
                failed, result = True, f"FAILED\n{error}"
        note = "" if extra in JOBS else " (installed only: no job is known)"
        print(f"{extra:12}{result}, {time.monotonic() - began:.0f} s{note}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
