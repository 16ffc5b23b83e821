"""``fenchel up --on kubernetes``: a real cluster, a pod deleted by force, and what users get wrong."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from fenchel import up
from fenchel.common.errors import FenchelError, SettingsError, UnreachableError
from fenchel.deploy.launch.launchers.kubernetes import LABEL
from tests.cluster.federation import digest, wait_until
from tests.cluster.up import Up, local_digest, quickstart
from tests.messages import raises
from tests.unit.deploy.test_chart import objects

pytest.importorskip("kubernetes")
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]  # make test-all

IMAGE = "fenchel-under-test"
ROUNDS = 120  # on a fast machine, forty end before a pod has been deleted
CLAIM = """
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {name}}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteMany]
  storageClassName: {name}
  hostPath: {{path: {folder}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: {name}
  resources: {{requests: {{storage: 1Gi}}}}
"""


def kubectl(*words: str, given: str | None = None) -> str:
    done = subprocess.run(["kubectl", *words], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def pods() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(kubectl("get", "pods", "--selector", LABEL, "--output", "json"))["items"]
    return found


def secrets() -> list[str]:
    return kubectl("get", "secrets", "--selector", LABEL, "--output", "name").split()


def least_rights(folder: Path) -> Path:
    """Return a kubeconfig whose context ``up`` has the rights of ``deploy/kubernetes/up.yaml`` and no others."""
    kubectl("apply", "--filename", "deploy/kubernetes/up.yaml")
    account = json.loads(kubectl("get", "serviceaccount", "fenchel-up", "--output", "json"))
    wait_until(lambda: "fenchel-up-token" in kubectl("get", "secrets"), "a token")
    (name,) = (each for each in kubectl("get", "secrets", "--output", "name").split() if "/fenchel-up-token" in each)
    token = json.loads(kubectl("get", name, "--output", "json"))["data"]["token"]
    file = folder / "kubeconfig"
    whole = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    whole["users"].append({"name": "up", "user": {"token": base64.b64decode(token).decode()}})
    (cluster,) = whole["clusters"]
    namespace = account["metadata"]["namespace"]
    context = {"cluster": cluster["name"], "user": "up", "namespace": namespace}
    whole["contexts"].append({"name": "up", "context": context})
    file.write_text(yaml.safe_dump(whole))
    return file


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Return settings of a cluster whose node is this machine, with a claim in a folder of it."""
    if shutil.which("kubectl") is None or not os.environ.get("KUBECONFIG"):
        pytest.skip("no cluster of Kubernetes: KUBECONFIG is not set")
    subprocess.run(["docker", "build", "--file", "deploy/Dockerfile", "--tag", IMAGE, "."], check=True)
    folder = tmp_path_factory.mktemp("claim")
    for each in (folder, *folder.parents[:3]):
        each.chmod(0o777 if each == folder else 0o755)
    name = f"journals-{os.getpid()}"
    claim = CLAIM.format(name=name, folder=folder)
    kubectl("apply", "--filename", "-", given=claim)
    wait_until(lambda: "Bound" in kubectl("get", "pvc", name), "the claim's volume")  # a young cluster takes its time
    (node,) = json.loads(kubectl("get", "nodes", "--output", "json"))["items"]
    address = next(each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(least_rights(tmp_path_factory.mktemp("rights"))))
        yield {"image": IMAGE, "pull_policy": "Never", "claim": name, "dial": address, "cpus": 0.4, "context": "up"}
        kubectl("delete", "--filename", "-", given=claim)
        kubectl("delete", "--filename", "deploy/kubernetes/up.yaml")


def started(folder: Path, engine: dict[str, Any], *words: str) -> Up:
    (folder / "engine.yaml").write_text(yaml.safe_dump(engine))
    return Up.start(folder, *words, "--on", "kubernetes", "--engine", "engine.yaml")


def check_end(process: Up) -> Path:
    run = process.check_end(local_digest(ROUNDS))
    assert not pods()
    assert not secrets()
    return run


def test_a_pod_deleted_by_force_costs_no_bit_and_secrets_are_in_secrets_only(
    engine: dict[str, Any], tmp_path: Path
) -> None:
    process = started(tmp_path, engine, *quickstart(ROUNDS))
    process.wait_for_round(3)
    running = pods()
    assert len(running) == 4
    assert len(secrets()) == 4
    assert "PRIVATE KEY" not in json.dumps(running)
    kubectl("delete", "pod", running[0]["metadata"]["name"], "--force", "--grace-period=0")
    run = check_end(process)
    assert sum(log.read_text().count("working for run") for log in (run / "clients").glob("*.log")) == 5


def test_a_run_goes_on_after_a_killed_command_whose_pods_are_removed(engine: dict[str, Any], tmp_path: Path) -> None:
    process = started(tmp_path, engine, *quickstart(ROUNDS))
    process.wait_for_round(3)
    process.kill()
    wait_until(lambda: not pods(), "the end of all pods")  # by the processes that stand for them
    (run,) = (tmp_path / "runs").iterdir()
    check_end(started(tmp_path, engine, "--resume", str(run)))


WRONG: dict[str, tuple[dict[str, Any], type[FenchelError], dict[str, str]]] = {
    "no image": ({"image": "no-such-image"}, SettingsError, {"key": "--on kubernetes"}),
    "no claim": ({"claim": ""}, SettingsError, {"key": "claim"}),
    "a claim that is not there": ({"claim": "nowhere"}, SettingsError, {"key": "--on kubernetes"}),
    "no namespace": ({"namespace": "nowhere"}, SettingsError, {"key": "--on kubernetes"}),
    "no context": ({"context": "nowhere"}, SettingsError, {"key": "--on kubernetes"}),
    "a full cluster": ({"cpus": 1000}, SettingsError, {"key": "--on kubernetes"}),
    "an address that pods do not reach": ({"dial": "127.0.0.1"}, UnreachableError, {"source": IMAGE}),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_an_error_before_anything_is_started(case: str, engine: dict[str, Any], tmp_path: Path) -> None:
    more, kind, attributes = WRONG[case]
    with raises(kind, **attributes):
        up("quickstart", on="kubernetes", engine=engine | more, runs=tmp_path)
    assert not pods()
    assert not secrets()


def test_a_cluster_that_does_not_answer_is_an_error(
    engine: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"https://127.0.0.1:{closed.getsockname()[1]}"
    other = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    other["clusters"][0]["cluster"]["server"] = address
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(other))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with raises(UnreachableError, key="--on kubernetes"):
        up("quickstart", on="kubernetes", engine=engine, runs=tmp_path)


def test_clients_without_journals_need_no_claim(engine: dict[str, Any], tmp_path: Path) -> None:
    process = started(tmp_path, engine | {"claim": ""}, "fedavg-digits", "--set", "rounds=3", "--clients", "2")
    process.check_exit_code(0)
    assert not pods()


def test_a_pod_of_the_cluster_starts_the_others_with_no_rights_but_those_of_its_account(
    engine: dict[str, Any], tmp_path: Path
) -> None:
    """With the image and the manifest of the page, but for names and how this cluster is reached."""
    page = Path("docs/engines.md").read_text()
    (image,) = re.findall("^FROM registry.example.org.*?^USER 1000:1000$", page, re.M | re.S)
    (manifest,) = re.findall("^# pod.yaml$(.*?)^```$", page, re.M | re.S)
    recipe = re.sub("^FROM .*$", f"FROM {IMAGE}", image, flags=re.M)
    inside = f"{IMAGE}-inside"
    subprocess.run(["docker", "build", "--tag", inside, "-"], input=recipe, text=True, check=True)
    pod = yaml.safe_load(manifest)
    (container,) = pod["spec"]["containers"]
    (runs,) = (each["persistentVolumeClaim"] for each in pod["spec"]["volumes"] if each["name"] == "runs")
    (tmp_path / "engine.yaml").write_text(yaml.safe_dump(engine | {"context": ""}))
    container |= {"image": inside, "imagePullPolicy": "Never"}
    container["args"] += quickstart(ROUNDS)[1:]
    # This cluster has no kube-proxy, which would lead to the address that Kubernetes gives each pod.
    (cluster,) = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())["clusters"]
    api = urlsplit(cluster["cluster"]["server"])
    where = {"KUBERNETES_SERVICE_HOST": str(api.hostname), "KUBERNETES_SERVICE_PORT": str(api.port)}
    kernel = {name: os.environ[name] for name in ("OPENBLAS_CORETYPE",) if name in os.environ}  # or bits would differ
    container["env"] = [{"name": name, "value": value} for name, value in (where | kernel).items()]
    pod["spec"]["hostNetwork"] = True
    runs["claimName"] = f"runs-{os.getpid()}"
    tmp_path.chmod(0o777)
    claim = CLAIM.format(name=runs["claimName"], folder=tmp_path)
    whole = "---\n".join([claim, yaml.safe_dump(pod)])

    def state() -> str:
        phase: str = json.loads(kubectl("get", "pod", "fenchel-up", "--output", "json"))["status"]["phase"]
        return phase

    try:
        kubectl("create", "configmap", "fenchel-up", "--from-file", str(tmp_path / "engine.yaml"))
        kubectl("apply", "--filename", "-", given=whole)
        wait_until(lambda: state() in {"Succeeded", "Failed"}, "the end of the command's pod", patience=300)
        assert state() == "Succeeded", kubectl("logs", "fenchel-up")
        (model,) = tmp_path.rglob("model.npz")
        assert digest(model) == local_digest(ROUNDS)
        assert not pods()
        assert not secrets()
    finally:
        kubectl("delete", "configmap", "fenchel-up")
        kubectl("delete", "--filename", "-", given=whole)


@pytest.mark.usefixtures("engine")
def test_the_cluster_takes_the_chart_but_for_what_is_newer_than_itself() -> None:
    newer = ("completionMode", "backoffLimitPerIndex", "podFailurePolicy", "podReplacementPolicy")  # since 1.21
    whole = objects()
    for (kind, _), each in whole.items():
        if kind == "Job":
            each["spec"] = {name: value for name, value in each["spec"].items() if name not in newer}
    made = yaml.safe_dump_all(whole.values())
    try:
        kubectl("apply", "--filename", "-", given=made)
        jobs = json.loads(kubectl("get", "jobs", "--output", "json"))["items"]
        assert {each["metadata"]["name"] for each in jobs} == {"study-server", "study-client"}
        pods_of_jobs = ("get", "pods", "--selector", "job-name in (study-server, study-client)", "--output", "name")
        wait_until(lambda: len(kubectl(*pods_of_jobs).split()) == 5, "a pod of the server, and one of each client")
    finally:
        kubectl("delete", "--ignore-not-found", "--filename", "-", given=made)
