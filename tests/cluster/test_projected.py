"""A run on loopback, projected onto a link, against the same run through a relay that imposes it.

The machine may be busy with other things in one of the two runs, so a few pairs are tried. How near whole runs come
to each other is for the benchmark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.projection import SETTINGS
from fenchel.common.settings.link import parse_link
from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.deployment import Deployment
from fenchel.report.projection.projection import Projection, measured, project
from fenchel.report.run import Run
from fenchel.report.timeline import Timeline

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

ROUNDS, PAIRS, CLIENTS = 6, 8, 2
GRID: Mapping[str, Any] = {"partition": {"kind": "grid", "sample_groups": 1, "feature_groups": CLIENTS}}
FAR: Mapping[str, Any] = {"rtt": "200ms"}
THIN: Mapping[str, Any] = {"rtt": "40ms", "upload": "0.2Mbit", "download": "0.4Mbit"}  # 5 kB take 0.2 s up


@pytest.mark.slow  # make test-all
@pytest.mark.parametrize(
    ("algorithm", "link"),
    [
        ("fedavg", FAR),
        pytest.param("fedavg", THIN, marks=pytest.mark.slow),  # make test-all
        pytest.param("feddcd", FAR, marks=pytest.mark.slow),
        pytest.param("hyfdca", FAR, marks=pytest.mark.slow),
    ],
)
def test_a_projection_is_near_the_real_run(tmp_path: Path, algorithm: str, link: Mapping[str, Any]) -> None:
    parsed = parse_link(link, "this test")
    ratios = []
    for attempt in range(PAIRS):
        folder = tmp_path / str(attempt)
        near = Timeline.of(up(algorithm, folder))
        far = Timeline.of(up(algorithm, folder, link))
        real = fastest(measured(far))
        # The run that was done over the link explains itself, too.
        ratios.append([fastest(each) / real for each in (project(near, parsed), project(far, parsed), measured(near))])
        if ratios[-1][:2] == pytest.approx([1, 1], abs=0.25) and ratios[-1][2] < 0.5:  # else nothing is shown
            return
    pytest.fail(f"loopback projected, the link projected, loopback; as ratios to the link: {ratios}")


def up(algorithm: str, runs: Path, link: Mapping[str, Any] | None = None) -> Run:
    """Do a run of few clients with little data, each in a process of its own."""
    chosen = SETTINGS[algorithm]
    chosen = chosen | {"data": chosen["data"] | {"samples": 200} | (GRID if algorithm == "hyfdca" else {})}
    own = {"name": algorithm, "rounds": ROUNDS, "clients": CLIENTS, "links": link and {"default": link}}
    folder = RunFolder.create(runs, algorithm)
    asyncio.run(Deployment(validate(own | chosen), folder, CLIENTS).run())
    return Run(folder.path)


def fastest(projection: Projection) -> float:
    """Return the seconds of the fastest round, which a busy machine delayed least."""
    return float(projection.seconds.min())
