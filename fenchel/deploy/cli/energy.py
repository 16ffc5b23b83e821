"""Command ``fenchel energy``: energy and time of the clients of runs, by a model of device and channel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fenchel.common.errors import SettingsError
from fenchel.common.settings.reading import read_mapping
from fenchel.common.settings.section import yaml_value
from fenchel.deploy.cli.options import JsonOption
from fenchel.deploy.cli.printing import figures_table, print_json, say, wide

if TYPE_CHECKING:
    from fenchel.report.energy.local_steps import LeastEnergy, Measured
    from fenchel.report.energy.model import Devices
    from fenchel.report.energy.workload import EnergyCost
    from fenchel.report.run import Run

_RATIOS, _BANDWIDTHS = "0,5,10,15,20", "1e6,5e6,1e7,2e7"


def energy(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="run folders; several with different local steps are compared"),
    ],
    snr: Annotated[float, typer.Option(metavar="DB", help="signal-to-noise ratio of the uplink, in decibels")] = 10.0,
    bandwidth: Annotated[float, typer.Option(metavar="HZ", min=1e-3, help="bandwidth of each client")] = 1e6,
    target: Annotated[
        float | None,
        typer.Option(help="target of the figure, such as 0.8: only rounds up to it are counted; default: all rounds"),
    ] = None,
    figure: Annotated[
        str | None,
        typer.Option(help="figure that must reach the target; default: client_accuracy_worst, or else test_accuracy"),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|KEY=VALUE",
            help="constants of the clients' devices: a YAML file, or one constant; repeatable (see docs/energy.md)",
        ),
    ] = None,
    downlink_rate: Annotated[
        float | None, typer.Option(metavar="BIT/S", min=1e-3, help="downlink rate; default: receiving costs nothing")
    ] = None,
    macs: Annotated[
        int | None,
        typer.Option(
            min=1, max=10**18, help="multiply-accumulates of one sample's forward pass, for a model of your own"
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--map", metavar="PNG", help="draw the best number of local steps by channel (of one run: its energy)"
        ),
    ] = None,
    snrs: Annotated[str, typer.Option(metavar="DB,...", help="ratios of the map")] = _RATIOS,
    bandwidths: Annotated[str, typer.Option(metavar="HZ,...", help="bandwidths of the map")] = _BANDWIDTHS,
    as_json: JsonOption = False,
) -> None:
    """Estimate the energy and time of runs' clients, and find the best number of local steps.

    The numbers of bytes are measured. The numbers of operations follow from the model and the settings. Options give
    the constants of power, clock and channel. docs/energy.md has the formulas.
    """
    from fenchel.report.energy.local_steps import Measured, choice, over_channels
    from fenchel.report.energy.model import Channel
    from fenchel.report.run import Run

    channel, devices = Channel(snr, bandwidth, downlink_rate), _devices(device or ())
    if devices.receive and downlink_rate is None:
        raise SettingsError(
            "the option needs a downlink rate, without which receiving takes no time; give --downlink-rate BIT/S",
            key="--device receive_power",
        )
    if target is not None and not math.isfinite(target):
        raise SettingsError(f"the value is {target}; expected a finite number, such as 0.8", key="--target")
    found = [Run(path) for path in runs]
    _check_clients(devices, found)
    measured = [Measured.of(run, target, figure, macs) for run in found]
    priced = [(each, each.energy_cost(devices, channel)) for each in measured]
    if picture is not None and target is None and len(measured) > 1:
        raise SettingsError("a map of several runs needs a common target; give it with --target", key="--map")
    best = None if target is None else choice(measured, devices, channel)
    if picture is not None:
        from fenchel.report.energy.picture import draw_map  # late import, because matplotlib may be missing

        ratios, widths = _numbers("--snrs", snrs), _numbers("--bandwidths", bandwidths)
        title, values = over_channels(measured, devices, channel, ratios, widths)
        picture = draw_map(values, ratios, widths, title=title, path=picture)
    if as_json:
        described = [_described(each, cost) for each, cost in priced]
        print_json({"runs": described, "choice": None if best is None else asdict(best)})
        return
    wide(Console(highlight=False)).print(_table(priced, to_target=target is not None))
    say(f"channel      {snr:g} dB, {bandwidth / 1e6:g} MHz: {channel.rate / 1e6:.4g} Mbit/s up")
    if best is not None:
        _say_choice(best)
    if picture is not None:
        say(f"map          {picture}")


def _check_clients(devices: Devices, runs: Sequence[Run]) -> None:
    """Raise a SettingsError for a device of a client that no run has, whose constants would be ignored."""
    tables = [run.calls_table for run in runs]
    known = {each for table in tables if table.num_rows for each in table["client"].unique().to_pylist()}
    unknown = [client for client in devices.clients if client not in known]
    if known and unknown:
        raise SettingsError(
            f"{unknown[0]:.80} is not a client of these runs; use a name from {min(known)} to {max(known)}",
            key="--device clients",
        )


def _say_choice(best: LeastEnergy) -> None:
    say(f"local steps  {best.best} take the least energy, of {_listed(best.rounds)}")
    if best.fit is not None:
        fit = best.fit
        formula = f"{fit.a:.3g} + {fit.b:.3g} / local steps"
        say(f"closed form  {fit.best:.3g}, if the rounds were {formula} (off by up to {fit.off:.2g})")


def _devices(words: Sequence[str]) -> Devices:
    """Return device constants from files and single assignments, of which later ones take precedence."""
    from fenchel.report.energy.model import Devices

    values: dict[str, Any] = {}
    for word in words:
        key, separator, text = word.partition("=")
        if not separator and not Path(word).exists():
            raise SettingsError(
                f"{word!r} is neither a file nor KEY=VALUE; give an assignment such as transmit_power=0.2, or the path "
                "of a YAML file",
                key="--device",
            )
        try:
            values |= {key: yaml_value(text)} if separator else read_mapping(Path(word))
        except yaml.YAMLError:
            raise SettingsError("the value is not valid YAML; quote it", key=f"--device {word}") from None
        except SettingsError as error:
            error.key = "--device"
            raise
    return Devices.of_constants(values)


def _numbers(option: str, text: str) -> list[float]:
    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(math.isfinite(number) for number in numbers):
        raise SettingsError(f"{option} {text}: expected numbers separated by commas, such as {_RATIOS}")
    if option == "--bandwidths" and min(numbers) <= 0:
        raise SettingsError(f"{option} {text}: expected bandwidths in Hz above 0")
    return numbers


def _table(priced: Sequence[tuple[Measured, EnergyCost | None]], *, to_target: bool) -> Table:
    from fenchel.report import summary
    from fenchel.report.formatting import UNKNOWN, bytes_text, number_text, printable, seconds_text

    rounds = "rounds\nto target" if to_target else "rounds"
    headings = ("local\nsteps", rounds, "sent", "computing\nJ", "sending\nJ", "energy\nJ", "time")
    table = figures_table("run", *headings, min_width=8)
    names = summary.labels([each.run for each, _ in priced])
    for name, (each, cost) in zip(names, priced, strict=True):
        cells = [UNKNOWN if each.local_steps is None else str(each.local_steps)]
        if each.workload is None or cost is None:
            cells += ["never", *[UNKNOWN] * 5]
        else:
            joules = (cost.computing, cost.sending, cost.energy)
            cells += [f"{each.workload.rounds:,}", bytes_text(each.workload.bits_up.sum() / 8)]
            cells += [*(number_text(value) for value in joules), seconds_text(cost.seconds)]
        table.add_row(Text(printable(name)), *cells)
    return table


def _described(each: Measured, cost: EnergyCost | None) -> dict[str, Any]:
    about: dict[str, Any] = {"id": each.run.id, "local_steps": each.local_steps, "reached": each.workload is not None}
    if each.workload is None or cost is None:
        return about
    about |= {
        "rounds": each.workload.rounds,
        "bytes_up": float(each.workload.bits_up.sum()) / 8,
        "macs": float(each.workload.macs.sum()),
        "energy": cost.energy,
    }
    return about | asdict(cost)


def _listed(numbers: Mapping[int, float]) -> str:
    *rest, last = (str(number) for number in sorted(numbers))
    return f"{', '.join(rest)} and {last}"
