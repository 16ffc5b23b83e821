"""Seconds of a round of CODASCA with ResNet-20 on images of CIFAR-10's size, on the CPU or on a GPU.

Four clients in one process, without a network, so that what is measured is local steps: batches of 32,
float32. Clients share the device and take turns. The first round warms up and does not count. The images are
those of CIFAR-10 where they are on this machine, and random ones of their size otherwise, which take as long.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
import torch

from benchmarks.machine import description
from benchmarks.program import Figures, flags, progress, tell
from fenchel.common.data.catalogue import locate
from fenchel.common.errors import SettingsError
from fenchel.common.objectives.networks.factory import find_device
from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process

_CLIENTS = 4
_BATCH = 32
_FULL = (1, 8, 32)
_QUICK = (1, 2)


def measure(device: Literal["cpu", "cuda"], *, quick: bool) -> Figures:
    """Measure rounds of several lengths.

    quick: fewer rounds, shorter ones, and 400 images.
    """
    rows: list[dict[str, object]] = []
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    images = 400 if quick else 4000
    figures: Figures = {"rows": rows, "device": name, "images": "random", "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if locate("cifar10") is None:
            data = _random_images(folder / "images.npz", images)
        else:
            data, figures["images"] = {"name": "cifar10", "samples": images}, "cifar10"
        for steps in _QUICK if quick else _FULL:
            progress(f"{device}: {steps} local steps")
            seconds = _seconds(data, device, steps, rounds=3 if quick else 6, folder=folder)
            per_step = seconds / (_CLIENTS * steps)
            rows.append(
                {
                    "local steps": steps,
                    "seconds a round": f"{seconds:.3f}",
                    "ms a step": f"{1e3 * per_step:.1f}",
                    "images a second": f"{_BATCH / per_step:.0f}",
                }
            )
            figures[f"seconds_{steps}_steps"] = round(seconds, 4)
    return figures


def _random_images(file: Path, count: int) -> dict[str, Any]:
    """Write images of ten classes; return the section ``data``."""
    random = np.random.default_rng(0)
    features = random.integers(0, 256, (count, 3 * 32 * 32)).astype(np.uint8)
    np.savez(file, X=features, y=np.arange(count) % 10)
    return {"file": str(file), "test_fraction": 0}


def _seconds(data: dict[str, Any], device: str, steps: int, rounds: int, folder: Path) -> float:
    """Return the median of the seconds of a round."""
    settings = validate(
        {
            "rounds": rounds,
            "clients": _CLIENTS,
            "data": {**data, "scale": "unit-interval"},
            "objective": {
                "kind": "binary",
                "scorer": {"kind": "resnet20"},
                "positive": [5, 6, 7, 8, 9],
                "output": "sigmoid",
                "device": device,
            },
            "algorithm": {"name": "codasca", "local_steps": steps, "batch_size": _BATCH},
            "participation": {"deadline": 3600},
            "evaluation": {"server": False, "clients": False},
        }
    )
    run = RunFolder.create(folder, f"{device}-{steps}")
    asyncio.run(run_in_process(settings, run))
    spent = pq.read_table(run.metrics, columns=["seconds"])["seconds"].to_pylist()
    return float(statistics.median(spent[1:]))


def main() -> None:
    """Read the command line, measure, print."""
    parser = flags(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the network is computed")
    words = parser.parse_args()
    try:
        find_device(words.device)
    except SettingsError as error:
        parser.error(str(error))
    figures = measure(words.device, quick=words.quick)
    print(f"{description()}\n")
    tell(figures, as_json=words.json)


if __name__ == "__main__":
    main()
