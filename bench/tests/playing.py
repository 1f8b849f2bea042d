"""Letting a scripted agent play a benchmark: day by day in a fresh workspace, each round scored at
once. No proxy, no model.
"""

import tempfile
from pathlib import Path
from typing import assert_never

from metaclaw_bench.checking import CheckBroken, Checked, run_check
from metaclaw_bench.questions import Benchmark, ChoiceCheck, Day, FileCheck, Round
from metaclaw_bench.scoring import RoundScore, score_broken, score_choice, score_files
from metaclaw_bench.simulated.scripted import Policy
from metaclaw_bench.workspaces import lay_out


def play(benchmark: Benchmark, policy: Policy) -> list[RoundScore]:
    """Every round's score, in order."""
    return [score for day in benchmark.days for score in play_day(benchmark, day, policy)]


def play_day(benchmark: Benchmark, day: Day, policy: Policy) -> list[RoundScore]:
    """One day's scores."""
    with tempfile.TemporaryDirectory(prefix="metaclaw-day-") as room:
        workspace = Path(room) / "workspace"
        lay_out(benchmark, day, workspace)
        return [
            judge(benchmark, day, asked, policy.act(day, asked, workspace), workspace)
            for asked in day.rounds
        ]


def judge(benchmark: Benchmark, day: Day, asked: Round, answer: str, workspace: Path) -> RoundScore:
    """The score of an answer and of what it left in the workspace."""
    match asked.check:
        case ChoiceCheck() as check:
            return score_choice(day.id, asked.id, check, answer)
        case FileCheck() as check:
            match run_check(check, workspace, benchmark.checkers):
                case Checked(passed=passed):
                    return score_files(day.id, asked.id, passed)
                case CheckBroken(why):
                    return score_broken(day.id, asked, why)
        case _:
            assert_never(asked.check)
