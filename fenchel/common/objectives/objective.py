"""What an algorithm knows of the function it minimises.

A client's objective is ``f(w) = loss(w) + penalty(w)``: the mean loss over the client's samples and a
regularisation term that does not depend on data. What all clients together minimise is the mean of their
objectives plus ``h(w)``, a term that may have corners and belongs to no client
(:mod:`fenchel.common.objectives.regularizer`). Models are flat vectors, whatever their inner shape, so an
algorithm is written once for all of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from fenchel.common.arrays import Dense, Indices, Matrix, Vector
from fenchel.common.data.shard import Shard
from fenchel.common.errors import DataError
from fenchel.common.objectives.metrics import Metrics
from fenchel.common.objectives.ranking import Ranking
from fenchel.common.objectives.regularizer import Regularizer, Zero

BatchDraw: TypeAlias = Literal["passes", "epoch", "independent"]
"""How mini-batches are drawn; see :meth:`Objective.batches`."""


LocalStep: TypeAlias = Callable[[Vector, Vector], Vector]
"""From a model w and a gradient, shapes (d,), to the next model; it may use the gradient's memory."""


class ObjectiveFactory(ABC):
    """A description of an objective that is no class of its own."""

    @abstractmethod
    def __call__(self, shard: Shard, l2: float, dtype: DTypeLike) -> Objective:
        """Return the objective on one shard, which may be empty."""


