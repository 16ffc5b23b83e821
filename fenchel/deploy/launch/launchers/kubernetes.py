"""Client processes as Kubernetes pods, each with a separate Secret.

Each request to the cluster is made by a separate process, :mod:`fenchel.deploy.launch.launchers.pod`, so that the
contents of Secrets never enter the server's process.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from fenchel.common.errors import FenchelError, SettingsError, UnreachableError
from fenchel.common.settings.section import Section
from fenchel.common.untrusted_text import sanitize
from fenchel.common.version import software
from fenchel.deploy.address import everywhere
from fenchel.deploy.launch.launchers import piped
from fenchel.deploy.launch.launchers.interface import ClientProcess, Requirements, Site
from fenchel.deploy.launch.launchers.pod import CONTAINER
from fenchel.deploy.launch.launchers.survey import Survey

LABEL = "org.fenchel/run"
"""Label of all pods and Secrets of a run, with the end of the run's id as its value."""

_DRIVER = "fenchel.deploy.launch.launchers.pod"
_STATE = "/state"
_BUNDLE = Path("/bundle/bundle")
_SILENCE = 120  # time without an answer of the server after which a client exits, in seconds
_ROOM = 60.0  # timeout for scheduling the first pod, in seconds, in which a new volume is bound
_PULLING = 900.0  # timeout for a request, which may include the pull of the image, in seconds
_USER = 1000  # user id in the image


class KubernetesSettings(piped.AddressSettings):
    """Namespace, image, storage and resources of the pods of client processes."""

    namespace: str = Field("", description="namespace of the pods; by default that of the context, or of this pod")
    context: str = Field("", description="context of the kubeconfig; by default the current one, or this cluster")
    image: str = Field("fenchel", min_length=1, description="image that has this Fenchel")
    pull_policy: str = Field("IfNotPresent", pattern="^(IfNotPresent|Always|Never)$", description="when it is pulled")
    pull_secret: str = Field("", description="Secret with the credentials of the image's registry")
    claim: str = Field("", description="claim for journals that pods on all nodes can mount (ReadWriteMany)")
    data: str = Field("", description="claim with data sets, as fenchel data fetch keeps them")
    cpus: float = Field(1, gt=0, description="processors for each client process")
    gpus: int = Field(0, ge=0, description="GPUs (nvidia.com/gpu) for each client process")
    memory: str = Field("1Gi", description="memory for each client process")
    nodes: dict[str, str] = Field(default_factory=dict, description="labels of the nodes that pods may be on")


