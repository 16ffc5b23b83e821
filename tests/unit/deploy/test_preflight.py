"""What settings and data tell is refused by `fenchel check`, and by `fenchel up` before a process starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fenchel.algorithms.client_half import ClientAlgorithm
from fenchel.algorithms.registry import server_half
from fenchel.algorithms.server_half import Algorithm
from fenchel.common.errors import DataError, SettingsError
from fenchel.common.settings.algorithm import AlgorithmSettings
from fenchel.common.settings.registry import builtin_settings
from fenchel.common.settings.run import RunSettings, validate
from fenchel.common.settings.tuning import load_tuning
from fenchel.deploy.cli.inspect import check
from fenchel.deploy.launch import deployment
from fenchel.deploy.launch.launchers.local import LocalLauncher
from fenchel.deploy.launch.tuning import Search
from fenchel.deploy.launch.up import up
from fenchel.server.preflight import check_run, open_data
from tests.messages import raises

Values = dict[str, Any]


def of(algorithm: str, **changes: Any) -> Values:
    """Return settings of a run that would begin, but for ``changes``: sections, or else keys of the algorithm."""
    chosen: Values = {"name": algorithm}
    basis: Values = {
        "rounds": 2,
        "clients": 4,
        "data": {"name": "breast_cancer", "scale": "unit-rows"},
        "objective": {"kind": "logistic", "l2": 0.01},
        "algorithm": chosen,
    }
    if "sampler" in changes:
        basis["participation"] = {"sampler": changes.pop("sampler")}
    for key, value in changes.items():
        (basis if key in RunSettings.model_fields else chosen)[key] = value
    return basis


_LOGISTIC, _SOFTMAX, _HINGE = ({"kind": kind, "l2": 0.01} for kind in ("logistic", "softmax", "hinge"))
_NOT_STRONGLY_CONVEX = _LOGISTIC | {"l2": 0}
_BINARY = {"kind": "binary", "scorer": {"kind": "linear"}}
_NOISE = {"mechanism": "clip-update", "clip": 1.0, "noise_multiplier": 0.5, "delta": 1e-5}
_HALF = {"kind": "fraction", "fraction": 0.5}
_ONE, _TWO = ({"kind": "fixed", "size": size} for size in (1, 2))
_EPOCH = {"local_steps": 10, "batch_size": 16, "batches": "epoch"}
_GRADIENT = {"kind": "gradient", "stop": {"steps": 3}}

REFUSED: dict[str, tuple[str, Values]] = {
    "drdm, a sampler of its own": (
        "participation.sampler.kind",
        of("drdm", sampler={"kind": "bernoulli", "probability": 0.5}),
    ),
    "drfa, a sampler of its own": ("participation.sampler.kind", of("drfa", sampler={"kind": "cyclic", "groups": 2})),
    "drdm, exploration": ("algorithm.exploration", of("drdm", sampling="without-replacement", exploration=0.1)),
    "codasca": ("objective.kind", of("codasca")),
    "coda-plus": ("objective.kind", of("coda-plus")),
    "coda": ("objective.kind", of("coda")),
    "npa": ("objective.kind", of("npa")),
    "hyfdca, l2": ("objective.l2", of("hyfdca", objective=_NOT_STRONGLY_CONVEX)),
    "hyfdca, softmax": ("objective.kind", of("hyfdca", objective=_SOFTMAX)),
    "hyfdca, float32": ("objective.dtype", of("hyfdca", objective=_LOGISTIC | {"dtype": "float32"})),
    "hyfdca, rows too long": ("algorithm.encryption.largest_norm", of("hyfdca", data={"name": "breast_cancer"})),
    "hyfdca, more samples than in a ciphertext": ("algorithm.block", of("hyfdca", block=500, picking="common")),
    "hyfdca, numbers that no ciphertext has room for": (
        "algorithm.encryption",
        of("hyfdca", encryption={"largest_score": 1e300, "key_bits": 1024}),
    ),
    "hyfdca, line search of a fraction": ("algorithm.preset", of("hyfdca", preset="linesearch", sampler=_HALF)),
    "hyfdca, line search with a step": ("algorithm.step_size", of("hyfdca", step_size=0.5)),
    "hybrid-fedavg": ("objective.kind", of("hybrid-fedavg", objective=_SOFTMAX)),
    "hyfem-like": ("objective.kind", of("hyfem-like", objective=_SOFTMAX)),
    "feddcd, one client": ("clients", of("feddcd", clients=1)),
    "feddcd, cohorts of one": ("participation.sampler", of("feddcd", sampler=_ONE)),
    "feddcd, not strongly convex": (
        "objective.l2",
        of("feddcd", objective=_NOT_STRONGLY_CONVEX, solver={"kind": "sgd"}),
    ),
    "feddcd, gap of the hinge": ("algorithm.monitor", of("feddcd", objective=_HINGE, monitor=1)),
    "feddcd, newton and the hinge": (
        "algorithm.solver.kind",
        of("feddcd", objective=_HINGE, solver={"kind": "newton"}),
    ),
    "feddcd, newton-cg without second derivatives": (
        "algorithm.solver.kind",
        of("feddcd", objective=_BINARY, solver={"kind": "newton-cg"}, dual_step_size=0.1),
    ),
    "feddcd, gradient steps of no known length": (
        "algorithm.solver.step_size",
        of("feddcd", objective=_BINARY, solver=_GRADIENT, dual_step_size=0.1),
    ),
    "feddcd, an accuracy that nobody can tell": (
        "algorithm.solver.stop.accuracy",
        of("feddcd", solver={"kind": "sgd", "stop": {"accuracy": 0.1}}),
    ),
    "feddcd, passes": ("algorithm.solver.stop.epochs", of("feddcd", solver={"kind": "lbfgs", "stop": {"epochs": 3}})),
    "acc-feddcd, the hinge": ("objective.kind", of("acc-feddcd", objective=_HINGE)),
    "acc-feddcd, not strongly convex": (
        "objective.l2",
        of("acc-feddcd", objective=_NOT_STRONGLY_CONVEX, solver={"kind": "sgd"}),
    ),
    "acc-feddcd, cohorts of one": ("participation.sampler", of("acc-feddcd", sampler=_ONE)),
    "acc-feddcd, weighted": ("participation.sampler.kind", of("acc-feddcd", sampler={"kind": "weighted", "size": 2})),
    "fedpd, skipped rounds": ("participation.sampler.kind", of("fedpd", skip=0.5, sampler=_TWO)),
    "robust-aggregation, too small cohorts": (
        "participation.sampler",
        of("robust-aggregation", rule="median", sampler=_HALF),
    ),
    "fedpdm, more draws than the smallest client has samples": ("algorithm.batches", of("fedpdm", **_EPOCH)),
    "fedavg, a budget below one upload": (
        "differential_privacy.budget",
        of("fedavg", differential_privacy=_NOISE | {"budget": 0.5}),
    ),
    "fedavg, more draws than samples": ("differential_privacy", of("fedavg", **_EPOCH, differential_privacy=_NOISE)),
}


def test_every_algorithm_that_checks_its_data_has_a_case() -> None:
    checking = {name for name in builtin_settings() if server_half(name).check is not Algorithm.check}
    assert checking <= {values["algorithm"]["name"] for _, values in REFUSED.values()}


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a process that is started, or keys that are made, be an error that no test expects."""

    async def started(*arguments: object, **more: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(LocalLauncher, "start", started)
    monkeypatch.setattr(deployment, "make_keys_apart", started)
    monkeypatch.setattr(deployment, "serve", started)


@pytest.mark.parametrize("case", REFUSED)
def test_check_and_up_refuse_it_before_a_process_starts(case: str, tmp_path: Path, no_process: None) -> None:
    key, values = REFUSED[case]
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(values))
    with raises(SettingsError, key=key):
        check(file)
    with raises(SettingsError, key=key, exit_code=2):
        up(file, runs=tmp_path / "runs")
    assert not list((tmp_path / "runs").glob("*"))


