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
from common.payload import Values


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
            c^k, the mean direction of this client's last round.
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
        return self.State(self.zeros(), self.zeros(), kept)

    @property
    def _is_compact(self) -> bool:
        return self.settings.wire == "compact"

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
        before = self.state.control
        batch = self.large_batch(self.settings.cv_batch_size, "control variate")
        self.state.control = self.direction(u, batch, prior)[1]  # the proximal term is 0 here
        if self._is_compact:
            self.state.point = u
            return {"control": self.state.control}
        return {"control_change": self.state.control - before}

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
        before, u, mean, total = self.state.control, start.copy(), self.zeros(), 0.0
        correction = control - before
        for batch in self.batches(steps):
            value, g = self.direction(u, batch, prior)
            g = self.pulled(g, u, self.state.centre)
            mean += g
            u = self.moved(u, g + correction, step_size)
            total += value
        mean /= steps
        self.state.control = mean
        reply: Values = {"value": total / steps}
        if self._is_compact:
            self.state.point = start
            return {**reply, "control": mean}
        return {**reply, "change": u - start, "control_change": mean - before}

    def _point(self, point: Vector | None, control: Vector | None, moved: float) -> Vector:
        if point is not None:
            return np.array(point)
        return self.state.point if control is None else self.state.point - moved * control

    def _begin(self, point: Vector) -> None:
        self.state.centre = np.array(point)
        if self.settings.cv_init == "zero":
            self.state.control = self.zeros()
