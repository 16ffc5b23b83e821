"""The picture is a picture, of any number of runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.image import imread
from optuna.trial import create_trial

from fenchel.common.errors import SettingsError
from fenchel.report import tuning
from fenchel.report.energy.picture import draw_map
from fenchel.report.render import plots
from fenchel.report.render.figure import draw
from fenchel.report.render.plots import write_pictures
from fenchel.report.run import Run
from tests.messages import raises
from tests.slow import rest_slow


def colors(path: Path) -> int:
    pixels = (np.asarray(imread(path))[..., :3] * 255).astype(int)
    return len(np.unique(pixels @ [1 << 16, 1 << 8, 1]))  # rows as one number each: quicker to sort


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Return a list to which each figure is added when it is saved."""
    kept: list[Figure] = []
    save = Figure.savefig

    def saved(self: Figure, *words: object, **more: object) -> None:
        kept.append(self)
        save(self, *words, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Figure, "savefig", saved)
    return kept


def shown(axis: Axis) -> list[str]:
    """Return the labels of an axis that lie within its ends."""
    low, high = axis.get_view_interval()
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    return [tick.label1.get_text() for tick in ticks if low <= tick.get_loc() <= high and tick.label1.get_text()]


def test_a_picture_shows_the_curves_of_one_run_and_of_several(
    tmp_path: Path, finished: Run, killed: Run, altered: Callable[..., Run]
) -> None:
    one = draw([finished], tmp_path / "docs" / "one.png")
    several = draw([finished, killed, altered("$x^2$ _ <b>")], tmp_path / "several.png")
    blank = draw([Run(_empty(tmp_path))], tmp_path / "blank.png")
    assert imread(one).shape[1] == 3 * imread(blank).shape[1]  # objective, accuracy, worst client
    assert colors(several) > colors(one) > colors(blank)


