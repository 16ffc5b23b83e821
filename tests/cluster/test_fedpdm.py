"""FedPDM over gRPC with sparse messages both ways: the same bits as in one process, and the bytes that it promises."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fenchel.common.compression.uplink import ClientUplink, Sent
from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.wire.values import ALIGNMENT, SparseVector
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.fleet.downlink import ServerDownlink
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import digest
from tests.payload_sizes import payload_bits
from tests.slow import rest_slow

pytestmark = pytest.mark.cluster

DIMENSION, SIZE = 640, 2
SEED_BITS = 64
"""Of a seeded support: they travel in the head of a message, which is counted as framing."""


def settings(rounds: int, support: str, **algorithm: Any) -> dict[str, Any]:
    return {
        "name": "fedpdm",
        "seed": 11,
        "rounds": rounds,
        "clients": 3,
        "data": {"name": "digits", "scale": "unit-interval", "partition": {"kind": "dirichlet", "alpha": 0.3}},
        "objective": {"kind": "softmax", "nonconvex": 1e-3, "regularizer": {"kind": "l1", "weight": 1e-3}},
        "algorithm": {
            "name": "fedpdm",
            "penalty": 0.5,
            "local_steps": 4,
            "batch_size": 8,
            "step_size": 0.05,
            **algorithm,
        },
        "uplink": {"sparsify": {"support": support, "keep": 0.1}, "dtype": "float32"},
        "downlink": {"sparsify": {"support": "top-k", "keep": 0.5}, "dtype": "float32"},
        "participation": {"sampler": {"kind": "fixed", "size": SIZE}},
        "evaluation": {"server": False, "clients": False},
    }


def in_process(given: Mapping[str, Any], parent: Path) -> tuple[RunFolder, list[int], dict[int, int]]:
    """The same run in this process; bits of every upload, and of the model in each round."""
    uploads: list[int] = []
    models: dict[int, int] = {}
    send, wire = ClientUplink.send, ServerDownlink.wire

    def weighed(self: ClientUplink, *args: Any, **named: Any) -> Sent:
        sent = send(self, *args, **named)
        uploads.append(payload_bits(sent.wire))
        return sent

    def weighed_model(self: ServerDownlink, model: Any, t: int) -> Any:
        sparse = wire(self, model, t)
        assert isinstance(sparse, SparseVector)
        models[t] = payload_bits(sparse)
        return sparse

    folder = RunFolder.create(parent, "reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientUplink, "send", weighed)
        patch.setattr(ServerDownlink, "wire", weighed_model)
        asyncio.run(run_in_process(validate(given), folder))
    return folder, uploads, models


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("support", "algorithm", "index_bits"),
    rest_slow(
        [
            ("top-k", {"aggregator": "stale", "error_feedback": "ef21"}, (8 * 64, 640)),
            ("random", {"aggregator": "sampled", "dual": "public"}, (SEED_BITS, SEED_BITS)),
            ("shared-random", {"aggregator": "hybrid"}, (0, 0)),
        ]
    ),
    ids=["ef21 top-k", "random", "shared-random"],
)
def test_sparse_messages_give_the_bits_of_the_in_process_fleet_and_cost_what_the_table_says(
    support: str, algorithm: dict[str, Any], index_bits: tuple[int, int], federate: MakeFederation, tmp_path: Path
) -> None:
    rounds = 12
    given = settings(rounds, support, **algorithm)
    federation = federate(given)
    federation.start()
    run = RunFolder(federation.finish())
    reference, uploads, models = in_process(given, tmp_path)
    assert digest(run.model) == digest(reference.model)
    kept_up = 64  # of 640
    assert len(uploads) == rounds * SIZE
    for bits in uploads:
        assert 32 * kept_up + index_bits[0] <= bits <= 32 * kept_up + index_bits[1]
    calls = pq.read_table(run.calls).to_pylist()
    assert len(calls) == rounds * SIZE
    # Bodies hold what the payloads are, with each of a support and its values padded to whole words.
    seeds = SEED_BITS if support == "random" else 0
    payload = sum(bits - seeds for bits in uploads) / 8
    sent = sum(call["bytes_up"] for call in calls)
    assert payload <= sent <= payload + 2 * ALIGNMENT * len(calls)
    paper = 32 * kept_up * SIZE * rounds
    assert paper <= 8 * sent
    for call in calls:
        body = call["bytes_down"]
        assert models[call["round"]] / 8 <= body <= models[call["round"]] / 8 + 2 * ALIGNMENT
        assert models[call["round"]] <= 32 * 320 + DIMENSION, "indices as a bitmap at most"
        # Heads and frames come on top, about a hundred bytes a message.
        assert call["bytes_up"] < call["wire_up"] < call["bytes_up"] + 200
        assert call["bytes_down"] < call["wire_down"] < call["bytes_down"] + 200
