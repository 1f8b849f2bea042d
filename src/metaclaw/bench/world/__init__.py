"""A world without a model: a simulated policy that follows rules, uses skills, is harmed by wrong ones and learns, at known rates.

Everything that comes from here is simulated and says so. What is real are the product's own decisions: the gate for skills, the
canary and retirement, who may train (`domain.eligibility`), advantages, the gate for weights, and the forecast of idle time.
"""

from metaclaw.bench.world.matrix import ABLATIONS, CONDITIONS, Cell, cells, run_matrix
from metaclaw.bench.world.settings import Ablation, Condition, Traits

__all__ = ["ABLATIONS", "CONDITIONS", "Ablation", "Cell", "Condition", "Traits", "cells", "run_matrix"]
