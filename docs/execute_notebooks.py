"""Execution of the notebooks of the documentation: ``make notebooks``."""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from pathlib import Path

import nbformat  # type: ignore[import-not-found, unused-ignore]
from nbclient import NotebookClient  # type: ignore[import-not-found, unused-ignore]

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
_SECONDS = 300  # for a cell


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """Execute a notebook in a folder, with this source tree as the package, and return it with its outputs.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        A cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    client = NotebookClient(notebook, timeout=_SECONDS, record_timing=False, resources={"metadata": {"path": folder}})
    client.extra_arguments = ["--log-level=ERROR"]
    client.execute(env=os.environ | {"PYTHONPATH": paths})
    notebook.metadata["language_info"] = {"name": "python"}  # without the versions of this machine
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            output.get("metadata", {}).clear()
    return notebook


def main() -> None:
    """Execute notebooks anew, in place or into a folder."""
    parser = argparse.ArgumentParser(prog="python -m docs.execute_notebooks", description=main.__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, default=NOTEBOOKS, help="by default all")
    parser.add_argument("--into", type=Path, help="folder of the executed notebooks; by default in place")
    given = parser.parse_args()
    for path in given.notebooks:
        with tempfile.TemporaryDirectory() as folder:
            text = nbformat.writes(executed(path, Path(folder)))
        if found := re.search(rf"{re.escape(folder)}|{re.escape(str(ROOT))}", text):
            raise SystemExit(f"{path}: an output holds the path {found[0]} of this machine; nothing is written")
        (given.into / path.name if given.into else path).write_text(text + "\n")


if __name__ == "__main__":
    main()
