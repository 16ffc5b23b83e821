"""The client half of an algorithm."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
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
    """Mark a method of a client half as the handler of a phase.

    The parameters of the method name the values that the server sends. A parameter with a default is optional. Values
    are checked against annotations before the call: ``Vector``, ``Indices``, ``SparseVector``, ``Ciphertexts``,
    ``int``, ``float``, ``bool`` or ``str``. Arrays are read-only.

    The method returns a mapping of named values, or ``None`` for an empty reply. ``participation.phases`` accepts the
    phase unless the method is annotated to return ``None``.

    Parameters
    ----------
    phase : str
        Name of the phase in :meth:`fenchel.Cohort.ask`, :meth:`fenchel.Cohort.reduce` or :meth:`fenchel.Cohort.tell`.

    Returns
    -------
    callable
        Decorator that returns the method itself.

    Examples
    --------
    >>> import fenchel
    >>> class GradientClient(fenchel.ClientAlgorithm):
    ...     @fenchel.answers("gradient")
    ...     def gradient(self, model: fenchel.Vector) -> fenchel.Values:
    ...         return {"gradient": self.objective.gradient(model), "samples": self.objective.samples}
    """

    def mark(method: Handler) -> Handler:
        method.answers_phase = phase  # type: ignore[attr-defined]
        return method

    return mark


@dataclass(frozen=True, kw_only=True)
class ClientContext:
    """Settings, data and keys that the runtime passes to a client half.

    Attributes
    ----------
    client
        Client id.
    seed
        Seed of the run.
    settings
        Section ``algorithm`` of the settings.
    objective
        Objective on the client's shard.
    shard
        Samples and features, for algorithms that align them.
    secrets
        :class:`~fenchel.keys.shared.Secrets` of the federation, if the algorithm needs a key (``key_bits``). The type
        is not imported, as the server imports this module and must not import decryption.
    solver
        Local solver of this client, in place of the run's.
    uplink
        Client side of the section ``uplink``; ``None`` sends vectors unchanged.
    message_bytes
        Upper limit on the size of a message in bytes, within the client's trust limits.
    """

    client: str
    seed: int
    settings: AlgorithmSettings
    objective: Objective
    shard: Shard
    secrets: Any = None
    solver: Solver | None = None
    uplink: ClientUplink | None = None
    message_bytes: int = 8 << 30


class ClientAlgorithm:
    """Base class of the client half of an algorithm: the handlers of its phases, which compute on the client's shard.

    A subclass marks each handler with :func:`fenchel.answers`. The runtime writes ``state`` to the client's journal
    before a reply is sent. It restores ``state`` after a restart, or if the reply did not count. The handler may then
    run again for the same round and must return the same values. Values of other attributes are not restored.

    Parameters
    ----------
    context : ClientContext
        Id, settings, objective and shard of the client, passed by the runtime. An override of ``__init__`` passes it
        on.

    Attributes
    ----------
    client : str
        Id of this client.
    settings : AlgorithmSettings
        Validated section ``algorithm`` of the settings.
    objective : Objective
        Objective of the client on its shard: value, gradient, batches, constants.
    shard : Shard
        Samples and features that the client holds.
    state : State
        Everything that the client keeps from phase to phase.
    round : int
        Number of the current round, 0 before the first phase.
    seed : int
        Seed of the run.
    uplink : ClientUplink
        Client side of the section ``uplink``, and of differential privacy. ``noisy`` is true if it adds noise, and
        ``changes`` if it alters vectors at all.
    secrets : Secrets or None
        Keys that the clients share. ``None`` if the algorithm needs none (``key_bits``).
    own_solver : Solver or None
        Local solver of this client, in place of the run's. ``None`` to use the run's.
    message_bytes : int
        Upper limit on the size of a message (``network.max_message_bytes``), in bytes.
    occasion : bytes
        Digest of the current phase, its values and the state. Empty without differential privacy.
    largest : float
        Largest magnitude in the floating-point arrays that the phase received, and in those of ``state`` unless it is
        private. 0 without differential privacy.
    """

    @dataclass
    class State:
        """State of the client half. A subclass adds fields. A state without fields is never stored.

        Fields may hold arrays, numbers, texts, ``None``, lists, and dictionaries with texts as keys.
        """

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
        self._handlers = handlers_of(type(self))  # type: ignore[arg-type]  # mypy takes the hash for an object's

    def initial_state(self) -> Any:
        """Return the state before the first phase.

        Override it if ``State`` has a field that is not annotated as ``fenchel.Vector``.

        Returns
        -------
        State
            State with zeros of shape (d,) in every field, in the dtype of the objective.

        Raises
        ------
        TypeError
            A field of ``State`` is not annotated as a vector.
        """
        zeros = np.zeros(self.objective.dimension, self.objective.dtype)
        hints = typing.get_type_hints(self.State)
        values = {}
        for field in fields(self.State):
            if hints[field.name] != Vector:
                raise TypeError(
                    f"{type(self).__name__}.State.{field.name} is not annotated as fenchel.Vector, and only vectors "
                    "begin as zeros by default; override initial_state to return the first state"
                )
            values[field.name] = zeros.copy()
        return self.State(**values)

    @classmethod
    def stateless(cls) -> bool:
        """Return whether ``State`` has no fields.

        Returns
        -------
        bool
            True if the client keeps no state and writes no journal.
        """
        return not fields(cls.State)

    @property
    def meter(self) -> CipherMeter | None:
        """Counts and times of encryption and decryption so far. ``None`` for an algorithm without encryption."""
        return None

    def generator(self, purpose: str) -> np.random.Generator:
        """Return a random generator for this client, round and purpose.

        Equal arguments in the same round give the same numbers, also after a restart. Under differential privacy the
        numbers are secret. They then depend on the phase, its values and the state, too, so no noise is reused.

        Parameters
        ----------
        purpose : str
            Name that separates the generators of one round, such as ``"batches"``.

        Returns
        -------
        numpy.random.Generator
            Generator at the start of its stream.
        """
        if self.uplink.protection is not None:
            return self.uplink.protection.randomness.generator(purpose, self.round, self.occasion)
        return generator(self.seed, self.client, self.round, purpose)

    def send(self, vector: Vector, *, around: Vector, minus: Vector | None = None, name: str = "model") -> Sent:
        """Apply the uplink to a vector: sparsify, clip, add noise, convert to the dtype of the uplink.

        Parameters
        ----------
        vector : Vector, shape (d,)
            Vector to send.
        around : Vector, shape (d,)
            Model at the start of the round, which the server knows. Clipping bounds the distance from it.
        minus : Vector, shape (d,), optional
            Vector that the server has already. It is subtracted after the noise was added, so only the difference is
            sent.
        name : str, default "model"
            Name that distinguishes several vectors of one round.

        Returns
        -------
        Sent
            ``wire`` belongs in the reply. ``coordinates`` and ``values``, shape (k,), are those that the server
            receives.

        Raises
        ------
        PrivacyBudgetError
            The run is differentially private, and the budget is spent or :meth:`fenchel.ClientAlgorithm.sensitivity`
            returned ``None``.
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
        """Return the L2 sensitivity of this round's upload (docs/specifications/fedpdm.md, section 3).

        Returns
        -------
        float or None
            Bound on the distance by which replacing one sample changes the upload before noise. ``None``, the default,
            if no bound is known. Under differential privacy, :meth:`fenchel.ClientAlgorithm.send` then raises an error.
        """
        return None

    def answer(self, phase: str, t: int, values: Values, *, finite: bool = False) -> Values:
        """Call the handler of a phase, as the runtime does for each instruction.

        Parameters
        ----------
        phase : str
            Name of the phase.
        t : int
            Number of the round.
        values : Values
            Values that the server sent.
        finite : bool, default False
            True if all entries of arrays are known to be finite, so that they are not checked.

        Returns
        -------
        Values
            Values of the reply.

        Raises
        ------
        PhaseError
            The phase has no handler, or the handler did not return a mapping.
        PayloadError
            The names, types or shapes of the values are not those that the handler accepts, or an array has an entry
            that is not finite.
        """
        handler = self._handlers.get(phase)
        if handler is None:
            raise PhaseError(
                f"{type(self).__name__} has no handler of phase {phase!r}, only of {sorted(self._handlers)}; do "
                "both sides run the same version of the algorithm?"
            )
        handler.check(values, finite)
        self.round = t
        if self.uplink.protection is not None:
            state = freeze(self.state)
            self.occasion = digest(phase, values, state)
            # The scale of the noise must not depend on private state.
            known = values if self.uplink.protection.facts.dual == "private" else {**values, **state}
            self.largest = _largest(known.values())
        result = getattr(self, handler.method)(**handler.dense(values, self.objective))
        if result is None:
            return {}
        if not isinstance(result, Mapping):
            raise PhaseError(
                f"the handler of phase {phase!r} returned a {type(result).__name__}; expected a mapping of names to "
                "values"
            )
        return result


