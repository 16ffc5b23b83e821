"""The one table of algorithms that are tested alike: for conformance, for kills between processes.

The name of a case is that of its algorithm; of several, a comma and what is special follow.
"""

from __future__ import annotations

from typing import Any

WHOLE = {"name": "breast_cancer", "samples": 200, "scale": "standard", "partition": {"kind": "dirichlet", "alpha": 0.5}}
SPLIT = {
    "name": "breast_cancer",
    "samples": 60,
    "scale": ["standard", "unit-rows"],
    "partition": {"kind": "grid", "sample_groups": 2, "feature_groups": 2},
}
LOCAL = {"local_steps": 3, "batch_size": 16, "step_size": 0.05}
STAGES = {"step_size": 0.02, "schedule": {"kind": "practice", "stage_steps": 6}}
DUAL = LOCAL | {"dual_step_size": 0.01}
SOME = {"participation": {"sampler": {"kind": "fixed", "size": 2}}}
TOP = {"uplink": {"sparsify": {"support": "top-k", "keep": 0.3}}}
SCORES = {"objective": {"kind": "binary"}}
GRID = {"data": SPLIT, "clients": 4}

CASES: dict[str, dict[str, Any]] = {
    "fedavg": {"algorithm": LOCAL, **SOME},
    "fedavg, short": {"algorithm": LOCAL, "rounds": 3, "clients": 2},
    "fedavg, sparse": {
        "algorithm": LOCAL,
        "uplink": {"sparsify": {"support": "top-k", "keep": 0.3}, "dtype": "float32"},
        **SOME,
    },
    "fedprox": {"algorithm": LOCAL, **SOME},
    "fednova": {"algorithm": LOCAL, **SOME},
    "fedopt": {"algorithm": LOCAL, **SOME},
    "robust-aggregation": {"algorithm": LOCAL},
    "scaffold": {"algorithm": LOCAL, **SOME},
    "scaffold, changed": {
        "algorithm": LOCAL | {"weighting": "uniform"},
        "uplink": {"sparsify": {"support": "random", "keep": 0.4}, "noise": 0.1},
        "downlink": {"sparsify": {"support": "top-k", "keep": 0.6}},
        **SOME,
    },
    "feddyn": {"algorithm": LOCAL, **SOME},
    "fedpd": {"algorithm": LOCAL},
    "fedpd, skipping": {"algorithm": LOCAL | {"skip": 0.5}},
    "mb-sgd": {"algorithm": LOCAL, **SOME},
    "feddcd": {"algorithm": {"step_size": 0.05}, **SOME},
    "acc-feddcd": {"algorithm": {}, **SOME},
    "acc-feddcd, two cohorts": {"algorithm": {"cohorts": 2}, **SOME},
    "fedpdm": {"algorithm": LOCAL, **SOME},
    "fedpdm, noisy": {
        "algorithm": LOCAL | {"aggregator": "hybrid"},
        "uplink": {"sparsify": {"support": "random", "keep": 0.5}, "noise": 0.05},
        **SOME,
    },
    "fedpdm, ef21": {"algorithm": LOCAL | {"aggregator": "sampled", "error_feedback": "ef21"}, **TOP, **SOME},
    "fedpdm, ef21 stale": {"algorithm": LOCAL | {"aggregator": "stale", "error_feedback": "ef21"}, **TOP, **SOME},
    "drdm": {"algorithm": DUAL, **SOME},
    "drdm, scaled": {"algorithm": DUAL | {"correction": "lambda-scaled", "sampling": "uniform"}, **SOME},
    "drfa": {"algorithm": DUAL, **SOME},
    "scaff-pd": {"algorithm": DUAL},
    "codasca": {"algorithm": {**STAGES, "local_steps": 3}, **SCORES},
    "codasca, fresh": {"algorithm": {**STAGES, "local_steps": 3, "cv_init": "gradient"}, **SCORES},
    "codasca, paper's wire": {
        "algorithm": {**STAGES, "local_steps": 3, "wire": "paper", "cv_init": "gradient"},
        **SCORES,
        **SOME,
    },
    "codasca, as published": {
        "algorithm": {**STAGES, "local_steps": 3, "wire": "paper", "cv_init": "zero"},
        **SCORES,
        **SOME,
    },
    "coda-plus": {"algorithm": {**STAGES, "local_steps": 3}, **SCORES},
    "coda": {"algorithm": {**STAGES, "local_steps": 3}, **SCORES},
    "npa": {"algorithm": STAGES, **SCORES},
    "hybrid-fedavg": {"algorithm": {"step_size": 0.1}, **GRID},
    "hyfem-like": {"algorithm": {}, **GRID},
    "hyfdca": {"algorithm": {"privacy": "none"}, **GRID},
    "hyfdca, encrypted": {"algorithm": {"encryption": {"key_bits": 2048}, "picks": 8}, "rounds": 3, **GRID},
}

FIRST = {case.partition(",")[0]: case for case in reversed(CASES)}
"""The first case of each algorithm."""

BASIS: dict[str, Any] = {
    "seed": 11,
    "rounds": 6,
    "clients": 3,
    "data": WHOLE,
    "objective": {"kind": "logistic", "l2": 0.1},
}


def sections_of(case: str) -> dict[str, Any]:
    """Return the sections of a small run, which :func:`fenchel.testing.check_algorithm` takes."""
    given = CASES[case]
    return BASIS | given | {"algorithm": {"name": case.partition(",")[0], **given["algorithm"]}}
