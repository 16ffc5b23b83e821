"""The server half of an algorithm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fenchel.common.arrays import Vector
from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.data.source import DataSource
from fenchel.common.objectives.objective import Objective
from fenchel.common.settings.algorithm import AlgorithmSettings
from fenchel.common.settings.privacy import DifferentialPrivacy
from fenchel.common.settings.uplink import Downlink, Uplink
from fenchel.common.wire.schema import Expected
from fenchel.common.wire.values import SparseVector
from fenchel.fleet.cohort import Cohort, Reduced
from fenchel.fleet.downlink import ServerDownlink
from fenchel.fleet.fleet import Fleet
from fenchel.fleet.uplink import ReceivedVector, ServerUplink


@dataclass(frozen=True, kw_only=True)
class ServerContext:
    """What a server half works with."""

    fleet: Fleet  # the clients
    settings: AlgorithmSettings
    initial_model: Vector  # the model before the first round, shape (d,), dtype of the objective
    objective: Objective  # what is minimised, without any data: its loss, its weight of the ridge
    public_key: PublicKey | None = None
    """The public key that the clients must use; ``None``: the algorithm learns it from them."""
    uplink: Uplink = field(default_factory=Uplink)
    downlink: Downlink = field(default_factory=Downlink)
    privacy: DifferentialPrivacy | None = None  # what the clients claim of differential privacy, if anything

    @property
    def noisy(self) -> bool:
        """Whether what clients send carries noise."""
        return self.privacy is not None or self.uplink.noise is not None


class Algorithm:
    """Base of the server half of every algorithm: the outer loop of its paper.

    What must survive a crash is kept in :class:`State` and nowhere else: the runtime writes it to the
    checkpoint after each round.
    """

    @dataclass
    class State:
        """The server's state; a subclass adds fields.

        Attributes
        ----------
        model
            The current global model, shape (d,).
        """

        model: Vector

    Settings: ClassVar[type[AlgorithmSettings]] = AlgorithmSettings
    figures: ClassVar[tuple[str, ...]] = ()
    """Names of what :meth:`metrics` returns: columns of the metrics table."""
    client_figures: ClassVar[tuple[str, ...]] = ()
    """Names of what :meth:`client_metrics` returns of each client: columns of the clients table."""
    fixed_fleet: ClassVar[str] = ""
    """Why nobody can join once the run has begun; empty: somebody can, and :meth:`admit` takes them in."""

    def __init__(self, context: ServerContext) -> None:
        self.fleet = context.fleet
        self.settings: Any = context.settings
        self.uplink = ServerUplink(context.uplink, context.fleet.seed, context.noisy)
        self.downlink = ServerDownlink(context.downlink, context.fleet.seed)
        self.state: Any = self.initial_state(context.initial_model)
        self.state.model = self._known(self.state.model)

    def initial_state(self, model: Vector) -> Any:
        """Return the state before the first round; override it if the state has more than the model."""
        return self.State(model)

    @property
    def model(self) -> Vector:
        """The current global model, shape (d,), as clients will know it; it is what gets evaluated and saved.

        Of a model that is assigned the downlink keeps what it sends in the next round; the rest becomes zero.
        """
        model: Vector = self.state.model
        return model

    @model.setter
    def model(self, model: Vector) -> None:
        self.state.model = self._known(model)

    def _known(self, model: Vector) -> Vector:
        """Return what clients will know of a model, shape (d,), in the next round."""
        return self.downlink.kept(model, self.fleet.round + 1)

    @property
    def broadcast(self) -> Vector | SparseVector:
        """The model as it travels to the clients in this round, for ``ask`` and ``reduce``."""
        return self.downlink.wire(self.model, self.fleet.round)

    @property
    def upload(self) -> Expected:
        """Expectation of a vector of the model's shape that a client sends through its uplink, for ``returns``."""
        return self.uplink.expected(self.model)

    def received(self, replies: Reduced, name: str, *, minus: Vector | float = 0.0) -> ReceivedVector:
        """Return what came of a vector that clients sent through their uplinks in this round.

        Parameters
        ----------
        replies
            To a phase that was asked with :attr:`broadcast`; the model has not been assigned since.
        name
            The vector's in each reply.
        minus
            What the clients subtracted before they sent, shape (d,).
        """
        return self.uplink.received(replies, name, self.model, self.fleet.round, minus=minus)

    def sample(self) -> Cohort:
        """Draw this round's cohort as the settings say."""
        return self.fleet.sample()

    @property
    def model_is_known(self) -> bool:
        """Whether the server knows the current model, so that it can be evaluated."""
        return True

    def check(self, data: DataSource | None) -> None:
        """Refuse what cannot work with these clients and data; by default nothing more than ``__init__`` refuses.

        ``fenchel check`` calls it, and ``fenchel up`` and ``fenchel server`` before a process is started or a
        client awaited: the half is built as in the run, ``fleet.members`` have described their data, and none
        is connected. Where each client brings its own data it is called again once all of them have joined.

        Parameters
        ----------
        data
            The data set; ``None`` where each client brings its own.

        Raises
        ------
        SettingsError
            ``key`` names the setting to change.
        DataError
            No setting can help: the data are not such as the algorithm needs.
        """

    def cautions(self, smoothness: Callable[[], float]) -> tuple[str, ...]:
        """Return what people should know before a run with these settings on these data; by default nothing.

        ``fenchel check`` shows it, and the server logs it.

        Parameters
        ----------
        smoothness
            Computes the smoothness of the objective on all training samples, which takes a pass over them.
        """
        return ()

    async def start(self) -> None:
        """Set up, before round 1; by default nothing."""

    async def admit(self, cohort: Cohort) -> None:
        """Take in clients that have joined since the last round; by default nothing is needed.

        A half with a :meth:`start` or fields of :class:`State` of its own must define it, or nobody is admitted.

        Called between two rounds, or between :meth:`start` and round 1, if ``participation.late_joiners`` is
        ``admit``. The clients of the cohort are in the fleet already, in the state that their half begins
        with. What can go wrong must go wrong before the state has changed and before anybody was told
        anything: ask first.

        Parameters
        ----------
        cohort
            The newcomers, of which there is one, as a rule.

        Raises
        ------
        JoinRefusedError, TooFewRepliesError, WireError
            They cannot be taken in. They leave the fleet again and hear why, and the run goes on without them.
        """

    async def round(self, t: int) -> None:
        """Do round ``t``, counted from 1."""
        raise TypeError(f"{type(self).__name__} must define round(t)")

    async def finish(self) -> None:
        """Finish, after the last round; by default nothing.

        What this leaves in the state is not saved: a run that is resumed does it again, as it was done before.
        """

    def metrics(self) -> dict[str, float]:
        """Return the figures that :attr:`figures` names, after a round; by default none."""
        return {}

    def client_metrics(self) -> dict[str, dict[str, float]]:
        """Return the figures that :attr:`client_figures` names, by client id, after a round; by default none."""
        return {}
