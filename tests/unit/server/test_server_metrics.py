"""Prometheus is told what the tables of the run say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.report import columns
from fenchel.report.run import Run
from fenchel.server.telemetry.metrics import ServerMetrics
from fenchel.server.telemetry.observer import Observers
from tests.observing import Calling

SETTINGS = validate(
    {
        "name": "counted",
        "rounds": 4,
        "clients": 3,
        "data": {"name": "digits", "samples": 300},
        "objective": {"kind": "softmax", "l2": 1e-4},
        "algorithm": {"name": "fedavg", "local_epochs": 1, "batch_size": 64, "step_size": 0.5},
    }
)


def series(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_the_series_are_those_of_the_tables_and_none_is_named_after_a_client(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "counted")
    counted = ServerMetrics(folder.id, SETTINGS)
    standing: list[float] = []

    def begins(t: int) -> None:
        found = series(counted.exposition.text())
        standing.append(found["fenchel_clients", frozenset({("state", "connected")})])

    asyncio.run(run_in_process(SETTINGS, folder, observer=Observers(counted, Calling(round_begun=begins))))
    found = series(counted.exposition.text())
    run = Run(folder.path)
    rounds, calls = run.metrics_table, run.calls_table

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    assert standing == [3, 3, 3, 3]
    assert value("fenchel_rounds_total") == 4
    assert value("fenchel_round") == 4
    assert value("fenchel_rounds_planned") == 4
    assert value("fenchel_round_seconds_sum") == pytest.approx(np.sum(rounds["seconds"]))
    for part in ("compute", "network", "server", "waiting"):
        assert value("fenchel_round_part_seconds_total", part=part) == pytest.approx(
            np.sum(np.maximum(rounds[f"{part}_s"], 0))
        )
    for layer, prefix in {"payload": "bytes", "wire": "wire"}.items():
        for way in ("down", "up"):
            sent = value("fenchel_transferred_bytes_total", layer=layer, direction=way)
            assert sent == np.sum(calls[f"{prefix}_{way}"])
    # More than the rounds' own: of the evaluation, too, as the words beside the metric say.
    assert value("fenchel_transferred_bytes_total", layer="wire", direction="up") > np.sum(rounds["wire_up"])
    trained = [phase == "train" for phase in calls["phase"].to_pylist()]
    assert value("fenchel_calls_total", phase="train", outcome="counted") == sum(trained) == 12
    assert value("fenchel_call_seconds_count", phase="train") == 12
    compute = np.asarray(calls["compute_s"])[trained]
    assert value("fenchel_call_compute_seconds_sum", phase="train") == pytest.approx(compute.sum())
    for figure in ("objective", "test_accuracy"):
        assert value("fenchel_figure", figure=figure) == pytest.approx(run.figures[figure])
    figures = {dict(labels)["figure"] for name, labels in found if name == "fenchel_figure"}
    assert figures == set(columns.figures(rounds)) & set(run.figures)
    assert value("fenchel_run_info", run=folder.id, algorithm="fedavg") == 1
    assert b"client-00" not in counted.exposition.text()
