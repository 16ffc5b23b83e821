"""The settings of a run: one YAML file, validated before anything starts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, PositiveFloat, PositiveInt, SerializeAsAny, ValidationInfo, field_validator, model_validator

from fenchel.common.errors import SettingsError
from fenchel.common.settings.algorithm import AlgorithmSettings
from fenchel.common.settings.data import DataSettings, GridPartition, RaggedPartition
from fenchel.common.settings.link import Links
from fenchel.common.settings.objective import ObjectiveSettings
from fenchel.common.settings.participation import Cyclic, FixedSize, Participation, Weighted
from fenchel.common.settings.privacy import DifferentialPrivacy
from fenchel.common.settings.reading import read_mapping, validated
from fenchel.common.settings.registry import algorithm_settings, asked_phases, builtin_settings, is_outside
from fenchel.common.settings.section import RUN_NAME, Section, did_you_mean, yaml_value
from fenchel.common.settings.uplink import Downlink, Uplink

_PART = r'(?:"[^"]+"|[^".]+)'  # of a dotted key

# Default of evaluation.histograms for binary objectives: smallest number of samples in a histogram bin.
_USUAL_GROUP = 5


class Evaluation(Section):
    """When and where the model is evaluated. Evaluation changes no state."""

    every: PositiveInt = Field(1, description="interval of evaluations, in rounds; the last round is always evaluated")
    server: bool = Field(True, description="evaluate on the server's test set, if it has one")
    clients: bool | None = Field(
        None,
        description="evaluate on the clients' shards (the training objective) and holdouts; impossible if features are "
        "split, because no client can evaluate the whole model. null: yes, but not under differential privacy, which "
        "exact sums would undo",
    )
    training: bool | None = Field(
        None,
        description="evaluate on all training samples, by the server itself (the training objective), if the server "
        "can load the data set, in a simulation; null: only if features are split",
    )
    histograms: PositiveInt | None = Field(
        None,
        description="least number of samples of a client and class in a range of scores. With two classes and one "
        "score, clients then also count their samples by ranges of scores, for train_auc and holdout_auc. Larger "
        "numbers reveal less, and the AUC is less exact; 1 reveals each sample's range. Clients reject numbers below "
        "their --least-group. null: no counts, or 5 with objective.kind: binary",
    )

    @model_validator(mode="after")
    def _histograms_are_made(self) -> Self:
        # Saved settings contain all defaults, so only a non-default value shows that the user set the key.
        if self.clients is False and self.histograms not in (None, _USUAL_GROUP):
            raise ValueError(
                "evaluation.histograms is for evaluation by clients, but evaluation.clients is false; leave "
                "histograms out, or use evaluation.clients: true"
            )
        return self


class Checkpointing(Section):
    """Settings of checkpoints."""

    every: PositiveInt = Field(1, description="interval of checkpoints, in rounds")
    sync: bool = Field(
        False,
        description="write checkpoints to the disk at once (fsync), so that they survive a power failure; costs time",
    )


class KeptModels(Section):
    """Models of some rounds, beside the final one."""

    every: PositiveInt = Field(description="interval of the models that are kept, in rounds")


class Network(Section):
    """Limits and patience of the connection between a client and the server."""

    join_timeout: PositiveFloat = Field(300.0, description="seconds that the server waits for all clients to join")
    settle: PositiveFloat = Field(
        5.0, description="seconds without a new client after which the run begins, with clients: auto"
    )
    keepalive: PositiveFloat = Field(20.0, description="seconds between keepalive pings on an idle connection")
    max_message_bytes: PositiveInt = Field(8 << 30, description="largest message that either side accepts")
    reply_buffer_bytes: PositiveInt = Field(
        256 << 20,
        description="memory in bytes for replies of a reduction that arrive before their turn; further replies wait on "
        "the connection",
    )
    in_flight_bytes: PositiveInt | None = Field(
        None,
        description="memory in bytes for the incoming replies of all clients together, until they are added to a sum "
        "or their phase ends. Further replies wait on the connection, and a phase that needs more at once is rejected. "
        "null: half of the memory of the server's machine or container",
    )
    promised_bytes: PositiveInt = Field(
        1 << 30,
        description="largest backlog of a client in bytes: instructions without a reply, such as the steps of rounds "
        "in which it is disconnected, which the server keeps in memory and in checkpoints. A client with a larger "
        "backlog is lost (participation.on_lost_state)",
    )


class SecretSource(Section):
    """Source of the secrets that clients share and the server never has, if the algorithm needs them."""

    source: Literal["file", "sealed"] = Field(
        "file",
        description="source of shared secrets. file: each client gets the file that fenchel keys made (--secrets); "
        "sealed: one client makes the secrets of this run, and seals them for each of the others (needs TLS)",
    )
    designated: str | None = Field(
        None, description="client that makes the secrets, with source: sealed; null: the first by id"
    )

    @model_validator(mode="after")
    def _designated_seals(self) -> Self:
        if self.designated is not None and self.source != "sealed":
            raise ValueError(
                "secrets.designated is used only with secrets.source: sealed; leave it out, or use that source"
            )
        return self


class RunSettings(Section):
    """Validated settings of one training run.

    A settings file has the same form. Create one with ``RunSettings.model_validate(mapping)``, which raises pydantic's
    ``ValidationError`` for settings that are invalid or contradict each other. ``docs/settings.md`` describes every key
    of the sections.

    Attributes
    ----------
    name : str, default "run"
        Part of the name of the run folder.
    seed : int, default 0
        Seed of all random numbers but those that privacy rests on.
    rounds : int
        Number of rounds.
    clients : int or "auto"
        Number of clients.
    data : section
        Data set and its partition.
    objective : section
        Model, loss and regulariser.
    algorithm : AlgorithmSettings
        Algorithm and its hyperparameters.
    uplink, downlink : section
        Compression and noise of vectors on their way to and from the server.
    differential_privacy : section, optional
        Privacy mechanism of the clients.
    participation : section
        Sampling of clients, deadlines and quorum.
    evaluation : section
        Evaluation of the model.
    checkpoint : section
        Checkpoints of the server.
    keep_models : section, optional
        Rounds whose models are kept.
    network : section
        Transport limits.
    links : section, optional
        Emulated network conditions.
    secrets : section
        Origin of the secrets that clients share.

    Examples
    --------
    >>> import fenchel
    >>> settings = fenchel.RunSettings.model_validate(
    ...     {
    ...         "rounds": 10,
    ...         "clients": 4,
    ...         "data": {"name": "digits"},
    ...         "objective": {"kind": "softmax", "l2": 0.01},
    ...         "algorithm": {"name": "fedavg", "local_epochs": 1, "step_size": 0.1},
    ...     }
    ... )
    >>> settings.objective.l2
    0.01
    """

    name: str = Field("run", pattern=RUN_NAME, description="a name for the run folder")
    seed: int = Field(0, ge=0, lt=1 << 63, description="seed of all random numbers except those that protect privacy")
    rounds: int = Field(gt=0, le=10**12, description="number of rounds")
    clients: PositiveInt | Literal["auto"] = Field(
        description="number of clients; auto: all that join before the start"
    )
    data: DataSettings = Field(description="data set and its distribution over the clients")
    objective: ObjectiveSettings = Field(description="model and loss")
    algorithm: SerializeAsAny[AlgorithmSettings] = Field(
        description="name of an algorithm (fenchel algorithms lists them) and its own settings"
    )
    uplink: Uplink = Uplink()
    downlink: Downlink = Downlink()
    differential_privacy: DifferentialPrivacy | None = Field(
        None, description="differential privacy of the clients' samples; null: none"
    )
    participation: Participation = Participation()
    evaluation: Evaluation = Field(Evaluation(), validate_default=True)
    checkpoint: Checkpointing = Checkpointing()
    keep_models: KeptModels | None = Field(
        None, description="models of rounds that the run folder keeps, each in a file; null: only the final one"
    )
    network: Network = Network()
    links: Links | None = Field(
        None,
        description="network conditions that fenchel up imposes between its clients and the server, for experiments "
        "(docs/network.md); null: none",
    )
    secrets: SecretSource = SecretSource()

    @field_validator("algorithm", mode="before")
    @classmethod
    def _algorithm(cls, value: Any) -> Any:
        if isinstance(value, AlgorithmSettings):
            return value
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            raise ValueError(f"expected a mapping with a name, such as {{name: fedavg}}, given {value!r}")
        return algorithm_settings(value["name"]).model_validate(dict(value))

    @field_validator("evaluation")
    @classmethod
    def _histograms_for_the_auc(cls, value: Evaluation, info: ValidationInfo) -> Evaluation:
        # Only runs that maximise the AUC count by default, as counts disclose more of the clients' data.
        kind = getattr(info.data.get("objective"), "kind", None)
        if kind != "binary" or "histograms" in value.model_fields_set:
            return value
        return value.model_copy(update={"histograms": _USUAL_GROUP})

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._check_participation()
        self._check_links()
        self._check_model()
        self._check_training()
        return self

    def _check_participation(self) -> None:
        clients, sampler, partition = self.clients, self.participation.sampler, self.data.partition
        needed = [self.participation.most_replies()]
        if isinstance(sampler, FixedSize) or (isinstance(sampler, Weighted) and not sampler.replacement):
            needed.append(("participation.sampler.size", sampler.size))
        if isinstance(sampler, Cyclic):
            needed.append(("participation.sampler.groups", sampler.groups))
        for key, count in needed:
            if isinstance(clients, int) and count > clients:
                raise ValueError(f"{key} is {count}, but there are only {clients} clients; lower {key}")
        if self.data.holdout and self.data.columns is not None and self.algorithm.splits_features:
            raise ValueError(
                f"data.holdout is {self.data.holdout}, but with data.columns and {self.algorithm.name} clients hold "
                "parts of samples, and none can test a model; use 0"
            )
        if self.participation.phases:
            self.participation.check_phases(self.algorithm.name, asked_phases(self.algorithm))
        self.algorithm.check_participation(self.participation)
        self.algorithm.check_rounds(self.rounds, clients if isinstance(clients, int) else None)
        if isinstance(partition, GridPartition | RaggedPartition):
            groups = partition.sample_groups, partition.feature_groups
            if isinstance(clients, int) and clients != groups[0] * groups[1]:
                raise ValueError(
                    f"data.partition: {groups[0]} sample groups times {groups[1]} feature groups are "
                    f"{groups[0] * groups[1]} clients, but clients is {clients}; make them equal"
                )
            if groups[1] > 1 and not self.algorithm.splits_features:
                raise ValueError(
                    f"data.partition.feature_groups is {groups[1]}, but {self.algorithm.name} needs clients that hold "
                    "whole samples; use feature_groups: 1, or an algorithm for data that is split by features"
                )

    def _check_links(self) -> None:
        name, private = self.algorithm.name, self.differential_privacy is not None
        if not self.algorithm.uses_uplink:
            changed = {
                "uplink": not self.uplink.is_plain,
                "downlink": not self.downlink.is_plain,
                "differential_privacy": private,
            }
            if any(changed.values()):
                raise ValueError(
                    f"{', '.join(key for key, given in changed.items() if given)} given, but {name} sends no vectors "
                    "that can be compressed or protected in this way; leave this out, or use another algorithm, such "
                    "as fedavg, scaffold or fedpdm"
                )
            return
        self.algorithm.check_link(self.uplink, noisy=private or self.uplink.noise is not None)
        if self.claims_privacy and self.evaluation.clients:
            raise ValueError(
                "evaluation.clients: true makes clients send exact sums over their samples without noise, against "
                "which differential_privacy protects nothing; use evaluation.clients: false (where the server can "
                "load the data itself, in a simulation, evaluation.training: true gives the training objective)"
            )
        if private and (self.uplink.noise or self.uplink.clip):
            raise ValueError(
                "uplink.noise and uplink.clip are for experiments without a claim; under differential_privacy, "
                "which sets both, leave them out"
            )

    def _check_model(self) -> None:
        name, h = self.algorithm.name, self.objective.regularizer
        if self.objective.initial is not None and self.algorithm.mirrors_initial:
            raise ValueError(
                "objective.initial: with aggregator: stale, or error feedback, clients begin from the initial model, "
                "too, and cannot read its file on the server; leave objective.initial out, or use aggregator: hybrid "
                "or sampled"
            )
        if self.objective.initial is not None and not self.algorithm.uses_initial:
            raise ValueError(
                f"objective.initial is given, but {name} begins with dual variables of 0, whatever the initial model "
                "is; leave it out, or use another algorithm, such as fedavg"
            )
        beta = getattr(self.objective, "nonconvex", 0.0)
        if beta and not self.algorithm.treats_nonconvex:
            raise ValueError(
                f"objective.nonconvex is {beta:g}, but {name} is for convex objectives; use 0, or "
                "an algorithm that takes gradients only, such as fedavg"
            )
        if h.present and not self.algorithm.treats_regularizer:
            raise ValueError(
                f"objective.regularizer.kind is {h.kind}, but {name} cannot treat such a term; use none, or an "
                "algorithm that can, such as fedavg"
            )
        if h.present and self.algorithm.takes_subgradient and not h.has_slope:
            raise ValueError(
                f"objective.regularizer.kind is {h.kind}, which has no subgradients to step along, as {name} does; "
                "use an algorithm that takes its proximal operator, such as fedavg with regularizer_step: prox"
            )
        if self.keep_models is not None and self.algorithm.hides_model:
            raise ValueError(
                f"keep_models: {self.keep_models} given, but clients encrypt the model, so the server has none before "
                "the end of the run; use null"
            )
        penalty = self.algorithm.prox_penalty
        if penalty is not None and h.least_penalty and penalty <= h.least_penalty:
            raise ValueError(
                f"objective.regularizer: {h.kind} needs a penalty rho above 1/theta = {h.least_penalty:g}, but with "
                f"these settings of {name} rho is {penalty:g}; use a larger theta or a larger penalty"
            )

    def _check_training(self) -> None:
        if not self.evaluation.training:
            return
        if self.own_data:
            raise ValueError(
                "evaluation.training: true given, but with data.name: own only the clients have training samples; "
                "use null or false"
            )
        others = self.data.leaves_out
        if self.data.client_tests != "none":
            others = f"data.client_tests: {self.data.client_tests}"
        if self.data.holdout:
            others = f"data.holdout: {self.data.holdout}"
        if others:
            raise ValueError(
                f"evaluation.training: true given, but with {others} the clients evaluate, on the samples that they "
                "train on; use null or false"
            )

    @property
    def claims_privacy(self) -> bool:
        """True if the run promises differential privacy. ``mechanism: paper`` promises none."""
        return self.differential_privacy is not None and self.differential_privacy.mechanism != "paper"

    @property
    def clients_evaluate(self) -> bool:
        """True if clients report the quality of the model on their samples."""
        return not self.claims_privacy if self.evaluation.clients is None else self.evaluation.clients

    @property
    def is_ragged(self) -> bool:
        """True if a client may hold some value of every feature, and still no whole sample."""
        listed = self.data.columns is not None and self.algorithm.splits_features
        return listed or isinstance(self.data.partition, RaggedPartition)

    @property
    def own_data(self) -> bool:
        """True if each client brings a data set of its own (``data.name: own``)."""
        return self.data.name == "own"

    @property
    def positive(self) -> tuple[int, ...] | None:
        """Numbers of the positive classes, or ``None`` for the second of two if the objective has no such setting."""
        chosen = getattr(self.objective, "positive", None)
        return None if chosen is None else tuple(chosen)

    @property
    def seals_secrets(self) -> bool:
        """True if clients exchange secrets in sealed boxes before the algorithm starts."""
        return self.secrets.source == "sealed" and self.algorithm.key_bits is not None

    def to_json(self) -> str:
        """Return the settings as JSON, defaults included."""
        return json.dumps(self.model_dump(mode="json"))

    def anchored(self) -> Self:
        """Return the settings whose data file has an absolute path, to resume the run from any working directory."""
        if self.data.file is None:
            return self
        file = self.data.file.expanduser().absolute()
        return self.model_copy(update={"data": self.data.model_copy(update={"file": file})})

    def to_yaml(self) -> str:
        """Return the settings as YAML, defaults included."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def outside_code(values: Mapping[str, Any]) -> list[str]:
    """Return what settings name of code from outside the project, as ``package.module:Class``.

    Parameters
    ----------
    values
        Settings as a mapping, not validated: validating them imports that code.
    """
    sections = (values.get("algorithm"), values.get("objective"))
    names = [section.get("name") for section in sections if isinstance(section, Mapping)]
    return [name for name in names if isinstance(name, str) and is_outside(name)]


