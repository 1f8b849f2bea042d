"""The contracts of all stages, by stage."""

from typing import Final

from metaclaw.bench.research.contracts.contract import Broken, Contract, Files
from metaclaw.bench.research.contracts.experiments import EXPERIMENTS
from metaclaw.bench.research.contracts.scoping import SCOPING
from metaclaw.bench.research.contracts.writing import WRITING
from metaclaw.bench.research.stages import Stage

CONTRACTS: Final[dict[Stage, Contract]] = {contract.stage: contract for contract in (*SCOPING, *EXPERIMENTS, *WRITING)}

__all__ = ["CONTRACTS", "Broken", "Contract", "Files"]
