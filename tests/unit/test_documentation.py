"""The documentation is true: links, commands, settings, code and tables are checked against the project."""

from __future__ import annotations

import ast
import doctest
import importlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml

import fenchel
from docs.settings_tables import with_tables
from fenchel.common import errors
from fenchel.common.data.source import DataSource
from fenchel.common.objectives.factory import build_objective
from fenchel.common.randomness import generator
from fenchel.common.settings.reading import validated
from fenchel.common.settings.registry import builtin_settings
from fenchel.common.settings.run import json_schema, load, validate
from fenchel.common.settings.tuning import TuningSettings, load_tuning
from fenchel.common.storage import store
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.cli.main import application
from fenchel.deploy.launch.names import client_names
from fenchel.server.telemetry import call_table
from fenchel.testing import check_algorithm

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])
EXPERIMENTS = sorted((ROOT / "fenchel" / "experiments").rglob("*.yaml"))
SETTINGS_PAGE = ROOT / "docs" / "settings.md"
NEW_ALGORITHM = ROOT / "docs" / "new-algorithm.md"
SHELL = ("", "sh", "bash", "shell", "console")
RUN_KEYS = frozenset(fenchel.RunSettings.model_fields)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; ``caption`` is the last line of text before it."""

    page: str
    line: int
    language: str
    caption: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    found: list[Block] = []
    fence, start, caption, inside = "", 0, "", list[str]()
    for number, line in enumerate(page.read_text().splitlines(), 1):
        mark = re.match(r"\s*```(\S*)", line)
        if mark and not start:
            fence, start, inside = mark[1], number, []
        elif mark:
            found.append(Block(name_of(page), start, fence, caption, "\n".join(inside) + "\n"))
            start = 0
        elif start:
            inside.append(line)
        elif line.strip():
            caption = line.strip()
    assert not start, f"{page}:{start}: a fenced block has no end"
    return tuple(found)


def all_blocks(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language in languages]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^\s*```.*?^\s*```\s*$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


# Links


def anchors(page: Path) -> set[str]:
    """The fragments that headings can be linked by, as common hosts of repositories make them."""
    headings = re.findall(r"^#+\s+(.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose(page))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (fragment and fragment not in anchors(target)):
            broken.append(link)
    assert not broken


def test_every_page_of_the_documentation_is_listed_by_one_page_that_links_to_it() -> None:
    folder = ROOT / "docs"
    listed: list[Path] = []
    for page in PAGES:
        for block in blocks(page):
            if block.language == "{toctree}":
                names = [line for line in block.text.splitlines() if line and not line.startswith(":")]
                stems = [page.parent / name for name in names]
                files = [
                    stem.with_suffix(end)
                    for stem in stems
                    for end in (".md", ".ipynb")
                    if stem.with_suffix(end).exists()
                ]
                linked = {(page.parent / link.partition("#")[0]).resolve() for link in links(page)}
                assert linked.issuperset(files), f"{block}: not all are in the text"
                listed += files
    pages = {*(page for page in PAGES if page.is_relative_to(folder)), *folder.rglob("*.ipynb")}
    assert sorted(listed) == sorted(pages - {folder / "index.md"})


def test_the_reference_lists_every_public_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    words = set(re.findall(r"\w+", page))
    assert words >= {*fenchel.__all__, *fenchel.testing.__all__}


@pytest.mark.parametrize(
    "name", [name for name in fenchel.__all__ if name != "TorchObjective" and isinstance(getattr(fenchel, name), type)]
)
def test_the_examples_of_a_public_name_print_what_they_say(name: str) -> None:
    for example in doctest.DocTestFinder(exclude_empty=True).find(getattr(fenchel, name), name):
        assert doctest.DocTestRunner().run(example).failed == 0, example.name


def sections(page: Path) -> set[str]:
    """The numbers of the sections of a specification, and the names of its oracles, errors and steps."""
    text = page.read_text()
    return set(re.findall(r"^#+ (\d+(?:\.\d+)*)", text, re.MULTILINE)) | set(re.findall(r"\b[EOS]\d+\b", text))


def test_every_section_of_a_specification_that_is_referred_to_exists() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    checked = 0
    for name in tracked.split():
        if not name.endswith((".py", ".yaml", ".md")) or name.startswith("docs/specifications/"):
            continue
        text = re.sub(r"\s+(#\s+)?", " ", (ROOT / name).read_text()) if (ROOT / name).is_file() else ""
        pattern = r"docs/specifications/(\w+\.md)((?:,? \(?sections? [\d., and-]+|, [EO]\d+)?)"
        for page, places in re.findall(pattern, text):
            specification = ROOT / "docs" / "specifications" / page
            assert specification.exists(), f"{name}: {page}"
            known = sections(specification)
            for place in re.findall(r"[EO]\d+|\d+(?:\.\d+)*", places):
                assert place in known, f"{name}: {page}, section {place}"
                checked += 1
    assert checked > 80


# Commands


@cache
def cli() -> Any:
    return typer.main.get_command(application())


def parse_command(words: list[str], *, complete: bool) -> None:
    """Let typer parse a command as if it were about to run; raise what it finds wrong.

    ``complete``: also refuse a command that lacks an argument.
    """
    current, path = cli(), "fenchel"
    while words and hasattr(current, "commands"):
        if words[0] in ("-h", "--help"):
            return
        path = f"{path} {words[0]}"
        current, words = current.commands[words[0]], words[1:]
    if "--help" in words or (not complete and hasattr(current, "commands")):
        return
    try:
        current.make_context(path, words)
    except Exception as error:
        if complete or type(error).__name__ != "MissingParameter":
            raise AssertionError(f"{path}: {error}") from error


def shell_commands(text: str) -> Iterator[list[str]]:
    """The words of every simple command in a block of shell commands, without redirections."""
    lines = text.replace("\\\n", " ").splitlines()
    prompted = [line[2:] for line in lines if line.startswith("$ ")]  # then the other lines are output
    for line in prompted or lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;<>"):
                if words:
                    yield words
                words = []
            else:
                words.append(word)


def fenchel_words(words: list[str]) -> list[str] | None:
    """What follows ``fenchel`` in a command, or ``None`` if it is another command."""
    words = [word for word in words if not re.match(r"[A-Z_]+=", word)]
    if words[:1] == ["fenchel"] or (words and words[0].endswith("/fenchel")):
        return words[1:]
    if words[1:3] == ["-m", "fenchel"]:
        return words[3:]
    return None


@pytest.mark.parametrize("block", all_blocks(*SHELL), ids=str)
def test_every_printed_command_parses(block: Block) -> None:
    for words in shell_commands(block.text) if "fenchel " in block.text else ():
        given = fenchel_words(words)
        # "NAME..." and "[WORD]" stand for something in a synopsis; they are words like any other to the parser.
        if given is not None:
            parse_command([word.removesuffix("...") for word in given], complete=True)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_in_the_text_exists_with_its_options(page: Path) -> None:
    for words in re.findall(r"(?<!`)`fenchel ([^`]+)`", prose(page)):
        parse_command(shlex.split(words), complete=False)


@cache
def there_is() -> dict[str, set[str]]:
    """What a page may name, by the pattern of such a name."""
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    found = re.findall(r"^(?:async )?def (test_\w+)", "\n".join(path.read_text() for path in tests), re.MULTILINE)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    return {
        r"(?:^|`)make ([a-z-]+)": targets,
        r"`(test(?:_[a-z0-9]+){3,})`": set(found),  # a shorter one is a figure or a key
        r"`(test_\w+\.py)`": {path.name for path in tests},
    }


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_target_and_test_that_a_page_names_exists(page: Path) -> None:
    folders = "proto|common|server|client|deploy|report|tests|experiments|benchmarks|docs"
    named = re.findall(rf"`((?:{folders})/[\w./-]*)`", prose(page))
    assert [name for name in named if not (ROOT / name).exists()] == []
    for pattern, existing in there_is().items():
        assert set(re.findall(pattern, page.read_text(), re.MULTILINE)) <= existing


# Settings and code


@pytest.mark.parametrize("path", EXPERIMENTS, ids=name_of)
def test_every_experiment_is_valid(path: Path) -> None:
    if "parameters" in yaml.safe_load(path.read_text()):
        assert load_tuning(path).settings.exists()
    else:
        load(path)


@pytest.mark.parametrize("block", all_blocks("yaml", "yml"), ids=str)
def test_every_piece_of_settings_in_a_page_is_valid(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = yaml.safe_load(block.text)
    if isinstance(values, dict) and "parameters" in values:
        validated(TuningSettings, values, str(block))
        return
    if not isinstance(values, dict) or not values.keys() <= RUN_KEYS:
        return  # of something else, such as a compose file
    if block.page == name_of(NEW_ALGORITHM):
        write_example(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "feddual", raising=False)
    whole = yaml.safe_load((ROOT / "fenchel" / "experiments" / "fedavg-digits.yaml").read_text())
    validate(whole | values, str(block))


@pytest.mark.parametrize("block", all_blocks("python", "py"), ids=str)
def test_every_piece_of_python_compiles_and_finds_what_it_imports_of_fenchel(block: Block) -> None:
    compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fenchel"):
            module = importlib.import_module(str(node.module))
            assert {alias.name for alias in node.names if not hasattr(module, alias.name)} == set()


def test_every_public_name_that_a_page_uses_exists() -> None:
    used = {
        name
        for page in PAGES
        for name in re.findall(r"(?<![\w./-])fenchel\.([A-Za-z]\w*)", page.read_text())
        if name not in ("evaluate", "proto", "py", "schema", "testing", "v1")
    }
    assert {name for name in used if not hasattr(fenchel, name)} == set()


# Exit codes


def table_rows(text: str) -> list[list[str]]:
    rows = [line.strip().strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if not set("".join(row)) <= set("-: ")]


def error_classes(kind: type[errors.FenchelError] = errors.FenchelError) -> Iterator[type[errors.FenchelError]]:
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:
            yield each
            yield from error_classes(each)


def test_the_page_of_errors_lists_every_class_with_its_code() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    rows = table_rows(page)[1:]
    listed = {(name, int(row[0])) for row in rows for name in re.findall(r"`(\w+Error)`", row[1])}
    assert listed == {(kind.__name__, kind.exit_code) for kind in error_classes()}
    codes = [int(row[0]) for row in rows]
    assert codes == sorted({0, 1, 2, errors.INTERRUPTED, *(kind.exit_code for kind in error_classes())})
    headings = [int(code) for code in re.findall(r"^## (\d+):", page, re.MULTILINE)]
    assert headings == codes[1:]


PLACEHOLDER = re.compile(r"%[-+0-9.,]*[sdrgfx]|\{[^{}]*\}|…|\.\.\.|\b[A-Z]+\b|\b\d+\b|'x'|[:();]")


def fragments(text: str) -> list[str]:
    """Return the runs of at least three words between the placeholders of a message, in lower case."""
    runs = (" ".join(re.findall(r"[a-z][a-z_.'-]*", run.lower())) for run in PLACEHOLDER.split(text))
    return [run for run in runs if run.count(" ") >= 2]


@cache
def spoken_words() -> str:
    """Return the words of all texts in the code, with a line for each run of words without a placeholder."""
    texts: list[str] = []
    for path in sorted((ROOT / "fenchel").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                texts.append(
                    "".join(str(each.value) if isinstance(each, ast.Constant) else "…" for each in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(run for text in texts for run in fragments(text))


def test_messages_that_the_pages_explain_are_those_of_the_code() -> None:
    text = "\n".join((ROOT / "docs" / f"{page}.md").read_text() for page in ("errors", "engines", "keys", "docker"))
    quoted = re.findall(r"\*\*`([^`]+)`\*\*", text)
    for table in re.findall(r"\| message(?: begins with)? \|.*\n(?:\|.*\n)+", text):
        quoted += [row[0].split("`")[1] for row in table_rows(table)[1:] if "`" in row[0]]
    assert quoted
    unknown = {run for each in quoted for run in fragments(each) if run not in spoken_words()}
    assert unknown == set()


# docs/run-folder.md


def test_the_page_of_the_run_folder_lists_every_column_of_the_calls() -> None:
    page = (ROOT / "docs" / "run-folder.md").read_text()
    (section,) = re.findall(r"^## `calls\.parquet`.*?(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    listed = [name for row in table_rows(section)[1:] for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(listed) == sorted(call_table.SCHEMA.names)


# docs/settings.md


def test_the_tables_of_the_settings_are_those_of_the_code() -> None:
    page = SETTINGS_PAGE.read_text()
    assert page == with_tables(page), "run: make tables"


def test_the_page_of_settings_names_every_key() -> None:
    page = SETTINGS_PAGE.read_text()
    schema = json_schema()
    sections = [schema, *schema["$defs"].values(), *(each.model_json_schema() for each in builtin_settings().values())]
    keys = {key for each in sections for key in each.get("properties", {})}
    assert {key for key in keys if not re.search(rf"[`.]{key}`", page)} == set()


# docs/new-algorithm.md


def write_example(folder: Path) -> None:
    """Write the files that the page shows, each captioned with its name."""
    for block in blocks(NEW_ALGORITHM):
        if re.fullmatch(r"`[\w.]+`", block.caption):
            (folder / block.caption.strip("`")).write_text(block.text)


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_example(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    sys.modules.pop("feddual", None)
    yield tmp_path
    sys.modules.pop("feddual", None)


@pytest.mark.slow
@pytest.mark.cluster
def test_the_example_algorithm_gives_the_same_model_in_real_processes_and_in_one(example: Path) -> None:
    words = [sys.executable, "-m", "fenchel", "up", "feddual.yaml", "--runs", "real", "--set", "rounds=6"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (folder,) = Path("real").iterdir()
    real = fenchel.Run(folder)
    here = fenchel.up("feddual.yaml", overrides=["rounds=6"], in_process=True)
    assert real.model.tobytes() == here.model.tobytes()
    objectives = real.metrics_table["objective"].to_numpy()
    assert len(objectives) == 6
    assert np.all(np.diff(objectives) < 0)
    assert objectives[-1] < 0.11  # it is 0.69 at the initial model
    assert np.isfinite(real.figures["disagreement"])


@pytest.mark.slow
@pytest.mark.cluster
def test_the_printed_command_finds_the_module_in_the_folder_and_nothing_there_stands_in_for_fenchels_own(
    example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH")
    for name in ("client", "common", "deploy", "proto", "report", "server"):
        (example / f"{name}.py").write_text("raise RuntimeError('not this one')\n")
    script = str(Path(sys.executable).with_name("fenchel"))
    done = subprocess.run(
        [script, "up", "feddual.yaml", "--set", "rounds=2", "--json"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["completed"]


@pytest.mark.slow
def test_the_example_algorithm_conforms(example: Path) -> None:
    check_algorithm("feddual.yaml", example / "checked", seeds=1)


def test_the_duals_of_the_example_add_up_to_zero(example: Path) -> None:
    run = fenchel.up("feddual.yaml", overrides=["rounds=4"], in_process=True)
    source = DataSource.open(run.settings.data, run.settings.seed)
    total, largest = np.zeros(31), 0.0
    for part, client in zip(source.parts(4), client_names(4), strict=True):
        newest = max((RunFolder(run.path).journals / run.id / client).glob("*.state"))
        dual = store.read(newest)["state/dual"]
        assert isinstance(dual, np.ndarray)
        total += len(part.samples) * dual
        largest = max(largest, float(np.abs(dual).max()))
    assert largest > 0.01
    assert np.abs(total).max() < 1e-12 * 455


def test_the_example_algorithm_ends_below_federated_averaging(example: Path) -> None:
    own = fenchel.up("feddual.yaml", in_process=True)
    averaging = yaml.safe_load((example / "feddual.yaml").read_text())
    averaging["algorithm"] = {"name": "fedavg", "local_steps": 100, "step_size": 0.1}
    other = fenchel.up(averaging, in_process=True)
    assert round(own.figures["objective"], 4) == 0.0970  # the figures that the page gives
    assert round(other.figures["objective"], 4) == 0.0976


# docs/algorithms/fedavg.md


def averaged(clients: int, **algorithm: Any) -> fenchel.Run:
    """A short run of FedAvg on 400 samples."""
    values = {
        "rounds": 3,
        "clients": clients,
        "data": {"name": "breast_cancer", "scale": "standard", "samples": 400},
        "objective": {"kind": "logistic", "l2": 0.1},
        "algorithm": {"name": "fedavg", "step_size": 0.5, **algorithm},
    }
    return fenchel.up(values, in_process=True)


def test_one_client_is_mini_batch_gradient_descent(in_folder: Path) -> None:
    run = averaged(1, local_epochs=2)
    source = DataSource.open(run.settings.data, run.settings.seed)
    objective = build_objective(run.settings.objective, source.shard(0, 1, np.dtype(np.float64)))
    w = np.zeros(objective.dimension)
    for t in (1, 2, 3):
        draws = generator(run.settings.seed, client_names(1)[0], t, "batches")
        for batch in objective.batches(draws, epochs=2, batch_size=32):
            w -= 0.5 * objective.batch_gradient(w, batch)
    np.testing.assert_allclose(run.model, w, rtol=0, atol=1e-14)


def test_so_many_steps_are_the_same_as_so_many_epochs(in_folder: Path) -> None:
    epochs = averaged(5, local_epochs=2)
    assert epochs.model.tobytes() == averaged(5, local_steps=2 * -(-80 // 32)).model.tobytes()
    uniform = averaged(5, local_epochs=2, weighting="uniform")
    np.testing.assert_allclose(uniform.model, epochs.model, rtol=0, atol=1e-14)