def validate(values: Mapping[str, Any], source: str = "settings") -> RunSettings:
    """Validate settings given as a mapping; a ``SettingsError`` names each key that is wrong.

    A key ``$schema``, which editors read, is left out.
    """
    return validated(RunSettings, {key: value for key, value in values.items() if key != "$schema"}, source)


def from_json(text: str) -> RunSettings:
    """Read settings that :meth:`RunSettings.to_json` wrote."""
    return validate(raw(text))


def raw(text: str) -> dict[str, Any]:
    """Read settings in JSON without validating them."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(
            f"the settings from the server are not valid JSON ({error}); do both sides run the same version of Fenchel?"
        ) from None
    if not isinstance(values, dict):
        raise SettingsError(
            "the settings from the server are not a JSON object; do both sides run the same version of Fenchel?"
        )
    return values


def load(path: Path, overrides: Sequence[str] = ()) -> RunSettings:
    """Read a settings file.

    Parameters
    ----------
    path
        YAML; or the name of an experiment that comes with Fenchel, such as ``quickstart`` or ``hyfdca/mnist``. A
        ``data.file`` in it may be a path from its folder, or from the present one.
    overrides
        ``key=value`` pairs of the command line: dotted keys, values in YAML.
    """
    path = shipped_or_own(path)
    return validate(read(path, overrides), str(path))


def read(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a settings file says, not validated; arguments as those of :func:`load`."""
    path = shipped_or_own(path)
    values = read_mapping(path)
    data = values.get("data")
    # A data file beside the settings file has priority over one in the working directory.
    if isinstance(data, dict) and isinstance(data.get("file"), str) and (path.parent / data["file"]).exists():
        data["file"] = str(path.parent / data["file"])
    for override in overrides:
        _override(values, override)
    return values


