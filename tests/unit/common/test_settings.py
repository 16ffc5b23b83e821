"""What cannot be accepted is refused by key, with what was given and what is allowed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fenchel.common.errors import SettingsError
from fenchel.common.settings.run import RunSettings, from_json, json_schema, load, validate
from tests.messages import raises

ROOT = Path(__file__).parents[3]
QUICKSTART = ROOT / "fenchel" / "experiments" / "quickstart.yaml"
GOOD: dict[str, Any] = {
    "rounds": 3,
    "clients": 4,
    "data": {"name": "digits"},
    "objective": {"kind": "softmax"},
    "algorithm": {"name": "fedavg"},
}
BINARY = {"kind": "binary", "positive": [5]}


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return good settings with one key, dotted, set to something else."""
    values = {key: dict(section) if isinstance(section, dict) else section for key, section in GOOD.items()}
    *outer, last = path.split(".")
    section = values
    for key in outer:
        section = section.setdefault(key, {})
    section[last] = value
    return values


@pytest.mark.parametrize(
    "path", ["rounds", "clients", "objective.l2", "algorithm.step_size", "data.bias", "participation.patience"]
)
@pytest.mark.parametrize("value", [True, False])
def test_a_boolean_is_no_number(path: str, value: bool) -> None:
    with raises(SettingsError, key=path):
        validate(changed(path, value))


@pytest.mark.parametrize("key", [".rounds", "objective..l2", "participation.", 'objective."l2'])
def test_an_override_of_a_key_with_an_empty_part_is_refused_by_name(key: str) -> None:
    with raises(SettingsError, key=f"--set {key}=3"):
        load(QUICKSTART, [f"{key}=3"])


def test_a_key_that_is_no_text_is_refused_by_name() -> None:
    with raises(SettingsError, key="data.1") as refusal:
        validate(changed("data", {"name": "digits", 1: 2}))
    assert refusal.value.problem == "expected text as a key (given 1)"


@pytest.mark.parametrize("name", ["os:path", "os:getcwd"])
def test_an_algorithm_that_is_no_server_half_is_refused_by_key(name: str) -> None:
    with raises(SettingsError, key="algorithm"):
        validate(changed("algorithm.name", name))


@pytest.mark.parametrize("name", [".mine:Mine", ":Mine", ":"])
def test_an_algorithm_without_the_full_name_of_its_module_is_refused_by_key(name: str) -> None:
    with raises(SettingsError, key="algorithm.name"):
        validate(changed("algorithm.name", name))


def test_good_settings_are_accepted_with_their_defaults() -> None:
    settings = validate(GOOD)
    assert (settings.seed, settings.participation.sampler.kind, settings.network.keepalive) == (0, "all", 20.0)
    assert not settings.own_data
    assert validate(changed("data.name", "own")).own_data
    assert validate(changed("clients", "auto")).clients == "auto"


WRONG: dict[str, list[Any]] = {
    "rounds": [0, "many", 2.5],
    "clients": [0, "all"],
    "seed": [-1, 1 << 63],
    "name": ["../elsewhere", ""],
    "data.partition": [{"kind": "moon"}],
    "objective": ["softmax"],
    "objective.kind": ["cubic"],
    "objective.l2": [-1, float("nan")],
    "objective.dtype": ["float16"],
    "algorithm": ["fedavg"],
    "algorithm.name": [3, "fedmagic"],
    "algorithm.step_size": [0, float("inf")],
    "algorithm.batch_size": [-3],
    "algorithm.weighting": ["votes"],
    "participation.deadline": [0],
    "participation.min_replies": [0],
    "participation.on_lost_state": ["pray"],
    "participation.sampler": [
        {"kind": "lottery"},
        {"kind": "fraction", "fraction": 1.5},
        {"kind": "bernoulli", "probability": 1e-7},
    ],
    "checkpoint.sync": ["perhaps"],
    "network.reply_buffer_bytes": [-1],
}


@pytest.mark.parametrize(("key", "given"), [(key, given) for key, values in WRONG.items() for given in values])
def test_a_wrong_value_is_refused_with_its_key_and_what_is_allowed(key: str, given: Any) -> None:
    with raises(SettingsError, source="settings") as caught:
        validate(changed(key, given))
    assert caught.value.key
    assert key.startswith(caught.value.key) or caught.value.key.startswith(key)


@pytest.mark.parametrize(
    "key", ["round", "data.nmae", "objective.l1", "algorithm.learning_rate", "participation.dead_line", "network.port"]
)
def test_an_unknown_key_is_refused_by_its_place(key: str) -> None:
    with raises(SettingsError, source="settings"):
        validate(changed(key, "x"))


@pytest.mark.parametrize(
    "changes",
    [
        {"participation": {"sampler": {"kind": "fixed", "size": 5}}},
        {"participation": {"sampler": {"kind": "weighted", "size": 5}}},
        {"participation": {"sampler": {"kind": "cyclic", "groups": 5}}},
        {"participation": {"min_replies": 5}},
        {"algorithm": {"name": "fedavg", "local_epochs": 1, "local_steps": 1}},
    ],
)
def test_keys_that_contradict_each_other_are_refused(changes: dict[str, Any]) -> None:
    with raises(SettingsError, source="settings"):
        validate(GOOD | changes)


def test_keys_that_only_seem_to_contradict_each_other_are_accepted() -> None:
    validate(changed("participation.sampler", {"kind": "weighted", "size": 5, "replacement": True}))
    validate(changed("participation.sampler", {"kind": "fixed", "size": 5}) | {"clients": "auto"})
    validate(changed("participation.sampler", {"kind": "cyclic", "groups": 4}))


