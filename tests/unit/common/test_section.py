"""A text in YAML stands for no more than its reader can bear, whatever its aliases say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fenchel.common.errors import SettingsError
from fenchel.common.settings import section
from fenchel.common.settings.run import load
from fenchel.common.settings.section import DEEPEST, MOST_VALUES, yaml_value
from tests.complexity import LINEAR, growth
from tests.messages import raises


def nested(depth: int, width: int = 10) -> str:
    """Return lists that refer to lists: the last stands for about ``width ** depth`` values."""
    lines = [f"a0: &a0 [{', '.join(['x'] * width)}]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, depth)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("depth", [6, 7, 40])
def test_a_short_file_that_stands_for_too_much_is_refused_by_line(depth: int, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(nested(depth) + f"rounds: *a{depth - 1}\n")
    with raises(SettingsError, file="run.yaml") as refusal:
        load(path)
    said = str(refusal.value)
    assert said.startswith(f"{path}: the file is not valid YAML: line 5: with the alias *a3 the file holds more than")
    assert f"{MOST_VALUES:,} values" in said


def test_a_text_that_stands_for_far_more_takes_no_longer() -> None:
    def read(depth: int) -> None:
        with pytest.raises(yaml.YAMLError):
            yaml_value(nested(depth))

    # The text is 16 times as long, and stands for more values than there are atoms.
    assert growth(read, 6) < LINEAR


@pytest.mark.parametrize("bracket", ["[", "{a: ", "[{a: "])
def test_brackets_within_brackets_have_a_limit(bracket: str) -> None:
    levels = DEEPEST // (bracket.count("[") + bracket.count("{"))
    within = bracket * levels + "".join(
        {"[": "]", "{": "}"}[each] for each in reversed(bracket * levels) if each in "[{"
    )
    assert yaml_value(within) is not None
    with pytest.raises(yaml.YAMLError, match=f"line 2: lists or sections are nested more than {DEEPEST} levels"):
        yaml_value("\n" + bracket * (levels + 1))


def test_lists_without_end_are_refused_before_the_scanner_has_read_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token that PyYAML scans costs time for each level that is open."""
    levels = []
    scan = yaml.scanner.Scanner.fetch_flow_collection_start

    def counted(self: Any, token: Any) -> None:
        levels.append(self.flow_level)
        scan(self, token)

    monkeypatch.setattr(yaml.scanner.Scanner, "fetch_flow_collection_start", counted)
    with pytest.raises(yaml.YAMLError):
        yaml_value("[" * 20_000)
    assert len(levels) == DEEPEST


def test_sections_that_are_taken_over_count_too() -> None:
    text = "a0: &a0 {x: 1, y: 2}\n" + "".join(
        f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 30)}]}}\n" for n in range(1, 6)
    )
    with pytest.raises(yaml.YAMLError, match="line 4: with the alias"):
        yaml_value(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [("&a [*a]", 1), ("x: 1\ny: &b {z: [1, *b]}", 2), ("&a {<<: *a}", 1)],
    ids=["list", "section", "taken over"],
)
def test_what_holds_itself_is_refused(text: str, line: int) -> None:
    with pytest.raises(yaml.YAMLError, match=f"line {line}: .* contains itself"):
        yaml_value(text)


@pytest.mark.parametrize("text", ["a: 1\na: 2", "b:\n  {a: 1, a: 1}", "- b: 1\n  'b': {}"])
def test_a_key_that_a_section_has_twice_is_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="line 2: .* twice"):
        yaml_value(text)


def test_a_section_may_replace_a_key_that_it_takes_over() -> None:
    assert yaml_value("x: &x {k: 1}\ny: {z: &z {<<: *x, k: 2}}\nw: {<<: *z, <<: *x, k: 3}")["w"] == {"k": 3}


def test_aliases_within_bounds_say_what_they_stand_for() -> None:
    text = "fast: &fast {rtt: 1ms, upload: 1Gbit}\nclients:\n  a: *fast\n  b:\n    <<: *fast\n    rtt: 5ms\n"
    fast = {"rtt": "1ms", "upload": "1Gbit"}
    assert yaml_value(text) == {"fast": fast, "clients": {"a": fast, "b": fast | {"rtt": "5ms"}}}
    many = yaml_value("x: &x [1, 2, 3]\ny: [" + ", ".join(["*x"] * 20_000) + "]")
    assert many["y"] == [[1, 2, 3]] * 20_000


def test_a_long_file_without_aliases_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(section, "MOST_VALUES", 1000)
    assert yaml_value(f"[{'1, ' * 1010}]") == [1] * 1010


@pytest.mark.slow  # make test-all
@pytest.mark.parametrize("depth", range(1, 6))
def test_what_is_shown_of_a_value_takes_no_longer_for_a_large_one(depth: int, tmp_path: Path) -> None:
    """A value that one line shows the beginning of is not written out whole first."""
    path = tmp_path / "run.yaml"
    path.write_text(nested(depth) + f"rounds: *a{depth - 1}\n" if depth < 5 else "rounds: [" + "[1]," * 50_000 + "]")
    with raises(SettingsError) as refusal:
        load(path)
    assert all(len(line) < 250 for line in str(refusal.value).splitlines())


def test_no_key_is_suggested_that_the_section_lacks() -> None:
    with raises(SettingsError) as refusal:
        load(Path("quickstart"), ["algorithm.upperr=1", "algorithm.kin=box"])
    assert "upper?" not in str(refusal.value)
    assert "kind?" not in str(refusal.value)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("rouds=3", "rouds"),
        ("objectiv.l2=3", "objectiv"),
        ("algorithm.step_sise=1", "algorithm.step_sise"),
        ("algorithm.name=fedavgg", "algorithm"),
        ("participation.samler={kind: all}", "participation.samler"),
        ("data.partition={kind: dirichlet, alpha: 1, min_sample: 1}", "data.partition.min_sample"),
        ("wombat=1", "wombat"),
        ("downlink.keep=0.1", "downlink.keep"),
        ("participation.size=3", "participation.size"),
    ],
)
def test_a_misspelt_key_or_name_is_told_what_was_meant(override: str, key: str) -> None:
    with raises(SettingsError, key=key):
        load(Path("quickstart"), [override])


@pytest.mark.parametrize(
    ("given", "meant"),
    [("quickstrat", "quickstart"), ("hyfdca/mnits", "hyfdca/mnist"), ("quickstart.yaml", "quickstart")],
)
def test_a_misspelt_experiment_is_told_what_was_meant(
    given: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with raises(SettingsError, source=given) as refusal:
        load(Path(given))
    assert f"did you mean {meant}?" in str(refusal.value)
