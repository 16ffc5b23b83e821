"""Runs and reports of the gallery, whose commands are those of its page (``make site``)."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).with_name("gallery.md")
SECTION = re.compile(r"^## (.+)\n\n```bash\n(.+)\n```$", re.MULTILINE)


def make(destination: Path) -> None:
    """Do each run of the page in a new folder, and write its report and pictures to ``gallery/NAME`` in a folder."""
    for heading, command in SECTION.findall(PAGE.read_text(encoding="utf-8")):
        folder = destination / "gallery" / heading.lower().replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as work:
            _call(shlex.split(command), Path(work))
            runs = sorted(str(path) for path in Path(work, "runs").iterdir())
            _call(["fenchel", "report", *runs, "--html", f"{folder}/report.html", "--png", str(folder)], Path(work))


def _call(command: list[str], work: Path) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=work, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} ended with code {done.returncode}:\n{done.stdout}{done.stderr}")


def main() -> None:
    """Do the runs of docs/gallery.md, and write their reports for the site."""
    parser = argparse.ArgumentParser(prog="python -m docs.gallery", description=main.__doc__)
    parser.add_argument("destination", type=Path, help="folder that the site adds to its own")
    make(parser.parse_args().destination.absolute())


if __name__ == "__main__":
    main()