@pytest.mark.parametrize(
    "values",
    [
        of("fedavg", clients=456),  # 455 training samples
        of("fedavg", clients=456, data={"name": "breast_cancer", "partition": {"kind": "dirichlet", "alpha": 1}}),
        of("codasca", objective=_BINARY, data={"name": "breast_cancer", "classes": ["benign", "malignant", "neither"]})
        | {"objective": _BINARY | {"positive": [2]}},
    ],
    ids=["more clients than samples", "more clients than samples, skewed", "nobody is positive"],
)
def test_data_that_cannot_be_used_are_refused_before_a_process_starts(
    values: Values, tmp_path: Path, no_process: None
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(values))
    with raises(DataError):
        check(file)
    with raises(DataError):
        up(file, runs=tmp_path / "runs")


@pytest.mark.parametrize("name", sorted(builtin_settings()))
def test_settings_that_work_pass(name: str) -> None:
    auc = name in ("codasca", "coda-plus", "coda", "npa")
    settings = validate(of(name, **({"objective": _BINARY} if auc else {})))
    check_run(settings, open_data(settings), 4)
    check_run(settings, None, 4)


def test_where_clients_bring_their_data_what_does_not_depend_on_them_is_checked() -> None:
    own = {"data": {"name": "own", "classes": ["a", "b"]}}
    with raises(SettingsError, key="clients"):
        check_run(validate(of("feddcd", clients=1) | own), None, 1)
    check_run(validate(of("feddcd", clients="auto") | own), None, None)


def test_an_algorithm_from_outside_takes_part(tmp_path: Path, no_process: None) -> None:
    values = of(f"{__name__}:Picky")
    with raises(SettingsError, key="algorithm.name"):
        up(values, runs=tmp_path)
    assert Picky.seen == ([113, 114, 114, 114], 455)


def test_a_client_that_is_to_make_the_secrets_must_be_there(tmp_path: Path, no_process: None) -> None:
    values = of("hyfdca", secrets={"source": "sealed", "designated": "client-004"})
    with raises(SettingsError, key="secrets.designated"):
        up(values, runs=tmp_path)


def test_a_search_is_refused_before_its_first_trial(tmp_path: Path, no_process: None) -> None:
    run, search = tmp_path / "run.yaml", tmp_path / "search.yaml"
    run.write_text(yaml.safe_dump(of("hyfdca")))
    parameters = {"objective.l2": {"choice": [0.01, 0.0]}}
    search.write_text(yaml.safe_dump({"settings": str(run), "trials": 8, "parameters": parameters}))
    with raises(SettingsError, key="objective.l2"):
        Search.begin(load_tuning(search), tmp_path)


class Picky(Algorithm):
    """An algorithm that refuses every run, and says what it has seen."""

    class Settings(AlgorithmSettings):
        """None of its own."""

    seen: tuple[list[int], int]

    def check(self, data: Any) -> None:
        """Refuse the run."""
        shards = [member.shard for member in self.fleet.members.values()]
        Picky.seen = sorted(shard.samples for shard in shards if shard is not None), data.problem.samples
        raise SettingsError("no run suits it", key="algorithm.name")


class PickyClient(ClientAlgorithm):
    """Never made."""
