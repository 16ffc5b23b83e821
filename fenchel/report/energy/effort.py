"""What the clients of a run did: operations of the model, and bytes on the wire, of each instruction.

Bytes are measured (``calls.parquet``). Operations follow from the settings: how many samples go through the model
in a phase is a matter of the algorithm, and what one sample takes is a matter of the model.
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
from fenchel.report import columns, summary
from fenchel.report.energy.model import Channel, Devices, computing, receiving, sending
from fenchel.report.energy.operations import BACKWARD, forward_macs
from fenchel.report.run import Run

Work: TypeAlias = Literal["nothing", "local steps", "loss", "loss and gradient"]
"""What a client does in a phase: mini-batch gradients, a loss of the dual batch, or both on the whole shard."""

_TRAINING: Mapping[str, Work] = {"train": "local steps"}
_PHASES: Mapping[str, Mapping[str, Work]] = {
    "fedpd": {"begin": "nothing", "train": "local steps"},
    "fedpdm": {"solve": "local steps"},
    "mb-sgd": {"gradient": "local steps"},
    "drdm": {
        "smoothness": "nothing",  # once, before the first round
        "regularize": "nothing",
        "train": "local steps",
        "loss": "loss",
        "forget_drift": "nothing",
    },
    "drfa": {"train": "local steps", "loss": "loss"},
    "scaff-pd": {"gradient": "loss and gradient", "train": "local steps"},
}


@dataclass(frozen=True)
class Effort:
    """What the clients of a run did, an entry for each instruction of the rounds (evaluation is not counted).

    Attributes
    ----------
    rounds
        How many rounds these are.
    round, phase, client
        Of each instruction, shape (k,).
    macs
        Multiply-accumulate operations, shape (k,), float64; 0 where nothing came back.
    bits_up
        bits_up, bits_down: on the wire, with frames and what was sent again, shape (k,), float64.
    """

    rounds: int
    round: NDArray[np.int64]
    phase: NDArray[Any]
    client: NDArray[Any]
    macs: NDArray[np.float64]
    bits_up: NDArray[np.float64]
    bits_down: NDArray[np.float64]


@dataclass(frozen=True)
class Expense:
    """What an effort cost.

    Attributes
    ----------
    computing, sending, receiving
        Joules of all clients together.
    seconds
        The phases of all rounds, each as long as its slowest client takes.
    clients
        Joules of each client.
    """

    computing: float
    sending: float
    receiving: float
    seconds: float
    clients: dict[str, float]

    @property
    def energy(self) -> float:
        """Joules of all clients together."""
        return self.computing + self.sending + self.receiving


def effort_of(run: Run, rounds: int | None = None, macs: int | None = None) -> Effort:
    """Return what the clients of a run did in its first rounds.

    Parameters
    ----------
    rounds
        How many rounds count; ``None``: all, and what came after the last one.
    macs
        Operations of one sample's forward pass; ``None``: as the model of the settings has it.
    """
    settings = run.settings
    algorithm = settings.algorithm
    if not isinstance(algorithm, LocalTrainingSettings):
        raise SettingsError(
            f"run {run.id}: how much a client computes in a phase of {algorithm.name} is not known; it is for "
            "algorithms whose clients take mini-batch steps"
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
    return Effort(
        rounds=run.rounds if rounds is None else rounds,
        round=columns.column(calls, "round").astype(np.int64),
        phase=np.array(phases),
        client=np.array(clients),
        # Whoever never answered cannot be known to have computed.
        macs=np.where(bits_up > 0, macs * done, 0.0),
        bits_up=bits_up,
        bits_down=8 * columns.column(calls, "wire_down"),
    )


def _forward_passes(algorithm: LocalTrainingSettings, phase: str, samples: int) -> float:
    """Return how many forward passes of a sample a client of so many samples makes in a phase, or as much work."""
    work = _PHASES.get(algorithm.name, _TRAINING).get(phase)
    if work is None:
        raise SettingsError(f"how much a client computes in phase {phase!r} of {algorithm.name} is not known")
    if work == "local steps":
        passes = BACKWARD * _samples_used(algorithm, samples)
        if isinstance(algorithm, ScaffoldSettings) and algorithm.correction == "option-i":
            passes += BACKWARD * samples  # the gradient at the global model
        return passes
    if work == "loss":
        assert isinstance(algorithm, SampledByWeightSettings)
        return samples if algorithm.dual_batch_size is None else min(algorithm.dual_batch_size, samples)
    return (BACKWARD + 1) * samples if work == "loss and gradient" else 0


def _samples_used(algorithm: LocalTrainingSettings, samples: int) -> int:
    """Return how many samples all mini-batches of a round have together."""
    size, steps = algorithm.samples_a_step(samples), algorithm.steps(samples)
    if algorithm.batches != "passes":
        return steps * size
    whole, rest = divmod(steps, -(-samples // size))
    return whole * samples + min(rest * size, samples)


def expense(effort: Effort, devices: Devices, channel: Channel) -> Expense:
    """Return what an effort costs on given devices."""
    compute, send, receive, seconds = (np.zeros(effort.macs.size) for _ in range(4))
    for client in np.unique(effort.client):
        mine, own = effort.client == client, devices.of(str(client))
        # All costs are proportional: it is enough to know those of one operation and of one bit.
        for joules, amount, unit in (
            (compute, effort.macs, computing(own, 1.0)),
            (send, effort.bits_up, sending(own, channel, 1.0)),
            (receive, effort.bits_down, receiving(own, channel, 1.0)),
        ):
            joules[mine] = unit.energy * amount[mine]
            seconds[mine] += unit.seconds * amount[mine]
    total = compute + send + receive
    slowest: dict[tuple[int, str], float] = {}
    for at, phase, length in zip(effort.round.tolist(), effort.phase.tolist(), seconds.tolist(), strict=True):
        slowest[at, phase] = max(slowest.get((at, phase), 0.0), length)
    return Expense(
        computing=float(compute.sum()),
        sending=float(send.sum()),
        receiving=float(receive.sum()),
        seconds=sum(slowest.values()),
        clients={str(name): float(total[effort.client == name].sum()) for name in np.unique(effort.client)},
    )


def rounds_to(run: Run, figure: str, target: float) -> int | None:
    """Return the first round after which a figure is as good as the target; ``None`` if it never is.

    Accuracies are to be at least the target, all other figures at most.
    """
    if figure not in summary.drawn_figures(run):
        known = ", ".join(summary.drawn_figures(run)) or "none"
        raise SettingsError(f"run {run.id} has no figure {figure!r}; it has {known}")
    values = columns.column(run.metrics_table, figure)
    good = values >= target if columns.is_share(figure) else values <= target
    reached = np.flatnonzero(good)
    return int(columns.column(run.metrics_table, "round")[reached[0]]) if reached.size else None
