"""What NVIDIA FLARE runs in each client: receive, add the constant, send."""

from __future__ import annotations

import numpy as np
import nvflare.client as flare  # type: ignore[import-not-found]

from benchmarks.peers.job import constant


def main() -> None:
    """Take part until the server has had enough."""
    flare.init()
    added = np.float32(constant(int(flare.get_site_name().rpartition("-")[2]) - 1))  # site-1, site-2, ...
    while flare.is_running():
        received = flare.receive()
        if received is None:
            return
        params = {name: vector + added for name, vector in received.params.items()}
        flare.send(flare.FLModel(params=params, meta={"NUM_STEPS_CURRENT_ROUND": 1}))


if __name__ == "__main__":
    main()
