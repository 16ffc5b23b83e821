"""A handler is called with what it takes, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Optional, TypeVar, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

from fenchel.algorithms.client_half import ClientAlgorithm, ClientContext, answers
from fenchel.algorithms.registry import client_half
from fenchel.client.connection import Backoff
from fenchel.common.arrays import Indices, Vector
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.data.shard import Shard
from fenchel.common.errors import PayloadError, PhaseError, SettingsError
from fenchel.common.objectives.objective import Objective
from fenchel.common.settings.algorithm import AlgorithmSettings
from fenchel.common.wire.values import SparseVector, Value, Values
from tests.messages import raises


class Half(ClientAlgorithm):
    @dataclass
    class State:
        dual: Vector
        control: Vector

    @answers("everything")
    def everything(
        self,
        model: Vector,
        rows: Indices,
        thin: SparseVector,
        count: int,
        rate: float,
        flag: bool,
        name: str,
        extra: Vector | None = None,
        anything: Any = 0,
        marks: NDArray[int] | None = None,  # type: ignore[type-var]
    ) -> Values:
        return {"name": name, "round": self.round}

    @answers("open")
    def open(self, dual: Ciphertexts, extra: Ciphertexts | None = None, anything: Any = 0) -> Values:
        return {"count": dual.count}

    @answers("nothing")
    def nothing(self) -> None:
        return None

    @answers("both")
    def both(self, model: Vector, thin: SparseVector) -> Values:
        return {"model": model, "thin": thin}

    @answers("list")
    def list(self) -> Values:
        return cast(Values, [1.0])

    def helper(self) -> None:
        """Answers nothing."""


def context() -> ClientContext:
    class Stub:
        dimension = 3
        dtype = np.dtype("float32")

    return ClientContext(
        client="client-0",
        seed=7,
        settings=AlgorithmSettings(name="half"),
        objective=cast(Objective, Stub()),
        shard=cast(Shard, None),
    )


@pytest.fixture
def half() -> Half:
    return Half(context())


DUAL = Ciphertexts(bytes(16), Layout(40, 20, 6, 30), 13, 1, 64, bytes(3 * 64))
COMPLETE: Mapping[str, Value] = {
    "model": np.zeros(3),
    "rows": np.zeros(2, np.int64),
    "thin": SparseVector(np.array([0]), np.ones(1), 3),
    "count": 1,
    "rate": 0.5,
    "flag": True,
    "name": "x",
}


def test_a_handler_gets_its_values_and_knows_its_round(half: Half) -> None:
    assert half.answer("everything", 4, COMPLETE) == {"name": "x", "round": 4}
    assert half.answer("everything", 5, {**COMPLETE, "extra": np.ones(2), "anything": "goes"})["round"] == 5
    assert half.answer("everything", 5, {**COMPLETE, "model": np.zeros(3, np.float32), "rate": 1})["round"] == 5
    assert half.answer("everything", 6, {**COMPLETE, "marks": np.zeros(2, np.int64)})["round"] == 6
    assert half.answer("nothing", 5, {}) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", 1.0),
        ("model", np.zeros(3, np.int64)),
        ("model", np.array([0.0, np.nan])),
        ("model", SparseVector(np.array([0]), np.ones(1, np.int64), 3)),
        ("model", SparseVector(np.array([0]), np.array([np.nan]), 3)),
        ("model", SparseVector(np.array([0]), np.ones(1), 1 << 60)),
        ("rows", COMPLETE["thin"]),
        ("rows", np.zeros(2)),
        ("marks", np.zeros(2)),
        ("thin", np.zeros(3)),
        ("count", 1.0),
        ("count", True),
        ("rate", "0.5"),
        ("flag", 1),
        ("name", 1),
        ("extra", 1),
        ("rate", float("nan")),
        ("thin", SparseVector(np.array([0]), np.array([np.inf]), 3)),
    ],
)
def test_a_value_of_another_kind_is_refused_by_its_name(half: Half, name: str, value: Value) -> None:
    with raises(PayloadError, phase="everything"):
        half.answer("everything", 1, {**COMPLETE, name: value})


def other(hint: Any) -> type[ClientAlgorithm]:
    """Return a class of client halves with one handler, whose only parameter is annotated as given."""

    def handler(self: ClientAlgorithm, value: Any) -> Values:
        return {"value": value}

    handler.__annotations__ = {"value": hint}

    class Other(ClientAlgorithm):
        one = answers("one")(handler)

    return Other


def half_of(hint: Any) -> ClientAlgorithm:
    return other(hint)(context())


Number = TypeVar("Number", bound=np.generic)
Named = TypeAliasType("Named", np.ndarray[Any, np.dtype[Number]], type_params=(Number,))  # as NumPy 2.5's NDArray


@pytest.mark.parametrize(
    ("hint", "accepted", "refused"),
    [
        (NDArray[np.float32], np.zeros(2, np.float32), np.zeros(2)),
        (Named[np.float32], np.zeros(2, np.float32), np.zeros(2)),
        (Named[np.float32] | int, np.zeros(2, np.float32), "text"),
        (TypeAliasType("Whole", int), 1, 1.0),
        (TypeAliasType("Maybe", int | str), "text", 1.0),
        (Optional[Vector], np.zeros(2), 1.0),  # noqa: UP045
        (NDArray[Any], np.zeros(2, np.uint8), 1.0),
    ],
    ids=str,
)
def test_an_annotation_is_understood_however_it_is_written(hint: Any, accepted: Value, refused: Value) -> None:
    half = half_of(hint)
    assert half.answer("one", 1, {"value": accepted}) == {"value": accepted}
    with raises(PayloadError, phase="one"):
        half.answer("one", 1, {"value": refused})


@pytest.mark.parametrize("hint", [Any, Optional[Any], int | Any])  # noqa: UP045
@pytest.mark.parametrize("value", [1, "text", np.zeros(2)], ids=str)
def test_any_is_every_value(hint: Any, value: Value) -> None:
    assert half_of(hint).answer("one", 1, {"value": value}) == {"value": value}


@pytest.mark.parametrize("hint", [Literal["a"], TypeVar("Unbound"), "Unknown"], ids=str)
def test_an_annotation_by_which_nothing_can_be_checked_is_refused(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=r"Other\.one: "):
        half_of(hint)
    monkeypatch.setattr("fenchel.algorithms.registry.half", lambda *name: other(hint))
    with raises(SettingsError, key="algorithm.name"):
        client_half("fedavg")


def test_a_model_that_came_sparse_gets_its_zeros_back(half: Half) -> None:
    thin = SparseVector(np.array([1]), np.array([2.0]), 3)
    model, kept = half.answer("both", 1, {"model": thin, "thin": thin}).values()
    assert isinstance(model, np.ndarray)
    assert model.tolist() == [0, 2, 0]
    assert kept is thin, "a handler that wants it sparse gets it so"


@pytest.mark.parametrize("change", [{"unknown": 1.0}, {"self": 1.0}, *({name: None} for name in COMPLETE)])
def test_values_that_a_handler_does_not_take_and_missing_ones_are_refused(
    half: Half, change: dict[str, Value | None]
) -> None:
    values = {name: value for name, value in {**COMPLETE, **change}.items() if value is not None}
    with raises(PayloadError, phase="everything"):
        half.answer("everything", 1, values)


@pytest.mark.parametrize("phase", ["helper", "answer", "__init__", "", "list"])
def test_only_what_is_marked_answers_and_with_named_values(half: Half, phase: str) -> None:
    with raises(PhaseError):
        half.answer(phase, 1, {})


def test_a_state_of_vectors_starts_from_zeros_of_the_model(half: Half) -> None:
    state = half.initial_state()
    assert (state.dual.shape, state.dual.dtype) == ((3,), np.float32)
    assert not np.shares_memory(state.dual, state.control)
    assert not half.stateless()


def test_a_handler_takes_ciphertexts(half: Half) -> None:
    assert half.answer("open", 1, {"dual": DUAL, "extra": DUAL, "anything": DUAL}) == {"count": 13}


@pytest.mark.parametrize("value", [1.0, "x", np.ones(3), SparseVector(np.array([0]), np.ones(1), 2), float("nan")])
def test_a_handler_of_ciphertexts_takes_nothing_else(half: Half, value: Value) -> None:
    with raises(PayloadError, phase="open", array="dual"):
        half.answer("open", 1, {"dual": value})
    with raises(PayloadError, phase="open", array="extra"):
        half.answer("open", 1, {"dual": DUAL, "extra": value})


@pytest.mark.parametrize(
    "name", ["tests.unit.client.tally:Elsewhere", "tests.unit.client.tally:Nowhere", "no_such_package.module:Half"]
)
def test_what_is_no_client_half_is_refused(name: str) -> None:
    with raises(SettingsError, key="algorithm.name"):
        client_half(name, [name])


def test_waits_grow_up_to_a_bound_and_start_again_after_a_success() -> None:
    backoff = Backoff(first=0.1, longest=5.0)
    for attempt in range(80):
        bound = min(0.1 * 2.0**attempt, 5.0)
        assert bound / 2 <= backoff.next() <= bound
    backoff.reset()
    assert backoff.next() <= 0.1