def test_without_matplotlib_a_picture_is_refused_with_a_remedy(
    tmp_path: Path, finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for drawn in (lambda: draw([finished], tmp_path / "a.png"), lambda: write_pictures([finished], tmp_path)):
        with raises(SettingsError):
            drawn()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_gap_has_a_chart_of_its_own(tmp_path: Path, finished: Run, altered: Callable[..., Run]) -> None:
    without = draw([finished], tmp_path / "without.png")
    gap = draw([altered(metrics={"gap": [0.5, 0.0, -1e-17]})], tmp_path / "gap.png")  # rounding, in the end
    assert 3 * imread(gap).shape[1] == 4 * imread(without).shape[1]


@pytest.mark.filterwarnings("error")
def test_a_gap_below_zero_is_drawn_on_a_linear_axis(tmp_path: Path, finished: Run, kept: list[Figure]) -> None:
    draw([finished], tmp_path / "x.png", optima=[100.0])
    assert kept[0].axes[-1].get_yscale() == "linear"


@pytest.mark.parametrize("axis", rest_slow(["seconds", "bytes"]))
def test_a_cost_of_ones_choice_is_the_horizontal_axis(tmp_path: Path, finished: Run, axis: str) -> None:
    rounds = draw([finished], tmp_path / "rounds.png")
    assert draw([finished], tmp_path / f"{axis}.png", axis).read_bytes() != rounds.read_bytes()


@pytest.mark.slow
def test_every_chart_of_the_page_has_a_picture(tmp_path: Path, finished: Run, killed: Run) -> None:
    kinds = ["time-by-round", "time-by-client", "latency", "waiting", "bytes-by-client"]
    curves = [f"curves-{axis}" for axis in ("round", "seconds", "bytes")]  # in one process there are no sockets
    one = write_pictures([finished], tmp_path / "one")
    assert [path.stem for path in one] == curves + kinds
    assert min(colors(path) for path in one) > 10
    several = write_pictures([finished, killed], tmp_path / "several")
    assert len(several) == len({path.name for path in several}) == len(curves) + 2 * len(kinds)
    assert [path.stem for path in write_pictures([Run(_empty(tmp_path))], tmp_path / "none")] == ["curves-round"]


def test_the_same_runs_give_the_same_picture(tmp_path: Path, finished: Run) -> None:
    assert draw([finished], tmp_path / "a.png").read_bytes() == draw([finished], tmp_path / "b.png").read_bytes()


def test_the_legend_of_latencies_has_few_phases_and_lies_within_the_picture(
    tmp_path: Path, altered: Callable[..., Run], finished: Run, kept: list[Figure]
) -> None:
    rows = finished.calls_table.num_rows
    for prefix in ("phase", "a_phase_with_a_very_long_name"):
        calls = {"phase": [f"{prefix}_{i % 10}" for i in range(rows)], "total_s": [1.0 + i % 10 for i in range(rows)]}
        run = altered(prefix, calls=calls)
        plots._draw(run, "x", plots._latency, tmp_path / f"{prefix}.png")
        (legend,) = kept[-1].legends
        named = {text.get_text().split(",")[0] for text in legend.get_texts()}
        assert named == {f"{prefix}_{i}" for i in range(4, 10)}
        box = legend.get_window_extent()
        assert 0 <= box.x0 <= box.x1 <= kept[-1].bbox.width


@pytest.mark.parametrize(
    ("longest", "labels"), [(0.7, ["200 ms", "500 ms"]), (7e3, ["100 ms", "1 s", "10 s", "100 s", "1 ks", "10 ks"])]
)
def test_latencies_have_labels_in_plain_text(
    longest: float, labels: list[str], tmp_path: Path, altered: Callable[..., Run], finished: Run, kept: list[Figure]
) -> None:
    seconds = [0.13, longest] * (finished.calls_table.num_rows // 2)
    plots._draw(altered(calls={"total_s": seconds, "network_s": seconds}), "x", plots._latency, tmp_path / "x.png")
    assert shown(kept[0].axes[0].xaxis) == labels


def test_a_search_has_labels_in_plain_text_and_whole_numbers_of_trials(tmp_path: Path, kept: list[Figure]) -> None:
    trials = [create_trial(value=value) for value in (5.0, 0.5, 0.06)]
    for number, trial in enumerate(trials):
        trial.number = number
    tuning.draw(tuning.SearchResult({"objective": "minimize"}, tuple(trials), (2,)), tmp_path / "x.png")
    (axes,) = kept[0].axes
    assert shown(axes.yaxis) == ["0.05", "0.1", "0.2", "0.5", "1", "2", "5"]
    assert shown(axes.xaxis) == ["0", "1", "2"]


def test_a_map_shows_local_steps_with_all_digits(tmp_path: Path, kept: list[Figure]) -> None:
    draw_map(np.array([[4.0, 1024.0], [1234.5, 3e7]]), [0, 10], [1e6, 2e6], title="x", path=tmp_path / "x.png")
    assert [text.get_text() for text in kept[0].axes[0].texts] == ["4", "1024", "1.23e+03", "3e+07"]


def test_a_single_round_is_a_whole_number(
    tmp_path: Path, altered: Callable[..., Run], finished: Run, kept: list[Figure]
) -> None:
    draw([altered(metrics=finished.metrics_table.slice(0, 1))], tmp_path / "x.png")
    assert shown(kept[0].axes[0].xaxis) == ["1"]


def test_the_picture_of_waiting_shows_waiting_in_the_colours_of_the_rounds(
    altered: Callable[..., Run], finished: Run
) -> None:
    rows = finished.calls_table
    waited = [1000.0 if t == 1 else 1.0 for t in rows["round"].to_pylist()]
    setup = [t - 1 for t in rows["round"].to_pylist()]  # the first round becomes round 0
    axes = Figure().subplots()
    title = plots._waiting(altered("setup", calls={"round": setup, "waiting_s": waited}), axes)
    assert title == "How long each client waited for slower ones"
    (image,) = axes.get_images()
    drawn = image.get_array()
    assert drawn is not None
    assert np.nanmax(drawn) == 1000.0
    assert image.get_clim() == (0.0, 1.0)
    older = altered("older", calls=rows.drop_columns(["waiting_s"]))
    assert "answers took" in plots._waiting(older, Figure().subplots())


def test_the_picture_of_a_long_run_has_bars_of_neighbouring_rounds(
    finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn() -> tuple[str, list[list[float]]]:
        axes = Figure().subplots()
        title = plots._time_by_round(finished, axes)
        return title, [[bar.get_height() for bar in container] for container in axes.containers]

    title, each = drawn()
    assert title == "Seconds per round"
    monkeypatch.setattr(plots, "_BARS", 2)
    title, means = drawn()
    assert "neighbouring rounds" in title
    assert means == [pytest.approx([(first + second) / 2, third]) for first, second, third in each]


def _empty(parent: Path) -> Path:
    folder = parent / "empty"
    folder.mkdir()
    (folder / "settings.yaml").write_text("name: empty\n")
    return folder
