"""Lines of an algorithm of one's own that fails, on the terminal: of either half, and none of Fenchel's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

_ALGORITHM = """
import fenchel


class Mine(fenchel.Algorithm):
    async def round(self, t):
        replies = await self.sample().ask("step", model=self.model, returns={{"gradient": self.model}})
        self.model = self.model - replies.{mean}("gradient")


class MineClient(fenchel.ClientAlgorithm):
    @fenchel.answers("step")
    def step(self, model: fenchel.Vector):
        return {{"gradient": self.objective.gradient({model})}}
"""
_SETTINGS = """
rounds: 2
clients: 2
data: {name: digits, samples: 100}
objective: {kind: softmax, l2: 0.1}
algorithm: {name: "mine:Mine"}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "line", "error"),
    [
        (("mean", "modell"), "self.objective.gradient(modell)", "NameError: name 'modell' is not defined"),
        (("men", "model"), 'replies.men("gradient")', "AttributeError: 'Replies' object has no attribute 'men'"),
    ],
    ids=["client half", "server half"],
)
def test_the_lines_of_an_own_algorithm_that_fails_are_shown(
    names: tuple[str, str], line: str, error: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(_ALGORITHM.format(mean=names[0], model=names[1]))
    (tmp_path / "run.yaml").write_text(_SETTINGS)
    done = subprocess.run(
        [sys.executable, "-m", "fenchel", "up", "run.yaml"], cwd=tmp_path, capture_output=True, text=True
    )
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert said.count("Traceback (most recent call last)") == 1
    assert line in said
    assert error in said
    assert "rounds.py" not in said
