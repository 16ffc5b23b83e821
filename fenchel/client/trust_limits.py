"""What a client lets the server choose: which code it runs, which data it uses, which files it opens, what it tells.

The settings of a run come from the server. Whatever in them would make this machine import code, open a file, hold
much memory or tell scores of few samples is only done if whoever started the client agreed to it, on the
command line or in the environment. How much a server may have it write is for
:mod:`fenchel.client.disk_quota`.
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
"""The largest messages that a run may have, and the largest model, if nobody agreed to larger ones."""

LEAST_GROUP = 5
"""How many samples share a group of scores at least, if nobody agreed to fewer."""

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_EXTRACTOR_FILE = "data.extractor.file"


@dataclass(frozen=True)
class TrustLimits:
    """What the person who started a client agreed to.

    Attributes
    ----------
    code
        Classes from outside the project that may be run, as ``package.module:Class``.
    files
        Files of this machine that settings may name.
    data
        Data sets of this machine that may be used; ``None``: those that are public.
    message_bytes
        The largest messages that a run may have, and the largest model.
    least_group
        How many samples must share a group at least, where scores are told in groups.
    journal_bytes
        How many bytes a journal may take; ``None``: as :class:`fenchel.client.disk_quota.DiskQuota` says.
    plaintext
        Whether a client that was given secrets, or peers to share them with, takes part where nothing is encrypted.
    error_texts
        Whether the client's log gets the text of an error in code from outside the project, which may hold data.
    any_run
        Whether a client goes on with whatever run the server has, after it has taken part in one.
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
        """Return limits that allow all that settings ask for, as the person who starts a run of them agrees to it."""
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
        """Return the settings that a server sent, if nothing in them goes beyond these limits.

        Parameters
        ----------
        own
            The data that the client was started with, in words, if any.
        """
        # Before the settings are validated, which imports the code that they name.
        for name in outside_code(raw(text)):
            require_allowed(name, self.code)
        settings = from_json(text)
        self._check_data(settings, own)
        allowed = {_resolved(path) for path in self.files}
        for key, path in named_files(settings):
            if key == _EXTRACTOR_FILE and os.environ.get(VARIABLE):
                continue  # the file is this machine's choice
            if _resolved(path) not in allowed:
                raise SettingsError(
                    f"the server's settings name the file {path} of this machine ({key}); if it may be read for this "
                    f"run, start this client with --allow-file {path}"
                )
        if settings.network.max_message_bytes > self.message_bytes:
            raise SettingsError(
                f"the server's settings allow messages of {settings.network.max_message_bytes:,} bytes "
                f"(network.max_message_bytes), and this client takes {self.message_bytes:,} at most; if it has the "
                "memory, start it with a larger --max-message-bytes"
            )
        self._check_groups(settings)
        return settings

    def check_encryption(self, settings: RunSettings, given: str | None) -> None:
        """Refuse a run without encryption that deserves the name, where the client was started for one that has it.

        The length of a key in a file of secrets is its maker's choice, that of a sealed key the server's.

        Parameters
        ----------
        given
            What says that this client expects encryption, ``--secrets`` or ``--peer``; ``None``: nothing does.
        """
        bits = settings.algorithm.key_bits
        if given is None or self.plaintext or (bits is not None and (given != "--peer" or bits >= SAFE_BITS)):
            return
        problem = (
            f"encrypts nothing (algorithm {settings.algorithm.name})"
            if bits is None
            else f"has keys of {bits} bits, which can be broken below {SAFE_BITS}"
        )
        raise SettingsError(
            f"this client was started with {given}, and the server's run {problem}, so it does not take part. If the "
            f"server may see what this client sends, leave {given} out, or start it with --allow-plaintext"
        )

    def check_same(self, joined: str, shown: str, client: str) -> None:
        """Refuse another run than the one that a client has taken part in.

        Parameters
        ----------
        joined, shown
            Ids of the run that the client has taken part in, and of the one that the server shows now.
        """
        if shown == joined or self.any_run:
            return
        check_run(shown)
        raise AnotherRunError(
            f"client {client} has taken part in run {joined}, and the server has another one now, {shown}. It ends "
            "here, and nothing is lost. To take part in that run start the client again; with --any-run it goes on "
            "with whatever run the server has",
            joined=joined,
            shown=shown,
        )

    def check_model(self, settings: RunSettings, shard: Shard) -> None:
        """Refuse a model that takes more memory than anybody agreed to, before it is built.

        Of an objective from outside the project, whoever agreed to the code agreed to its model.
        """
        objective = settings.objective
        if isinstance(objective, OwnSettings):
            return
        network = objective.scorer if isinstance(objective, BinarySettings) else objective
        itemsize = np.dtype(objective.dtype).itemsize
        # Each unit has a weight at least; torch itself fails on numbers that are too long.
        parameters = network.hidden if isinstance(network, MlpSettings | MlpScorer) else 0
        if parameters * itemsize <= self.message_bytes:
            parameters = dimension_of(objective, shard.features.shape[1], shard.classes)
        if parameters * itemsize > self.message_bytes:
            raise SettingsError(
                f"the server's settings ask for a model of {parameters:,} parameters or more (objective), which take "
                f"{parameters * itemsize:,} bytes, and this client takes {self.message_bytes:,} at most; if it has "
                "several times that memory, start it with a larger --max-message-bytes"
            )

    def _check_groups(self, settings: RunSettings) -> None:
        least = settings.evaluation.histograms
        if settings.clients_evaluate and least is not None and least < self.least_group:
            raise SettingsError(
                f"the server's settings have clients tell scores in groups of {least} samples or more "
                f"(evaluation.histograms), and this client tells none of fewer than {self.least_group}; if "
                f"it may, start it with --least-group {least}"
            )

    def _check_data(self, settings: RunSettings, own: str | None) -> None:
        name = settings.data.name
        if own is not None:
            if not settings.own_data:
                raise SettingsError(
                    f"this client was started with data of its own ({own}), and the server's settings ask for "
                    f"{name or settings.data.file}; is this the right server?"
                )
        elif name is not None and (
            name not in self.data if self.data is not None else name not in CATALOGUE and name not in UNPUBLISHED
        ):
            raise SettingsError(
                f"the server's settings ask for the data set {name!r}, which nobody agreed to use; if it may be used "
                f"for this run, start this client with --allow-data {name}"
            )


def check_run(run: str) -> None:
    """Refuse a run whose id, which is the name of a folder here, leads anywhere else."""
    if not _RUN.fullmatch(run):
        raise WireError(
            f"the server calls its run {run[:80]!r}, which is not the id of a run; is it a server of Fenchel?"
        )


def named_files(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Path]]:
    """Yield the files that settings name, each with its dotted key.

    What only the server opens is text in the settings, and no path: ``objective.initial.file``.
    """
    for name in type(section).model_fields:
        value: Any = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from named_files(value, f"{prefix}{name}.")
        elif isinstance(value, Path):
            yield f"{prefix}{name}", value


def _resolved(path: Path) -> Path:
    return path.expanduser().resolve()