@dataclass
class KubernetesLauncher:
    """Launcher that starts a pod for each client process, from outside the cluster or from a pod in the cluster.

    Parameters
    ----------
    settings
        Namespace, image, storage and resources of the pods.
    """

    Settings: ClassVar[type[Section]] = KubernetesSettings
    on_this_machine: ClassVar[bool] = False

    settings: KubernetesSettings
    _run: str = field(default="RUN", init=False)
    _stateless: bool = field(default=False, init=False)

    @staticmethod
    def missing() -> list[str]:
        """Check that the Python client of Kubernetes is installed, and return instructions if not."""
        return [] if find_spec("kubernetes") else ["kubernetes is not installed: pip install 'fenchel[kubernetes]'"]

    def plan(self, process: ClientProcess) -> str:
        """Return the manifest of the pod, whose Secret has the same name."""
        from yaml import safe_dump

        return f"---\n{safe_dump(self._pod(_words(process), process.number), sort_keys=False)}"

    async def open(self, required: Requirements) -> Site:
        """Remove remains of a killed command of the run, and test the image and the route to this machine from a pod.

        Raises
        ------
        SettingsError
            If clients need journals or files without a claim, if a namespace, claim, image or permission is missing, or
            if the image has another version of Fenchel.
        UnreachableError
            If the cluster does not answer, or a pod cannot reach this machine.
        """
        self._check(required)
        self._run = re.sub(r"[^\w.-]", "-", required.run)[-63:].strip("._-")
        self._stateless = required.stateless
        address = json.loads(await self._do({"clean": self._selector}))
        dial = self.settings.dial or _own_address(*address)
        listen = everywhere(dial)
        try:
            with piped.listening(listen, self.settings.port) as port:
                await self._look(dial, port)
        except BaseException:
            with suppress(FenchelError):  # a failed clean-up must not hide the original error
                await self._do({"clean": self._selector})
            raise
        return Site(listen=listen, port=self.settings.port, dial=dial, state=self._state)

    async def start(self, process: ClientProcess) -> piped.PipedProcess:
        """Start a client process in a new pod."""
        return await piped.start(
            self._driver({"pod": self._pod(_words(process), process.number), "secret": True}), process
        )

    async def close(self, *, remove_journals: bool) -> None:
        """Remove the pods and Secrets of the run, and with ``remove_journals`` also the journals on the claim."""
        await self._do({"clean": self._selector})
        if remove_journals and self._claim:
            script = 'rm -rf -- "$1" && echo removed >/dev/termination-log'
            pod = self._pod([self._state], "remove")
            pod["spec"]["containers"][0]["command"] = ["sh", "-c", script, "sh"]
            if not await self._do({"pod": pod}):
                raise UnreachableError(
                    f"journals are left in {self._state[1:]} of the volume claim; remove that folder",
                    source=self._claim,
                )

    @property
    def _selector(self) -> str:
        return f"{LABEL}={self._run}"

    @property
    def _state(self) -> str:
        return f"{_STATE}/{self._run}"

    @property
    def _claim(self) -> str:
        return "" if self._stateless else self.settings.claim

    def _check(self, required: Requirements) -> None:
        """Raise a SettingsError for requirements that pods with these settings cannot fulfil."""
        if not (required.stateless or self.settings.claim):
            raise SettingsError(
                "clients keep journals, which are lost with their pods; create a volume claim that pods on all "
                "nodes can mount (ReadWriteMany), and name it",
                key="claim",
            )
        if required.data is not None and not self.settings.data:
            raise SettingsError("pods need the data set; put it on a volume claim, and name the claim", key="data")
        if required.files:
            raise SettingsError(
                f"pods cannot read {required.files[0]}; name the data set by data.name, and put it on a volume claim",
                key="data",
            )

    async def _look(self, dial: str, port: int) -> None:
        """Test the image and the route to this machine from a pod with the configuration of client pods."""
        output = await self._do({"pod": self._pod(["look", dial, str(port), ""], "look"), "room": _ROOM})
        found = Survey.read(output)
        if not found:
            raise SettingsError(
                f"the image {self.settings.image} has no {software()} ({sanitize(output[:200])}); build it from this "
                "version",
                key="image",
            )
        found[0].check(self.settings.image, port)

    def _driver(self, order: dict[str, Any]) -> list[str]:
        where = {"context": self.settings.context, "namespace": self.settings.namespace}
        return [sys.executable, "-P", "-m", _DRIVER, json.dumps(where | order)]

    async def _do(self, order: dict[str, Any]) -> str:
        """Execute a request to the cluster in a separate process, and return the process's output."""
        code, output, errors = await piped.said(self._driver(order), patience=_PULLING)
        if code == 0:
            return output
        kinds = (kind for kind in FenchelError.__subclasses__() if kind.exit_code == code)
        raise next(kinds, UnreachableError)(errors, key="--on kubernetes")

    def _pod(self, words: list[str], name: str | int) -> dict[str, Any]:
        """Return the manifest of a pod."""
        settings = self.settings
        unique = f"fenchel-{name}-{secrets.token_hex(4)}"
        limits: dict[str, Any] = {"memory": settings.memory}
        limits |= {"nvidia.com/gpu": settings.gpus} if settings.gpus else {}
        kernel = os.environ.get("OPENBLAS_CORETYPE")
        claim = {"persistentVolumeClaim": {"claimName": self._claim}}
        # Volume and mount options by the volume's name.
        volumes: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
            "tmp": ({"emptyDir": {"medium": "Memory"}}, {"mountPath": "/tmp"}),  # noqa: S108
            "journals": (claim if self._claim else {"emptyDir": {}}, {"mountPath": _STATE}),
        }
        if settings.data:
            data = {"persistentVolumeClaim": {"claimName": settings.data, "readOnly": True}}
            volumes["data"] = data, {"mountPath": "/data", "readOnly": True}
        if isinstance(name, int):
            secret = {"secret": {"secretName": unique, "defaultMode": 0o440}}
            volumes["bundle"] = secret, {"mountPath": str(_BUNDLE.parent), "readOnly": True}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": unique,
                "labels": {
                    "app.kubernetes.io/name": "fenchel",
                    "app.kubernetes.io/component": "client",
                    LABEL: self._run,
                },
            },
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                **({"nodeSelector": settings.nodes} if settings.nodes else {}),
                **({"imagePullSecrets": [{"name": settings.pull_secret}]} if settings.pull_secret else {}),
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": _USER,
                    "runAsGroup": _USER,
                    "fsGroup": _USER,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [
                    {
                        "name": CONTAINER,
                        "image": settings.image,
                        "imagePullPolicy": settings.pull_policy,
                        # The container reports the exit code as its termination message, separate from its log.
                        "command": ["sh", "-c", f'exec python -P -m {piped.REMOTE} "$@" >/dev/termination-log', "sh"],
                        "args": words,
                        "env": [{"name": "OPENBLAS_CORETYPE", "value": kernel}] if kernel else [],
                        "securityContext": {
                            "allowPrivilegeEscalation": False,
                            "readOnlyRootFilesystem": True,
                            "capabilities": {"drop": ["ALL"]},
                        },
                        # Without a CPU limit, a pod may use processors that other pods leave idle.
                        "resources": {"requests": limits | {"cpu": f"{settings.cpus:g}"}, "limits": limits},
                        "volumeMounts": [{"name": name} | mount for name, (_, mount) in volumes.items()],
                    }
                ],
                "volumes": [{"name": name} | volume for name, (volume, _) in volumes.items()],
            },
        }


def _words(process: ClientProcess) -> list[str]:
    """Return the arguments of a client that reads its bundle from a file, and exits if its server stays silent."""
    words = list(process.words)
    words[words.index("--bundle") + 1] = str(_BUNDLE)
    return [*words, "--retry-for", str(_SILENCE)]


def _own_address(host: str, port: int) -> str:
    """Return the local address of this machine on the route to a host."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise SettingsError(
            f"this machine has no route to the cluster at {host} ({error.strerror}), so its own address is unknown; "
            "give the address at which pods reach this machine",
            key="dial",
        ) from None
