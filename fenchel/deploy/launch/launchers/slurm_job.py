"""Slurm job that runs ``fenchel up``, submitted from outside an allocation."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fenchel.common.errors import RunStoppedError, SettingsError
from fenchel.common.untrusted_text import sanitize
from fenchel.deploy.launch.launchers import piped
from fenchel.deploy.launch.launchers.slurm import SlurmSettings

_UNFINISHED = frozenset(
    {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING", "SIGNALING", "STAGE_OUT"}
    | {"STOPPED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
)
_HOPELESS = frozenset(
    {"PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints"}
    | {"AccountNotAllowed", "InvalidAccount", "InvalidQOS", "QOSNotAllowed"}
)
"""Reasons for which a job would remain pending forever."""

_POLLING = 2.0  # polling interval for the job's state, in seconds
_READING = 0.2  # polling interval for the job's log, in seconds


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """Slurm job that begins a run, and resumes the run whenever Slurm restarts the job.

    Attributes
    ----------
    settings
        Resources of the job.
    name
        Name of the job.
    processes
        Number of client processes.
    always
        Arguments of ``fenchel up`` for every start.
    beginning
        Additional arguments of ``fenchel up`` for the first start.
    runs
        Folder of the job's log and of run folders, on storage that all nodes share.
    """

    settings: SlurmSettings
    name: str
    processes: int
    always: Sequence[str]
    beginning: Sequence[str]
    runs: Path

    def script(self) -> str:
        """Return the batch script for ``sbatch``."""
        settings, runs = self.settings, self.runs.absolute()
        given = {"partition": settings.partition, "account": settings.account, "time": settings.time}
        options = [
            f"--job-name={self.name}",
            *(f"--{option}={value}" for option, value in given.items() if value),
            *([f"--nodes={settings.nodes}"] if settings.nodes else []),
            f"--ntasks={self.processes}",
            f"--cpus-per-task={settings.cpus}",
            *([f"--gpus-per-task={settings.gpus}"] if settings.gpus else []),
            f'--output="{str(runs).replace("%", "%%")}/job-%j.log"',
            "--open-mode=append",
            "--requeue",
            "--signal=B:TERM@60",
            *settings.options,
        ]
        folder = f"{shlex.quote(str(runs))}/job-$SLURM_JOB_ID"
        lines = [
            "#!/bin/bash",
            *(f"#SBATCH {option}" for option in options),
            "# A job that was preempted, or that lost a node, is queued again and goes on from the last checkpoint.",
            f"latest=$(ls -d {folder}/*/checkpoint/latest 2>/dev/null | tail -n 1)",
            'if [ -n "$latest" ]; then',
            '  set -- --resume "${latest%/checkpoint/latest}"',
            "else",
            f"  set -- --runs {folder} {shlex.join(self.beginning)}",
            "fi",
            f'exec {shlex.join([settings.python, "-P", "-m", "fenchel", "up", *self.always])} "$@"',
        ]
        return "\n".join(lines) + "\n"

    async def run(self, say: Callable[[str], None]) -> tuple[int, Path]:
        """Submit the job, and wait for its end. Cancellation of the wait also cancels the job.

        Parameters
        ----------
        say
            Function that receives lines of the job's log and changes of the job's state.

        Returns
        -------
        tuple
            Exit code of ``fenchel up`` in the job, and the folder of its run folders.

        Raises
        ------
        SettingsError
            If Slurm rejects the job, or would never start the job.
        RunStoppedError
            If Slurm has terminated the job, or no longer lists it.
        """
        self.runs.mkdir(parents=True, exist_ok=True)
        submitting = asyncio.ensure_future(self._submit())
        try:
            number = await asyncio.shield(submitting)
        except asyncio.CancelledError:
            await piped.said(["scancel", await submitting])
            raise
        log = _Log(self.runs / f"job-{number}.log", say)
        say(f"submitted job {number}; its log is {log.path}")
        following = asyncio.create_task(log.follow())
        try:
            state, code = await _finished(number, say)
        except (asyncio.CancelledError, SettingsError):
            await piped.said(["scancel", number])
            with suppress(SettingsError):
                await _finished(number, say)
            raise
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            log.read()
        if state not in ("COMPLETED", "FAILED"):
            raise RunStoppedError(f"Slurm ended job {number} ({state}); continue with the --resume command in its log")
        return code, self.runs / f"job-{number}"

    async def _submit(self) -> str:
        """Submit the job, and return its number."""
        sbatch = await asyncio.create_subprocess_exec(
            *("sbatch", "--parsable"), stdin=asyncio.subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        output, errors = await sbatch.communicate(self.script().encode())
        number = re.fullmatch(rb"(\d+)(;.*)?\n", output)
        if number is None:
            raise SettingsError(
                f"Slurm rejected the job: {sanitize(errors.decode(errors='replace').strip()[-500:])}; correct the "
                "settings of the engine (--engine)",
                key="--on slurm",
            )
        return number[1].decode()


@dataclass
class _Log:
    """Log file of a job, read as the file grows."""

    path: Path
    say: Callable[[str], None]
    _read: int = 0  # number of bytes read so far

    async def follow(self) -> None:
        """Forward new lines repeatedly until cancellation."""
        while True:
            await asyncio.to_thread(self.read)
            await asyncio.sleep(_READING)

    def read(self) -> None:
        """Forward the complete lines that are new since the last call."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            for line in file.read().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    self._read += len(line)
                    self.say(sanitize(line.decode(errors="replace").rstrip()))


async def _finished(number: str, say: Callable[[str], None]) -> tuple[str, int]:
    """Wait for the end of a job, and return its final state and its exit code."""
    said = ""
    while True:
        code, shown, errors = await piped.said(["scontrol", "--oneliner", "show", "job", number])
        if found := re.search(r"JobState=(\w+) Reason=(\S+)", shown):
            state, reason = found.groups()
            if state not in _UNFINISHED:
                ended = re.search(r"ExitCode=(\d+):(\d+)", shown)
                exit_code, signal_number = map(int, ended.groups()) if ended else (1, 0)
                return state, exit_code or (128 + signal_number if signal_number else 0)
            if state == "PENDING" and reason in _HOPELESS:
                raise SettingsError(
                    f"Slurm cannot start job {number} ({reason}), so it was cancelled; request less, or another "
                    "partition or account",
                    key="--on slurm",
                )
            now = f"job {number} waits: {reason}" if state == "PENDING" and reason != "None" else ""
        elif "Invalid job id" in errors:
            raise RunStoppedError(f"Slurm no longer lists job {number}; see its log for how it ended")
        else:
            now = f"the controller of Slurm does not answer ({code}): {errors}"
        if now and now != said:
            say(now)
        said = now
        await asyncio.sleep(_POLLING)
