"""The page in a browser without a head: it is drawn, it fits a phone, and nothing complains."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fenchel.report.render.page import write_report
from fenchel.report.run import Run
from tests.slow import rest_slow

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")

# Chromium has no window narrower than 500 pixels, but a frame in it may be. The frame tells its measures by its name.
FRAME = """<!doctype html><iframe id="page" src="{page}" style="width: {width}px; height: 900px"></iframe>
<script>
addEventListener("load", () => setTimeout(() => {{
  const inner = document.getElementById("page").contentDocument;
  const {{ overflow, drawn }} = inner.documentElement.dataset;
  const charts = [...inner.querySelectorAll(".chart")].filter((chart) => chart.offsetParent);
  const empty = charts.filter((chart) => !chart.querySelector(".main-svg")).length;
  document.body.dataset.measures = `overflow ${{overflow}} drawn ${{drawn}} charts ${{charts.length}} empty ${{empty}}`;
}}, 3000));
</script>"""


def look(page: Path, width: int, profile: Path) -> tuple[str, list[str]]:
    """Return the measures of a page in a frame of a width, and what the console said."""
    assert BROWSER is not None
    frame = page.with_name(f"frame-{width}.html")
    frame.write_text(FRAME.format(page=page.name, width=width))
    flags = [
        *("headless", "no-sandbox", "disable-gpu", "disable-background-networking", "disable-component-update"),
        *("disable-sync", "no-first-run", "allow-file-access-from-files", "enable-logging=stderr", "dump-dom"),
        *(f"user-data-dir={profile}", "window-size=1920,1080", "virtual-time-budget=10000"),
    ]
    done = subprocess.run(
        [BROWSER, *(f"--{flag}" for flag in flags), frame.as_uri()], capture_output=True, text=True, timeout=120
    )
    measures = re.search(r'data-measures="([^"]*)"', done.stdout)
    assert measures is not None, done.stderr[-2000:]
    return measures[1], [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize("width", rest_slow([390, 1900]))
def test_one_run_is_drawn_within_the_window(tmp_path: Path, finished: Run, width: int) -> None:
    page = write_report([finished], tmp_path / "report.html")
    measures, complaints = look(page, width, tmp_path / "profile")
    assert re.fullmatch(r"overflow 0 drawn true charts 1\d empty 0", measures), measures
    assert complaints == []


@pytest.mark.slow
def test_several_runs_with_long_names_are_drawn_on_a_phone(
    tmp_path: Path, finished: Run, killed: Run, altered: Callable[..., Run]
) -> None:
    other = altered("x" * 120, settings=lambda text: text.replace("seed: 7", "seed: 8").replace("tiny", "y" * 90))
    page = write_report([finished, killed, other], tmp_path / "report.html", optima=[0.1, 0.1, 0.1])
    measures, complaints = look(page, 390, tmp_path / "profile")
    assert re.fullmatch(r"overflow 0 drawn true charts \d+ empty 0", measures), measures
    assert complaints == []
