"""Which algorithm may meet which term of the objective: refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from fenchel.common.errors import SettingsError
from fenchel.common.objectives.factory import margin_loss
from fenchel.common.settings.registry import builtin_settings
from fenchel.common.settings.run import RunSettings, from_json, validate
from tests.messages import raises

L1 = {"kind": "l1", "weight": 0.01}
BOX = {"kind": "box", "lower": -1, "upper": 1}
MCP = {"kind": "mcp", "weight": 0.01, "theta": 0.5}
PROX = {"name": "fedavg", "regularizer_step": "prox"}
TREAT_CORNERS = {"fedavg", "fedprox", "scaffold", "mb-sgd", "feddyn", "fedpd"}


def composed(algorithm: dict[str, Any], **objective: Any) -> RunSettings:
    return validate(
        {
            "rounds": 3,
            "clients": 4,
            "data": {"name": "digits"},
            "objective": {"kind": "softmax", **objective},
            "algorithm": algorithm,
        }
    )


@pytest.mark.parametrize("name", sorted(builtin_settings()))
def test_a_term_with_corners_is_refused_by_those_who_would_leave_it_out(name: str) -> None:
    composed({"name": name})
    if name in TREAT_CORNERS or builtin_settings()[name].treats_regularizer:
        assert composed({"name": name}, regularizer=L1).objective.regularizer.present
    else:
        with raises(SettingsError, source="settings"):
            composed({"name": name}, regularizer=L1)
    if name in TREAT_CORNERS or builtin_settings()[name].treats_nonconvex:
        composed({"name": name}, nonconvex=0.5)
    else:
        with raises(SettingsError, source="settings"):
            composed({"name": name}, nonconvex=0.5)


@pytest.mark.parametrize("term", [BOX, {"kind": "l0", "weight": 1}], ids=["box", "l0"])
def test_bounds_and_counts_need_the_proximal_operator(term: dict[str, Any]) -> None:
    with raises(SettingsError, source="settings"):
        composed({"name": "fedavg"}, regularizer=term)
    composed(PROX, regularizer=term)


def test_mcp_needs_a_penalty_above_one_over_theta() -> None:
    composed(PROX | {"step_size": 0.49}, regularizer=MCP)
    with raises(SettingsError, source="settings"):
        composed(PROX | {"step_size": 0.5}, regularizer=MCP)
    composed({"name": "fedavg", "step_size": 0.5}, regularizer=MCP)


@pytest.mark.parametrize("name", sorted(builtin_settings()))
def test_an_initial_model_is_refused_where_dual_variables_begin_at_zero(name: str) -> None:
    given = {"initial": {"file": "model.npz"}}
    if name in ("feddcd", "acc-feddcd", "hyfdca"):
        with raises(SettingsError, source="settings"):
            composed({"name": name}, **given)
    else:
        composed({"name": name}, **given)


def test_an_initial_model_is_where_local_solves_of_networks_start() -> None:
    composed({"name": "feddcd", "dual_step_size": 0.1}, initial={"file": "model.npz"})


def test_the_term_survives_the_way_to_the_clients() -> None:
    settings = composed({"name": "fedavg"}, regularizer=MCP, nonconvex=0.1)
    assert from_json(settings.to_json()) == settings
    assert composed({"name": "fedavg"}).objective.regularizer.kind == "none"


@pytest.mark.parametrize("terms", [{"nonconvex": 0.1}, {"regularizer": L1}])
def test_the_solver_of_the_dual_refuses_both_terms(terms: dict[str, Any]) -> None:
    settings = composed({"name": "fedavg"}, **({"kind": "logistic", "l2": 0.1} | terms))
    with raises(SettingsError):
        margin_loss(settings.objective)


def test_batches_of_one_epoch_need_a_number_of_steps() -> None:
    with raises(SettingsError, key="algorithm", source="settings"):
        composed({"name": "fedavg", "batches": "epoch", "local_epochs": 1})
    composed({"name": "fedavg", "batches": "epoch", "local_steps": 5})
