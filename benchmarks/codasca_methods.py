"""The four methods of the experiments about CODASCA: two for the area under the ROC curve, two for cross-entropy."""

from __future__ import annotations

from typing import Any

METHODS: tuple[str, ...] = ("CODASCA", "CODA+", "FedAvg-CE", "SCAFFOLD-CE")

_AUC = {"CODASCA": {"name": "codasca"}, "CODA+": {"name": "coda-plus", "output": "last"}}
_CROSS_ENTROPY = {"FedAvg-CE": {"name": "fedavg"}, "SCAFFOLD-CE": {"name": "scaffold"}}


def algorithm(method: str, window: int, step_size: float, stage: int) -> dict[str, Any]:
    """Return the settings of an algorithm: batches, weights and instants of decay are the same for all methods.

    step_size: in the first stage; each further one has a third of the one before.
    stage: local steps in a stage, a multiple of those in a round.
    """
    if stage % window:
        raise ValueError(f"stages of {stage} local steps: expected a multiple of the {window} in a round")
    local = {"local_steps": window, "batch_size": 32, "batches": "independent", "step_size": step_size}
    if method in _AUC:
        return {**_AUC[method], **local, "schedule": {"kind": "practice", "stage_steps": stage}}
    decay = {"step_decay": "stages", "stage_rounds": stage // window}
    return {**_CROSS_ENTROPY[method], **local, **decay, "weighting": "uniform"}
