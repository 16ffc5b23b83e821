"""Runs every benchmark program and writes ``benchmarks/RESULTS.md`` (``make bench``)."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.machine import description
from benchmarks.program import markdown

_PROGRAMS = ("round_trip", "scale", "large_model", "paillier", "sparse", "instrumentation", "kept_rounds")


def main() -> None:
    """Run them all, each in a process of its own, with the flags given."""
    pages = [
        "# Measured",
        "",
        f"{description()}.",
        "",
        "Made by `make bench`. The machine is shared: compare ratios, which come from the same run.",
    ]
    for name in _PROGRAMS:
        module = f"benchmarks.{name}"
        done = subprocess.run(
            [sys.executable, "-m", module, "--json", *sys.argv[1:]],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        figures = json.loads(done.stdout.splitlines()[-1])
        doc = (import_module(module).__doc__ or "").strip()
        pages += ["", f"## {name}", "", doc, "", markdown(figures.pop("rows"))]
        pages += [f"\n{key}: {figure}" for key, figure in figures.items()]
    Path("benchmarks/RESULTS.md").write_text("\n".join(pages) + "\n")
    print("\n".join(pages))


if __name__ == "__main__":
    main()
