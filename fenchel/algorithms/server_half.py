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
    """Clients, settings and initial model that the runtime passes to a server half.

    Attributes
    ----------
    fleet
        Clients of the run.
    settings
        Section ``algorithm`` of the settings.
    initial_model
        Model before the first round, shape (d,), in the dtype of the objective.
    objective
        Objective without data: its loss and regularisation.
    public_key
        Public key that the clients must use; ``None`` if the algorithm receives it from them.
    uplink, downlink
        Sections ``uplink`` and ``downlink`` of the settings.
    privacy
        Section ``differential_privacy`` of the settings, if any.
    """

    fleet: Fleet
    settings: AlgorithmSettings
    initial_model: Vector
    objective: Objective
    public_key: PublicKey | None = None
    uplink: Uplink = field(default_factory=Uplink)
    downlink: Downlink = field(default_factory=Downlink)
    privacy: DifferentialPrivacy | None = None

    @property
    def noisy(self) -> bool:
        """True if uploads carry noise."""
        return self.privacy is not None or self.uplink.noise is not None


class Algorithm:
    """Base class of the server half of an algorithm: the outer loop, which sends requests to the clients.

    A subclass implements :meth:`fenchel.Algorithm.round`. In it, a cohort of ``fleet`` answers phases of the client
    half (:class:`fenchel.ClientAlgorithm`), and the replies update ``model``. The runtime saves ``state`` in each
    checkpoint and restores it when a run is resumed. Values of other attributes are not saved. If the algorithm has
    settings of its own, the class attribute ``Settings`` is their class.

    Parameters
    ----------
    context : ServerContext
        Fleet, settings and initial model, passed by the runtime. An override of ``__init__`` passes it on.

    Attributes
    ----------
    fleet : Fleet
        Clients of the run.
    settings : AlgorithmSettings
        Validated section ``algorithm`` of the settings.
    state : State
        Everything that must survive a restart.
    uplink : ServerUplink
        Server side of the section ``uplink``: sparsification, clipping, noise and dtype of what clients send.
    downlink : ServerDownlink
        Server side of the section ``downlink``: sparsification and dtype of the model that clients receive.
    figures : tuple[str, ...]
        Class attribute: keys of :meth:`fenchel.Algorithm.metrics`, columns of ``metrics.parquet``. Default: none.
    client_figures : tuple[str, ...]
        Class attribute: keys of :meth:`fenchel.Algorithm.client_metrics` for each client, columns of the clients
        table. Default: none.
    fixed_fleet : str
        Class attribute: reason why the algorithm does not support late joiners, a clause without a full stop. Settings
        with ``participation.late_joiners: admit`` are then rejected. Default: empty, for support of late joiners.
    """

    @dataclass
    class State:
        """State of the server half. A subclass adds fields and overrides :meth:`fenchel.Algorithm.initial_state`.

        Attributes
        ----------
        model : Vector, shape (d,)
            Global model.
        """

        model: Vector

    Settings: ClassVar[type[AlgorithmSettings]] = AlgorithmSettings
    figures: ClassVar[tuple[str, ...]] = ()
    client_figures: ClassVar[tuple[str, ...]] = ()
    fixed_fleet: ClassVar[str] = ""

    def __init__(self, context: ServerContext) -> None:
        self.fleet = context.fleet
        self.settings: Any = context.settings
        self.uplink = ServerUplink(context.uplink, context.fleet.seed, context.noisy)
        self.downlink = ServerDownlink(context.downlink, context.fleet.seed)
        self.state: Any = self.initial_state(context.initial_model)
        self.state.model = self._known(self.state.model)

    def initial_state(self, model: Vector) -> Any:
        """Return the state before round 1.

        Override it if ``State`` has other fields than ``model``.

        Parameters
        ----------
        model : Vector, shape (d,)
            Initial model, in the dtype of the objective.

        Returns
        -------
        State
            State with ``model`` as global model.
        """
        return self.State(model)

    @property
    def model(self) -> Vector:
        """Global model, shape (d,), as the clients receive it. It is the one that is evaluated and saved.

        Assignment applies the downlink. Coordinates that the next round does not send become zero. The others are
        rounded to the downlink's dtype.
        """
        model: Vector = self.state.model
        return model

    @model.setter
    def model(self, model: Vector) -> None:
        self.state.model = self._known(model)

    def _known(self, model: Vector) -> Vector:
        """Return the model as the clients receive it in the next round, shape (d,)."""
        return self.downlink.kept(model, self.fleet.round + 1)

    @property
    def broadcast(self) -> Vector | SparseVector:
        """Global model as encoded by the downlink for this round, to be passed to ``ask`` or ``reduce``."""
        return self.downlink.wire(self.model, self.fleet.round)

    @property
    def upload(self) -> Expected:
        """Schema of a vector of shape (d,) that clients send through their uplinks, to be used in ``returns``."""
        return self.uplink.expected(self.model)

    def received(self, replies: Reduced, name: str, *, minus: Vector | float = 0.0) -> ReceivedVector:
        """Return sums and means of a vector that clients sent through their uplinks in this round.

        Parameters
        ----------
        replies : Reduced
            Replies of a phase that received :attr:`fenchel.Algorithm.broadcast`. The model must not have been assigned
            since then.
        name : str
            Name of the vector in each reply.
        minus : Vector of shape (d,) or float, default 0.0
            Vector that the clients subtracted before they sent the difference.

        Returns
        -------
        ReceivedVector
            Vectors of shape (d,) in the model's dtype: the mean (``mean()``), the sum (``total``), the weight of the
            clients that sent each coordinate (``coverage``), and the mask of coordinates that any client sent
            (``covered``). ``held(model)`` returns a model in which coordinates that no client sent have their old
            values, unless ``uplink.sparsify.fill`` is ``zero``.
        """
        return self.uplink.received(replies, name, self.model, self.fleet.round, minus=minus)

    def sample(self) -> Cohort:
        """Draw this round's cohort with ``participation.sampler``.

        Returns
        -------
        Cohort
            Clients drawn.

        Raises
        ------
        RunStoppedError, SettingsError
            See :meth:`fenchel.Fleet.sample`.
        """
        return self.fleet.sample()

    @property
    def model_is_known(self) -> bool:
        """True if the server knows the global model, so that it can be evaluated and saved after a round."""
        return True

    def check(self, data: DataSource | None) -> None:
        """Reject clients or data that the algorithm does not support. The default accepts all.

        ``fenchel check`` calls it, and so do ``fenchel up`` and ``fenchel server`` before any client process starts or
        connects. ``fleet.members`` then describe the data of each client. If clients bring their own data, it is called
        again after all clients have joined.

        Parameters
        ----------
        data : DataSource or None
            Data set of the run. ``None`` if clients bring their own data.

        Raises
        ------
        SettingsError
            The settings are not supported. ``key`` names the setting to change.
        DataError
            The data are not supported under any settings.
        """

    def cautions(self, smoothness: Callable[[], float]) -> tuple[str, ...]:
        """Return warnings about a run with these settings on these data.

        ``fenchel check`` prints them, and the server logs them.

        Parameters
        ----------
        smoothness : callable
            Function without arguments that returns the smoothness constant of the objective on all training samples. A
            call takes a pass over them.

        Returns
        -------
        tuple[str, ...]
            Warnings. The default is none.
        """
        return ()

    async def start(self) -> None:
        """Prepare the run before round 1. The default does nothing."""

    async def admit(self, cohort: Cohort) -> None:
        """Integrate late joiners into the state of the run. The default does nothing.

        It is called between two rounds, or between ``start`` and round 1, with ``participation.late_joiners: admit``.
        An algorithm that overrides :meth:`fenchel.Algorithm.start` or adds fields to ``State`` must define it to
        accept late joiners.

        The late joiners are in the fleet already, in their initial state. Send requests first, so that an error is
        raised before ``state`` changes and before any ``tell``.

        Parameters
        ----------
        cohort : Cohort
            Late joiners, at present one at a time.

        Raises
        ------
        JoinRefusedError, TooFewRepliesError, WireError
            The late joiners cannot be integrated. They leave the fleet and receive the reason, and the run continues.
        """

    async def round(self, t: int) -> None:
        """Run one round: send requests to a cohort, and update the state from the replies.

        Parameters
        ----------
        t : int
            Number of the round, from 1.

        Raises
        ------
        TypeError
            The subclass does not define this method.
        """
        raise TypeError(f"{type(self).__name__} must define round(t)")

    async def finish(self) -> None:
        """Finish the run after the last round. The default does nothing.

        Changes of ``state`` are not saved. A resumed run calls this method again with the state after the last round.
        """

    def metrics(self) -> dict[str, float]:
        """Return the algorithm's own metrics after a round.

        Returns
        -------
        dict[str, float]
            Values by name. The names are those in ``figures``.
        """
        return {}

    def client_metrics(self) -> dict[str, dict[str, float]]:
        """Return the algorithm's own metrics for each client after a round.

        Returns
        -------
        dict[str, dict[str, float]]
            Values by client id and name. The names are those in ``client_figures``.
        """
        return {}
