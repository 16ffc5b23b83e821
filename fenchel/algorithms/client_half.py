"""The client half of an algorithm."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

import numpy as np

from fenchel.common.arrays import Vector
from fenchel.common.compression.uplink import ClientUplink
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.meter import CipherMeter
from fenchel.common.data.shard import Shard
from fenchel.common.errors import PayloadError, PhaseError
from fenchel.common.objectives.objective import Objective
from fenchel.common.randomness import generator
from fenchel.common.settings.algorithm import AlgorithmSettings
from fenchel.common.settings.solver import Solver
from fenchel.common.settings.uplink import Uplink
from fenchel.common.storage.state import freeze
from fenchel.common.wire.payload import digest
from fenchel.common.wire.schema import NotFinite, finiteness_problem, payload_error
from fenchel.common.wire.values import SparseVector, Value, Values

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
    arrays = [value.values if isinstance(value, SparseVector) else value for value in values]
    floats = [array for array in arrays if isinstance(array, np.ndarray) and array.dtype.kind == "f" and array.size]
    return max((float(np.abs(array).max()) for array in floats), default=0.0)


@dataclass(frozen=True)
class _Handler:
    phase: str
    method: Callable[..., Values | None]
    parameters: Mapping[str, Any]
    required: frozenset[str]

    def check(self, values: Values, finite: bool) -> None:
        missing = self.required - values.keys()
        unknown = values.keys() - self.parameters.keys()
        if missing or unknown:
            raise PayloadError(
                f"it takes {sorted(self.parameters)}, got {sorted(values)}; "
                "do both sides run the same version of the algorithm?",
                phase=self.phase,
            )
        for name, value in values.items():
            problem = _difference(self.parameters[name], value, finite)
            if problem:
                raise payload_error(problem, phase=self.phase, array=name)

    def dense(self, values: Values, objective: Objective) -> dict[str, Any]:
        """Return the values; a model gets back its zeros where it came sparse, and its dtype where it came narrower."""
        filled: dict[str, Any] = dict(values)
        for name, value in values.items():
            if not _takes_model(self.parameters[name]):
                continue
            if isinstance(value, SparseVector):
                if value.size != objective.dimension:
                    raise PayloadError(
                        f"is a sparse vector of length {value.size}, but the model has {objective.dimension} numbers",
                        phase=self.phase,
                        array=name,
                    )
                value = value.dense()
            if isinstance(value, np.ndarray):
                filled[name] = value.astype(np.result_type(value, objective.dtype), copy=False)
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
            found[phase] = _Handler(phase, method, wanted, required)
    return found


def _takes_model(hint: Any) -> bool:
    """Whether a parameter is a whole vector, so that one that came sparse gets its zeros back."""
    return Vector in (typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,))


def _difference(hint: Any, value: Value, finite: bool) -> str | None:
    """Say how a received value differs from a parameter's annotation; ``None``: not at all."""
    if isinstance(hint, types.UnionType):
        problems = [_difference(option, value, finite) for option in typing.get_args(hint)]
        return None if None in problems else problems[0]
    if typing.get_origin(hint) is np.ndarray or hint is SparseVector:
        return _array_difference(hint, value, finite)
    if hint is Ciphertexts:  # under which key, and in which layout, the handler finds out when it decrypts
        return None if isinstance(value, Ciphertexts) else f"is a {type(value).__name__}, expected ciphertexts"
    if hint is Any or not isinstance(hint, type):
        return None
    if isinstance(value, float) and not np.isfinite(value):
        return NotFinite(f"is {value}, which is not finite")
    if type(value) is hint or (hint is float and type(value) is int):
        return None
    return f"is a {type(value).__name__}, expected a {hint.__name__}"


def _array_difference(hint: Any, value: Value, finite: bool) -> str | None:
    if hint is SparseVector:
        if not isinstance(value, SparseVector):
            return f"is a {type(value).__name__}, expected a sparse vector"
        return None if finite else finiteness_problem(value.values)
    if hint == Vector and isinstance(value, SparseVector):
        value = value.values
    if not isinstance(value, np.ndarray):
        return f"is a {type(value).__name__}, expected an array"
    wanted = typing.get_args(typing.get_args(hint)[1])[0]
    wanted = typing.get_origin(wanted) or wanted  # np.floating[Any] -> np.floating
    if not issubclass(wanted, np.generic):
        wanted = np.dtype(wanted).type  # int -> np.int64
    if not issubclass(value.dtype.type, wanted):
        return f"has dtype {value.dtype}, expected {wanted.__name__}"
    return None if finite else finiteness_problem(value)
