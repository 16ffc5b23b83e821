"""Ranking metrics are those of scikit-learn, whatever the scores."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from fenchel.common.objectives.binary import BinaryObjective
from fenchel.common.objectives.ranking import Ranking
from tests.unit.objectives.problems import make_objective, make_shard

EXACT: dict[str, Any] = {"rel": 0, "abs": 1e-12}
SCORES = {
    "any": st.floats(-1e3, 1e3),
    "many ties": st.sampled_from([-1.5, -1.0, 0.0, 0.25]),
    "constant": st.just(0.75),
    "extreme": st.sampled_from([-1.7e308, -1e300, -5e-324, -0.0, 0.0, 5e-324, 1.0, 1 + 2**-52, 1.7e308]),
}


@st.composite
def rankings(draw: st.DrawFn) -> Ranking:
    """Samples of both classes."""
    of_one_kind = draw(st.sampled_from(list(SCORES.values())))
    positive = [True, False, *draw(st.lists(st.booleans(), max_size=60))]
    scores = draw(st.lists(of_one_kind, min_size=len(positive), max_size=len(positive)))
    order = draw(st.permutations(range(len(positive))))
    return Ranking(np.array(scores)[order], np.array(positive)[order])


def theirs(metric: Callable[..., float], ranking: Ranking, **options: Any) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # differences of extreme scores overflow there
        return float(metric(ranking.positive, ranking.scores, **options))


@given(rankings())
def test_the_auc_is_that_of_scikit_learn(ranking: Ranking) -> None:
    assert ranking.auc == pytest.approx(theirs(roc_auc_score, ranking), **EXACT)


@given(rankings(), st.floats(1e-3, 1) | st.sampled_from([1 / 2, 1 / 3, 1 / 10]))
def test_the_partial_auc_is_that_of_scikit_learn(ranking: Ranking, max_fpr: float) -> None:
    assert ranking.partial_auc(max_fpr) == pytest.approx(theirs(roc_auc_score, ranking, max_fpr=max_fpr), **EXACT)


@given(rankings())
def test_the_average_precision_is_that_of_scikit_learn(ranking: Ranking) -> None:
    assert ranking.average_precision == pytest.approx(theirs(average_precision_score, ranking), **EXACT)


@pytest.mark.parametrize("scores", [[], [1.0], [1.0, 2.0, 2.0]])
@pytest.mark.parametrize("positive", [True, False])
def test_where_a_class_is_missing_there_is_no_figure(scores: list[float], positive: bool) -> None:
    ranking = Ranking(np.array(scores), np.full(len(scores), positive))
    assert all(map(math.isnan, (ranking.auc, ranking.partial_auc(0.5), ranking.average_precision)))


def test_a_score_that_is_no_number_has_no_rank_and_an_infinite_one_has() -> None:
    positive = np.array([True, False, True])
    assert math.isnan(Ranking(np.array([math.nan, 0.0, 1.0]), positive).auc)
    assert Ranking(np.array([-math.inf, 0.0, math.inf]), positive).auc == 0.5


@pytest.mark.parametrize(
    "section",
    [
        *({"kind": kind} for kind in ("logistic", "hinge", "smoothed-hinge", "squared")),
        {"kind": "softmax"},
        {"kind": "one-sided-logistic"},
        *({"kind": "binary", "dtype": "float64", "output": output} for output in ("none", "sigmoid")),
        {"kind": "binary", "dtype": "float64", "output": "l2", "scorer": {"kind": "mlp", "hidden": 3}},
    ],
    ids=lambda section: "-".join(str(value) for value in section.values()),
)
def test_objectives_of_two_classes_rank_samples_and_evaluate_them_in_one_pass(section: dict[str, Any]) -> None:
    if "scorer" in section:
        pytest.importorskip("torch")
    own, other = make_shard(30, seed=1), make_shard(20, seed=2)
    objective = make_objective(own, **section)
    w = np.random.default_rng(0).standard_normal(objective.dimension)
    assert objective.ranks
    for shard, given_shard in ((own, None), (other, other)):
        metrics, ranking = objective.judge(w, given_shard)
        assert metrics == objective.evaluate(w, given_shard)
        assert ranking is not None
        assert np.array_equal(ranking.positive, shard.labels == 1)
    _, of_one = objective.judge(w, other.take(np.arange(5)))
    _, of_all = objective.judge(w, other)
    assert of_one is not None
    assert of_all is not None
    # A sample has the same score whatever it is with: scores of several clients can be compared.
    assert of_one.scores == pytest.approx(of_all.scores[:5], rel=1e-12, abs=1e-12)


def test_a_high_score_speaks_for_the_second_class() -> None:
    x = np.linspace(-1, 1, 10)[:, None]
    shard = make_shard(arrays=(x, (x[:, 0] > 0).astype(np.int64)))
    for kind, w in (("logistic", [1.0]), ("softmax", [-1.0, 1.0]), ("binary", [1.0])):
        section = {"kind": kind, "dtype": "float64"}
        ranking = make_objective(shard, **section).judge(np.array(w))[1]
        assert ranking is not None
        assert ranking.auc == 1


def test_scores_that_a_sigmoid_would_round_to_one_still_have_an_order() -> None:
    shard = make_shard(arrays=(np.array([[50.0], [60.0]]), np.array([0, 1])))
    objective = make_objective(shard, kind="binary", dtype="float32", output="sigmoid")
    w = np.ones(1, np.float32)
    assert isinstance(objective, BinaryObjective)
    assert objective.scores(w, objective.all_rows)[0].tolist() == [1, 1]
    ranking = objective.judge(w)[1]
    assert ranking is not None
    assert ranking.auc == 1


def test_other_objectives_rank_nothing_unless_it_is_said_who_is_positive() -> None:
    for shard, kind in ((make_shard(30, classes=3), "softmax"), (make_shard(30, classes=0), "squared")):
        objective = make_objective(shard, kind=kind)
        assert not objective.ranks
        assert objective.judge(np.zeros(objective.dimension))[1] is None
    shard = make_shard(30, classes=3)
    objective = make_objective(shard, kind="binary", dtype="float64", positive=[0, 2])
    ranking = objective.judge(np.zeros(objective.dimension))[1]
    assert ranking is not None
    assert np.array_equal(ranking.positive, shard.labels != 1)
