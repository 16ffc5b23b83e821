"""No number that HyFDCA's clients share is larger than the room that ciphertexts have for it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.algorithms.hyfdca.dual_ranges import DualRanges
from fenchel.algorithms.hyfdca.settings import Encryption, HyFDCASettings
from fenchel.common.objectives.coordinate import dual_values, feasible, line_terms
from fenchel.common.objectives.losses import Hinge, Logistic, MarginLoss, SmoothedHinge, Squared, SquaredHinge

LOSSES = [Hinge(), SmoothedHinge(1.0), SmoothedHinge(20.0), SquaredHinge(), Squared(), Logistic()]


def ranges(loss: MarginLoss, l2: float, target: float, **settings: object) -> DualRanges:
    encryption = Encryption(largest_dual=8.0)
    chosen = HyFDCASettings.model_validate({"encryption": encryption, **settings})
    return DualRanges(chosen, loss, l2, samples=50, clients=3, holders=2, longest_part=0.5, largest_target=target)


@given(st.data())
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.kind}")
def test_losses_conjugates_and_terms_of_the_line_search_are_in_range(loss: MarginLoss, data: st.DataObject) -> None:
    l2 = data.draw(st.sampled_from([1e-3, 1.0, 100.0, 1e5]))
    target = data.draw(st.sampled_from([1.0, 32.0, 4096.0])) if isinstance(loss, Squared) else 1.0
    found = ranges(loss, l2, target)
    corner = st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0])
    part = np.array(data.draw(st.lists(corner, min_size=4, max_size=4)))
    real = isinstance(loss, Squared)
    targets = np.array([target * part[0] if real else math.copysign(1.0, part[0])])
    dual = feasible(loss, found.largest_dual * part[1:2], targets)
    after = feasible(loss, found.largest_dual * part[2:3], targets)
    scores = found.layouts["score"].largest / 2 * part[3:]  # a layout has room for up to twice its bound
    shared = [loss.value(scores, targets), loss.conjugate(dual, targets)]
    terms = line_terms(loss, dual, after - dual, targets)
    shared += [dual_values(loss, dual, after - dual, targets, np.array([0.5, 1.0]))] if terms is None else [*terms]
    assert max(float(np.abs(each).max()) for each in shared) <= found.layouts["figure"].largest


@pytest.mark.parametrize("l2", [1e-3, 1.0, 100.0])
def test_norms_of_an_encrypted_model_are_in_range(l2: float) -> None:
    found = ranges(Squared(), l2, 32.0, protect_primal=True)
    w, v = found.largest_dual / l2, 2 * found.largest_dual / l2  # rows of norm 1 that are all the same
    figure, primal = found.layouts["figure"].largest, found.layouts["primal"].largest
    assert max(l2 / 2 * w * w, w * v, v * v) <= figure
    assert found.samples * 2 * found.largest_dual <= primal, "also the contribution of a change"


def test_targets_widen_the_range_of_dual_variables_that_no_loss_bounds() -> None:
    assert ranges(Squared(), 1.0, 4096.0).largest_dual == 4096 * ranges(Squared(), 1.0, 1.0).largest_dual
    assert ranges(Hinge(), 1.0, 1.0).largest_dual == 1.0
