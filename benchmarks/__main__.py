"""Runs every benchmark program and writes ``benchmarks/RESULTS.md`` (``make bench``)."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

from benchmarks.program import markdown

_PROGRAMS = ("round_trip", "scale", "large_model")
_LIBRARIES = ("fenchel", "grpcio", "protobuf", "numpy", "scipy", "pyarrow")


def _machine() -> str:
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return f"{os.cpu_count()} cores of {model}, {memory:.0f} GB; {platform.system()}, Python {platform.python_version()}"


def main() -> None:
    """Run them all, each in a process of its own, with the flags given."""
    pages = [
        "# Measured",
        "",
        f"{datetime.date.today()}, {_machine()}.",
        ", ".join(f"{name} {metadata.version(name)}" for name in _LIBRARIES) + ".",
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
