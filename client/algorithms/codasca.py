"""CODASCA, client half.

Yuan, Guo, Xu, Ying, Yang, "Federated Deep AUC Maximization for Heterogeneous Data with a Constant Communication
Complexity", ICML 2021, Algorithm 4 (CODASCA specification, section 2.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from client.algorithm import answers
from client.algorithms.staged import StagedClient
from common.algorithms.codasca import CodascaSettings
from common.arrays import Vector
from common.values import Values


class CodascaClient(StagedClient):
    """Local descent and ascent, corrected by what all clients do and this one does not."""

    @dataclass
    class State:
        """What a client keeps; all of shape (n,), for points u = (w, a, b, alpha).

        Attributes
        ----------
        centre
            v_0, where the stage began; its last entry is not used.
        control
            c^k, the mean direction of this client's last round. With the paper's wire in float64: the sum of the
            changes that were sent, of which the server keeps the weighted sum over all clients.
        point
            u_{r-1}, with the compact wire, over which it does not travel; otherwise of shape (0,).
        """

        centre: Vector
        control: Vector
        point: Vector

    settings: CodascaSettings
    state: State

    def initial_state(self) -> State:
        """Begin with c^k = 0."""
        kept = self.zeros() if self._is_compact else self.zeros()[:0]
        return self.State(self.zeros(), self._no_control(), kept)

    @property
    def _is_compact(self) -> bool:
        return self.settings.wire == "compact"

    def _no_control(self) -> Vector:
        return np.zeros(self.length, self.objective.dtype if self._is_compact else np.float64)

    @answers("begin_stage")
    def begin_stage(self, point: Vector) -> None:
        """Note where a stage has begun that this client did not begin itself."""
        self._begin(point)

    @answers("gradient")
    def gradient(
        self, prior: float, point: Vector | None = None, control: Vector | None = None, moved: float = 0.0
    ) -> Values:
        """Begin a stage with c^k = G_k(u_0), on a large batch (section 5.4); arguments as for :meth:`train`."""
        u = self._point(point, control, moved)
        self._begin(u)
        batch = self.large_batch(self.settings.cv_batch_size, "control variate")
        control = self.direction(u, batch, prior)[1]  # the proximal term is 0 here
        if self._is_compact:
            self.state.point = u
        return self._renewed(control)

    @answers("forget_control")
    def forget_control(self) -> None:
        """c^k <- 0, as everybody's and the server's c: another client's c^k is lost for good."""
        self.state.control = self._no_control()

    @answers("train")
    def train(
        self,
        prior: float,
        steps: int,
        step_size: float,
        begins: bool,
        point: Vector | None = None,
        control: Vector | None = None,
        moved: float = 0.0,
    ) -> Values:
        """Start at u = u_{r-1}; I times u <- u - eta ( g(u) - c^k + c ); renew c^k; return what changed.

        Parameters
        ----------
        prior
            p.
        steps, step_size
            I and eta_l.
        begins
            Whether a stage begins here: then the point is its centre.
        point
            u_{r-1}, shape (n,). With the compact wire only in the first round; later it follows from what this client
            has and ``control``.
        control
            c, shape (n,); absent where it is 0.
        moved
            With the compact wire, eta_g I eta_l of the round before: u_{r-1} = u_{r-2} - moved c.

        Returns
        -------
        Values
            ``change``, u - u_{r-1}, and ``control_change``, that of c^k; with the compact wire only ``control``, c^k,
            from which both follow. ``value``: the mean of F along the way.

        c^k is the mean of the directions that were taken, summed up as they are computed: the same as the difference
        of the paper, c^k - c + (v_{r-1} - v^k) / (I eta_l), but without its rounding (section 6.3, item 12).
        """
        start = self._point(point, control, moved)
        if begins:
            self._begin(start)
        if control is None or (begins and self.settings.cv_init == "zero"):
            control = self.zeros()
        u, mean, total = start.copy(), self.zeros(), 0.0
        correction = (control - self.state.control).astype(u.dtype)
        for batch in self.batches(steps):
            value, g = self.direction(u, batch, prior)
            g = self.pulled(g, u, self.state.centre)
            mean += g
            u = self.moved(u, g + correction, step_size)
            total += value
        mean /= steps
        reply = {"value": total / steps, **self._renewed(mean)}
        if self._is_compact:
            self.state.point = start
            return reply
        return {**reply, "change": u - start}

    def _renewed(self, control: Vector) -> Values:
        """c^k <- ``control``, shape (n,); return what the server must hear of it.

        With the paper's wire that is the change, rounded to the dtype of the model; and c^k is what it was plus just
        that change, or else the server's c would slowly leave the sum of all c^k.
        """
        if self._is_compact:
            self.state.control = control
            return {"control": control}
        change = (control - self.state.control).astype(control.dtype)
        self.state.control = self.state.control + change
        return {"control_change": change}

    def _point(self, point: Vector | None, control: Vector | None, moved: float) -> Vector:
        if point is not None:
            return np.array(point)
        return self.state.point if control is None else self.state.point - moved * control

    def _begin(self, point: Vector) -> None:
        self.state.centre = np.array(point)
        if self.settings.cv_init == "zero":
            self.state.control = self._no_control()
