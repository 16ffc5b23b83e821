"""A process imports what its command needs, and no more."""

from __future__ import annotations

import subprocess
import sys

import typer

from fenchel.deploy.cli.main import COMMANDS, application


def test_a_command_alone_is_as_it_is_among_all() -> None:
    everything = typer.main.get_command(application()).commands  # type: ignore[attr-defined]
    names = [name for commands in COMMANDS.values() for name in commands]
    assert sorted(everything) == sorted(names)
    for name in names:
        (found,) = typer.main.get_command(application(name)).commands.items()  # type: ignore[attr-defined]
        assert (found[0], found[1].help) == (name, everything[name].help)
    assert sorted(typer.main.get_command(application("nonsense")).commands) == sorted(names)  # type: ignore[attr-defined]


def test_a_client_without_tables_imports_neither_arrow_nor_the_server() -> None:
    script = (
        "import sys\n"
        "from fenchel.deploy.cli.main import application\n"
        "application('client')\n"
        "import fenchel.client.client_process, fenchel.deploy.monitoring.client_exporters\n"
        "from fenchel.algorithms.registry import client_half\n"
        "client_half('fedavg')\n"
        "unwanted = {'pyarrow', 'scipy.optimize', 'fenchel.server', 'fenchel.algorithms.scaffold'} & set(sys.modules)\n"
        "assert not unwanted, unwanted\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_the_check_of_a_run_imports_neither_arrow_nor_parts_of_scipy_nor_the_server() -> None:
    script = (
        "import sys\n"
        "import fenchel\n"
        "try:\n"
        "    fenchel.up('quickstart', overrides=['rounds=none'])\n"
        "except fenchel.SettingsError:\n"
        "    pass\n"
        "parts = {f'scipy.{part}' for part in ('linalg', 'optimize', 'sparse', 'special')}\n"
        "unwanted = {'pyarrow', *parts, 'fenchel.server.coordinator'} & set(sys.modules)\n"
        "assert not unwanted, unwanted\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
