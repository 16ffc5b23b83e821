"""Process for one request to a Kubernetes cluster, separate from the server's because it handles clients' secrets."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fenchel.common.errors import FenchelError, SettingsError, UnreachableError
from fenchel.common.untrusted_text import sanitize
from fenchel.deploy.launch.bundle import read_whole

CONTAINER = "client"
"""Name of the container of the client process. When it exits, the pod counts as ended, even with sidecars."""

_POLLING = 0.5  # polling interval for the state of a pod, in seconds
_GRACE = 5  # grace period for a process to exit, in seconds
_LOST = 30.0  # time after which a pod under deletion counts as lost, in seconds
_TIMEOUT = (5, 30)  # timeouts for the connection to the cluster and for its answer, in seconds
_HOPELESS = frozenset({"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"})
"""Reasons for which a pod would remain waiting forever."""

_MISTAKES = frozenset({400, 401, 403, 404, 422})  # HTTP status codes of errors that only the user can fix
_QUIET = 86_400  # read timeout for a log without new lines, in seconds
_INSIDE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class Cluster:
    """Connection to a Kubernetes cluster.

    Attributes
    ----------
    core
        Client of the cluster's core API.
    namespace
        Namespace of all pods and Secrets.
    """

    core: Any
    namespace: str

    @classmethod
    def connect(cls, context: str, namespace: str) -> Cluster:
        """Connect to the cluster of a kubeconfig context, by default to the one that runs this process.

        Outside a cluster, the default is the current context.

        Raises
        ------
        SettingsError
            If no cluster is configured.
        """
        import urllib3
        from kubernetes import client, config

        urllib3.disable_warnings()  # no warnings if the user's kubeconfig disables the verification of certificates
        try:
            if not context and _INSIDE.exists():
                config.load_incluster_config()
                return cls(client.CoreV1Api(), namespace or _INSIDE.read_text().strip())
            config.load_kube_config(context=context or None)
            contexts, current = config.list_kube_config_contexts()
            chosen = next((each for each in contexts if each["name"] == context), current)
        except config.ConfigException as error:
            raise SettingsError(f"no cluster is configured: {error}; see kubectl config get-contexts") from None
        return cls(client.CoreV1Api(), namespace or chosen["context"].get("namespace") or "default")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the cluster's API server."""
        found = urlsplit(self.core.api_client.configuration.host)
        return found.hostname or "localhost", found.port or 443

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the core API.

        Raises
        ------
        SettingsError
            If the cluster rejects the call because of the user's settings.
        UnreachableError
            If the cluster does not answer, or fails.
        """
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return getattr(self.core, method)(*arguments, **{"_request_timeout": _TIMEOUT} | options)
        except ApiException as error:
            try:
                reason = str(json.loads(error.body)["message"])
            except (TypeError, ValueError, KeyError):
                reason = str(error.reason)
            kind = SettingsError if error.status in _MISTAKES else UnreachableError
            raise kind(f"Kubernetes rejected the call {method}: {sanitize(reason)[:500]}") from error
        except HTTPError as error:
            raise UnreachableError(
                f"the cluster does not answer: {sanitize(str(error))[:300]}; check the connection with kubectl "
                "cluster-info"
            ) from None

    def clean(self, selector: str) -> None:
        """Delete the pods and Secrets that match a label selector, and wait until the pods are gone.

        Raises
        ------
        UnreachableError
            If pods still exist after a forced deletion.
        """
        self.call("delete_collection_namespaced_secret", self.namespace, label_selector=selector)
        for grace in (_GRACE, 0):  # with 0, the cluster forgets pods without confirmation by their node
            options = {"label_selector": selector, "grace_period_seconds": grace}
            self.call("delete_collection_namespaced_pod", self.namespace, **options)
            until = time.monotonic() + _LOST
            while time.monotonic() < until:
                if not self.call("list_namespaced_pod", self.namespace, label_selector=selector).items:
                    return
                time.sleep(_POLLING)
        raise UnreachableError(
            "the pods still exist after a forced deletion; see kubectl get pods --namespace "
            f"{self.namespace} --selector {selector}"
        )


@dataclass(frozen=True)
class State:
    """State of a pod.

    Attributes
    ----------
    waits
        Reason why the container has not started yet, empty after its start.
    ended
        True if the container has exited or is lost.
    message
        Termination message of the container.
    removed
        True if the pod is being deleted.
    """

    waits: str = ""
    ended: bool = False
    message: str = ""
    removed: bool = False

    @classmethod
    def of(cls, pod: Any) -> State:
        """Derive the state from the cluster's description of a pod."""
        statuses = pod.status.container_statuses or ()  # may include sidecar containers of a service mesh
        container = next((each for each in statuses if each.name == CONTAINER), None)
        if container is not None and (ended := container.state.terminated) is not None:
            return cls(ended=True, message=ended.message or "")
        if pod.status.phase == "Failed":  # for example, an evicted pod
            return cls(ended=True)
        removed = pod.metadata.deletion_timestamp is not None
        if container is not None and container.state.running is not None:
            return cls(removed=removed)
        if container is not None and (waiting := container.state.waiting) is not None:
            return cls(waits=f"{waiting.reason}: {waiting.message or ''}", removed=removed)
        unmet = [each.message for each in pod.status.conditions or () if each.status == "False" and each.message]
        return cls(waits=f"Pending: {'; '.join(unmet)}", removed=removed)


