"""The commands for containers as the README prints them: for any user, with the server's exit code, and encrypted."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import yaml

from fenchel.common.errors import JoinRefusedError, SettingsError
from tests.docker.cluster import ROOT, Cluster, command
from tests.docker.test_encryption import TOLERANCE, in_plaintext, model
from tests.slow import rest_slow

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

KILLED = 137
FILES = ("-f", "docker-compose.yml", "-f", "deploy/compose.encrypted.yml")
SOCKET = Path("/var/run/docker.sock")
FEDAVG, ENCRYPTED = (
    line.partition("#")[0].strip()
    for line in (ROOT / "README.md").read_text().splitlines()
    if line.startswith("docker-compose ")
)


@dataclass
class Checkout:
    """A folder with what the commands read, owned by a user who has never run them."""

    cluster: Cluster
    folder: Path
    uid: int
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, printed: str) -> subprocess.Popen[str]:
        """Start a command as its user, with the image of the working tree in place of one that it would build."""
        _, *words = shlex.split(printed.replace("--build", "--no-build"))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FENCHEL_")}
        self.started.append(
            subprocess.Popen(
                [*self.cluster.compose, "-p", self.cluster.project, *words],
                cwd=self.folder,
                env=environment | {"HOME": str(self.folder)} | dict(self.cluster.environment),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                user=self.uid,
                group=self.uid,
                extra_groups=[SOCKET.stat().st_gid] if os.getuid() == 0 else None,
            )
        )
        return self.started[-1]

    def run(self, printed: str) -> tuple[int, str]:
        """Run a command to its end; return its exit code and what it printed."""
        process = self.start(printed)
        output, _ = process.communicate()
        return process.returncode, output


Check = Callable[..., Checkout]


@pytest.fixture
def checkout(compose: Sequence[str], image: str) -> Iterator[Check]:
    """Describes a checkout of a user; its containers, volumes and files are removed after the test."""
    made: list[Checkout] = []

    def describe(uid: int = os.getuid(), **variables: str) -> Checkout:
        if os.getuid() not in (0, uid):
            pytest.skip(f"only root can start a command as user {uid}")
        folder = Path(tempfile.mkdtemp(prefix="fenchel-checkout-"))  # pytest's own are closed to other users
        for each in ("docker-compose.yml", "fenchel/experiments", "deploy/compose.encrypted.yml"):
            target = folder / each
            target.parent.mkdir(parents=True, exist_ok=True)
            source = ROOT / each
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, uid, uid)
        environment = {"FENCHEL_IMAGE": image} | variables
        cluster = Cluster(compose, f"fenchel-test-{secrets.token_hex(4)}", environment, folder / "runs")
        made.append(Checkout(cluster, folder, uid))
        return made[-1]

    yield describe
    for each in made:
        for process in each.started:
            process.kill()
            process.wait()
        each.cluster.do(*FILES, "down", "--volumes", "--timeout", "1")
        shutil.rmtree(each.folder)


@pytest.mark.parametrize(
    ("uid", "folder"),
    # Docker makes folders as root, which is as if root had made them before; 1000 is the user of the image.
    [(0, "made by Docker"), (1000, "made before"), (1234, "made before"), (1234, "made by Docker")],
)
def test_the_command_works_for_every_user_and_the_run_belongs_to_the_owner_of_its_folder(
    uid: int, folder: str, checkout: Check
) -> None:
    user = checkout(uid)
    runs = user.folder / "runs"
    if folder == "made before":
        runs.mkdir()
        os.chown(runs, uid, uid)
    code, output = user.run(FEDAVG)
    assert code == 0, output
    assert (user.cluster.run_folder() / "report.html").exists()
    assert {path.stat().st_uid for path in (runs, *runs.rglob("*"))} == {uid}
    assert set(user.cluster.finished().values()) == {0}
    assert len(user.cluster.containers("client")) == 4


@pytest.mark.parametrize("uid", [0, 1234])
def test_a_container_has_no_capability_when_it_has_become_the_owner_of_a_folder(
    uid: int, image: str, tmp_path: Path
) -> None:
    os.chown(tmp_path, uid, uid)
    capabilities = ("CHOWN", "SETGID", "SETPCAP", "SETUID")
    words = ["docker", "run", "--rm", "--user", "root", "--cap-drop", "ALL", "--volume", f"{tmp_path}:/runs"]
    words += [word for each in capabilities for word in ("--cap-add", each)]
    status = dict(
        line.split(":\t")
        for line in command(*words, "--entrypoint", "as-owner", image, "/runs", "cat", "/proc/self/status").splitlines()
        if ":\t" in line
    )
    assert status["Uid"].split() == status["Gid"].split() == [str(uid)] * 4
    assert not status["Groups"].strip()
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"


def test_a_server_that_cannot_begin_ends_the_command_with_its_code_and_the_clients_with_its_reason(
    checkout: Check,
) -> None:
    user = checkout(FENCHEL_SETTINGS="./wrong.yaml")
    (user.folder / "wrong.yaml").write_text("rounds: -3\n")
    code, output = user.run(FEDAVG)
    assert code == SettingsError.exit_code, output
    codes = user.cluster.finished()
    assert [code for name, code in codes.items() if "client" in name] == [JoinRefusedError.exit_code] * 4
    for client in user.cluster.containers("client"):
        assert user.cluster.said(client, "the server has ended: ")
        assert user.cluster.said(client, "rounds")


@pytest.fixture
def implemented(request: pytest.FixtureRequest, image: str) -> dict[str, str]:
    """Return the variables by which an implementation is chosen, with the image and the words of the page."""
    if request.param == "fenchel":
        return {}
    page = (ROOT / "docs" / "docker.md").read_text()
    (recipe,) = re.findall("^FROM fenchel$.*?^USER 1000:1000$", page, re.M | re.S)
    variables = dict(re.findall("(FENCHEL_(?:KEYS|SERVER)_OPTIONS)='(.*?)'", page))
    assert all("phe" in words for words in variables.values())
    made = f"{image}-phe"
    given = re.sub("^FROM fenchel$", f"FROM {image}", recipe, flags=re.M)
    subprocess.run(["docker", "build", "--tag", made, "-"], input=given, text=True, check=True)
    return {"FENCHEL_IMAGE": made, **variables}


@pytest.mark.parametrize("implemented", rest_slow(["fenchel", "phe"]), indirect=True)
async def test_the_encrypted_cluster_goes_on_when_its_containers_are_killed_and_it_is_brought_up_again(
    checkout: Check, tmp_path: Path, implemented: dict[str, str]
) -> None:
    user = checkout(**implemented)
    cluster = user.cluster
    settings_file = user.folder / "fenchel/experiments/quickstart.yaml"
    if not implemented:  # on a fast machine, thirty rounds end before a container has been killed
        settings_file.write_text(settings_file.read_text().replace("rounds: 30", "rounds: 150"))
    first = user.start(ENCRYPTED)
    cluster.wait(lambda: bool(cluster.containers("server")), "the server")
    cluster.wait_for_round(5)
    (server,) = cluster.containers("server")
    command("docker", "kill", server)
    output, _ = first.communicate()
    assert first.returncode == KILLED, output
    again = user.start(ENCRYPTED)
    cluster.wait_for_round(15)
    command("docker", "kill", cluster.containers("client")[2])
    assert user.run(ENCRYPTED.replace("--exit-code-from server", "--detach"))[0] == 0
    output, _ = again.communicate()
    assert again.returncode == 0, output
    assert set(cluster.finished().values()) == {0}
    settings = yaml.safe_load((cluster.run_folder() / "settings.yaml").read_text())
    assert settings["algorithm"]["encryption"]["implementation"] == ("phe" if implemented else "fenchel")
    np.testing.assert_allclose(model(cluster.run_folder()), await in_plaintext(tmp_path, settings_file), atol=TOLERANCE)
    mounts = {mount["Destination"] for mount in cluster.inspect(server)["Mounts"]}
    assert mounts == {"/certs", "/data", "/runs", "/settings.yaml"}
    for client in cluster.containers("client"):
        assert {mount["Destination"] for mount in cluster.inspect(client)["Mounts"]} >= {"/keys", "/certs"}
