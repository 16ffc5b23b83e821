"""The house keeps its plan: imports go one way, heavy libraries stay in their rooms, stubs are fresh."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("proto", "common", "fleet", "keys", "algorithms", "server", "client", "deploy", "report")
NETWORKS = {
    f"fenchel/common/objectives/networks/{name}.py"
    for name in ("architectures", "exported", "factory", "flat", "module", "objective", "scorer")
}
ROOMS = {
    "torch": {*NETWORKS, "fenchel/common/data/extractor.py", "fenchel/common/data/resnet.py"},
    "docker": set[str](),
    "ray": {"fenchel/deploy/launch/launchers/ray_driver.py"},
    "matplotlib": {
        "fenchel/report/render/canvas.py",
        "fenchel/report/render/figure.py",
        "fenchel/report/render/plots.py",
        "fenchel/report/energy/picture.py",
        "fenchel/report/render/partition.py",
    },
    "pandas": set[str](),
    "sklearn": {"fenchel/common/data/split.py", "fenchel/estimators.py", "fenchel/report/exported.py"},
    "phe": {"fenchel/common/crypto/residues/phe.py", "fenchel/keys/paillier/phe.py"},
    "dp_accounting": {"fenchel/common/accounting/accountant.py"},
    "prometheus_client": {"fenchel/common/telemetry/exposition.py"},
    "opentelemetry": {"fenchel/common/telemetry/tracing.py"},
    "optuna": {"fenchel/deploy/launch/tuning.py"},
    "tensorboard": set[str](),  # fenchel/trackers.py loads it by its name, as the next two
    "mlflow": set[str](),
    "wandb": set[str](),
}
"""The modules that may import a heavy or optional library."""

EAGER = {
    "torch": NETWORKS,
    "sklearn": {"fenchel/estimators.py"},
    "phe": {"fenchel/common/crypto/residues/phe.py", "fenchel/keys/paillier/phe.py"},
}
"""The modules that may import a heavy library at their top, because they are themselves imported lazily."""


@dataclass(frozen=True)
class Import:
    """An import statement somewhere in the project."""

    place: str
    module: str
    lazy: bool

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


def sources() -> list[Path]:
    packages = [path for package in PACKAGES for path in sorted((ROOT / "fenchel" / package).rglob("*.py"))]
    return [*sorted((ROOT / "fenchel").glob("*.py")), *packages]


def place_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def handwritten() -> list[Path]:
    return [path for path in sources() if "_pb2" not in path.name]


def imports_of(path: Path) -> Iterator[Import]:
    """Yield every import that runs: those for type checkers alone are left out."""

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from walk(other, lazy)
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(place_of(path), alias.name, lazy)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{place_of(path)}: relative imports hide where a name comes from"
            yield Import(place_of(path), node.module or "", lazy)
        inner = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, inner)

    yield from walk(ast.parse(path.read_text()), False)


@cache
def all_imports() -> list[Import]:
    return [found for path in sources() for found in imports_of(path)]


def test_there_is_a_project_to_look_at() -> None:
    assert len(handwritten()) > 50
    assert {path.relative_to(ROOT / "fenchel").parts[0] for path in sources()} > set(PACKAGES)


def test_imports_go_one_way_only() -> None:
    """The contracts are in ``.importlinter``."""
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pages_give_the_layers_of_the_contract() -> None:
    contract = re.search(r"^layers =\n((?: .*\n)+)", (ROOT / ".importlinter").read_text(), re.MULTILINE)
    assert contract is not None
    layers = [set(re.findall(r"fenchel\.(\w+)", line)) for line in reversed(contract[1].splitlines())]
    listed = re.search(
        r"^\* A part imports only those before it: (.*)\.$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    assert listed is not None
    assert [set(re.findall(r"`(\w+)`", each)) for each in listed[1].split(", ")] == layers
    drawn = re.search(r"^ +proto --> .*", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    assert drawn is not None
    names = [re.sub(r'.*\["(.*)"\]', r"\1", each) for each in drawn[0].split(" --> ")]
    assert [set(re.findall(r"\w+", each)) for each in names] == layers


def test_every_import_of_fenchel_is_by_its_name() -> None:
    assert [f"{each.place} imports {each.module}" for each in all_imports() if each.top in PACKAGES] == []


def test_no_class_name_means_two_things() -> None:
    defined: dict[str, set[str]] = {}
    for path in handwritten():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined.setdefault(node.name, set()).add(place_of(path))
    assert {name: places for name, places in defined.items() if len(places) > 1} == {}


@pytest.mark.parametrize("library", ROOMS)
def test_a_heavy_library_is_imported_in_its_room_only_and_when_it_is_needed(library: str) -> None:
    found = [each for each in all_imports() if each.top == library]
    assert {each.place for each in found} <= ROOMS[library]
    assert [each.place for each in found if not each.lazy and each.place not in EAGER.get(library, ())] == []


def test_the_room_of_torch_is_entered_lazily() -> None:
    entering = [
        each
        for each in all_imports()
        if each.module.startswith("fenchel.common.objectives.networks") and each.place not in NETWORKS
    ]
    assert entering
    assert all(each.lazy for each in entering)


@pytest.mark.parametrize("path", handwritten(), ids=place_of)
def test_every_module_says_what_it_is(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring
    assert len(docstring) > 10


def test_no_module_is_named_after_nothing() -> None:
    empty = {"utils", "util", "helpers", "helper", "misc", "manager", "managers", "tools", "base", "core"}
    assert [place_of(path) for path in sources() if path.stem in empty or path.parent.name in empty] == []


def recorded_versions() -> dict[str, str]:
    """Return the versions of the generators that the stubs name."""
    python = (ROOT / "fenchel" / "proto" / "fenchel_pb2.py").read_text()
    grpc = (ROOT / "fenchel" / "proto" / "fenchel_pb2_grpc.py").read_text()
    protobuf = re.search(r"Protobuf Python Version: (\S+)", python)
    tools = re.search(r"GRPC_GENERATED_VERSION = '([^']+)'", grpc)
    assert protobuf
    assert tools
    return {"protobuf": protobuf[1], "grpcio-tools": tools[1]}


def protoc(*arguments: str) -> None:
    tools = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is not installed")
    plugin = Path(sys.executable).with_name("protoc-gen-mypy")
    if not plugin.exists():
        pytest.skip("mypy-protobuf is not installed beside this Python")
    assert tools.main(["protoc", f"--plugin=protoc-gen-mypy={plugin}", *arguments, "fenchel/proto/fenchel.proto"]) == 0


def test_the_stubs_are_those_of_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    folder = str(tmp_path)
    outputs = ("--python_out", "--grpc_python_out", "--mypy_out", "--mypy_grpc_out")
    grpc_plugin = Path(sys.executable).with_name("protoc-gen-mypy_grpc")
    protoc("-I.", f"--plugin=protoc-gen-mypy_grpc={grpc_plugin}", *(f"{each}={folder}" for each in outputs))
    made = sorted((tmp_path / "fenchel" / "proto").iterdir())
    version = re.search(
        r"Protobuf Python Version: (\S+)", (tmp_path / "fenchel" / "proto" / "fenchel_pb2.py").read_text()
    )
    assert version
    found = {"protobuf": version[1], "grpcio-tools": metadata.version("grpcio-tools")}
    if found != recorded_versions():
        pytest.skip(f"the stubs were made by {recorded_versions()}, here are {found}")
    kept = sorted(path for path in (ROOT / "fenchel" / "proto").iterdir() if "_pb2" in path.name and path.is_file())
    assert [path.name for path in made] == [path.name for path in kept]
    for mine, theirs in zip(made, kept, strict=True):
        assert mine.read_bytes() == theirs.read_bytes(), f"{theirs.name} is not what fenchel.proto says; regenerate it"
