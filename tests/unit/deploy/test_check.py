"""``fenchel check --json`` tells a program what the text tells a person, with the same exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fenchel.common.errors import FenchelError
from fenchel.deploy.cli.main import application

SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "clients": 4,
    "data": {"name": "digits"},
    "objective": {"kind": "softmax", "l2": 0.01},
    "algorithm": {"name": "fedavg"},
}


def check(folder: Path, *words: str, **changes: Any) -> tuple[int, Any]:
    """Return the exit code and the object of a check."""
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump(SETTINGS | changes))
    runner = CliRunner()
    plain = runner.invoke(application(), ["check", str(path), *words])
    done = runner.invoke(application(), ["check", str(path), "--json", *words])
    code = plain.exception.exit_code if isinstance(plain.exception, FenchelError) else plain.exit_code
    assert done.exit_code == code
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.parametrize("words", [(), ("--no-data",)])
def test_settings_without_problems_are_ok(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert check(tmp_path, *words) == (0, {"ok": True, "problems": [], "warnings": []})


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"rounds": 0}, {"rounds"}),
        ({"rounds": 0, "clients": -1, "cleints": 3}, {"rounds", "clients", "cleints"}),
        ({"algorithm": {"name": "nonesuch"}}, {"algorithm"}),
        ({"participation": {"sampler": {"kind": "fixed", "size": 9}}}, {""}),
        ({"links": {"clients": {"9": {"rtt": 0.005}}}}, {"links.clients"}),
    ],
)
def test_each_problem_has_its_key(tmp_path: Path, changes: dict[str, Any], keys: set[str]) -> None:
    code, found = check(tmp_path, **changes)
    assert code == 2
    assert not found["ok"]
    assert {problem["key"] for problem in found["problems"]} == keys
    assert {problem["source"] for problem in found["problems"]} == {str(tmp_path / "settings.yaml")}
    assert all(problem["message"] for problem in found["problems"])


@pytest.mark.parametrize(
    ("name", "labels"), [("my[old]data.csv", ("[red]", "[/x]")), (":cat:.csv", (":dog:", ":cow:"))]
)
def test_names_are_shown_as_they_are(tmp_path: Path, name: str, labels: tuple[str, str]) -> None:
    (tmp_path / name).write_text("a,label\n" + "1,{}\n2,{}\n".format(*labels) * 10)
    path = tmp_path / "settings[bold].yaml"
    path.write_text(yaml.safe_dump(SETTINGS | {"clients": 2, "data": {"file": name}}))
    done, shown = (
        CliRunner().invoke(application(), [*words, str(path)]).stdout.replace("\n", "")  # lines are broken anywhere
        for words in (["check"], ["data", "show"])
    )
    assert name in done
    assert "settings[bold].yaml is fine" in done
    assert all(text in shown for text in (*labels, name))


def test_a_problem_of_the_data_has_the_code_of_data(tmp_path: Path) -> None:
    code, found = check(tmp_path, clients=99_999)
    assert code == 3
    assert [problem["key"] for problem in found["problems"]] == ["data.partition"]


def test_a_problem_in_a_data_file_has_its_row(tmp_path: Path) -> None:
    data = tmp_path / "ages.csv"
    data.write_text("age,label\n1,0\n2,1\nmany,0\n")
    code, found = check(tmp_path, data={"file": str(data)}, objective={"kind": "logistic"}, clients=1)
    assert code == 3
    (problem,) = found["problems"]
    assert problem["source"] == str(data)
    assert problem["row"] == 3  # without the header


def test_a_key_for_editors_is_no_setting(tmp_path: Path) -> None:
    assert check(tmp_path, **{"$schema": "fenchel.schema.json"})[0] == 0
