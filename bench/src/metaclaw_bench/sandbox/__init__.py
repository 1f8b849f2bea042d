"""Commands of an agent, run where they can do no harm and see nothing but their workspace."""

from metaclaw_bench.sandbox.box import Sandbox, holds, strongest
from metaclaw_bench.sandbox.limits import (
    NO_COMMANDS,
    NOT_OURS,
    Limits,
    Ran,
    Stopped,
    Strength,
    told,
)
