"""Run folders of every fate: finished, killed in the middle, altered by a hand."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.keys.shared import Secrets
from fenchel.report.render import terminal
from fenchel.report.run import Run


def shown(*runs: Run, width: int = 140) -> str:
    """Return what a terminal of a width shows of runs."""
    output = StringIO()
    terminal.show(runs, Console(file=output, width=width, force_terminal=False))
    return output.getvalue()


SETTINGS: Mapping[str, Any] = {
    "name": "tiny",
    "seed": 7,
    "rounds": 3,
    "clients": 3,
    "data": {"name": "digits", "scale": "unit-interval", "holdout": 0.1},
    "objective": {"kind": "softmax", "l2": 1e-4},
    "algorithm": {"name": "fedavg", "local_epochs": 1, "batch_size": 64, "step_size": 0.5},
}


@pytest.fixture(scope="session")
def finished_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = RunFolder.create(tmp_path_factory.mktemp("runs"), "tiny")
    asyncio.run(run_in_process(validate(SETTINGS), folder))
    return folder.path


@pytest.fixture
def finished(finished_folder: Path) -> Run:
    return Run(finished_folder)


ENCRYPTED: Mapping[str, Any] = {
    "name": "hidden",
    "rounds": 3,
    "clients": 4,
    "data": {
        "name": "breast_cancer",
        "samples": 60,
        "scale": "unit-rows",
        "partition": {"kind": "grid", "sample_groups": 2, "feature_groups": 2},
    },
    "objective": {"kind": "hinge", "l2": 0.01},
    "algorithm": {"name": "hyfdca", "encryption": {"key_bits": 512}},
}


@pytest.fixture(scope="session")
def run_encrypted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Return a function that does an encrypted run, with other settings of its algorithm if any are given."""
    secrets = Secrets.generate(512, for_tests=True)

    def run(**algorithm: Any) -> Run:
        settings = {**ENCRYPTED, "algorithm": ENCRYPTED["algorithm"] | algorithm}
        folder = RunFolder.create(tmp_path_factory.mktemp("runs"), "hidden")
        asyncio.run(run_in_process(validate(settings), folder, secrets=secrets))
        return Run(folder.path)

    return run


@pytest.fixture(scope="session")
def encrypted(run_encrypted: Callable[..., Run]) -> Run:
    return run_encrypted()


@pytest.fixture
def killed(finished_folder: Path, tmp_path: Path) -> Run:
    """A run whose server was killed while it wrote the third round."""
    path = tmp_path / "20260101-000000-killed-0000"
    shutil.copytree(finished_folder, path)
    for name in ("summary.json", "model.npz"):
        (path / name).unlink()
    for name in ("metrics", "calls"):
        table = pq.read_table(path / f"{name}.parquet")
        growing = path / f"{name}.arrows"
        with growing.open("wb") as file:
            writer = pa.ipc.new_stream(file, table.schema)
            for t in (1, 2, 3):
                started = file.tell()
                writer.write_table(table.filter(pa.compute.equal(table["round"], t)))
            cut = (started + file.tell()) // 2
        with growing.open("rb+") as file:
            file.truncate(cut)
        (path / f"{name}.parquet").unlink()
    return Run(path)


@pytest.fixture
def altered(finished_folder: Path, tmp_path: Path) -> Callable[..., Run]:
    """Return a function that copies the finished run with other tables (or columns), summary or settings."""

    def alter(
        name: str = "altered",
        *,
        metrics: pa.Table | Mapping[str, list[Any]] | None = None,
        calls: pa.Table | Mapping[str, list[Any]] | None = None,
        summary: Mapping[str, Any] | None = None,
        settings: Callable[[str], str] = str,
    ) -> Run:
        path = tmp_path / name
        shutil.copytree(finished_folder, path)
        for table, file in ((metrics, "metrics.parquet"), (calls, "calls.parquet")):
            if table is not None:
                given = _with(pq.read_table(path / file), table) if isinstance(table, Mapping) else table
                pq.write_table(given, path / file)
        if summary is not None:
            values = json.loads((path / "summary.json").read_text()) | dict(summary)
            (path / "summary.json").write_text(json.dumps(values))
        (path / "settings.yaml").write_text(settings((path / "settings.yaml").read_text()))
        return Run(path)

    return alter


def _with(table: pa.Table, columns: Mapping[str, list[Any]]) -> pa.Table:
    """Return a table with some columns replaced, or added."""
    for name, values in columns.items():
        if name in table.column_names:
            field = table.schema.field(name)
            table = table.set_column(table.column_names.index(name), field, pa.array(values, field.type))
        else:
            table = table.append_column(name, pa.array(values))
    return table