def change(values: dict[str, Any], changes: Mapping[str, Any], asked: str = "") -> None:
    """Set values of settings, not validated, by their dotted keys.

    Parameters
    ----------
    asked
        The option that asks for it, for errors; empty: the keys themselves.
    """
    for key, value in changes.items():
        *path, last = dotted(key, asked)
        section = values
        for part in path:
            inner = section.setdefault(part, {})
            if not isinstance(inner, dict):
                raise SettingsError(f"{part!r} is {inner!r}, which has no keys; set {part} itself", key=asked or key)
            section = inner
        section[last] = value


def dotted(key: str, asked: str = "") -> list[str]:
    """Return the parts of a dotted key, in which a part that has dots itself stands in double quotes.

    Raises
    ------
    SettingsError
        If a part is empty, or a quote is not closed; the error names ``asked``, else the key.
    """
    if not re.fullmatch(rf"{_PART}(\.{_PART})*", key):
        raise SettingsError(
            "a part of the dotted key is empty, or its quotes do not match; expected a key such as rounds, data.scale "
            'or participation.phases."fenchel.evaluate".deadline',
            key=asked or key,
        )
    return [part.strip('"') for part in re.findall(_PART, key)]


def shipped_experiments() -> dict[str, Path]:
    """Return the files of the experiments that come with Fenchel, by name."""
    folder = Path(str(resources.files("fenchel"))) / "experiments"
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in sorted(folder.rglob("*.yaml"))}


