"""A run on loopback, projected onto a link, against the same run through a relay that imposes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.projection import up
from fenchel.common.settings.link import parse_link
from fenchel.report.projection.projection import measured, project
from fenchel.report.timeline import Timeline

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ROUNDS = 6
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
    near = Timeline.of(up(algorithm, ROUNDS, tmp_path))
    far = Timeline.of(up(algorithm, ROUNDS, tmp_path, link))
    projected, real = project(near, parse_link(link, "this test")), measured(far)
    assert real.total > 2 * measured(near).total  # else nothing is shown
    # The machine may be busy with other things in one of the runs; the limit of the benchmark is 0.1.
    assert projected.total == pytest.approx(real.total, rel=0.25)
    # The run that was done over the link explains itself, too.
    assert project(far, parse_link(link, "this test")).total == pytest.approx(real.total, rel=0.15)
