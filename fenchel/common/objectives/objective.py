"""Interface of the objectives that algorithms minimise.

A client's objective is ``f(w) = loss(w) + penalty(w)``: the mean loss over the client's samples and a regularisation
term that does not depend on data. The global objective is the mean of the clients' objectives plus ``h(w)``, a term
that may be non-smooth (:mod:`fenchel.common.objectives.regularizer`). Models of any shape are flat vectors, so that an
algorithm works with all of them.
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
"""Drawing of mini-batches; see :meth:`Objective.batches`."""


LocalStep: TypeAlias = Callable[[Vector, Vector], Vector]
"""Function that maps a model and a gradient, shape (d,) each, to the next model, and may overwrite the gradient."""


class ObjectiveFactory(ABC):
    """Factory of objectives, as an alternative to a subclass of :class:`Objective`."""

    @abstractmethod
    def __call__(self, shard: Shard, l2: float, dtype: DTypeLike) -> Objective:
        """Return the objective for one shard, possibly an empty shard."""


class Objective(ABC):
    """Objective function of one client, defined on flat model vectors.

    It is ``value(w) = loss(w) + penalty(w)``: the mean loss of the client's samples and a penalty that does not depend
    on data. A subclass defines ``loss``, ``batch_gradient`` and ``evaluate``, and whatever else its algorithms need
    (``docs/objectives.md``). Methods change no arguments. Equal arguments give equal results, bit for bit, in one
    computing environment (``docs/concepts.md``).

    Parameters
    ----------
    dimension : int
        Length d of a model.
    samples : int
        Number n of samples. An objective without samples has an initial model and evaluates other shards.
    dtype : numpy.dtype or str, default numpy.float64
        Floating-point type of models and gradients.

    Attributes
    ----------
    all_rows : numpy.ndarray of int64, shape (n,)
        Positions of all samples, read-only.
    regularizer : Regularizer
        Term h of the global problem, possibly non-smooth. Neither the value nor the gradient includes this term.

    Examples
    --------
    The mean squared distance to the samples, which the mean of the samples minimises:

    >>> import fenchel
    >>> import numpy as np
    >>> class Centre(fenchel.Objective):
    ...     def __init__(self, points):
    ...         super().__init__(dimension=points.shape[1], samples=len(points))
    ...         self.points = points
    ...
    ...     def loss(self, w):
    ...         return float(((w - self.points) ** 2).sum(axis=1).mean() / 2)
    ...
    ...     def batch_gradient(self, w, rows):
    ...         return w - self.points[rows].mean(axis=0)
    ...
    ...     def evaluate(self, w, shard=None):
    ...         return fenchel.Metrics(self.loss(w) * self.samples, None, self.samples)
    >>> objective = Centre(np.array([[0.0, 2.0], [2.0, 0.0]]))
    >>> objective.gradient(objective.initial(seed=0)).tolist()
    [-1.0, -1.0]
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
        """Slice of the trained weights of a model. The other entries are batch statistics."""
        return slice(None)

    def initial(self, seed: int) -> Vector:
        """Return the initial model of a run, which is zero unless a subclass overrides this method.

        Parameters
        ----------
        seed : int
            Seed of the run. Equal seeds give equal models in every process.

        Returns
        -------
        Vector, shape (d,)
            The initial model.
        """
        return np.zeros(self.dimension, self.dtype)

    @abstractmethod
    def loss(self, w: Vector) -> float:
        """Return the mean loss of all samples, without the penalty.

        Parameters
        ----------
        w : Vector, shape (d,)
            Model.

        Returns
        -------
        float
            The mean loss.

        Raises
        ------
        DataError
            If there are no samples.
        """

    def penalty(self, w: Vector) -> float:
        """Return the penalty, which is 0 unless a subclass overrides this method.

        Parameters
        ----------
        w : Vector, shape (d,)
            Model.

        Returns
        -------
        float
            The penalty.
        """
        return 0.0

    def value(self, w: Vector) -> float:
        """Return the mean loss plus the penalty.

        Parameters
        ----------
        w : Vector, shape (d,)
            Model.

        Returns
        -------
        float
            ``loss(w) + penalty(w)``.
        """
        return self.loss(w) + self.penalty(w)

    @abstractmethod
    def batch_gradient(self, w: Vector, rows: Indices) -> Vector:
        """Return the gradient of the mean loss of some samples, plus the gradient of the penalty.

        Parameters
        ----------
        w : Vector, shape (d,)
            Model.
        rows : Indices, shape (b,)
            Positions of the samples in the shard. Positions may be repeated.

        Returns
        -------
        Vector, shape (d,)
            New array of the objective's dtype. A subgradient if the loss is not differentiable at ``w``.

        Raises
        ------
        DataError
            If ``rows`` is empty.
        """

    def batch_loss(self, w: Vector, rows: Indices) -> float:
        """Return the mean loss of some samples, without the penalty.

        Parameters
        ----------
        w : Vector, shape (d,)
            Model.
        rows : Indices, shape (b,)
            Positions of the samples in the shard.

        Returns
        -------
        float
            The mean loss.

        Raises
        ------
        NotImplementedError
            If the subclass does not implement this method.
        """
        raise NotImplementedError(f"{type(self).__name__} offers no loss of single batches")

    def gradient(self, w: Vector) -> Vector:
        """Return the gradient of :meth:`fenchel.Objective.value`.

        Parameters
        ----------
        w : Vector, shape (d,)
            Model.

        Returns
        -------
        Vector, shape (d,)
            The gradient.
        """
        return self.batch_gradient(w, self.all_rows)

    def clipped_gradient(self, w: Vector, rows: Indices, bound: float) -> Vector:
        """Return the mean of the clipped loss gradients of some samples, plus the gradient of the penalty.

        A sample's gradient v becomes ``v min(1, G / ||v||)``. The penalty's gradient is not clipped
        (docs/specifications/fedpdm.md, section 2.2).

        Parameters
        ----------
        w : Vector, shape (d,)
            Model.
        rows : Indices, shape (b,)
            Positions of the samples in the shard.
        bound : float
            Largest Euclidean norm G of a sample's gradient, above 0.

        Returns
        -------
        Vector, shape (d,)
            The gradient.

        Raises
        ------
        NotImplementedError
            If the subclass does not provide gradients of single samples.
        """
        raise NotImplementedError(
            f"{type(self).__name__} offers no gradients of single samples, which clipping needs: define "
            "clipped_gradient(w, rows, bound)"
        )

    @property
    def has_optimizer(self) -> bool:
        """True if local steps are not those of gradient descent."""
        return False

    def local_step(self, start: Vector, step_size: float) -> LocalStep:
        """Return the function that takes a client's local steps in one round.

        The default is gradient descent, ``w - step_size g``. State such as a momentum is discarded after the round.

        Parameters
        ----------
        start : Vector, shape (d,)
            Model at the start of the round.
        step_size : float
            Step size of the algorithm.

        Returns
        -------
        callable
            Function that maps a model and a gradient, both of shape (d,), to the next model. The function may overwrite
            the gradient.
        """

        def descend(w: Vector, g: Vector) -> Vector:
            g *= step_size
            return np.subtract(w, g, out=g)

        return descend

    def hessian_vector(self, w: Vector, v: Vector) -> Vector:
        """Return the product of a vector with the Hessian of :meth:`fenchel.Objective.value`.

        Parameters
        ----------
        w : Vector, shape (d,)
            Model.
        v : Vector, shape (d,)
            Vector.

        Returns
        -------
        Vector, shape (d,)
            The product.

        Raises
        ------
        NotImplementedError
            If the subclass does not provide second derivatives.
        """
        raise NotImplementedError(f"{type(self).__name__} offers no second derivatives")

    @abstractmethod
    def evaluate(self, w: Vector, shard: Shard | None = None) -> Metrics:
        """Evaluate a model on a shard.

        Parameters
        ----------
        w : Vector, shape (d,)
            Model.
        shard : Shard, optional
            Samples. By default the objective's own.

        Returns
        -------
        Metrics
            Sums of losses and correct predictions.
        """

    def decision_function(self, w: Vector, features: Matrix) -> Dense:
        """Return the scores of prepared samples, or their predicted targets in regression.

        Parameters
        ----------
        w : Vector, shape (d,)
            Model.
        features : Matrix, shape (n, m)
            Features after scaling and with the bias.

        Returns
        -------
        numpy.ndarray, shape (n,) or (n, classes)
            One score, above 0 for the second of two classes, or one for each class. Targets in regression.

        Raises
        ------
        NotImplementedError
            If the subclass does not provide scores.
        """
        raise NotImplementedError(
            f"{type(self).__name__} cannot be applied to new samples: define decision_function(w, features)"
        )

    def probabilities(self, w: Vector, features: Matrix) -> Dense:
        """Return the class probabilities of prepared samples.

        Parameters
        ----------
        w : Vector, shape (d,)
            Model.
        features : Matrix, shape (n, m)
            Features after scaling and with the bias.

        Returns
        -------
        numpy.ndarray, shape (n, classes)
            The probabilities.

        Raises
        ------
        NotImplementedError
            If the loss is not a likelihood, or the subclass does not provide probabilities.
        """
        raise NotImplementedError(f"{type(self).__name__} gives no probabilities")

    @property
    def ranks(self) -> bool:
        """True if one score separates two classes, so that :meth:`fenchel.Objective.judge` returns a ranking."""
        return False

    def judge(self, w: Vector, shard: Shard | None = None) -> tuple[Metrics, Ranking | None]:
        """Evaluate a model on a shard and rank the samples, in one pass.

        Parameters
        ----------
        w : Vector, shape (d,)
            Model.
        shard : Shard, optional
            Samples. By default the objective's own.

        Returns
        -------
        metrics : Metrics
            Sums of losses and correct predictions.
        ranking : Ranking or None
            Scores of the samples, comparable between shards. ``None`` unless :attr:`fenchel.Objective.ranks`.
        """
        return self.evaluate(w, shard), None

    @property
    def least_loss(self) -> float:
        """Lower bound of the loss of any batch at any model, -infinity if none is known."""
        return -math.inf

    @property
    def smoothness(self) -> float:
        """Upper bound L on the Lipschitz constant of the gradient, infinity if none is known."""
        return math.inf

    @property
    def strong_convexity(self) -> float:
        """Lower bound m such that ``value(w) - (m/2) ||w||^2`` is convex, -infinity if none is known."""
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
        generator : numpy.random.Generator
            Source of random orders, unused for full batches.
        epochs : int, optional
            Number of passes over the samples. Exactly one of ``epochs`` and ``steps`` is required.
        steps : int, optional
            Number of batches.
        batch_size : int, optional
            Number of samples in a batch. By default all samples in order.
        draw : {"passes", "epoch", "independent"}, default "passes"
            Sampling of batches. ``passes`` cuts a new random order into batches in each pass, and the last batch may be
            smaller. ``epoch`` takes batches from one random order, with each sample at most once. ``independent`` draws
            a new random subset for each batch (docs/specifications/fedpdm.md, section 2.2).

        Returns
        -------
        iterator of Indices
            Positions of the samples of each batch.

        Raises
        ------
        ValueError
            If neither or both of ``epochs`` and ``steps`` are given, or if ``batch_size`` is below 1.
        DataError
            If there are no samples, or too few for the draw ``epoch``.
        """
        if (epochs is None) == (steps is None):
            raise ValueError(f"epochs is {epochs} and steps is {steps}; give exactly one of them")
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        self.require(self.samples)
        size = self.samples if batch_size is None else min(batch_size, self.samples)
        if steps is None:
            assert epochs is not None
            steps = epochs * -(-self.samples // size)
        if draw == "epoch" and steps * size > self.samples:
            raise DataError(
                f"{steps} batches of {size} without repetition need {steps * size} samples, but the client has "
                f"{self.samples}; use fewer steps, smaller batches or batches: passes"
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
        """Raise an error if there are no samples.

        Parameters
        ----------
        samples : int
            Number of samples.

        Raises
        ------
        DataError
            If ``samples`` is 0.
        """
        if not samples:
            raise DataError(
                "an objective without samples has neither a loss nor a gradient; give every client that trains at "
                "least one sample"
            )
