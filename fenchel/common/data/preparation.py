"""Preparation of samples for a model, which can be applied to new samples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fenchel.common.arrays import Matrix, is_sparse
from fenchel.common.data import scaling
from fenchel.common.data.extractor import Extracted, Extractor
from fenchel.common.data.samples import RawMatrix
from fenchel.common.data.scaling import Columns, Step, UnitRows
from fenchel.common.errors import DataError, SettingsError
from fenchel.common.settings.data import DataSettings

_PREFIX = "preparation."


@dataclass(frozen=True)
class Preparation:
    """Map from stored features to the features of a model, and names of its classes.

    Attributes
    ----------
    settings
        Section ``data`` of the settings: order of the steps, bias, network for images.
    features
        Number of stored features of a sample.
    class_names
        Names of the classes; empty for regression.
    steps
        Fitted steps; ``None`` if clients bring their own data, whose steps need no fit.
    columns
        Names of the stored features; ``None`` if they have none.
    image
        Numbers of channels, rows and columns, if the stored features are pixels.
    peak
        Largest possible value of a pixel; ``None`` if features are not pixels, or it is unknown.
    """

    settings: DataSettings
    features: int
    class_names: tuple[str, ...]
    steps: tuple[Step, ...] | None = None
    columns: tuple[str, ...] | None = None
    image: tuple[int, int, int] | None = None
    peak: float | None = None

    def apply(self, features: RawMatrix, dtype: DTypeLike, peak: float | None = None) -> Matrix:
        """Return prepared features, shape (n, m) or, with a bias, (n, m + 1).

        Parameters
        ----------
        features
            Stored features, shape (n, m).
        peak
            Largest possible value of a pixel, used only if the steps are not fitted.

        Raises
        ------
        DataError
            If the steps need ``peak``, or the features of a frozen network cannot be computed.
        """
        if self.settings.extractor is not None:
            network = Extractor.of(self.settings.extractor, self.image, self.peak, "the model's preparation")
            features = Extracted(network, features).take(np.arange(features.shape[0]))
        if self.steps is not None:
            steps = self.steps
        elif "unit-interval" not in self.settings.scalings:
            steps = self.fixed_steps()
        elif peak is None:
            raise DataError(
                "the clients scaled pixels by their largest value, which is unknown for these images; give images of "
                "bytes (uint8)"
            )
        else:
            steps = scaling.fit(self.settings.scalings, features, peak, self._normalise)
        if is_sparse(features) and any(isinstance(step, Columns) and step.shift.any() for step in steps):
            features = features.toarray()  # the shift makes zeros non-zero, so the matrix becomes dense
        return scaling.apply(steps, features, dtype, self.settings.bias)

    def fixed_steps(self) -> tuple[Step, ...]:
        """Return the fitted steps or, if clients bring their own data, the equal steps of all clients.

        Raises
        ------
        SettingsError
            If a frozen network computes the features, or clients scaled pixels by a value of their own files.
        """
        if self.settings.extractor is not None:
            raise SettingsError(
                "the run computes its features with a frozen network (data.extractor), which the export does not "
                "include; use run.predict, or train on computed features without data.extractor",
                key="data.extractor",
            )
        if self.steps is not None:
            return self.steps
        if "unit-interval" in self.settings.scalings:
            raise SettingsError(
                "the clients scaled pixels by a largest value that only they know, so this run cannot be "
                "exported; use run.predict",
                key="data.scale",
            )
        return scaling.fit(self.settings.scalings, np.empty((0, self.features)), None, self._normalise)

    @property
    def _normalise(self) -> Columns | None:
        return scaling.constants(self.settings.normalise, self.features, self.columns)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all fields but the settings as named arrays for an archive."""
        found: dict[str, NDArray[Any]] = {
            "features": np.array(self.features),
            "classes": np.array(self.class_names, str),
            "fitted": np.array(self.steps is not None),
        }
        # Column names are one JSON string, because a NumPy array pads every string to the longest.
        columns = None if self.columns is None else json.dumps(self.columns)
        optional = {"columns": columns, "image": self.image, "peak": self.peak}
        found |= {name: np.array(value) for name, value in optional.items() if value is not None}
        for number, step in enumerate(self.steps or ()):
            if isinstance(step, Columns):
                found |= {f"shift {number}": step.shift, f"spread {number}": step.spread}
        return {_PREFIX + name: array for name, array in found.items()}

    @classmethod
    def from_arrays(cls, settings: DataSettings, arrays: Mapping[str, NDArray[Any]]) -> Preparation:
        """Return the preparation from the arrays of :meth:`arrays` and the run's section ``data``.

        Raise a ``DataError`` if an array is missing or damaged.
        """
        found = {name.removeprefix(_PREFIX): array for name, array in arrays.items() if name.startswith(_PREFIX)}
        try:
            steps: tuple[Step, ...] | None = None
            if found["fitted"].item():
                steps = tuple(
                    UnitRows() if step == "unit-rows" else Columns(found[f"shift {number}"], found[f"spread {number}"])
                    for number, step in enumerate(settings.scalings)
                )
            image = [int(size) for size in found["image"]] if "image" in found else None
            return cls(
                settings,
                int(found["features"].item()),
                tuple(found["classes"].tolist()),
                steps,
                tuple(map(str, json.loads(found["columns"].item()))) if "columns" in found else None,
                None if image is None else (image[0], image[1], image[2]),
                float(found["peak"].item()) if "peak" in found else None,
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise DataError(
                f"the preparation of the data cannot be read ({error}); copy the run folder again"
            ) from None
