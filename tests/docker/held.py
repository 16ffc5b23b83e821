"""The ledger with gates in its clients, so that a test knows for certain where a round stands.

A client that is asked in round t writes ``CLIENT.t.began`` into a folder, and computes only when no file
``CLIENT.t.closed`` lies there. In one round one client's reply can be made so large that it takes its time.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from fenchel.algorithms.client_half import answers
from fenchel.common.wire.schema import ArraySpec, Expected
from fenchel.common.wire.values import Values
from fenchel.fleet.question import Each
from tests.cluster.ledger import Ledger, LedgerClient, LedgerSettings

NAME = "tests.docker.held:Held"


class HeldSettings(LedgerSettings):
    """Settings of the ledger, and where the gates are."""

    gates: str
    """The folder; where there is none, nobody waits."""
    laden: str = ""
    """The client whose reply is large."""
    laden_round: int = 0
    """In which round."""
    load: int = 0
    """Numbers in the large reply."""


def load_of(settings: HeldSettings, client: str, t: int) -> int:
    """Return how many numbers a client's reply has besides its dual."""
    return settings.load if (client, t) == (settings.laden, settings.laden_round) else 1


class Held(Ledger):
    """Server half: as the ledger, and the model has a trace of every number of the large reply."""

    Settings = HeldSettings  # type: ignore[assignment]
    settings: HeldSettings

    async def round(self, t: int) -> None:
        cohort = self.sample()
        lengths = {client: load_of(self.settings, client, t) for client in cohort}
        loads: Each[Expected] = Each({client: ArraySpec(np.float64, (length,)) for client, length in lengths.items()})
        proposals = await cohort.ask("propose", t=t, returns={"dual": self.model, "load": loads})
        center = proposals.mean("dual")
        await proposals.cohort.tell("shift", center=center)
        self.state.trace = 0.5 * self.state.trace + center
        self.model = self.model + self.state.trace / t
        for load in proposals.values_of("load"):
            numbers = np.asarray(load)
            self.model[0] += float(numbers @ np.sin(np.arange(numbers.size))) / t


class HeldClient(LedgerClient):
    """Client half."""

    settings: HeldSettings

    @answers("propose")
    def propose(self, t: int) -> Values:
        gates = Path(self.settings.gates)
        if gates.is_dir():
            with (gates / f"{self.client}.{t}.began").open("a") as began:
                began.write(f"{time.time()}\n")
        time.sleep(0.01)  # a phase that is always short is computed where the client listens
        while (gates / f"{self.client}.{t}.closed").exists():
            time.sleep(0.02)
        length = load_of(self.settings, self.client, t)
        return {**super().propose(t), "load": self.generator("load").standard_normal(length)}
