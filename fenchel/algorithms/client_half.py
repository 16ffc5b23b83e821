"""The client half of an algorithm."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any, ClassVar, TypeVar

import numpy as np

from fenchel.common.arrays import Vector
from fenchel.common.compression.uplink import ClientUplink, Sent
from fenchel.common.crypto.meter import CipherMeter
from fenchel.common.data.shard import Shard
from fenchel.common.errors import PayloadError, PhaseError
from fenchel.common.objectives.objective import Objective
from fenchel.common.randomness import generator
from fenchel.common.settings.algorithm import AlgorithmSettings
from fenchel.common.settings.solver import Solver
from fenchel.common.settings.uplink import Uplink
from fenchel.common.storage.state import freeze
from fenchel.common.wire.codecs import ARRAY_TYPES, entries_of, noun_of
from fenchel.common.wire.payload import digest
from fenchel.common.wire.schema import ArraySpec, Spec, TypeSpec
from fenchel.common.wire.values import Value, Values

Handler = TypeVar("Handler", bound=Callable[..., Any])


def answers(phase: str) -> Callable[[Handler], Handler]:
    """Mark a method as the one that answers a phase.

    Its parameters name the values that the server sends; their annotations (``Vector``, ``Indices``,
    ``int``, ``float``, ``bool``, ``str``, ``SparseVector``, ``Ciphertexts``) are checked before it is
    called. Arrays come read-only: copy what is to be changed. It returns a mapping of values, or ``None``.
    """

    def mark(method: Handler) -> Handler:
        method.answers_phase = phase  # type: ignore[attr-defined]
        return method

    return mark


@dataclass(frozen=True, kw_only=True)
class ClientContext:
    """Where a client half works."""

    client: str  # its id
    seed: int  # ``settings.seed``
    settings: AlgorithmSettings  # of the algorithm
    objective: Objective  # what can be computed on the client's shard
    shard: Shard  # the data themselves, for algorithms that align samples and features
    secrets: Any = None
    """The :class:`~fenchel.keys.shared.Secrets` of the federation, if the algorithm needs a key
    (``key_bits``). The type is not named here: the server imports this module, and never what decrypts."""
    solver: Solver | None = None  # the local solver that suits this client, in place of the run's
    uplink: ClientUplink | None = None  # what becomes of vectors on their way to the server; ``None``: nothing
    message_bytes: int = 8 << 30  # the largest message of the run, which the client's trust limits bound


class ClientAlgorithm:
    """Base of the client half of every algorithm.

    What must survive a crash is kept in :class:`State` and nowhere else: the runtime restores it, so a
    handler may be called again for the same round and must then do the same.
    """

    @dataclass
    class State:
        """The client's state; a subclass lists its fields. Without fields nothing is ever stored."""

    Settings: ClassVar[type[AlgorithmSettings]] = AlgorithmSettings

    def __init__(self, context: ClientContext) -> None:
        self.client = context.client
        self.objective = context.objective
        self.shard = context.shard
        self.secrets = context.secrets
        self.own_solver = context.solver
        self.settings: Any = context.settings
        self.round = 0
        self.state: Any = None
        self.seed = context.seed
        self.message_bytes = context.message_bytes
        self.uplink = context.uplink or ClientUplink(Uplink(), context.seed, context.client)
        self.occasion = b""
        self.largest = 0.0
        self._handlers = _handlers(self)

    def initial_state(self) -> Any:
        """Return the state before the first round: by default zeros of the model's shape in every ``Vector``."""
        zeros = np.zeros(self.objective.dimension, self.objective.dtype)
        hints = typing.get_type_hints(self.State)
        values = {}
        for field in fields(self.State):
            if hints[field.name] != Vector:
                raise TypeError(
                    f"{type(self).__name__}.State.{field.name} is no Vector: override initial_state to fill it"
                )
            values[field.name] = zeros.copy()
        return self.State(**values)

    @classmethod
    def stateless(cls) -> bool:
        """Whether this half keeps no state."""
        return not fields(cls.State)

    @property
    def meter(self) -> CipherMeter | None:
        """What this half has encrypted and decrypted so far, for the record; ``None``: nothing, ever."""
        return None

    def generator(self, purpose: str) -> np.random.Generator:
        """Return the random numbers of this client, in this round, for this purpose.

        Under differential privacy nobody else can redo them, and they are others whenever the client is asked
        something else, or from another state: what privacy rests on is never drawn twice for different work.
        """
        if self.uplink.protection is not None:
            return self.uplink.protection.randomness.generator(purpose, self.round, self.occasion)
        return generator(self.seed, self.client, self.round, purpose)

    def send(self, vector: Vector, *, around: Vector, minus: Vector | None = None, name: str = "model") -> Sent:
        """Return what leaves of a vector through the uplink.

        Parameters
        ----------
        vector
            Shape (d,).
        around
            The model that the round began with, shape (d,), which the server knows, too.
        minus
            What the server has of this vector already, shape (d,): only the difference travels.
        name
            Tells several vectors of one round apart.

        Raises
        ------
        PrivacyBudgetError
            The run is differentially private, and the budget is spent, or :meth:`sensitivity` is not known.
        """
        return self.uplink.send(
            vector,
            self.round,
            around=around,
            minus=minus,
            sensitivity=self.sensitivity(),
            largest=self.largest,
            occasion=self.occasion,
            name=name,
        )

    def sensitivity(self) -> float | None:
        """Return how far one sample can move what this round sends; ``None``: it is not known."""
        return None

    def answer(self, phase: str, t: int, values: Values, *, finite: bool = False) -> Values:
        """Answer one phase of round ``t``; ``finite``: the arrays are known to be finite.

        Raises
        ------
        PhaseError
            No handler answers this phase, or it did not return values.
        PayloadError
            The values are not what the handler takes.
        """
        handler = self._handlers.get(phase)
        if handler is None:
            raise PhaseError(
                f"{type(self).__name__} answers no phase {phase!r}, only {sorted(self._handlers)}; "
                "do both sides run the same version of the algorithm?"
            )
        handler.check(values, finite)
        self.round = t
        if self.uplink.protection is not None:
            state = freeze(self.state)
            self.occasion = digest(phase, values, state)
            # A private state must not decide how much noise there is.
            known = values if self.uplink.protection.facts.dual == "private" else {**values, **state}
            self.largest = _largest(known.values())
        result = handler.method(**handler.dense(values, self.objective))
        if result is None:
            return {}
        if not isinstance(result, Mapping):
            raise PhaseError(f"phase {phase!r} returned a {type(result).__name__}, not a mapping of named values")
        return result


