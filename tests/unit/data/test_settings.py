"""The ``data`` section accepts what is possible and names the key of what is not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from fenchel.common.settings.data import DataSettings


def settings(**keys: Any) -> DataSettings:
    return DataSettings.model_validate(keys)


def test_a_name_alone_is_a_complete_section_with_an_iid_partition() -> None:
    section = settings(name="digits")
    assert section.partition.kind == "iid"
    assert section.scalings == ()


@pytest.mark.parametrize(
    ("scale", "steps"),
    [("none", ()), ("standard", ("standard",)), (["standard", "unit-rows"], ("standard", "unit-rows"))],
)
def test_scale_is_one_step_or_a_list_in_order(scale: object, steps: tuple[str, ...]) -> None:
    assert settings(name="digits", scale=scale).scalings == steps


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({}, "name, file: exactly one is needed, neither given"),
        ({"name": "digits", "file": "x.csv"}, "both given"),
        ({"name": "digits", "label": "y"}, "label: 'y' given"),
        ({"name": "../secret"}, "name"),
        ({"name": "digits", "scale": ["standard", "standard"]}, "scale:"),
        ({"name": "digits", "scale": ["none"]}, "scale"),
        ({"name": "digits", "bias": 0}, "bias: 0"),
        ({"name": "digits", "task": "regression", "binarise": {"positive": [1]}}, "binarise: not allowed"),
        ({"name": "digits", "task": "regression", "classes": ["a", "b"]}, "classes: not allowed"),
        ({"name": "digits", "task": "regression", "partition": {"kind": "dirichlet", "alpha": 1}}, "dirichlet"),
        ({"name": "digits", "classes": [1, "1"]}, "only once"),
        ({"name": "digits", "binarise": {"positive": []}}, "positive"),
        ({"name": "digits", "test_fraction": 1.0}, "test_fraction"),
        ({"name": "digits", "test_split": "random"}, "test_split"),
        ({"name": "digits", "test_seed": 1 << 32}, "test_seed"),
        ({"name": "digits", "holdout": 1.0}, "holdout"),
        ({"name": "digits", "samples": 0}, "samples"),
        ({"name": "digits", "partition": {"kind": "by-moon-phase"}}, "partition"),
        ({"name": "digits", "partition": {"kind": "dirichlet", "alpha": 0}}, "alpha"),
        (
            {
                "name": "digits",
                "partition": {"kind": "grid", "sample_groups": 2, "feature_groups": 3, "layout": "quadrants"},
            },
            "needs exactly 4",
        ),
        (
            {"name": "digits", "holdout": 0.1, "partition": {"kind": "grid", "sample_groups": 2, "feature_groups": 3}},
            "holdout: 0.1 given",
        ),
    ],
)
def test_an_impossible_section_is_refused_by_the_name_of_its_key(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError) as caught:
        settings(**keys)
    assert named in str(caught.value)


def test_every_field_of_the_schema_has_a_description() -> None:
    schema = DataSettings.model_json_schema()
    sections = [schema, *schema["$defs"].values()]
    missing = [
        f"{section['title']}.{name}"
        for section in sections
        for name, field in section.get("properties", {}).items()
        if not field.get("description")
    ]
    assert len(sections) == 15
    assert missing == []


def test_a_section_survives_a_round_trip_through_json() -> None:
    section = settings(
        name="mnist",
        scale=["unit-interval", "unit-rows"],
        bias=1,
        binarise={"positive": [0, 2]},
        partition={"kind": "zipf", "exponent": 0.5, "alpha": 0.1},
        holdout=0.25,
    )
    assert DataSettings.model_validate_json(section.model_dump_json()) == section
