"""Final models on other kernels of linear algebra: the same bits, or how far apart.

Each case is a run in one process, done once in each environment: with OpenBLAS made to use another kernel
(``OPENBLAS_CORETYPE``), with as many threads offered as there are cores, and with NumPy kept from the
processor's newer instructions (``NPY_DISABLE_CPU_FEATURES``). A cell says whether the final model has the
same bits as that of the first column, or the largest difference of an entry, as a share of the largest entry.
Columns bear the name of the kernel that OpenBLAS really took; Zen has that of Haswell, and the oldest is
called Katmai. ``--quick`` does four cases of seven rounds. Neural networks are left out where PyTorch is not
installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import fenchel
from benchmarks.program import Figures, progress, run
from fenchel.common.arrays import Vector
from fenchel.common.environment import Environment

_HERE = "as it is"
_KERNELS = ("Haswell", "SkylakeX", "Zen", "Prescott")
_DIGITS = {"name": "digits", "scale": "unit-interval", "partition": {"kind": "label-shards", "per_client": 2}}
_SOFTMAX = {"kind": "softmax", "l2": 1e-3}
_STEPS = {"local_steps": 10, "batch_size": 16, "step_size": 0.2}
_GRID = {
    "name": "breast_cancer",
    "scale": ["standard", "unit-rows"],
    "partition": {"kind": "grid", "sample_groups": 2, "feature_groups": 2},
}


def _case(algorithm: Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    basis = {"seed": 1, "rounds": 40, "clients": 6, "data": _DIGITS, "objective": _SOFTMAX}
    return basis | {"algorithm": dict(algorithm), "evaluation": {"every": 40}} | sections


_CASES: dict[str, dict[str, Any]] = {
    "FedAvg": _case({"name": "fedavg", **_STEPS}),
    "HyFDCA, plaintext": _case(
        {"name": "hyfdca", "privacy": "none"}, clients=4, data=_GRID, objective={"kind": "hinge", "l2": 0.01}
    ),
    "FedDCD, exact local solves": _case({"name": "feddcd"}, objective={"kind": "softmax", "l2": 0.01}),
    "DRDM": _case({"name": "drdm", "correction": "lambda-table", "regularization": 0.1, **_STEPS}),
    "FedAvg, float32": _case({"name": "fedavg", **_STEPS}, objective=_SOFTMAX | {"dtype": "float32"}),
    "SCAFFOLD": _case({"name": "scaffold", **_STEPS}),
    "FedPDM, l1": _case(
        {"name": "fedpdm", "penalty": 0.3, **_STEPS},
        objective={"kind": "softmax", "regularizer": {"kind": "l1", "weight": 1e-3}},
    ),
    "Acc-FedDCD, exact local solves": _case({"name": "acc-feddcd"}, objective={"kind": "softmax", "l2": 0.01}),
    "CODASCA, linear": _case(
        {"name": "codasca", "local_steps": 16, "step_size": 0.5},
        objective={"kind": "binary", "positive": [5, 6, 7, 8, 9], "output": "sigmoid"},
    ),
    "HyFDCA, encrypted": _case(
        {"name": "hyfdca", "encryption": {"security": 112}},
        clients=4,
        data=_GRID | {"samples": 80},
        objective={"kind": "hinge", "l2": 0.01},
        rounds=5,
    ),
    "FedAvg, neural network": _case({"name": "fedavg", **_STEPS}, objective={"kind": "mlp", "hidden": 32}),
}


def _variables() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield environments to compute in: a name, and variables of the process."""
    yield _HERE, {}
    for kernel in _KERNELS:
        yield kernel, {"OPENBLAS_CORETYPE": kernel}
    yield ("more threads", {"OPENBLAS_NUM_THREADS": str(os.cpu_count()), "OMP_NUM_THREADS": str(os.cpu_count())})
    simd = Environment.current().simd
    if simd:
        yield "NumPy's baseline", {"NPY_DISABLE_CPU_FEATURES": simd.replace(",", "")}


def measure(quick: bool) -> Figures:
    """Return the table and what the environments were."""
    cases = {name: case for name, case in _CASES.items() if _possible(case)}
    if quick:
        cases = {name: case | {"rounds": 7} for name, case in list(cases.items())[:4]}
    columns: dict[str, dict[str, Vector]] = {}
    kernels: set[str] = set()
    for what, variables in _variables():
        environment = _environment(variables)
        if what in _KERNELS and environment.kernel in kernels:
            progress(f"{what} would be computed with the kernel {environment.kernel}, as before")
            continue
        kernels.add(environment.kernel)
        title = environment.kernel if what in _KERNELS else what
        progress(f"{title}: {environment}")
        columns[title] = _elsewhere(cases, variables)
    reference = columns[_HERE]
    rows = [
        {"": case} | {title: _compared(found[case], reference[case]) for title, found in columns.items()}
        for case in cases
    ]
    here = ", ".join(f"{attribute} {value}" for attribute, value in Environment.current().known().items())
    return {"rows": rows, _HERE: here}


def _possible(case: Mapping[str, Any]) -> bool:
    return case["objective"]["kind"] != "mlp" or importlib.util.find_spec("torch") is not None


def _compared(model: Vector, reference: Vector) -> str:
    if model.tobytes() == reference.tobytes():
        return "same bits"
    return f"{np.abs(model - reference).max() / np.abs(reference).max():.0e}"


def _environment(variables: Mapping[str, str]) -> Environment:
    """Return the environment of a process with other environment variables."""
    told = _process("--environment", variables=variables)
    return Environment(**json.loads(told))


def _elsewhere(cases: Mapping[str, dict[str, Any]], variables: Mapping[str, str]) -> dict[str, Vector]:
    """Do runs in a process with other environment variables; return the final models."""
    with tempfile.TemporaryDirectory(prefix="fenchel-kernels-") as folder:
        _process("--runs", folder, variables=variables, given=json.dumps(cases))
        return {name: fenchel.Run(next(Path(folder, str(number)).iterdir())).model for number, name in enumerate(cases)}


def _process(*words: str, variables: Mapping[str, str], given: str = "") -> str:
    """Run this program with words of its own in another process; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.kernels", *words],
        input=given,
        text=True,
        stdout=subprocess.PIPE,
        env=os.environ | variables,
        check=True,
    )
    return done.stdout


def _do_runs(folder: Path) -> None:
    for number, case in enumerate(json.load(sys.stdin).values()):
        fenchel.up(case, runs=folder / str(number), in_process=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--runs"]:
        _do_runs(Path(sys.argv[2]))
    elif sys.argv[1:] == ["--environment"]:
        print(json.dumps(asdict(Environment.current())))
    else:
        run(__doc__ or "", measure)
