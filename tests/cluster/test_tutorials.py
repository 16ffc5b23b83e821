"""Examples of the pages, run as they are printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fenchel

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str, heading: str = "") -> list[str]:
    """Return the blocks of a page in a language, below a heading if one is given."""
    text = (ROOT / "docs" / page).read_text()
    if heading:
        text = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run(*words: str, folder: Path) -> str:
    """Return what a command prints, with this source tree as the package."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    ended = subprocess.run(
        [sys.executable, *words], cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_a_network_of_pytorch_is_trained_as_the_page_says(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (code,) = blocks("objectives.md", "python", "A network of PyTorch")
    (settings,) = blocks("objectives.md", "yaml", "A network of PyTorch")
    (tmp_path / "networks.py").write_text(code)
    (tmp_path / "digits.yaml").write_text(settings)
    run("-m", "fenchel", "up", "digits.yaml", "--processes", "2", folder=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    across = fenchel.Run(folder)
    assert across.figures["test_accuracy"] > 0.9
    script = "import fenchel; print(fenchel.up('digits.yaml', in_process=True).path)"
    inside = fenchel.Run(run("-c", script, folder=tmp_path).strip())
    assert across.model.tobytes() == inside.model.tobytes()


@pytest.mark.slow
def test_the_example_of_data_from_python_runs(tmp_path: Path) -> None:
    (code,) = (block for block in blocks("data.md", "python") if "data=(X, y)" in block)
    assert float(run("-c", code, folder=tmp_path)) > 0.9


@pytest.mark.slow
def test_the_example_of_an_estimator_runs(tmp_path: Path) -> None:
    (code,) = (block for block in blocks("python.md", "python") if "FederatedClassifier" in block)
    assert float(run("-c", code, folder=tmp_path)) > 0.9


@pytest.mark.slow
def test_the_example_of_predictions_runs(tmp_path: Path) -> None:
    (code,) = (block for block in blocks("python.md", "python") if "predict" in block)
    printed = run("-c", code, folder=tmp_path)
    assert re.match(r"\['(well|ill)' '(well|ill)' '(well|ill)'\] \[\[", printed)
