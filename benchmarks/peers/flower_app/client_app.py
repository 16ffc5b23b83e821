"""A client's part of the app."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict  # type: ignore[import-not-found]
from flwr.clientapp import ClientApp  # type: ignore[import-not-found]

from benchmarks.peers.job import constant

app = ClientApp()


@app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """Return the vector plus this client's constant."""
    (vector,) = message.content["arrays"].to_numpy_ndarrays()
    added = vector + np.float32(constant(int(context.node_config["partition-id"])))
    content = RecordDict({"arrays": ArrayRecord([added]), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content=content, reply_to=message)
