"""Trust limits: code, data, files, memory and disclosures that the server may demand of a client.

The settings of a run come from the server. Settings that make the client import code, open a file, use much memory or
disclose scores of small groups require the consent of the client's operator, given on the command line or in the
environment. The limit on disk space is in :mod:`fenchel.client.disk_quota`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import BaseModel

from fenchel.algorithms.registry import require_allowed
from fenchel.common.crypto.public_key import SAFE_BITS
from fenchel.common.data.catalogue import CATALOGUE, UNPUBLISHED
from fenchel.common.data.extractor import VARIABLE
from fenchel.common.data.shard import Shard
from fenchel.common.errors import AnotherRunError, SettingsError, WireError
from fenchel.common.objectives.factory import dimension_of
from fenchel.common.settings.objective import BinarySettings, MlpScorer, MlpSettings, OwnSettings
from fenchel.common.settings.run import RunSettings, from_json, outside_code, raw

MESSAGE_BYTES = 8 << 30
"""Default limit on the size of a message and of a model, in bytes."""

LEAST_GROUP = 5
"""Default for the smallest number of samples in a group of scores."""

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_EXTRACTOR_FILE = "data.extractor.file"


@dataclass(frozen=True)
class TrustLimits:
    """Limits to which the operator of a client has agreed.

    Attributes
    ----------
    code
        Classes from outside the project that may run, as ``package.module:Class``.
    files
        Files of this machine that settings may name.
    data
        Data sets of this machine that settings may name; ``None`` allows all public ones.
    message_bytes
        Largest size of a message and of a model, in bytes.
    least_group
        Smallest number of samples in a group of scores.
    journal_bytes
        Quota for journals in bytes; ``None`` for the default of :class:`fenchel.client.disk_quota.DiskQuota`.
    plaintext
        True if a client that was started with ``--secrets`` or ``--peer`` may join a run without encryption, or with
        a short key.
    error_texts
        True if the text of an error in code from outside the project, which may contain data, is logged.
    any_run
        True if the client joins another run of the server after it has worked in one.
    """

    code: Collection[str] = ()
    files: Collection[Path] = field(default=())
    data: Collection[str] | None = None
    message_bytes: int = MESSAGE_BYTES
    least_group: int = LEAST_GROUP
    journal_bytes: int | None = None
    plaintext: bool = False
    error_texts: bool = False
    any_run: bool = False

    @classmethod
    def agreeing_to(cls, settings: RunSettings) -> Self:
        """Return limits that allow everything in ``settings``, for a run that the operator starts with them."""
        name, histograms = settings.data.name, settings.evaluation.histograms
        return cls(
            code=outside_code(settings.model_dump()),
            files=[path for _, path in named_files(settings)],
            data=None if name is None else [name],
            message_bytes=settings.network.max_message_bytes,
            least_group=LEAST_GROUP if histograms is None else histograms,
            journal_bytes=sys.maxsize,
            plaintext=True,
            error_texts=True,
        )

    def settings(self, text: str, own: str | None) -> RunSettings:
        """Validate the settings that a server sent, and return them.

        Parameters
        ----------
        text
            Settings as sent by the server.
        own
            Description of the client's own data, if it was started with any.

        Raises
        ------
        SettingsError
            If the settings are invalid or exceed these limits.
        """
        # Check this before validating the settings, because validation imports the code that they name.
        for name in outside_code(raw(text)):
            require_allowed(name, self.code)
        settings = from_json(text)
        self._check_data(settings, own)
        allowed = {_resolved(path) for path in self.files}
        for key, path in named_files(settings):
            if key == _EXTRACTOR_FILE and os.environ.get(VARIABLE):
                continue  # the client replaces this setting by its own data
            if _resolved(path) not in allowed:
                raise SettingsError(
                    f"the server's settings name the file {path} of this machine ({key}); if this run may read the "
                    f"file, start this client with --allow-file {path}"
                )
        if settings.network.max_message_bytes > self.message_bytes:
            raise SettingsError(
                f"the server's settings allow messages of {settings.network.max_message_bytes:,} bytes "
                f"(network.max_message_bytes), but this client accepts at most {self.message_bytes:,}; if it has "
                "the memory, start it with a larger --max-message-bytes"
            )
        self._check_groups(settings)
        return settings

    def check_encryption(self, settings: RunSettings, given: str | None) -> None:
        """Reject unencrypted or weakly encrypted runs if the client was started with ``--secrets`` or ``--peer``.

        Key lengths are checked only for keys made in the run, as the server chooses them.

        Parameters
        ----------
        given
            The option that shows that the operator expects encryption; ``None`` if neither was given.

        Raises
        ------
        SettingsError
            If the run is rejected.
        """
        bits = settings.algorithm.key_bits
        if given is None or self.plaintext or (bits is not None and (given != "--peer" or bits >= SAFE_BITS)):
            return
        problem = (
            f"encrypts nothing (algorithm {settings.algorithm.name})"
            if bits is None
            else f"has keys of {bits} bits, and keys below {SAFE_BITS} bits can be broken"
        )
        raise SettingsError(
            f"this client was started with {given}, but the server's run {problem}, so the client does not take "
            f"part. If the server may see what this client sends, leave {given} out, or start it with "
            "--allow-plaintext"
        )

    def check_same(self, joined: str, shown: str, client: str) -> None:
        """Reject a run other than the one in which the client has worked, unless any run is allowed.

        Parameters
        ----------
        joined
            Id of the run in which the client has worked.
        shown
            Id of the server's present run.
        client
            Client id.

        Raises
        ------
        AnotherRunError
            If the run is rejected.
        """
        if shown == joined or self.any_run:
            return
        check_run(shown)
        raise AnotherRunError(
            f"client {client} has joined run {joined}, but the server now conducts run {shown}. The client ends, "
            "and nothing is lost. Start it again to join the new run; with --any-run a client joins whatever run "
            "the server conducts",
            joined=joined,
            shown=shown,
        )

    def check_model(self, settings: RunSettings, shard: Shard) -> None:
        """Raise ``SettingsError`` if the model exceeds the limit on its size, before it is built.

        The models of objectives from outside the project are not checked, as the operator has agreed to their code.
        """
        objective = settings.objective
        if isinstance(objective, OwnSettings):
            return
        network = objective.scorer if isinstance(objective, BinarySettings) else objective
        itemsize = np.dtype(objective.dtype).itemsize
        # The number of units bounds the number of weights from below. Check this first: torch fails on integers beyond
        # 64 bits.
        parameters = network.hidden if isinstance(network, MlpSettings | MlpScorer) else 0
        if parameters * itemsize <= self.message_bytes:
            parameters = dimension_of(objective, shard.features.shape[1], shard.classes)
        if parameters * itemsize > self.message_bytes:
            raise SettingsError(
                f"the server's settings need a model of at least {parameters:,} parameters (objective), which take "
                f"{parameters * itemsize:,} bytes, but this client accepts at most {self.message_bytes:,}; if it "
                "has several times that memory, start it with a larger --max-message-bytes"
            )

    def _check_groups(self, settings: RunSettings) -> None:
        least = settings.evaluation.histograms
        if settings.clients_evaluate and least is not None and least < self.least_group:
            raise SettingsError(
                f"the server's settings request scores in groups of {least} samples or more "
                f"(evaluation.histograms), but this client sends none of fewer than {self.least_group}; if it may, "
                f"start it with --least-group {least}"
            )

    def _check_data(self, settings: RunSettings, own: str | None) -> None:
        name = settings.data.name
        if own is not None:
            if not settings.own_data:
                raise SettingsError(
                    f"this client was started with data of its own ({own}), but the server's settings name "
                    f"{name or settings.data.file}; check the server's address, or start the client without its "
                    "own data"
                )
        elif name is not None and (
            name not in self.data if self.data is not None else name not in CATALOGUE and name not in UNPUBLISHED
        ):
            raise SettingsError(
                f"the server's settings name the data set {name!r}, which this client does not allow; if this run "
                f"may use the data set, start this client with --allow-data {name}"
            )


def check_run(run: str) -> None:
    """Raise ``WireError`` if a run id, which becomes the name of a folder, is not a plain file name."""
    if not _RUN.fullmatch(run):
        raise WireError(
            f"the server's id of its run is invalid: {run[:80]!r}; check that the address is that of a Fenchel server"
        )


def named_files(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Path]]:
    """Yield the dotted key and path of each file that settings name.

    Files that only the server opens, such as ``objective.initial.file``, are omitted: the settings store their paths as
    ``str``.
    """
    for name in type(section).model_fields:
        value: Any = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from named_files(value, f"{prefix}{name}.")
        elif isinstance(value, Path):
            yield f"{prefix}{name}", value


def _resolved(path: Path) -> Path:
    return path.expanduser().resolve()
