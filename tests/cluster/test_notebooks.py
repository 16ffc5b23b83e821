"""The notebooks of the documentation run, and print what is stored in them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
NEEDS = {"pytorch": "torch"}
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def stored(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text())["cells"]
    assert isinstance(cells, list)
    return cells


def numbers(cells: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the numbers that each cell prints, but for cells that measure this machine."""
    found = {}
    for cell in cells:
        if cell["cell_type"] != "code" or "measured" in cell["metadata"].get("tags", ()):
            continue
        outputs = [each for each in cell["outputs"] if each["output_type"] in ("stream", "execute_result")]
        texts = ["".join(each["text"] if "text" in each else each["data"]["text/plain"]) for each in outputs]
        found[cell["id"]] = [float(number) for number in NUMBER.findall("\n".join(texts))]
    return found


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_the_numbers_that_are_stored(path: Path, tmp_path: Path) -> None:
    if find_spec("nbclient") is None:
        pytest.skip("nbclient is not installed")
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    words = [sys.executable, "-m", "docs.execute_notebooks", str(path), "--into", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    here, before = numbers(stored(tmp_path / path.name)), numbers(stored(path))
    assert sum(map(len, before.values())) > 5
    assert here == {name: pytest.approx(each, rel=0.02, abs=1e-4) for name, each in before.items()}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_stored_notebook_is_executed_and_small_and_its_links_lead_somewhere(path: Path) -> None:
    assert path.stat().st_size < 100_000
    cells = stored(path)
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not [out for cell in code for out in cell["outputs"] if out.get("name") == "stderr"]
    text = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)#\s]+)", text)
    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []
