"""The contracts of all stages, by stage."""

from typing import Final

from metaclaw_bench.research.contracts.contract import Broken, Contract, Files
from metaclaw_bench.research.contracts.experiments import EXPERIMENTS
from metaclaw_bench.research.contracts.scoping import SCOPING
from metaclaw_bench.research.contracts.writing import WRITING
from metaclaw_bench.research.stages import Stage

CONTRACTS: Final[dict[Stage, Contract]] = {
    contract.stage: contract for contract in (*SCOPING, *EXPERIMENTS, *WRITING)
}
