"""The same federated averaging job on other frameworks, on a bare gRPC echo and on Fenchel, in one table.

Four client processes and a server on this machine. A round: the server sends a vector of float32, client k adds a
constant of its own and sends the sum back, the server takes the mean. Each system does it in its ordinary
way, in a virtual environment of its own. They take turns, several times, on the same cores. What is measured
is the time from the end of a round to the end of the next on the server; bringing up and the first rounds do
not count. The last vector must be what the clients' constants make it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import description
from benchmarks.peers import environments
from benchmarks.peers.job import Job, JobError
from benchmarks.peers.picture import draw
from benchmarks.peers.systems import CLASSIC, DEPLOYMENT, FENCHEL, SYSTEMS, System
from benchmarks.peers.table import Limit, Measured, Verdict, judge, rows
from benchmarks.program import markdown, progress

_CLIENTS = 4
_WARM_UP = 5
_ROUNDS = {100_000: 200, 1_000_000: 60}
_QUICK = {100_000: 40}
_SLOW_WARM_UP, _SLOW_ROUNDS = 1, 3
_LIMITS = (
    Limit(CLASSIC, 1_000_000, 3.0),
    Limit(CLASSIC, 100_000, 4.0),
    Limit(DEPLOYMENT, 1_000_000, 100.0),
    Limit(DEPLOYMENT, 100_000, 100.0),
)


def main() -> None:
    """Install, or measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument(
        "--install",
        action="store_true",
        help="make the other systems' environments, as far as they can be had, and measure nothing",
    )
    parser.add_argument(
        "--quick", action="store_true", help="the bare echo and Fenchel only, 1e5 floats, once: some seconds"
    )
    parser.add_argument("--json", action="store_true", help="last line: one JSON object with all seconds of all rounds")
    parser.add_argument("--repeat", type=int, default=3, help="how often each system has its turn")
    parser.add_argument("--cores", help="cores of all processes, as in 2,3; by default all that this process has")
    parser.add_argument("--only", help="names of systems, with a semicolon between them")
    parser.add_argument("--page", type=Path, help="also write the table and the rest into this file")
    parser.add_argument("--figure", type=Path, help="also draw the table into this PNG file")
    words = parser.parse_args()
    if words.cores:
        os.sched_setaffinity(0, {int(core) for core in words.cores.split(",")})
    systems = _chosen(words.only, quick=words.quick)
    try:
        if words.install:
            _install()
            return
        measured = _measure(systems, repeats=1 if words.quick else words.repeat, quick=words.quick)
    except (JobError, RuntimeError) as error:
        sys.exit(str(error))
    verdicts = judge(measured, _LIMITS, FENCHEL)
    page = _page(systems, measured, verdicts)
    print(page)
    if words.page:
        words.page.write_text(page + "\n")
    if words.figure:
        draw(measured, FENCHEL, words.figure)
    if words.json:
        seconds = {str(floats): {each.system: each.repetitions for each in ours} for floats, ours in measured.items()}
        print(json.dumps({"clients": _CLIENTS, "seconds": seconds}))
    if lines := [str(verdict) for verdict in verdicts if not verdict.reached]:
        sys.exit("\n".join(lines))


def _install() -> None:
    """Make the environments; those that cannot be made are told of, and left out of what is measured."""
    peers = (environments.FLOWER, environments.NVFLARE, environments.APPFL)
    failures = environments.install(peers)
    for name, reason in failures.items():
        progress(f"{name} cannot be installed here, so it is left out: {reason}")
    if len(failures) == len(peers):
        sys.exit("no other system can be installed here")


def _chosen(only: str | None, *, quick: bool) -> list[System]:
    """Return the systems that are asked for and can run here; those that cannot are told of."""
    names = {system.name for system in SYSTEMS} if only is None else {name.strip() for name in only.split(";")}
    if unknown := names - {system.name for system in SYSTEMS}:
        sys.exit(f"--only: {sorted(unknown)[0]!r} is none of {[system.name for system in SYSTEMS]}")
    chosen = [system for system in SYSTEMS if system.name in names or system.name == FENCHEL]
    if quick:
        return [system for system in chosen if system.environment == environments.FENCHEL and not system.tls]
    for system in chosen:
        if not system.environment.ready:
            progress(f"{system.name}: not installed, so left out (python -m benchmarks.peers --install)")
    return [system for system in chosen if system.environment.ready]


def _measure(systems: Sequence[System], *, repeats: int, quick: bool) -> dict[int, list[Measured]]:
    """Return what was measured, by the length of the vector."""
    measured = {}
    for floats, most in _ROUNDS.items() if not quick else _QUICK.items():
        seconds: dict[str, list[list[float]]] = {system.name: [] for system in systems}
        for repetition in range(repeats):
            for system in systems:
                progress(f"{floats:.0e} floats, repetition {repetition + 1} of {repeats}: {system.name}")
                rounds, warm_up = (_SLOW_ROUNDS, _SLOW_WARM_UP) if system.slow else (most, _WARM_UP)
                job = Job(_CLIENTS, floats, rounds, warm_up)
                seconds[system.name].append(system.measure(job))
        measured[floats] = [Measured(name, turns) for name, turns in seconds.items()]
    return measured


def _page(systems: Sequence[System], measured: dict[int, list[Measured]], verdicts: Sequence[Verdict]) -> str:
    """Return the tables as Markdown."""
    figures = [row for floats, ours in measured.items() for row in rows(floats, ours, FENCHEL)]
    about: list[dict[str, object]] = [
        {
            "system": system.name,
            "TLS": "yes" if system.tls else "no",
            "wire": system.wire,
            "versions": ", ".join(f"{name} {version}" for name, version in system.environment.versions().items()),
            "in a round": system.note,
        }
        for system in systems
    ]
    return "\n".join(
        [markdown(figures), "", markdown(about), "", *(f"- {verdict}" for verdict in verdicts), "", f"{description()}."]
    )


if __name__ == "__main__":
    main()
