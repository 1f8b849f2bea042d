"""The staged research pipeline: our own small one of 23 stages, the adapter for AutoResearchClaw, and what both are measured by."""

from metaclaw_bench.research.records import ComparisonRecord, RunRecord, read_research
from metaclaw_bench.research.running import run_research
from metaclaw_bench.research.settings import TOPICS, ResearchResult, ResearchSettings
from metaclaw_bench.research.simulated import Habits

__all__ = [
    "TOPICS",
    "ComparisonRecord",
    "Habits",
    "ResearchResult",
    "ResearchSettings",
    "RunRecord",
    "read_research",
    "run_research",
]
