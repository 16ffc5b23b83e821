"""Non-smooth term h of ``F(x) = (1/N) sum_i f_i(x) + h(x)``, and its proximal operator.

    prox(u) = argmin_x  h(x) + (rho/2) ||x - u||^2

(docs/specifications/fedpdm.md, sections 1.1 and 1.3). The penalty is rho and not rho N, because the losses carry the
factor 1/N. All operators preserve the dtype of their argument and leave the argument unchanged.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from fenchel.common.arrays import Dense, Vector
from fenchel.common.errors import SettingsError
from fenchel.common.settings.regularizer import (
    BoxSettings,
    ElasticNetSettings,
    GroupLassoSettings,
    L0Settings,
    L1Settings,
    McpSettings,
    NoneSettings,
    RegularizerSettings,
    SquaredL2Settings,
)


class Regularizer(ABC):
    """Possibly non-smooth function h of the model alone."""

    @abstractmethod
    def value(self, x: Vector) -> float:
        """Return ``h(x)``, possibly infinity, for a model of shape (d,)."""

    @abstractmethod
    def prox(self, u: Vector, penalty: float) -> Vector:
        """Return ``argmin_x h(x) + (penalty/2) ||x - u||^2`` for a penalty > 0 as a new array, shape (d,).

        Raise a SettingsError if the penalty is too small for a non-convex h.
        """

    @abstractmethod
    def subgradient(self, x: Vector) -> Vector:
        """Return one subgradient at ``x`` as a new array, shape (d,), which is 0 at corners at the origin.

        Raise a SettingsError if h is an indicator function or a count, for which subgradient steps are useless.
        """


class Zero(Regularizer):
    """Zero function ``h = 0``."""

    def value(self, x: Vector) -> float:
        """Return 0."""
        return 0.0

    def prox(self, u: Vector, penalty: float) -> Vector:
        """Return a copy of ``u``."""
        return u.copy()

    def subgradient(self, x: Vector) -> Vector:
        """Return zeros."""
        return np.zeros_like(x)


@dataclass(frozen=True)
class ElasticNet(Regularizer):
    """Elastic net ``gamma sum_j |x_j| + (mu/2) ||x||^2``, the l1 norm for mu = 0 and a ridge for gamma = 0.

    Attributes
    ----------
    weight
        Weight gamma of the l1 norm, at least 0.
    ridge
        Weight mu of the ridge, at least 0.
    """

    weight: float
    ridge: float = 0.0

    def value(self, x: Vector) -> float:
        """Return ``gamma sum_j |x_j| + (mu/2) ||x||^2``."""
        return self.weight * float(np.abs(x).sum()) + 0.5 * self.ridge * float(x @ x)

    def prox(self, u: Vector, penalty: float) -> Vector:
        """Return ``soft(u, gamma/rho) / (1 + mu/rho)``."""
        return soft(u, self.weight / penalty) / (1 + self.ridge / penalty)

    def subgradient(self, x: Vector) -> Vector:
        """Return ``gamma sgn(x) + mu x``."""
        return self.weight * np.sign(x) + self.ridge * x


@dataclass(frozen=True)
class GroupLasso(Regularizer):
    """Group lasso ``gamma sum_g ||x_g||``.

    Attributes
    ----------
    weight
        Weight gamma, at least 0.
    shape
        Shape (K, m) of the model as a matrix for K outputs and m features.
    axis
        Axis along which a group extends: 0 for the K weights of a feature, 1 for the m weights of a class.
    """

    weight: float
    shape: tuple[int, int]
    axis: int

    def value(self, x: Vector) -> float:
        """Return ``gamma sum_g ||x_g||``."""
        return self.weight * float(self._norms(x).sum())

    def prox(self, u: Vector, penalty: float) -> Vector:
        """Return ``u_g max(1 - gamma/(rho ||u_g||), 0)`` for each group, and 0 if ``u_g = 0``."""
        norms = self._norms(u)
        return self._scaled(u, np.maximum(norms - self.weight / penalty, 0), norms)

    def subgradient(self, x: Vector) -> Vector:
        """Return ``gamma x_g / ||x_g||`` for each group, and 0 if ``x_g = 0``."""
        return self._scaled(x, self.weight, self._norms(x))

    def _scaled(self, x: Vector, wanted: Dense | float, norms: Dense) -> Vector:
        scale = np.divide(wanted, norms, out=np.zeros_like(norms), where=norms > 0)
        return (x.reshape(self.shape) * scale).ravel()

    def _norms(self, x: Vector) -> Dense:
        return np.linalg.norm(x.reshape(self.shape), axis=self.axis, keepdims=True)


@dataclass(frozen=True)
class Box(Regularizer):
    """Indicator function of the box [lower, upper]^d: 0 inside and infinity outside."""

    lower: float
    upper: float

    def value(self, x: Vector) -> float:
        """Return 0 in the box, with a tolerance for the rounding errors of a mean of feasible models, else infinity."""
        slack = 8 * float(np.finfo(x.dtype).eps) * max(abs(self.lower), abs(self.upper))
        inside = np.all((x >= self.lower - slack) & (x <= self.upper + slack))
        return 0.0 if inside else math.inf

    def prox(self, u: Vector, penalty: float) -> Vector:
        """Return the projection onto the box, which does not depend on the penalty."""
        return np.clip(u, self.lower, self.upper)

    def subgradient(self, x: Vector) -> Vector:
        """Raise SettingsError."""
        raise _without_slope("box", "a bound")


@dataclass(frozen=True)
class Mcp(Regularizer):
    """Minimax concave penalty (Zhang 2010), summed over the weights of the model.

    The penalty of a weight x is ``gamma |x| - x^2 / (2 theta)`` up to ``|x| = gamma theta``, then ``gamma^2 theta /
    2``.

    Attributes
    ----------
    weight
        Weight gamma, at least 0.
    theta
        Width parameter theta > 0. The penalty is weakly convex with modulus 1/theta.
    """

    weight: float
    theta: float

    def value(self, x: Vector) -> float:
        """Return the sum of the penalties of all weights."""
        size = np.minimum(np.abs(x), self.weight * self.theta)
        return float((self.weight * size - size**2 / (2 * self.theta)).sum())

    def prox(self, u: Vector, penalty: float) -> Vector:
        """Return ``soft(u, gamma/rho) / (1 - 1/(rho theta))`` up to ``|u| = gamma theta``, else ``u``."""
        if penalty * self.theta <= 1:
            raise SettingsError(
                f"theta = {self.theta:g} is too small: the proximal operator of mcp needs rho > 1/theta, and rho = "
                f"{penalty:g}; use a larger theta or penalty",
                key="objective.regularizer.theta",
            )
        bent = soft(u, self.weight / penalty) / (1 - 1 / (penalty * self.theta))
        return np.where(np.abs(u) <= self.weight * self.theta, bent, u)

    def subgradient(self, x: Vector) -> Vector:
        """Return ``sgn(x) max(gamma - |x|/theta, 0)``."""
        return np.sign(x) * np.maximum(self.weight - np.abs(x) / self.theta, 0)


@dataclass(frozen=True)
class L0(Regularizer):
    """Number of non-zero weights times ``gamma``.

    Attributes
    ----------
    weight
        Weight gamma, at least 0.
    """

    weight: float

    def value(self, x: Vector) -> float:
        """Return ``gamma ||x||_0``."""
        return self.weight * int(np.count_nonzero(x))

    def prox(self, u: Vector, penalty: float) -> Vector:
        """Return ``u`` where ``|u| > sqrt(2 gamma/rho)``, else 0."""
        return u * (np.abs(u) > math.sqrt(2 * self.weight / penalty))

    def subgradient(self, x: Vector) -> Vector:
        """Raise a SettingsError, because subgradient steps on a count are useless."""
        raise _without_slope("l0", "a count")


@dataclass(frozen=True)
class OnTrained(Regularizer):
    """Regularisation term of the trained weights of a model, without its batch statistics.

    Attributes
    ----------
    whole
        Term h as a function of a whole model, which is separable.
    trained
        Trained weights (:attr:`fenchel.Objective.trained`).
    """

    whole: Regularizer
    trained: slice

    def value(self, x: Vector) -> float:
        """Return h of the trained weights."""
        return self.whole.value(x[self.trained])

    def prox(self, u: Vector, penalty: float) -> Vector:
        """Return the proximal operator of the trained weights, and batch statistics as they are."""
        result = u.copy()
        result[self.trained] = self.whole.prox(u[self.trained], penalty)
        return result

    def subgradient(self, x: Vector) -> Vector:
        """Return a subgradient that is 0 for batch statistics."""
        result = np.zeros_like(x)
        result[self.trained] = self.whole.subgradient(x[self.trained])
        return result


def soft(u: Vector, threshold: float) -> Vector:
    """Return the soft thresholding ``sgn(u) max(|u| - threshold, 0)``, shape (d,)."""
    return np.sign(u) * np.maximum(np.abs(u) - threshold, 0)


def build_regularizer(settings: RegularizerSettings, shape: tuple[int, int] | None) -> Regularizer:
    """Return the regularisation term that the settings describe.

    Parameters
    ----------
    shape
        Numbers (K, m) of outputs and features if the model is a matrix, flattened row by row; else ``None``.

    Raises
    ------
    SettingsError
        For the group lasso of a model that is not a matrix.
    """
    match settings:
        case NoneSettings():
            return Zero()
        case L1Settings():
            return ElasticNet(settings.weight)
        case SquaredL2Settings():
            return ElasticNet(0.0, settings.weight)
        case ElasticNetSettings():
            return ElasticNet(settings.weight, settings.ridge)
        case GroupLassoSettings():
            if shape is None:
                raise SettingsError(
                    "group-lasso needs the weights of a linear model, grouped by feature; use l1, or a linear "
                    "objective.kind such as softmax",
                    key="objective.regularizer.kind",
                )
            return GroupLasso(settings.weight, shape, 0 if settings.groups == "features" else 1)
        case BoxSettings():
            return Box(settings.lower, settings.upper)
        case McpSettings():
            return Mcp(settings.weight, settings.theta)
        case L0Settings():
            return L0(settings.weight)


def _without_slope(kind: str, what: str) -> SettingsError:
    return SettingsError(
        f"{kind} is {what}, which subgradient steps ignore; use an algorithm with its proximal operator, such as "
        "fedavg with regularizer_step: prox",
        key="objective.regularizer.kind",
    )
