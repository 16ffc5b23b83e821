"""The ``data`` section accepts what is possible and names the key of what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fenchel.common.settings.data import DataSettings
from fenchel.common.settings.run import load


def settings(**keys: Any) -> DataSettings:
    return DataSettings.model_validate(keys)


def test_a_name_alone_is_a_complete_section_with_an_iid_partition() -> None:
    section = settings(name="digits")
    assert section.partition.kind == "iid"
    assert section.scalings == ()


def test_scale_is_one_step_or_a_list_in_order() -> None:
    assert settings(name="digits", scale="standard").scalings == ("standard",)
    assert settings(name="digits", scale=["standard", "unit-rows"]).scalings == ("standard", "unit-rows")


GRID = {"kind": "grid", "sample_groups": 2, "feature_groups": 3}
SITE = {"kind": "sites", "sites": [{"size": 1, "imratio": 0.1}]}
FROZEN = {"file": "x.pth"}


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"name": None}, "name, file: exactly one is needed, neither given"),
        ({"file": "x.csv"}, "both given"),
        ({"label": "y"}, "label: 'y' given"),
        ({"name": "../secret"}, "name"),
        ({"scale": ["standard", "standard"]}, "scale:"),
        ({"scale": ["none"]}, "scale"),
        ({"bias": 0}, "bias: 0"),
        ({"task": "regression", "binarise": {"positive": [1]}}, "binarise: not allowed"),
        ({"task": "regression", "classes": ["a", "b"]}, "classes: not allowed"),
        ({"task": "regression", "partition": {"kind": "dirichlet", "alpha": 1}}, "dirichlet"),
        ({"classes": [1, "1"]}, "only once"),
        ({"classes": [False, True]}, "given false); put a name"),  # as YAML reads [no, yes] and [FALSE, TRUE]
        ({"binarise": {"positive": []}}, "positive"),
        ({"test_fraction": 1.0}, "test_fraction"),
        ({"test_split": "random"}, "test_split"),
        ({"test_seed": 1 << 32}, "test_seed"),
        ({"holdout": 1.0}, "holdout"),
        ({"samples": 0}, "samples"),
        ({"partition": {"kind": "by-moon-phase"}}, "partition"),
        ({"partition": {"kind": "dirichlet", "alpha": 0}}, "alpha"),
        ({"partition": GRID | {"layout": "quadrants"}}, "needs exactly 4"),
        ({"holdout": 0.1, "partition": GRID}, "holdout: 0.1 given"),
        ({"imbalance": {"imratio": 0}}, "imratio"),
        ({"imbalance": {"imratio": 1}}, "imratio"),
        ({"imbalance": {"imratio": 0.1}, "task": "regression"}, "imbalance: not allowed with task: regression"),
        ({"partition": {"kind": "class-groups"}, "task": "regression"}, "kind: class-groups divides classes"),
        ({"partition": {"kind": "sites", "sites": []}}, "sites"),
        ({"partition": {"kind": "sites", "sites": [{"size": 0, "imratio": 0.1}]}}, "size"),
        ({"partition": SITE, "imbalance": {"imratio": 0.1}}, "imratio of its own"),
        ({"partition": GRID, "imbalance": {"imratio": 0.1}}, "imbalance: with partition.kind: grid"),
        ({"name": "own", "imbalance": {"imratio": 0.1}}, "imbalance: not allowed with name: own"),
        ({"imbalance": {"imratio": 0.1, "of": "whole"}}, "imbalance.of"),
        ({"partition": {"kind": "class-groups", "positive_shares": [1, 2]}}, "positive_shares"),
        ({"partition": {"kind": "column"}}, "partition.column: 'client' given, but only a file"),
        ({"columns": ["a"]}, "columns: only allowed with name: own"),
        ({"name": None, "file": "x.csv", "columns": ["a"]}, "columns: only allowed with name: own"),
        ({"name": "own", "columns": ["a", "b", "a"]}, "'a' is listed twice"),
        ({"name": "own", "columns": []}, "at least 1 item"),
        ({"name": "own", "columns": 0}, "greater than 0"),
        ({"client_tests": "own-distribution", "holdout": 0.1}, "client_tests, holdout: both given"),
        ({"client_tests": "own-distribution", "name": "own"}, "client_tests: with name: own"),
        ({"name": "own", "binarise": {"positive": [1]}}, "binarise: not allowed with name: own"),
        ({"name": "own", "samples": 5}, "samples: not allowed with name: own"),
        ({"name": "own", "test_fraction": 0.5}, "test_fraction: not allowed with name: own"),
        ({"name": "own", "test_seed": 1}, "test_seed: not allowed with name: own"),
        ({"name": "own", "test_split": "scikit-learn"}, "test_split: not allowed with name: own"),
        ({"name": "own", "partition": {"kind": "label-shards"}}, "partition: not allowed with name: own"),
        ({"client_tests": "own-distribution", "task": "regression"}, "client_tests: divides classes"),
        ({"client_tests": "own-distribution", "partition": GRID}, "client_tests: with partition.kind: grid"),
        ({"extractor": FROZEN, "scale": "standard"}, "scale: standard given"),
        ({"extractor": FROZEN, "scale": ["unit-rows", "unit-interval"]}, "scale: unit-interval given"),
        ({"extractor": FROZEN, "partition": GRID}, "extractor: a network needs whole images"),
        ({"extractor": FROZEN, "name": "own", "columns": 5}, "extractor: a network needs whole images"),
    ],
)
def test_an_impossible_section_is_refused_by_the_name_of_its_key(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError) as caught:
        settings(**{"name": "digits"} | keys)
    assert named in str(caught.value)


def test_settings_of_earlier_runs_are_read_where_they_say_what_is_done_now() -> None:
    section = settings(
        name="digits",
        partition={"kind": "class-groups", "order": "shuffled", "positive_shares": None},
        imbalance={"imratio": 0.1, "of": "client"},
    )
    assert section == settings(name="digits", partition={"kind": "class-groups"}, imbalance={"imratio": 0.1})


def test_every_field_of_the_schema_has_a_description() -> None:
    schema = DataSettings.model_json_schema()
    sections = [schema, *schema["$defs"].values()]
    missing = [
        f"{section['title']}.{name}"
        for section in sections
        for name, field in section.get("properties", {}).items()
        if not field.get("description")
    ]
    assert len(sections) == 16
    assert missing == []


@pytest.mark.parametrize(
    "keys",
    [
        {"name": "digits", "scale": ["unit-interval", "unit-rows"], "binarise": {"positive": [0, 2]}, "holdout": 0.25},
        {"name": "digits", "partition": {"kind": "zipf", "exponent": 0.5, "alpha": 0.1}, "bias": 1},
        {"columns": 7},
        {"columns": ["a", "b"]},
    ],
)
def test_a_section_survives_a_round_trip_through_json(keys: dict[str, Any]) -> None:
    section = settings(**{"name": "own"} | keys)
    assert DataSettings.model_validate_json(section.model_dump_json()) == section


def test_a_data_file_may_lie_beside_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, elsewhere = tmp_path / "study", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "beside.csv").write_text("a,label\n1,0\n")
    (elsewhere / "here.csv").write_text("a,label\n1,0\n")
    monkeypatch.chdir(elsewhere)
    for name, expected in (("beside.csv", folder / "beside.csv"), ("here.csv", Path("here.csv"))):
        sections = "objective: {kind: logistic}\nalgorithm: {name: fedavg}\n"
        (folder / "study.yaml").write_text(f"rounds: 1\nclients: 1\ndata: {{file: {name}}}\n{sections}")
        assert load(folder / "study.yaml").data.file == expected