def _largest(values: Iterable[Value]) -> float:
    """Return the largest magnitude of any number in floating-point arrays; 0 if there is none."""
    arrays = [entries.values for value in values if (entries := entries_of(value)) is not None]
    return max((float(np.abs(array).max()) for array in arrays if array.dtype.kind == "f" and array.size), default=0.0)


def _specs(hint: Any) -> tuple[Spec, ...]:
    """Return what a type hint allows; nothing: any value."""
    if isinstance(hint, types.UnionType):
        return tuple(chain.from_iterable(map(_specs, typing.get_args(hint))))
    if typing.get_origin(hint) is np.ndarray:
        dtype = typing.get_args(typing.get_args(hint)[1])[0]
        dtype = typing.get_origin(dtype) or dtype  # np.floating[Any] -> np.floating
        dtype = dtype if issubclass(dtype, np.generic) else np.dtype(dtype).type  # int -> np.int64
        return (ArraySpec(dtype, None, ARRAY_TYPES if hint == Vector else (np.ndarray,)),)
    # Of ciphertexts the handler finds out when it decrypts under which key they are, and in which layout.
    return (TypeSpec(hint),) if isinstance(hint, type) and hint is not Any else ()


def _check(value: Value, specs: Sequence[Spec], finite: bool) -> None:
    """Refuse a value that fits none of some specifications, with what differs from the first."""
    errors = []
    for spec in specs:
        try:
            spec.check(value, finite)
        except PayloadError as error:
            errors.append(error)
        else:
            return
    if errors:
        raise errors[0]


@dataclass(frozen=True)
class _Handler:
    phase: str
    method: Callable[..., Values | None]
    parameters: Mapping[str, Any]  # their annotations
    required: frozenset[str]
    specs: Mapping[str, tuple[Spec, ...]]  # of each parameter: a value fits one of them; empty: any will do

    def check(self, values: Values, finite: bool) -> None:
        """Refuse names that the handler does not take, and values that fit no annotation."""
        missing = self.required - values.keys()
        unknown = values.keys() - self.parameters.keys()
        if missing or unknown:
            raise PayloadError(
                f"it takes {sorted(self.parameters)}, got {sorted(values)}; "
                "do both sides run the same version of the algorithm?",
                phase=self.phase,
            )
        for name, value in values.items():
            try:
                _check(value, self.specs[name], finite)
            except PayloadError as error:
                raise error.at(phase=self.phase, array=name) from None

    def dense(self, values: Values, objective: Objective) -> dict[str, Any]:
        """Return the values; a model gets back its zeros where it came sparse, and its dtype where it came narrower."""
        filled: dict[str, Any] = dict(values)
        for name, value in values.items():
            entries = entries_of(value) if _takes_model(self.parameters[name]) else None
            if entries is None:
                continue
            if entries.indices is not None and entries.shape != (objective.dimension,):
                raise PayloadError(
                    f"is {noun_of(value)} of shape {entries.shape}, but the model has {objective.dimension} numbers",
                    phase=self.phase,
                    array=name,
                )
            model = entries.dense()
            filled[name] = model.astype(np.result_type(model, objective.dtype), copy=False)
        return filled


def _handlers(algorithm: ClientAlgorithm) -> dict[str, _Handler]:
    found = {}
    # Of the class, not the object: asking an object for its members would compute all of its properties.
    for name, function in inspect.getmembers(type(algorithm), inspect.isfunction):
        if phase := getattr(function, "answers_phase", None):
            method = getattr(algorithm, name)
            hints, parameters = typing.get_type_hints(method), inspect.signature(method).parameters
            wanted = {each: hints.get(each, Any) for each in parameters}
            required = frozenset(each for each in wanted if parameters[each].default is inspect.Parameter.empty)
            specs = {each: _specs(hint) for each, hint in wanted.items()}
            found[phase] = _Handler(phase, method, wanted, required, specs)
    return found


def _takes_model(hint: Any) -> bool:
    """Whether a parameter is a whole vector, so that one that came sparse gets its zeros back."""
    return Vector in (typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,))