def shipped_or_own(path: Path) -> Path:
    """Return the file of a shipped experiment if ``path`` is its name and no existing file, otherwise ``path``.

    Raises
    ------
    SettingsError
        If a relative path is neither an existing file nor the name of a shipped experiment.
    """
    if path.is_absolute() or ".." in path.parts or path.exists():
        return path
    shipped = shipped_experiments()
    if (name := path.as_posix()) in shipped:
        return shipped[name]
    meant = did_you_mean(name.removesuffix(".yaml"), shipped)
    raise SettingsError(
        f"there is neither a file nor an experiment of this name; {meant or 'check the path.'} "
        f"The experiments that come with Fenchel are in {shipped['quickstart'].parent}.",
        source=path,
    )


def _override(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise SettingsError("expected key=value, such as --set participation.deadline=30", key=f"--set {override}")
    try:
        value = yaml_value(text)
    except yaml.YAMLError:
        raise SettingsError("the value is not valid YAML; quote it", key=f"--set {override}") from None
    change(values, {key: value}, f"--set {override}")


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the settings, for editors; the built-in algorithms are spelled out."""
    schema = RunSettings.model_json_schema()
    schema["description"] = schema["description"].partition("\n")[0]  # further paragraphs are for Python programmers
    variants = []
    for name, section in builtin_settings().items():
        variant = section.model_json_schema(ref_template="#/$defs/{model}")
        schema["$defs"].update(variant.pop("$defs", {}))
        variant["properties"]["name"] = {"const": name, "type": "string"}
        variant["title"] = name
        variants.append(variant)
    outside = {
        "title": "an algorithm of one's own",
        "type": "object",
        "properties": {"name": {"type": "string", "pattern": r"^[\w.]+:\w+$"}},
        "required": ["name"],
    }
    schema["properties"]["algorithm"] = {
        "description": schema["properties"]["algorithm"].get("description", ""),
        "anyOf": [*variants, outside],
    }
    schema["patternProperties"] = {r"^\$schema$": {"type": "string"}}
    return schema
