"""The energy model gives the specification's numbers (docs/specifications/drdm.md, section 4.3), and reads runs as
they were."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread
from pydantic import TypeAdapter

from fenchel.algorithms.fedavg import LocalTrainingSettings
from fenchel.algorithms.registry import client_half
from fenchel.common.errors import SettingsError
from fenchel.common.objectives.factory import initial_model
from fenchel.common.settings.objective import ObjectiveSettings
from fenchel.common.settings.registry import builtin_settings
from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.report.energy.local_steps import Measured, best_local_steps, best_of_fit, choice, fitted, over_channels
from fenchel.report.energy.model import Channel, Device, Devices, computing, sending
from fenchel.report.energy.operations import BACKWARD, forward_macs
from fenchel.report.energy.picture import draw_map
from fenchel.report.energy.workload import _PHASES, _TRAINING, energy_cost, rounds_to, workload_of
from fenchel.report.run import Run
from tests.messages import raises

PAPER = {5: 48.0, 10: 41.0, 20: 32.0, 30: 25.0}
"""Rounds to 85 % worst-client accuracy (figure 3 of the paper)."""

RATIOS, BANDWIDTHS = (0, 5, 10, 15, 20), (1e6, 5e6, 10e6, 20e6)
CNN = 1_805_064
BITS = 32 * 2 * 794_310
"""Upload of two vectors of the CNN."""
DEVICE = Device()


def objective(**values: Any) -> ObjectiveSettings:
    adapter: TypeAdapter[ObjectiveSettings] = TypeAdapter(ObjectiveSettings)
    return adapter.validate_python(values)


@pytest.mark.parametrize(("snr", "rate"), [(0, 1.000e6), (5, 2.057e6), (10, 3.459e6), (15, 5.028e6), (20, 6.658e6)])
def test_the_rate_is_shannons_capacity(snr: float, rate: float) -> None:
    assert Channel(snr, 1e6).rate == pytest.approx(rate, rel=5e-4)
    assert Channel(snr, 7e6).rate == pytest.approx(7 * Channel(snr, 1e6).rate)


def test_sending_two_vectors_of_the_cnn() -> None:
    assert sending(DEVICE, Channel(0, 1e6), BITS).energy == pytest.approx(10.167, abs=5e-4)
    assert sending(DEVICE, Channel(20, 20e6), BITS).energy == pytest.approx(0.07635, abs=5e-6)


def test_a_local_step_of_the_cnn() -> None:
    assert forward_macs(objective(kind="cnn"), 784, 10) == CNN
    assert BACKWARD * 32 * CNN == 173_286_144
    cost = computing(DEVICE, BACKWARD * 32 * CNN)
    assert cost.energy == pytest.approx(0.017329, abs=5e-7)
    assert cost.seconds == pytest.approx(0.173286144)


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "softmax"},
        {"kind": "logistic"},
        {"kind": "smoothed-hinge"},
        {"kind": "mlp", "hidden": 7},
        {"kind": "binary"},
    ],
    ids=str,
)
def test_without_biases_a_forward_pass_takes_an_operation_for_each_parameter(values: dict[str, Any]) -> None:
    if values["kind"] == "mlp":
        pytest.importorskip("torch")
    classes = 2 if values["kind"] in ("logistic", "smoothed-hinge", "binary") else 5
    model = initial_model(objective(**values), 64, classes, 0)
    assert forward_macs(objective(**values), 64, classes) == model.size


def test_networks_that_score_two_classes_have_one_output() -> None:
    mlp = objective(kind="binary", scorer={"kind": "mlp", "hidden": 7})
    assert forward_macs(mlp, 64, 2) == 64 * 7 + 7
    cnn = objective(kind="binary", scorer={"kind": "cnn"})
    assert forward_macs(cnn, 784, 2) == CNN - 9 * 500
    with raises(SettingsError, key="objective.name"):
        forward_macs(objective(kind="own", name="x:Y"), 64, 2)


def best(rounds: Mapping[int, float], step: float, upload: float) -> int:
    return best_local_steps(rounds, {tau: tau * step + upload for tau in rounds})


def test_the_best_of_the_papers_four_points_changes_once() -> None:
    turn = 510 / 23
    costs = [PAPER[tau] * (tau + turn) for tau in PAPER]
    assert costs == pytest.approx([1304.3, 1319.1, 1349.6, 1304.3], abs=0.05)
    for ratio in np.geomspace(1e-3, 1e4, 60):
        assert best(PAPER, 1.0, float(ratio)) == (5 if ratio < turn else 30)
    assert best(PAPER, 1.0, turn - 1e-6) == 5
    assert best(PAPER, 1.0, turn + 1e-6) == 30


def test_the_map_of_the_cnn_is_the_specifications() -> None:
    step = computing(DEVICE, BACKWARD * 32 * CNN).energy
    table = [
        [best(PAPER, step, sending(DEVICE, Channel(snr, width), BITS).energy) for snr in RATIOS] for width in BANDWIDTHS
    ]
    assert table == [[30, 30, 30, 30, 30], [30, 30, 30, 30, 5], [30, 30, 5, 5, 5], [30, 5, 5, 5, 5]]


tables = st.dictionaries(st.integers(1, 40), st.floats(1, 500), min_size=2, max_size=6)
joules = st.floats(1e-6, 1e6)


@given(tables, joules, joules, st.floats(1e-3, 1e3))
def test_only_the_ratio_of_the_two_energies_matters(
    rounds: dict[int, float], step: float, upload: float, scale: float
) -> None:
    first, second = best(rounds, step, upload), best(rounds, scale * step, scale * upload)
    cost = {tau: rounds[tau] * (tau + upload / step) for tau in (first, second)}
    assert cost[first] == pytest.approx(cost[second], rel=1e-12)


@given(tables, joules, joules)
def test_the_best_number_is_one_that_was_measured(rounds: dict[int, float], step: float, upload: float) -> None:
    found = best(rounds, step, upload)
    cost = rounds[found] * (found * step + upload)
    assert cost == pytest.approx(min(count * (tau * step + upload) for tau, count in rounds.items()), rel=1e-12)


@given(joules, st.tuples(st.floats(-20, 40), st.floats(-20, 40)), st.tuples(st.floats(1e3, 1e9), st.floats(1e3, 1e9)))
def test_a_better_channel_costs_less_and_never_asks_for_more_local_steps(
    step: float, snrs: tuple[float, float], widths: tuple[float, float]
) -> None:
    worse, better = Channel(min(snrs), min(widths)), Channel(max(snrs), max(widths))
    costly, cheap = (sending(DEVICE, channel, 1e6).energy for channel in (worse, better))
    assert costly >= cheap
    assert best(PAPER, step, costly) >= best(PAPER, step, cheap)


def test_the_fit_of_the_papers_points_and_its_closed_form() -> None:
    a, b = fitted(PAPER)
    assert [a, b] == pytest.approx([24.3, 126.9], abs=0.05)
    ratio = 37.0
    tau = np.linspace(0.5, 100, 200_000)
    assert best_of_fit(a, b, ratio) == pytest.approx(tau[np.argmin((a + b / tau) * (tau + ratio))], abs=1e-3)


# Runs

DRDM: Mapping[str, Any] = {
    "name": "drdm",
    "seed": 7,
    "rounds": 4,
    "clients": 6,
    "data": {"name": "digits", "samples": 300, "scale": "unit-interval", "bias": 1.0},
    "objective": {"kind": "softmax"},
    "algorithm": {"name": "drdm", "local_steps": 3, "batch_size": 16, "dual_batch_size": 20},
    "participation": {"sampler": {"kind": "fixed", "size": 3}},
}


@pytest.fixture(scope="module")
def drdm(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Run]:
    """Return a function that does the run with a number of local steps."""
    done: dict[int, Run] = {}

    def run(local_steps: int) -> Run:
        if local_steps not in done:
            algorithm = DRDM["algorithm"] | {"local_steps": local_steps}
            folder = RunFolder.create(tmp_path_factory.mktemp("runs"), f"steps-{local_steps}")
            asyncio.run(run_in_process(validate({**DRDM, "algorithm": algorithm}), folder))
            done[local_steps] = Run(folder.path)
        return done[local_steps]

    return run


def test_a_run_computes_what_its_settings_say_and_sends_what_was_measured(finished: Run) -> None:
    workload = workload_of(finished)
    samples = sum(shard.samples for shard in finished.shards.values())
    assert samples == pytest.approx(0.9 * 1437, abs=3)  # some are held out
    assert workload.macs.sum() == 3 * samples * 3 * 640  # rounds; forward and backward; parameters
    metrics = finished.metrics_table
    assert workload.bits_up.sum() == 8 * pc.sum(metrics["wire_up"]).as_py()
    assert workload.bits_down.sum() == 8 * pc.sum(metrics["wire_down"]).as_py()
    assert workload_of(finished, rounds=2).macs.sum() == 2 * samples * 3 * 640
    assert workload_of(finished, macs=1).macs.sum() == 3 * samples * 3


def test_the_phases_of_a_robust_run_cost_what_they_compute(drdm: Callable[[int], Run]) -> None:
    workload = workload_of(drdm(3))
    one = 65 * 10
    in_rounds = workload.round > 0
    train, loss = (in_rounds & (workload.phase == phase) for phase in ("train", "loss"))
    assert loss.sum() == 4 * 3
    np.testing.assert_array_equal(workload.macs[train], 3 * 16 * 3 * one)
    np.testing.assert_array_equal(workload.macs[loss], 20 * one)


def test_a_run_costs_the_sum_of_its_instructions_and_its_slowest_clients(drdm: Callable[[int], Run]) -> None:
    workload, channel = workload_of(drdm(3)), Channel(3, 2e5)
    slow = "client-002"
    devices = Devices.of_constants({"transmit_power": 0.5, "clients": {slow: {"frequency": 1e6}}})
    cost = energy_cost(workload, devices, channel)
    assert cost.sending == pytest.approx(0.5 * workload.bits_up.sum() / channel.rate)
    macs = {own: float(workload.macs[(workload.client == slow) == own].sum()) for own in (True, False)}
    assert macs[True] > 0
    assert cost.computing == pytest.approx(1e-28 * (macs[True] * 1e12 + macs[False] * 1e18))
    assert [cost.receiving, cost.energy] == pytest.approx([0, cost.computing + cost.sending])
    assert sum(cost.clients.values()) == pytest.approx(cost.energy)
    seconds = 0.0
    for at in range(5):
        for phase in set(workload.phase.tolist()):
            of_clients = [
                macs / (1e6 if client == slow else 1e9) + bits / channel.rate
                for t, which, client, macs, bits in zip(
                    workload.round, workload.phase, workload.client, workload.macs, workload.bits_up, strict=True
                )
                if (t, which) == (at, phase)
            ]
            seconds += max(of_clients, default=0.0)
    assert cost.seconds == pytest.approx(seconds)


def test_receiving_costs_only_where_there_is_a_rate_and_a_power_for_it(finished: Run) -> None:
    workload, devices = workload_of(finished), Devices.of_constants({"receive_power": 0.1})
    assert devices.receive
    assert not Devices().receive
    cost = energy_cost(workload, devices, Channel(0, 1e6, downlink_rate=5e5))
    assert cost.receiving == pytest.approx(0.1 * workload.bits_down.sum() / 5e5)
    assert energy_cost(workload, devices, Channel(0, 1e6)).receiving == 0


def test_the_phases_of_the_algorithms_are_all_known() -> None:
    local = [name for name, each in builtin_settings().items() if issubclass(each, LocalTrainingSettings)]
    assert {"fedavg", "fednova", *_PHASES} <= set(local)
    for name in local:
        methods = [method for _, method in inspect.getmembers(client_half(name), inspect.isfunction)]
        answered = {method.answers_phase for method in methods if hasattr(method, "answers_phase")}
        assert answered == set(_PHASES.get(name, _TRAINING)), name


def test_an_algorithm_whose_work_is_not_known_is_refused(encrypted: Run) -> None:
    with raises(SettingsError):
        workload_of(encrypted)


def test_the_target_is_reached_in_the_first_round_that_is_good_enough(altered: Callable[..., Run]) -> None:
    run = altered(metrics={"test_accuracy": [0.5, 0.7, 0.9], "test_loss": [3.0, 1.0, 2.0]})
    assert [rounds_to(run, "test_accuracy", target) for target in (0.5, 0.6, 0.7, 0.91)] == [1, 2, 2, None]
    assert [rounds_to(run, "test_loss", target) for target in (3.0, 1.5, 0.5)] == [1, 2, None]
    with raises(SettingsError):
        rounds_to(run, "gap", 0.1)
    assert Measured.of(run, 0.91, "test_accuracy").workload is None
    two = Measured.of(run, 0.6, "test_accuracy").workload
    assert two is not None
    assert (two.rounds, two.round.max()) == (2, 2)


def test_runs_are_compared_by_what_they_take_to_the_target(drdm: Callable[[int], Run]) -> None:
    runs = [drdm(steps) for steps in (1, 3, 8)]
    measured = [Measured.of(run, 3.0, "worst_client_loss") for run in runs]
    assert [each.local_steps for each in measured] == [1, 3, 8]
    for channel in (Channel(0, 1e3), Channel(20, 1e12)):
        found = choice(measured, Devices(), channel)
        assert found is not None
        energies = {}
        for each in measured:
            cost = each.energy_cost(Devices(), channel)
            assert cost is not None
            assert each.workload is not None
            energies[each.local_steps] = cost.energy
            assert found.rounds[each.local_steps or 0] == each.workload.rounds
        assert found.best == min(energies, key=lambda steps: energies[steps])
    assert choice(measured[:1], Devices(), channel) is None
    twice = choice([measured[0], measured[0], measured[1]], Devices(), channel)
    once = choice([measured[0], measured[1]], Devices(), channel)
    assert twice == once


def test_rounds_that_do_not_depend_on_local_steps_have_no_fit(drdm: Callable[[int], Run]) -> None:
    measured = [Measured.of(drdm(steps), 1e9, "worst_client_loss") for steps in (1, 3, 8)]  # all reached in round 1
    found = choice(measured, Devices(), Channel(0, 1e3))
    assert found is not None
    assert set(found.rounds.values()) == {1}
    assert found.fit is None


@pytest.mark.slow
def test_the_map_is_of_the_best_steps_or_of_one_runs_energy(drdm: Callable[[int], Run], tmp_path: Path) -> None:
    several = [Measured.of(drdm(steps), 3.0, "worst_client_loss") for steps in (1, 8)]
    title, steps = over_channels(several, Devices(), Channel(0, 1), RATIOS, BANDWIDTHS)
    assert (title, steps.shape) == ("Local steps that take the least energy", (4, 5))
    assert set(steps.ravel()) <= set(range(1, 9))
    title, energy = over_channels(several[:1], Devices(), Channel(0, 1), RATIOS, BANDWIDTHS)
    assert title == "Energy of all clients (J)"
    assert (np.diff(energy, axis=0) < 0).all()
    assert (np.diff(energy, axis=1) < 0).all()
    missed = Measured.of(drdm(1), 1e-9, "worst_client_loss")
    with raises(SettingsError):
        over_channels([several[0], missed], Devices(), Channel(0, 1), RATIOS, BANDWIDTHS)
    plain = draw_map(np.full((4, 5), 30.0), RATIOS, BANDWIDTHS, title="x", path=tmp_path / "maps" / "plain.png")
    coloured = draw_map(energy, RATIOS, BANDWIDTHS, title="x", path=tmp_path / "energy.png")
    shades = [len(np.unique(imread(path)[..., :3].reshape(-1, 3), axis=0)) for path in (plain, coloured)]
    assert shades[1] > shades[0] + 10


@pytest.mark.parametrize(
    "values", [{"kappa": 1}, {"frequency": 0}, {"clients": {"a": {"frequency": "fast"}}}, {"clients": [1]}], ids=str
)
def test_constants_that_cannot_be_are_refused(values: dict[str, Any]) -> None:
    with raises(SettingsError):
        Devices.of_constants(values)


@pytest.mark.parametrize("figures", [(4000, 1e6), (-4000, 1e6), (float("nan"), 1e6), (10, 0), (10, float("nan")),
                                     (10, 1e6, float("inf"))])  # fmt: skip
def test_a_channel_that_cannot_be_is_refused(figures: tuple[float, ...]) -> None:
    with raises(SettingsError):
        Channel(*figures)


def test_the_weakest_channel_still_has_a_rate() -> None:
    assert 0 < Channel(-300, 1e6).rate < Channel(300, 1e6).rate < 1e9


def test_a_client_with_its_own_device_keeps_the_common_constants() -> None:
    devices = Devices.of_constants({"transmit_power": 1, "clients": {"a": {"frequency": 5e8}}})
    assert devices.of("a") == Device(transmit_power=1, frequency=5e8)
    assert devices.of("b") == Device(transmit_power=1)
    assert json.loads(devices.of("b").model_dump_json())["capacitance"] == 1e-28
