"""Files beside the code: citation, changelog, templates, workflows and hooks agree with the project."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.extras import CORE, JOBS, LARGE, extras

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))


def parsed(path: Path) -> dict[str, Any]:
    content = yaml.safe_load(path.read_text())
    assert isinstance(content, dict)
    return content


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_the_citation_has_the_version_and_licence_of_the_project() -> None:
    citation = parsed(ROOT / "CITATION.cff")
    assert citation["version"] == VERSION
    assert citation["license"] == "Apache-2.0"


def test_each_identifier_of_a_cited_paper_stands_in_its_specification() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "specifications").glob("*.md"))
    references = parsed(ROOT / "CITATION.cff")["references"]
    assert len(references) == 5
    for reference in references:
        assert reference["title"].strip() in pages
        for identifier in reference.get("identifiers", ()):
            assert identifier["value"].removeprefix("arXiv:") in pages


def test_the_newest_version_of_the_changelog_is_that_of_the_project() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    released = re.findall(r"^## \[?(\d+\.\d+\.\d+)\]?", text, re.MULTILINE)
    assert released[0] == VERSION
    assert released == sorted(released, key=numbers, reverse=True)
    coming = re.search(r"^## Unreleased\n\nTo be (\d+\.\d+\.\d+)\.$", text, re.MULTILINE)
    assert coming is None or numbers(coming[1]) > numbers(VERSION)
    assert "## Unreleased" not in text or coming is not None


def test_the_changelog_gives_the_version_of_the_wire_contract() -> None:
    found = re.search(r"`PROTOCOL` \(`fenchel/common/version\.py`, now (\d+)\)", (ROOT / "CHANGELOG.md").read_text())
    code = re.search(r"^PROTOCOL = (\d+)$", (ROOT / "fenchel" / "common" / "version.py").read_text(), re.MULTILINE)
    assert found is not None
    assert code is not None
    assert found[1] == code[1]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_reads_by_default_and_pins_its_actions(path: Path) -> None:
    workflow = parsed(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert "timeout-minutes" in job
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert "uses" not in step or re.search(r"@(release/)?v\d+$", step["uses"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_files_and_targets_that_a_workflow_names_exist(path: Path) -> None:
    text = path.read_text()
    assert [name for name in re.findall(r"(?:\.ci|deploy|tests)/[\w/.-]+", text) if not (ROOT / name).exists()] == []
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def test_the_workflow_tries_each_version_of_python_that_is_supported() -> None:
    matrix = parsed(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["fast"]["strategy"]["matrix"]["python"]
    minors = re.search(r"for minor in ([\d ]+);", MAKEFILE)
    assert minors is not None
    assert sorted(matrix) == sorted(f"3.{minor}" for minor in minors[1].split())


def test_only_the_job_that_uploads_can_identify_itself_to_the_registry() -> None:
    jobs = parsed(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert {name: job.get("permissions") for name, job in jobs.items()} == {
        "build": None,
        "publish": {"id-token": "write"},
    }


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_a_form_of_issues_asks_for_something_under_names_of_its_own(path: Path) -> None:
    form = parsed(path)
    assert form["name"]
    assert form["description"]
    names = [item["id"] for item in form["body"] if item["type"] != "markdown"]
    assert names
    assert len(names) == len(set(names))


def test_settings_of_issues_and_updates_parse() -> None:
    assert "blank_issues_enabled" in parsed(ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml")
    updates = parsed(ROOT / ".github" / "dependabot.yml")["updates"]
    assert {each["package-ecosystem"] for each in updates} == {"pip", "github-actions"}


def test_the_hooks_of_a_commit_are_the_commands_of_make_lint() -> None:
    hooks = [hook for repo in parsed(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    called = [hook["entry"] for hook in hooks if shlex.split(hook["entry"])[0] != "git"]
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert recipe is not None
    assert called == [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]
    assert {hook["language"] for hook in hooks} == {"system"}


def test_each_extra_but_that_for_development_has_a_job_that_tries_it() -> None:
    assert JOBS.keys() == {CORE, *extras()} - {"dev"}
    assert set(LARGE) <= set(extras())


def test_a_workflow_tries_the_large_extras_too() -> None:
    steps = parsed(ROOT / ".github" / "workflows" / "extras.yml")["jobs"]["extras"]["steps"]
    named = [re.search(r"^make extras [^']*?(?:EXTRAS='(.*)')?$", step["run"]) for step in steps if "run" in step]
    assert [found and set((found[1] or "").split()) for found in named] == [set(), set(LARGE) - {"dev"}]


def test_coverage_is_measured_of_the_fast_tests_and_uploaded() -> None:
    recipes = dict(re.findall(r"^(fast|coverage):.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE))
    (chosen,) = re.findall(r"-m '.*?'", recipes["fast"])
    assert chosen in recipes["coverage"]
    (folder,) = re.findall(r"--cov-report=html:(\S+)", recipes["coverage"])
    jobs = parsed(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]
    environments = [step["env"] for name in ("fast", "coverage") for step in jobs[name]["steps"] if "env" in step]
    assert environments[0] == environments[1]
    assert jobs["coverage"]["steps"][-1]["with"]["path"] == f"{folder}/"
