"""Process that renders the dashboard of a run in progress, to relieve the server.

``python -m fenchel.deploy.monitoring.rendering RUN`` answers each line on standard input, ``page`` or
``files``, with a line of JSON on standard output. The process ends when the server does, even if the server is killed,
because its standard input then closes.
"""

from __future__ import annotations

import json
import signal
import sys
import traceback
from collections.abc import Mapping
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import IO, Any

import yaml

from fenchel.common.errors import FenchelError
from fenchel.report.files import values_of
from fenchel.report.render.page import fixed_parts, parts
from fenchel.report.run import Run

OWN_FILES = ("dashboard.css", "dashboard.js")


class _WatchedRun(Run):
    """Run as shown on the dashboard. Paths in its settings are reduced to file names."""

    @cached_property
    def settings_text(self) -> str:
        """Settings as YAML, with file names in place of paths."""
        values = values_of(super().settings_text, self._folder.settings)
        return yaml.safe_dump(_without_folders(values), sort_keys=False, allow_unicode=True)


def _without_folders(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_folders(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each) for each in value]
    return Path(value).name if isinstance(value, str) and "/" in value else value


def page(folder: Path) -> dict[str, str]:
    """Return the parts of the HTML page from the current contents of a run folder."""
    made = parts([_WatchedRun(folder)])
    return {"title": made.title, "body": made.body, "data": made.data}


def files() -> dict[str, str]:
    """Return the static files of the page (style sheets and scripts) by their names on the web server."""
    fixed = fixed_parts()
    own = {
        name: resources.files("fenchel.deploy.monitoring").joinpath(name).read_text(encoding="utf-8")
        for name in OWN_FILES
    }
    return {"page.css": fixed.style, "plotly.js": fixed.scripts["plotly"], "page.js": fixed.scripts["script"]} | own


def answer(folder: Path, requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until their stream ends."""
    while request := requests.readline():
        try:
            found = page(folder) if request == b"page\n" else files()
        except (FenchelError, OSError) as error:  # for example, while the server finishes a table
            found = {"error": "the run cannot be read at the moment", "details": str(error)}
        except Exception:
            found = {"error": "the page cannot be rendered; the log says why", "details": traceback.format_exc()}
        answers.write(json.dumps(found).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ignore Ctrl-C in the terminal: the server ends this process
    answer(Path(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)
