"""Workload of the clients of a run: operations of the model and bytes on the wire, by instruction.

Bytes are measured (``calls.parquet``). Operations are computed from the settings: the number of samples in a phase
follows from the algorithm, and the operations per sample from the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fenchel.algorithms.fedavg import LocalTrainingSettings
from fenchel.algorithms.robust.settings import SampledByWeightSettings
from fenchel.algorithms.scaffold import ScaffoldSettings
from fenchel.common.errors import CheckpointError, SettingsError
from fenchel.report import columns, figure_names, summary
from fenchel.report.energy.model import Channel, Devices, computing, receiving, sending
from fenchel.report.energy.operations import BACKWARD, forward_macs
from fenchel.report.run import Run

Work: TypeAlias = Literal["nothing", "local steps", "loss", "loss and gradient"]
"""Computation of a client in a phase. ``loss`` is on the dual batch, ``loss and gradient`` on the whole shard."""

_TRAINING: Mapping[str, Work] = {"train": "local steps"}
_PHASES: Mapping[str, Mapping[str, Work]] = {
    "fedpd": {"begin": "nothing", "train": "local steps"},
    "fedpdm": {"solve": "local steps"},
    "mb-sgd": {"gradient": "local steps"},
    "drdm": {
        "smoothness": "nothing",  # sent once, before the first round
        "regularize": "nothing",
        "train": "local steps",
        "loss": "loss",
        "forget_drift": "nothing",
    },
    "drfa": {"train": "local steps", "loss": "loss"},
    "scaff-pd": {"gradient": "loss and gradient", "train": "local steps"},
}


@dataclass(frozen=True)
class Workload:
    """Workload of the clients of a run, by instruction, without evaluation.

    Attributes
    ----------
    rounds
        Number of rounds.
    round, phase, client
        Round, phase and client of each instruction, shape (k,).
    macs
        Multiply-accumulate operations, shape (k,), float64; 0 for instructions without a reply.
    bits_up, bits_down
        Bits on the wire, with frames and retransmissions, shape (k,), float64.
    """

    rounds: int
    round: NDArray[np.int64]
    phase: NDArray[Any]
    client: NDArray[Any]
    macs: NDArray[np.float64]
    bits_up: NDArray[np.float64]
    bits_down: NDArray[np.float64]


@dataclass(frozen=True)
class EnergyCost:
    """Energy and time of a workload.

    Attributes
    ----------
    computing, sending, receiving
        Energy of all clients together in joules.
    seconds
        Sum over all rounds and phases of the seconds of the slowest client.
    clients
        Energy of each client in joules.
    """

    computing: float
    sending: float
    receiving: float
    seconds: float
    clients: dict[str, float]

    @property
    def energy(self) -> float:
        """Total energy of all clients in joules."""
        return self.computing + self.sending + self.receiving


def workload_of(run: Run, rounds: int | None = None, macs: int | None = None) -> Workload:
    """Return the computation and traffic of the clients of a run in its first rounds.

    Parameters
    ----------
    run
        The run.
    rounds
        Number of rounds; ``None`` for all rounds and the algorithm's final phase.
    macs
        Multiply-accumulate operations of the forward pass of one sample. By default computed from the settings.

    Raises
    ------
    SettingsError
        If the operations of the algorithm or of the model are unknown.
    CheckpointError
        If the run has no instructions.
    """
    settings = run.settings
    algorithm = settings.algorithm
    if not isinstance(algorithm, LocalTrainingSettings):
        raise SettingsError(
            f"run {run.id}: the energy model does not support {algorithm.name}, because the operations of its clients "
            "are unknown; leave this run out"
        )
    calls = summary.own_calls(run.calls_table)
    if not calls.num_rows:
        raise CheckpointError(run.why_empty)
    if rounds is not None:
        calls = calls.filter(columns.column(calls, "round") <= rounds)
    shards = run.shards
    one = next(iter(shards.values()))
    if macs is None:
        macs = forward_macs(settings.objective, one.features, one.classes)
    phases, clients = calls["phase"].to_pylist(), calls["client"].to_pylist()
    bits_up = 8 * columns.column(calls, "wire_up")
    passes = {
        (phase, client): _forward_passes(algorithm, phase, int(shards[client].samples))
        for phase, client in set(zip(phases, clients, strict=True))
    }
    done = np.array([passes[key] for key in zip(phases, clients, strict=True)], np.float64)
    return Workload(
        rounds=run.rounds if rounds is None else rounds,
        round=columns.column(calls, "round").astype(np.int64),
        phase=np.array(phases),
        client=np.array(clients),
        # Count no operations for a call without a reply: the client may not have computed.
        macs=np.where(bits_up > 0, macs * done, 0.0),
        bits_up=bits_up,
        bits_down=8 * columns.column(calls, "wire_down"),
    )


def _forward_passes(algorithm: LocalTrainingSettings, phase: str, samples: int) -> float:
    """Return the work of a client in a phase, in forward passes of one sample."""
    work = _PHASES.get(algorithm.name, _TRAINING).get(phase)
    if work is None:
        raise SettingsError(
            f"the operations of a client in phase {phase!r} of {algorithm.name} are unknown, so the energy model does "
            "not support this algorithm; leave its runs out"
        )
    if work == "local steps":
        passes = BACKWARD * _samples_used(algorithm, samples)
        if isinstance(algorithm, ScaffoldSettings) and algorithm.correction == "option-i":
            passes += BACKWARD * samples  # full gradient at the global model
        return passes
    if work == "loss":
        assert isinstance(algorithm, SampledByWeightSettings)
        return samples if algorithm.dual_batch_size is None else min(algorithm.dual_batch_size, samples)
    return (BACKWARD + 1) * samples if work == "loss and gradient" else 0


def _samples_used(algorithm: LocalTrainingSettings, samples: int) -> int:
    """Return the total number of samples in the mini-batches of a round."""
    size, steps = algorithm.samples_a_step(samples), algorithm.steps(samples)
    if algorithm.batches != "passes":
        return steps * size
    whole, rest = divmod(steps, -(-samples // size))
    return whole * samples + min(rest * size, samples)


def energy_cost(workload: Workload, devices: Devices, channel: Channel) -> EnergyCost:
    """Return the energy and time of a workload for given devices and channel."""
    compute, send, receive, seconds = (np.zeros(workload.macs.size) for _ in range(4))
    for client in np.unique(workload.client):
        mine, own = workload.client == client, devices.of(str(client))
        # Every cost is proportional to the number of operations or bits, so evaluate the cost of a single one.
        for joules, amount, unit in (
            (compute, workload.macs, computing(own, 1.0)),
            (send, workload.bits_up, sending(own, channel, 1.0)),
            (receive, workload.bits_down, receiving(own, channel, 1.0)),
        ):
            joules[mine] = unit.energy * amount[mine]
            seconds[mine] += unit.seconds * amount[mine]
    total = compute + send + receive
    slowest: dict[tuple[int, str], float] = {}
    for at, phase, length in zip(workload.round.tolist(), workload.phase.tolist(), seconds.tolist(), strict=True):
        slowest[at, phase] = max(slowest.get((at, phase), 0.0), length)
    return EnergyCost(
        computing=float(compute.sum()),
        sending=float(send.sum()),
        receiving=float(receive.sum()),
        seconds=sum(slowest.values()),
        clients={str(name): float(total[workload.client == name].sum()) for name in np.unique(workload.client)},
    )


def rounds_to(run: Run, figure: str, target: float) -> int | None:
    """Return the first round after which a figure reaches the target, or ``None`` if it never does.

    Fractions such as accuracies reach a target from below, other figures from above. Raise ``SettingsError`` if the run
    has no such figure.
    """
    if figure not in summary.drawn_figures(run):
        known = ", ".join(summary.drawn_figures(run)) or "none"
        raise SettingsError(f"run {run.id} has no figure {figure!r}; use one of {known}")
    values = columns.column(run.metrics_table, figure)
    good = values >= target if figure_names.is_share(figure) else values <= target
    reached = np.flatnonzero(good)
    return int(columns.column(run.metrics_table, "round")[reached[0]]) if reached.size else None
