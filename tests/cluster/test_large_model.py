"""What the server keeps of a large model, in arrays: counted where they are allocated, and so alike on any machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.cluster

_FLOATS = 20_000_000  # 80 MB, above what a checkpoint copies and a broadcast keeps

# Counting begins with the first round, when the model is there already, and ends before the last one is saved.
_COUNT = f"""
import json, tracemalloc
from benchmarks import fenchel_echo
from benchmarks.echo import Echo
from fenchel.server.evaluation import Evaluator

counted = {{}}
whole = fenchel_echo.settings

def one_by_one(*sizes, **choices):
    echo = whole(*sizes, **choices)
    return echo.model_copy(update={{"network": echo.network.model_copy(update={{"reply_buffer_bytes": 1}})}})

async def start(self):
    tracemalloc.start(1)

async def evaluate(self, model):
    counted["after_a_round"], _ = tracemalloc.get_traced_memory()
    return {{"objective": 1.0}}

async def finish(self):
    counted["at_the_end"], counted["most"] = tracemalloc.get_traced_memory()

Echo.start, Echo.finish, Evaluator.evaluate = start, finish, evaluate
fenchel_echo.settings = one_by_one
measured = fenchel_echo.measure(2, 2, {_FLOATS}, 2, secure=False, reduce=True)
assert measured.counted == 6
print(json.dumps({{what: size / (4 * {_FLOATS}) for what, size in counted.items()}}))
"""


@pytest.mark.slow  # make test-all
def test_a_reduction_takes_three_models_and_keeps_one() -> None:
    done = subprocess.run([sys.executable, "-c", _COUNT], stdout=subprocess.PIPE, text=True, check=True)
    models = json.loads(done.stdout.splitlines()[-1])
    # The model, the sum, and a reply or the mean; beside them pieces of messages.
    assert 2.5 < models["most"] < 3.5
    # Not the sum, nor the model before, and no copy for a comparison.
    assert 0.9 < models["after_a_round"] < 1.5
    assert 0.9 < models["at_the_end"] < 1.5