def test_several_wrong_keys_are_all_named_at_once() -> None:
    with raises(SettingsError, source="settings") as caught:
        validate({})
    assert all(f"{key}: required" in str(caught.value) for key in GOOD)
    with raises(SettingsError, source="settings") as caught:
        validate(GOOD | {"rounds": 0, "seed": -1, "nmae": "x"})
    assert [key in str(caught.value) for key in ("rounds:", "seed:", "nmae:")] == [True] * 3


def test_settings_survive_json_and_yaml(tmp_path: Path) -> None:
    settings = load(QUICKSTART)
    assert from_json(settings.to_json()) == settings
    path = tmp_path / "settings.yaml"
    path.write_text(settings.to_yaml())
    assert load(path) == settings


@pytest.mark.parametrize(
    ("objective", "evaluation", "least"),
    [
        ({"kind": "logistic"}, {}, None),
        ({"kind": "logistic"}, {"histograms": 5}, 5),
        (BINARY, None, 5),
        (BINARY, {"every": 2}, 5),
        (BINARY, {"histograms": 9}, 9),
        (BINARY, {"histograms": None}, None),
    ],
)
def test_scores_are_told_in_groups_unasked_only_where_the_auc_is_maximised(
    objective: dict[str, Any], evaluation: dict[str, Any] | None, least: int | None
) -> None:
    values = GOOD | {"objective": objective} | ({} if evaluation is None else {"evaluation": evaluation})
    settings = validate(values)
    for each in (settings, from_json(settings.to_json())):
        assert each.evaluation.histograms == least


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(GOOD))
    return path


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("rounds=7", lambda settings: settings.rounds == 7),
        ("participation.deadline=1.5", lambda settings: settings.participation.deadline == 1.5),
        (
            'participation.phases."fenchel.evaluate".deadline=2',
            lambda settings: settings.participation.phases["fenchel.evaluate"].deadline == 2,
        ),
        ("objective={kind: logistic, l2: 0.1}", lambda settings: settings.objective.l2 == 0.1),
        ("participation.sampler={kind: fixed, size: 2}", lambda settings: settings.participation.sampler.size == 2),
        ("data.partition.kind=label-shards", lambda settings: settings.data.partition.per_client == 2),
        ("algorithm.batch_size=null", lambda settings: settings.algorithm.batch_size is None),
        ("name=a=b", None),
        ("name=x", lambda settings: settings.name == "x"),
    ],
)
def test_an_override_replaces_one_key(path: Path, override: str, read: Any) -> None:
    if read is None:
        with raises(SettingsError, key="name"):
            load(path, [override])
    else:
        assert read(load(path, ["rounds=8", "name=y", override])), "the last one counts"


@pytest.mark.parametrize(
    "override", ["rounds", "=3", "rounds=[", "rounds.more=3", "rounds=none", "nonsense.deep.down=1"]
)
def test_a_wrong_override_is_refused(path: Path, override: str) -> None:
    with raises(SettingsError):
        load(path, [override])


@pytest.mark.parametrize(
    "content", [b"rounds: [", b"\xff\xfe\x00", b"- 1\n- 2\n", b"", b"!!python/object/apply:os.system ['true']"]
)
def test_a_file_that_holds_no_settings_is_refused_by_its_path(path: Path, content: bytes) -> None:
    with raises(SettingsError, source=path.with_name("nowhere.yaml")):
        load(path.with_name("nowhere.yaml"))
    path.write_bytes(content)
    with raises(SettingsError, file="run.yaml"):
        load(path)


def test_the_schema_for_editors_describes_the_quickstart() -> None:
    schema, values = json_schema(), yaml.safe_load(QUICKSTART.read_text())
    try:
        import jsonschema  # type: ignore[import-untyped, unused-ignore, import-not-found]
    except ModuleNotFoundError:
        assert set(values) <= set(schema["properties"])
        assert set(schema["required"]) <= set(values)
        algorithm = next(
            each for each in schema["properties"]["algorithm"]["anyOf"] if each["title"] == values["algorithm"]["name"]
        )
        assert set(values["algorithm"]) <= set(algorithm["properties"])
    else:
        jsonschema.validate(values, schema)


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*map(references, node.values()))
    if isinstance(node, list):
        return set().union(*map(references, node))
    return set()


def test_every_reference_of_the_schema_leads_somewhere() -> None:
    schema = json_schema()
    assert references(schema) <= {f"#/$defs/{name}" for name in schema["$defs"]}


def test_every_setting_of_a_run_is_explained() -> None:
    fields = RunSettings.model_fields
    sections = {name: field.annotation for name, field in fields.items() if field.description is None}
    for name, section in sections.items():
        assert section is not None
        assert section.__doc__, name


def test_histograms_that_no_client_makes_are_refused() -> None:
    silent = changed("evaluation", {"clients": False, "histograms": 9})
    with raises(SettingsError, key="evaluation", source="settings"):
        validate(silent)
    for harmless in ({"clients": False}, {"clients": False, "histograms": None}, {"histograms": 9}):
        given = validate(changed("evaluation", harmless))
        assert from_json(given.to_json()) == given


def test_the_schema_of_an_editor_may_be_named_and_is_not_kept() -> None:
    named = validate({"$schema": "fenchel.schema.json", **GOOD})
    assert "schema" not in named.to_yaml()
    assert named == validate(GOOD)
    (pattern,) = json_schema()["patternProperties"]
    assert re.search(pattern, "$schema")
    with pytest.raises(SettingsError):
        validate({**GOOD, "data": {**GOOD["data"], "$schema": "fenchel.schema.json"}})
