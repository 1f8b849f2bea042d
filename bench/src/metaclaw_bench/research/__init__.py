"""The staged research pipeline: our own small one of 23 stages, the adapter for AutoResearchClaw,
and what both are measured by.
"""

from metaclaw_bench.research.records import RunRecord, read_research
from metaclaw_bench.research.running import run_research
from metaclaw_bench.research.settings import ResearchResult, ResearchSettings
from metaclaw_bench.research.simulated import Habits