@dataclass
class Pod:
    """Pod of a client process, from its creation to its deletion.

    Parameters
    ----------
    cluster
        Cluster of the pod.
    manifest
        Manifest of the pod.
    room
        Timeout for scheduling the pod on a node, in seconds; ``None`` for no timeout.
    """

    cluster: Cluster
    manifest: Mapping[str, Any]
    room: float | None = None
    _last: State = field(default=State(waits="Pending: "), init=False)
    # Monotonic time at which the deletion was first observed, in seconds.
    _removed: float | None = field(default=None, init=False)
    _said: str = field(default="", init=False)  # latest message about the pod, which is not repeated
    _ended: threading.Event = field(default_factory=threading.Event, init=False)

    def run(self, bundle: bytes | None) -> str:
        """Run the pod, with a bundle if any, and return its termination message, empty if it was killed or lost.

        The log of the pod is copied to standard error. Finally, the pod is deleted.

        Raises
        ------
        SettingsError
            If the cluster rejects the pod, or cannot start the pod.
        UnreachableError
            If the cluster does not answer when the pod is created.
        """
        made = self.cluster.call("create_namespaced_pod", self.cluster.namespace, self.manifest)
        grace = 0  # before the container starts, no process needs a grace period
        try:
            if bundle is not None:
                self._make_secret(bundle, made.metadata.uid)
            self._start()
            grace = _GRACE
            log = threading.Thread(target=self._follow_log, daemon=True)
            log.start()
            while not (state := self._state()).ended:
                time.sleep(_POLLING)
            grace = 0
            self._ended.set()
            log.join(_GRACE)
            return state.message
        finally:
            with suppress(FenchelError):  # the pod may be deleted already; its Secret is deleted along with it
                self.cluster.call("delete_namespaced_pod", *self._name, grace_period_seconds=grace)

    @property
    def _name(self) -> tuple[str, str]:
        return self.manifest["metadata"]["name"], self.cluster.namespace

    def _make_secret(self, bundle: bytes, owner: str) -> None:
        """Create the Secret that the pod mounts, and that the cluster deletes along with the pod."""
        name, namespace = self._name
        belongs = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": owner}
        metadata = {"name": name, "labels": self.manifest["metadata"]["labels"], "ownerReferences": [belongs]}
        data = {"bundle": base64.b64encode(bundle).decode()}
        self.cluster.call(
            "create_namespaced_secret", namespace, {"metadata": metadata, "data": data, "immutable": True}
        )

    def _start(self) -> None:
        """Wait until the container has started."""
        begun = time.monotonic()
        while waits := self._state().waits:
            reason = waits.partition(":")[0]
            is_late = reason == "Pending" and self.room is not None and time.monotonic() > begun + self.room
            if reason in _HOPELESS or is_late:
                raise SettingsError(
                    f"the pod does not start: {waits}. Check the image, the claims and the requested resources"
                )
            self._say(waits)
            time.sleep(_POLLING)

    def _state(self) -> State:
        """Return the state of the pod, or the latest known state while the cluster does not answer."""
        try:
            found = self.cluster.core.list_namespaced_pod(
                self.cluster.namespace, field_selector=f"metadata.name={self._name[0]}", _request_timeout=_TIMEOUT
            ).items
        except Exception as error:  # errors of the network, of the Kubernetes client, or in parsing an answer
            self._say(f"the cluster does not answer: {error}")
            return self._last
        self._last = State.of(found[0]) if found else State(ended=True)
        if not self._last.removed:
            self._removed = None
        elif self._removed is None:
            self._removed = time.monotonic()
        elif time.monotonic() > self._removed + _LOST:  # the node no longer confirms the deletion
            self._last = State(ended=True)
        return self._last

    def _follow_log(self) -> None:
        """Copy the log of the pod to standard error, and reconnect after connection errors."""
        since: dict[str, int] = {}
        while True:
            with suppress(Exception):  # reconnect after any network error, because the log is only informative
                log = self.cluster.core.read_namespaced_pod_log(
                    *self._name, follow=True, _preload_content=False, _request_timeout=(_TIMEOUT[0], _QUIET), **since
                )
                for chunk in log.stream():
                    sys.stderr.buffer.write(chunk)
                    sys.stderr.buffer.flush()
            since = {"since_seconds": 1}
            if self._ended.wait(_POLLING):
                return

    def _say(self, text: str) -> None:
        if text != self._said:
            print(f"Kubernetes: {sanitize(text)[:500]}", file=sys.stderr, flush=True)  # noqa: T201
        self._said = text


def _end_with_standard_input() -> None:
    """Send SIGTERM to this process when its standard input closes."""
    # Read the file descriptor, because a thread that blocks in sys.stdin would hold a lock at the interpreter's exit.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    signal.raise_signal(signal.SIGTERM)


def main() -> None:
    """Execute a request (``ORDER``, a JSON object), and print the result.

    The request ``clean`` deletes the pods and Secrets that match a selector, and prints the cluster's address. The
    request ``pod`` runs a pod, optionally with a Secret from standard input, and prints the pod's termination message.
    """
    # Ignore Ctrl-C in the terminal: the driver ends when standard input closes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    order = json.loads(sys.argv[1])
    try:
        cluster = Cluster.connect(order["context"], order["namespace"])
        if "clean" in order:
            cluster.clean(order["clean"])
            print(json.dumps(cluster.address))  # noqa: T201
            return
        bundle = read_whole(sys.stdin.buffer) if order.get("secret") else None
        if bundle is not None:
            threading.Thread(target=_end_with_standard_input, daemon=True).start()
        sys.stdout.write(Pod(cluster, order["pod"], order.get("room")).run(bundle))
    except FenchelError as error:
        print(error, file=sys.stderr)  # noqa: T201
        # A restarted pod would fail in the same way, so the exit code is reported as final.
        if order.get("secret") and isinstance(error, SettingsError):
            print(error.exit_code)  # noqa: T201
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
