"""The picture is a picture, of any number of runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from report.figure import draw
from report.pictures import write_pictures
from report.run import Run


def colors(path: Path) -> int:
    pixels = np.asarray(imread(path))[..., :3].reshape(-1, 3)
    return len(np.unique((pixels * 255).astype(int), axis=0))


def test_a_picture_shows_the_curves_of_one_run_and_of_several(
    tmp_path: Path, finished: Run, killed: Run, altered: Callable[..., Run]
) -> None:
    one = draw([finished], tmp_path / "docs" / "one.png")
    several = draw([finished, killed, altered("$x^2$ _ <b>")], tmp_path / "several.png")
    blank = draw([Run(_empty(tmp_path))], tmp_path / "blank.png")
    assert imread(one).shape[1] == 3 * imread(blank).shape[1]  # objective, accuracy, worst client
    assert colors(several) > colors(one) > colors(blank)


def test_a_gap_has_a_chart_of_its_own(tmp_path: Path, finished: Run, altered: Callable[..., Run]) -> None:
    without = draw([finished], tmp_path / "without.png")
    gap = draw([altered(metrics={"gap": [0.5, 0.0, -1e-17]})], tmp_path / "gap.png")  # rounding, in the end
    assert 3 * imread(gap).shape[1] == 4 * imread(without).shape[1]


@pytest.mark.parametrize("axis", ["seconds", "bytes"])
def test_a_cost_of_ones_choice_is_the_horizontal_axis(tmp_path: Path, finished: Run, axis: str) -> None:
    rounds = draw([finished], tmp_path / "rounds.png")
    assert draw([finished], tmp_path / f"{axis}.png", axis).read_bytes() != rounds.read_bytes()


def test_every_chart_of_the_page_has_a_picture(tmp_path: Path, finished: Run, killed: Run) -> None:
    kinds = ["time-by-round", "time-by-client", "latency", "waiting", "bytes-by-client"]
    curves = [
        f"curves-{axis}" for axis in ("round", "seconds", "bytes")
    ]  # in one process there are no sockets
    one = write_pictures([finished], tmp_path / "one")
    assert [path.stem for path in one] == curves + kinds
    assert min(colors(path) for path in one) > 10
    several = write_pictures([finished, killed], tmp_path / "several")
    assert len(several) == len({path.name for path in several}) == len(curves) + 2 * len(kinds)
    assert [path.stem for path in write_pictures([Run(_empty(tmp_path))], tmp_path / "none")] == [
        "curves-round"
    ]


def test_the_same_runs_give_the_same_picture(tmp_path: Path, finished: Run) -> None:
    assert (
        draw([finished], tmp_path / "a.png").read_bytes() == draw([finished], tmp_path / "b.png").read_bytes()
    )


def _empty(parent: Path) -> Path:
    folder = parent / "empty"
    folder.mkdir()
    (folder / "settings.yaml").write_text("name: empty\n")
    return folder