def _largest(values: Iterable[Value]) -> float:
    """Return the largest magnitude in all floating-point arrays, or 0 if there are none."""
    arrays = [entries.values for value in values if (entries := entries_of(value)) is not None]
    return max((float(np.abs(array).max()) for array in arrays if array.dtype.kind == "f" and array.size), default=0.0)


def _specs(hint: Any) -> tuple[Spec, ...]:
    """Return alternative specifications of a value, none for ``Any``. Raise ``TypeError`` for an unsupported hint."""
    alternatives = _alternatives(hint)
    if hint is Any or Any in alternatives:
        return ()
    if alternatives:
        return tuple(chain.from_iterable(map(_specs, alternatives)))
    named = _named(hint)
    if typing.get_origin(named) is np.ndarray:
        dtype = typing.get_args(typing.get_args(named)[1])[0]
        dtype = typing.get_origin(dtype) or dtype  # np.floating[Any] -> np.floating
        dtype = np.generic if dtype is Any else dtype if issubclass(dtype, np.generic) else np.dtype(dtype).type
        return (ArraySpec(dtype, None, ARRAY_TYPES if hint == Vector else (np.ndarray,)),)
    if not isinstance(named, type):
        raise TypeError(f"values cannot be checked by the annotation {hint}; use fenchel.Vector, a class, or Any")
    # Type hints specify neither key nor layout of ciphertexts: decryption checks both.
    return (TypeSpec(named),)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or an empty tuple for another type."""
    named = _named(hint)
    return typing.get_args(named) if typing.get_origin(named) in (typing.Union, types.UnionType) else ()


def _named(hint: Any) -> Any:
    """Return the type behind a type alias, such as ``NDArray`` from NumPy 2.5 on, or the hint itself."""
    value = getattr(typing.get_origin(hint) or hint, "__value__", None)
    if value is None:
        return hint
    return value[typing.get_args(hint)] if typing.get_args(hint) else value


def _check(value: Value, specs: Sequence[Spec], finite: bool) -> None:
    """Reject a value that fits none of the specifications. The error describes the difference from the first."""
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
    method: str
    parameters: Mapping[str, Any]  # annotation of each parameter, by its name
    required: frozenset[str]
    specs: Mapping[str, tuple[Spec, ...]]  # accepted specifications of each parameter; empty if any value is allowed

    def check(self, values: Values, finite: bool) -> None:
        """Reject names that the handler does not accept, and values that do not fit their annotation."""
        missing = self.required - values.keys()
        unknown = values.keys() - self.parameters.keys()
        if missing or unknown:
            raise PayloadError(
                f"the handler takes the values {sorted(self.parameters)}, but received {sorted(values)}; do both "
                "sides run the same version of the algorithm?",
                phase=self.phase,
            )
        for name, value in values.items():
            try:
                _check(value, self.specs[name], finite)
            except PayloadError as error:
                raise error.at(phase=self.phase, array=name) from None

    def dense(self, values: Values, objective: Objective) -> dict[str, Any]:
        """Return the values. Those annotated as ``Vector`` become dense, with at least the objective's precision."""
        filled: dict[str, Any] = dict(values)
        for name, value in values.items():
            entries = entries_of(value) if _takes_model(self.parameters[name]) else None
            if entries is None:
                continue
            if entries.indices is not None and entries.shape != (objective.dimension,):
                raise PayloadError(
                    f"the value is {noun_of(value)} of shape {entries.shape}, but the model has "
                    f"{objective.dimension} numbers",
                    phase=self.phase,
                    array=name,
                )
            model = entries.dense()
            filled[name] = model.astype(np.result_type(model, objective.dtype), copy=False)
        return filled


@cache
def handlers_of(kind: type) -> Mapping[str, _Handler]:
    """Return the handlers of a class by their phases; raise TypeError for an annotation that cannot be checked."""
    found = {}
    # Inspect the class, because inspecting an object would evaluate its properties.
    for name, function in inspect.getmembers(kind, inspect.isfunction):
        if phase := getattr(function, "answers_phase", None):
            _, *parameters = inspect.signature(function).parameters.values()
            required = frozenset(each.name for each in parameters if each.default is inspect.Parameter.empty)
            try:
                hints = typing.get_type_hints(function)
                wanted = {each.name: hints.get(each.name, Any) for each in parameters}
                specs = {each: _specs(hint) for each, hint in wanted.items()}
            except (NameError, TypeError) as error:
                raise TypeError(f"{kind.__name__}.{name}: {error}") from None
            found[phase] = _Handler(phase, name, wanted, required, specs)
    return found


def _takes_model(hint: Any) -> bool:
    """Return whether a parameter is annotated as ``Vector``, so that a sparse vector is converted to a dense one."""
    return Vector in (_alternatives(hint) or (hint,))
