"""Client processes as Slurm job steps in the server's allocation."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, field_validator

from fenchel.common.errors import SettingsError, UnreachableError
from fenchel.common.settings.section import Section
from fenchel.common.untrusted_text import sanitize
from fenchel.common.version import software
from fenchel.deploy.address import everywhere
from fenchel.deploy.launch.launchers import piped
from fenchel.deploy.launch.launchers.interface import ClientProcess, Requirements, Site
from fenchel.deploy.launch.launchers.survey import Survey, marker, temporary_state

# Prefixes of variables that describe the job's resources. srun would apply these to each step, in conflict with
# the options given here.
_SHAPE = ("SLURM_MEM_PER_", "SLURM_CPUS_PER_", "SLURM_TRES_PER_", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_GPUS")

# Values of the batch script's directives, of which a blank or a line break would end one.
_WORD = r"^\S*$"
_LINE = r"^[^\r\n]*$"
# Minutes, or hours and minutes and seconds, perhaps after days and a hyphen (sbatch --time).
_TIME = re.compile(r"(\d+|\d+:\d+(:\d+)?|\d+-\d+(:\d+){0,2}|UNLIMITED|INFINITE)?", re.IGNORECASE)


class SlurmSettings(piped.PipedSettings):
    """Resources of client processes, and of the job that is submitted outside an allocation."""

    cpus: int = Field(1, ge=1, description="processors for each client process")
    gpus: int = Field(0, ge=0, description="GPUs for each client process")
    partition: str = Field("", pattern=_WORD, description="partition of the job; by default the cluster's default")
    account: str = Field("", pattern=_WORD, description="account that the job is charged to; by default the user's")
    time: str = Field("", description="longest time of the job, as Slurm writes it; by default the partition's")
    nodes: int | None = Field(None, ge=1, description="nodes of the job; by default as Slurm places it")
    options: tuple[Annotated[str, Field(pattern=_LINE)], ...] = Field(
        (), description="more options of sbatch, such as --constraint=avx512"
    )

    @field_validator("time", mode="before")
    @classmethod
    def _is_a_time(cls, time: object) -> object:
        if isinstance(time, int):
            raise ValueError(
                f"YAML reads a time without quotes as a number, here {time}; put it in quotes, such as '2:00:00'"
            )
        if isinstance(time, str) and not _TIME.fullmatch(time):
            raise ValueError(f"expected a time such as '2:00:00' or '1-12:00' (a day and a half), got {time!r}")
        return time


@dataclass
class SlurmLauncher:
    """Launcher that starts client processes with ``srun``.

    Parameters
    ----------
    settings
        Resources of client processes.
    """

    Settings: ClassVar[type[Section]] = SlurmSettings
    on_this_machine: ClassVar[bool] = False

    settings: SlurmSettings
    _started: set[int] = field(default_factory=set)
    _temporary: str | None = None  # folder on each node for temporary journals

    @staticmethod
    def missing() -> list[str]:
        """Check that the commands of Slurm are installed, and return instructions if not."""
        absent = [name for name in ("sbatch", "srun", "scontrol") if shutil.which(name) is None]
        return [f"{', '.join(absent)} not found: log in to a cluster's login node"] if absent else []

    @property
    def is_allocated(self) -> bool:
        """True if this process runs in an allocation, in which job steps can be started."""
        return "SLURM_JOB_ID" in os.environ

    def plan(self, process: ClientProcess) -> str:
        """Return the command that starts the job step."""
        return piped.plan(self._step(process))

    async def open(self, required: Requirements) -> Site:
        """Check the version of Fenchel on every node of the allocation, and its access to this machine and journals.

        Raises
        ------
        SettingsError
            If the allocation is missing or too small, or a node has another version of Fenchel or cannot access the
            journals' folder.
        UnreachableError
            If a node cannot reach this machine.
        """
        if not self.is_allocated:
            raise SettingsError(
                "this process is not in a Slurm allocation; start it within one (salloc, sbatch), or use the "
                "command fenchel up --on slurm, which submits a job",
                key="--on slurm",
            )
        nodes = list(_processors(os.environ.get("SLURM_JOB_CPUS_PER_NODE", "")))
        if (room := sum(processors // self.settings.cpus for processors in nodes)) < required.processes:
            raise SettingsError(
                f"the allocation has {sum(nodes)} processors on {len(nodes)} nodes, enough for {room} client "
                f"processes of {self.settings.cpus}, but {required.processes} are needed; request more (--ntasks), "
                "or start fewer (--processes)",
                key="--on slurm",
            )
        dial = self.settings.dial or os.uname().nodename
        listen = everywhere(dial)
        with piped.listening(listen, self.settings.port) as port, marker(required.journals) as file:
            found = await self._look(dial, port, file)
        self._temporary = temporary_state(found, required)
        state = self._temporary or str(required.journals)
        return Site(listen=listen, port=self.settings.port, dial=dial, state=state)

    async def start(self, process: ClientProcess) -> piped.PipedProcess:
        """Start a job step on any node with free resources."""
        started = await piped.start(self._step(process), process, _environment())
        self._started.add(process.number)
        return started

    async def close(self, *, remove_journals: bool) -> None:
        """Remove the run's temporary folders on nodes, with the journals in them. All job steps must have ended."""
        if self._temporary is not None:
            removing = ["srun", *self._everywhere(), "rm", "-rf", "--", self._temporary]
            code, _, errors = await piped.said(removing, _environment())
            if code != 0:
                raise UnreachableError(
                    f"the folder {self._temporary} could not be removed from all nodes ({errors}), and may contain "
                    "journals; remove it there"
                )

    def _step(self, process: ClientProcess) -> list[str]:
        resources = ["--exact", "--nodes=1", "--ntasks=1", f"--cpus-per-task={self.settings.cpus}", "--mem=0"]
        if self.settings.gpus:
            resources.append(f"--gpus={self.settings.gpus}")
        if process.number in self._started:  # because processors of a lost node stay occupied
            resources.append("--overlap")
        name = f"--job-name={next(iter(process.bundle.identities))}"
        return ["srun", "--quiet", name, *resources, *self._fenchel(*process.words)]

    def _fenchel(self, *words: str) -> list[str]:
        return [self.settings.python, "-P", "-m", piped.REMOTE, *words]

    def _everywhere(self) -> list[str]:
        nodes = os.environ.get("SLURM_JOB_NUM_NODES", "1")
        return ["--overlap", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--mem=0"]

    async def _look(self, dial: str, port: int, file: Path) -> Mapping[str, Survey]:
        """Return the survey of each node by the node's name."""
        words = self._fenchel("look", dial, str(port), str(file))
        code, output, errors = await piped.said(["srun", "--quiet", *self._everywhere(), *words], _environment())
        found = Survey.read(output)
        if code != 0 or not found:
            raise SettingsError(
                f"srun cannot run {self.settings.python} with {software()} on every node: "
                f"{errors or sanitize(output[:200])}. Install it on all nodes, or name a Python that has it",
                key="python",
            )
        for survey in found:
            survey.check(survey.host, port)
        return {survey.host: survey for survey in found}


def _processors(each_node: str) -> Iterator[int]:
    """Yield the number of processors of each node from a text of Slurm such as ``3,1(x2)``."""
    for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", each_node):
        yield from [int(number)] * int(times or 1)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_SHAPE)}
