"""Where experiments are really run: the benchmark's sandbox, in an empty workspace, with little
time and memory and no network.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from metaclaw.plugin import MetaClawError
from metaclaw_bench.research.forms import ContractError
from metaclaw_bench.sandbox import Limits, Sandbox, Stopped

LIMITS: Final = Limits(seconds=10.0, memory_mib=512, processes=4, file_mib=1, output_bytes=100_000)
_SHOWN_CHARS: Final = 300


class LaboratoryError(MetaClawError):
    """No program can be run on this machine; the message says why."""


class Laboratory(Protocol):
    """Who runs an experiment."""

    async def run(self, source: str) -> str:
        """What the program printed. Raises ContractError where it fails, LaboratoryError where none
        can be run.
        """


@dataclass(frozen=True, slots=True)
class SandboxLaboratory:
    """Runs every program in a workspace of its own."""

    limits: Limits = LIMITS

    async def run(self, source: str) -> str:
        """What the program printed."""
        with tempfile.TemporaryDirectory(prefix="metaclaw-research-") as folder:
            workspace = Path(folder)
            (workspace / "experiment.py").write_text(source, encoding="utf-8")
            ran = await Sandbox(workspace, self.limits).run("python -I experiment.py 2>errors.txt")
            if ran.end == 0 and not ran.left_out_bytes:
                return ran.output
            raise _failure(ran.end, workspace / "errors.txt", ran.output, self.limits)


def _failure(end: int | Stopped, errors: Path, output: str, limits: Limits) -> MetaClawError:
    if end is Stopped.NOT_STARTED:
        return LaboratoryError(
            f"the sandbox for experiments does not start here: {output[:_SHOWN_CHARS]}"
        )
    if end is Stopped.OUT_OF_TIME:
        return ContractError(f"the program ran for more than {limits.seconds:g} seconds")
    if end == 0:
        return ContractError(f"the program printed more than {limits.output_bytes} bytes")
    told = errors.read_text("utf-8", "replace") if errors.is_file() else ""
    last = (told.strip().splitlines() or ["it printed no error"])[-1]
    return ContractError(f"the program ended with status {end}: {last[:_SHOWN_CHARS]}")