class Objective(ABC):
    """A function of a flat model vector, and what is known about it.

    A subclass defines :meth:`loss`, :meth:`batch_gradient` and :meth:`evaluate`; one that regularises
    also :meth:`penalty`, one that knows its constants also :attr:`smoothness` and
    :attr:`strong_convexity`, and one whose samples can be clipped also :meth:`clipped_gradient`. No
    method changes its arguments; equal arguments give equal results, bit for bit, in one
    computing environment (docs/concepts.md, "Between processors and versions").

    Parameters
    ----------
    dimension
        Length d of a model.
    samples
        Number n of samples. 0 is allowed: such an objective has a dimension and an initial model, and
        evaluates other shards.
    dtype
        Floating-point type of models and gradients.

    Attributes
    ----------
    regularizer
        h; no part of :meth:`value` and :meth:`gradient`.
    """

    def __init__(self, *, dimension: int, samples: int, dtype: DTypeLike = np.float64) -> None:
        self.dimension = dimension
        self.samples = samples
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.all_rows: Indices = np.arange(samples, dtype=np.int64)
        self.all_rows.setflags(write=False)
        self.regularizer: Regularizer = Zero()

    @property
    def trained(self) -> slice:
        """The part of a model that is trained; what is left are statistics of batches."""
        return slice(None)

    def initial(self, seed: int) -> Vector:
        """Return the model that a run starts from, shape (d,); zeros unless a subclass draws one.

        Every process gets the same model for the same ``seed``, that of the run.
        """
        return np.zeros(self.dimension, self.dtype)

    @abstractmethod
    def loss(self, w: Vector) -> float:
        """Return the mean loss of all samples at ``w``, shape (d,), without the penalty; DataError without samples."""

    def penalty(self, w: Vector) -> float:
        """Return the regularisation term at ``w``, shape (d,); 0 unless a subclass has one."""
        return 0.0

    def value(self, w: Vector) -> float:
        """Return ``loss(w) + penalty(w)``, without h."""
        return self.loss(w) + self.penalty(w)

    @abstractmethod
    def batch_gradient(self, w: Vector, rows: Indices) -> Vector:
        """Return the gradient of the mean loss of some samples, plus the gradient of the penalty.

        Parameters
        ----------
        w
            Shape (d,).
        rows
            Positions of the samples in the shard, shape (b,); a position may occur more than once.

        Returns
        -------
        Vector
            Shape (d,), of the objective's dtype; the caller owns it. A subgradient where the loss has a
            corner.

        Raises
        ------
        DataError
            ``rows`` is empty.
        """

    def batch_loss(self, w: Vector, rows: Indices) -> float:
        """Return the mean loss of some samples at ``w``, shape (d,), without the penalty, where it is offered."""
        raise NotImplementedError(f"{type(self).__name__} offers no loss of single batches")

    def gradient(self, w: Vector) -> Vector:
        """Return the gradient of :meth:`value` at ``w``, shape (d,)."""
        return self.batch_gradient(w, self.all_rows)

    def clipped_gradient(self, w: Vector, rows: Indices, bound: float) -> Vector:
        """Return the mean over samples of their clipped loss gradients, plus the gradient of the penalty.

        A sample's gradient v is clipped to ``v min(1, G / ||v||)``; the penalty knows no samples and is not
        clipped (docs/specifications/fedpdm.md, section 2.2).

        Arguments, result and errors are those of :meth:`batch_gradient`, with the bound G > 0. An objective that offers
        no gradients of single samples raises NotImplementedError.
        """
        raise NotImplementedError(
            f"{type(self).__name__} offers no gradients of single samples, which clipping needs: define "
            "clipped_gradient(w, rows, bound)"
        )

    @property
    def has_optimizer(self) -> bool:
        """True where :meth:`local_step` is anything else than gradient descent."""
        return False

    def local_step(self, start: Vector, step_size: float) -> LocalStep:
        """Return a client's steps in one round, from ``start`` on: ``w - step_size g`` unless a subclass has others.

        What a step keeps for the next ones, such as a momentum, lasts as long as what is returned: a round.
        """

        def descend(w: Vector, g: Vector) -> Vector:
            g *= step_size
            return np.subtract(w, g, out=g)

        return descend

    def hessian_vector(self, w: Vector, v: Vector) -> Vector:
        """Return the Hessian of :meth:`value` at ``w`` times ``v``, shape (d,); NotImplementedError if not offered."""
        raise NotImplementedError(f"{type(self).__name__} offers no second derivatives")

    @abstractmethod
    def evaluate(self, w: Vector, shard: Shard | None = None) -> Metrics:
        """Return how well ``w`` does on ``shard``, or on the objective's own samples."""

    def decision_function(self, w: Vector, features: Matrix) -> Dense:
        """Return what the model ``w``, shape (d,), makes of prepared features, shape (n, m).

        In regression the predictions, shape (n,). Of two classes one score, shape (n,), above 0 for the second one;
        else a score for each class, shape (n, classes). NotImplementedError where it is not offered.
        """
        raise NotImplementedError(
            f"{type(self).__name__} cannot be applied to new samples: define decision_function(w, features)"
        )

    def probabilities(self, w: Vector, features: Matrix) -> Dense:
        """Return the probability of each class, shape (n, classes), for prepared features, shape (n, m).

        NotImplementedError for a loss that is of no probability, or where it is not offered.
        """
        raise NotImplementedError(f"{type(self).__name__} gives no probabilities")

    @property
    def ranks(self) -> bool:
        """Whether the objective tells two classes apart by one score: whether :meth:`judge` gives a ranking."""
        return False

    def judge(self, w: Vector, shard: Shard | None = None) -> tuple[Metrics, Ranking | None]:
        """Return :meth:`evaluate` and, where the objective :attr:`ranks`, the samples with their scores: in one pass.

        Scores of different shards at the same ``w`` can be compared. An objective that ranks overrides both.
        """
        return self.evaluate(w, shard), None

    @property
    def least_loss(self) -> float:
        """A lower bound of :meth:`loss` and :meth:`batch_loss`, whatever the model; -infinity if none is known."""
        return -math.inf

    @property
    def smoothness(self) -> float:
        """An upper bound L on the Lipschitz constant of the gradient; infinity if none is known."""
        return math.inf

    @property
    def strong_convexity(self) -> float:
        """A lower bound m such that ``value - (m/2) ||w||^2`` is convex; -infinity if none is known."""
        return -math.inf

    def batches(
        self,
        generator: np.random.Generator,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        draw: BatchDraw = "passes",
    ) -> Iterator[Indices]:
        """Draw mini-batches.

        Parameters
        ----------
        generator
            Source of the random orders; not used for full batches.
        epochs, steps
            How long: passes over the samples, or number of batches. Exactly one must be given.
        batch_size
            Samples in a batch. ``None``, or as many as there are samples: every batch is ``all_rows``,
            in order.
        draw
            ``passes``: each pass is a new random order of the samples, cut into pieces, of which the last may
            be shorter. ``epoch``: pieces of one random order, each sample at most once. ``independent``:
            distinct samples, drawn anew for each batch (docs/specifications/fedpdm.md, section 2.2).

        Yields
        ------
        Indices
            Rows for :meth:`batch_gradient`.

        Raises
        ------
        ValueError
            Neither or both of ``epochs`` and ``steps`` are given, or ``batch_size`` is below 1.
        DataError
            There are no samples, or fewer than ``epoch`` needs.
        """
        if (epochs is None) == (steps is None):
            raise ValueError("give either epochs or steps")
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        self.require(self.samples)
        size = self.samples if batch_size is None else min(batch_size, self.samples)
        if steps is None:
            assert epochs is not None
            steps = epochs * -(-self.samples // size)
        if draw == "epoch" and steps * size > self.samples:
            raise DataError(
                f"{steps} batches of {size} that use each sample at most once need {steps * size} samples, but "
                f"there are {self.samples}; use fewer steps, smaller batches or batches: passes"
            )
        if size == self.samples:
            return repeat(self.all_rows, steps)
        if draw == "independent":
            return (generator.choice(self.samples, size, replace=False) for _ in range(steps))
        return self._pieces(generator, steps, size)

    def _pieces(self, generator: np.random.Generator, steps: int, size: int) -> Iterator[Indices]:
        order, start = self.all_rows, 0
        for _ in range(steps):
            if start == 0:
                order = generator.permutation(self.samples)
            yield order[start : start + size]
            start = start + size if start + size < self.samples else 0

    @staticmethod
    def require(samples: int) -> None:
        """Raise DataError where there is nothing to average over."""
        if not samples:
            raise DataError(
                "an objective without samples has neither a loss nor a gradient; give every client that "
                "trains at least one sample"
            )
