"""Runs every benchmark program and writes ``benchmarks/RESULTS.md`` (``make bench``).

Ends with code 1 if a program missed a limit, after all of them have run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.limits import missed
from benchmarks.machine import description
from benchmarks.program import page

_PROGRAMS = ("round_trip", "scale", "large_model", "paillier", "sparse", "instrumentation", "kept_rounds")


def main() -> None:
    """Run them all, each in a process of its own, with the flags given."""
    failures: list[str] = []
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
            [sys.executable, "-m", module, "--json", *sys.argv[1:]], stdout=subprocess.PIPE, text=True
        )
        try:
            figures = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            raise RuntimeError(
                f"{module} ended with code {done.returncode} and without figures. Nothing is written."
            ) from None
        failures += [f"{name}: {line}" for line in missed(figures.get("limits", ()))]
        doc = (import_module(module).__doc__ or "").strip()
        pages += ["", f"## {name}", "", doc, "", *page(figures)]
    Path("benchmarks/RESULTS.md").write_text("\n".join(pages) + "\n")
    print("\n".join(pages))
    if failures:
        raise SystemExit("\n".join(failures))


if __name__ == "__main__":
    main()
