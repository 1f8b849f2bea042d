"""The pipeline in one process: retries, refine cycles, gates, failures; a simulated researcher, and
experiments really run.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from metaclaw_bench.http_client import ModelError
from metaclaw_bench.research.asking import Model, Reply
from metaclaw_bench.research.contracts import CONTRACTS
from metaclaw_bench.research.laboratory import Laboratory, SandboxLaboratory
from metaclaw_bench.research.metrics import measure
from metaclaw_bench.research.mistakes import SLIPS, SlipChances, SlippingResearcher
from metaclaw_bench.research.pipeline import Pipeline, Ran, RunPlan
from metaclaw_bench.research.prompts import Message, opening, stage_of
from metaclaw_bench.research.simulated import DirectResearcher, Habits, Researcher
from metaclaw_bench.research.stages import ASKING_STAGES, STAGES, Stage
from metaclaw_bench.sandbox import Limits
from metaclaw_bench.simulated.model import Message as Shown
from metaclaw_bench.simulated.model import Prompt

pytestmark = pytest.mark.anyio

PLAN = RunPlan("baseline", 1, 1, True, "step sizes")
RIGHT = DirectResearcher(Researcher(1, Habits(told=1.0, untold=1.0)))
UNTAUGHT = DirectResearcher(Researcher(1, Habits(told=1.0, untold=0.0)))
RESULTS = "".join(
    json.dumps({"condition": condition, "seed": seed, "value": seed + (condition == "plain")})
    + "\n"
    for condition in ("plain", "momentum")
    for seed in range(1, 6)
)


@dataclass
class PaperLaboratory:
    """Runs nothing: every program prints the same."""

    printed: str = RESULTS

    async def run(self, source: str) -> str:
        return self.printed


@dataclass
class Twisted:
    """A model whose answers at one stage are changed on the way; it remembers what was asked."""

    stage: Stage
    twist: Callable[[str, int], str]
    model: DirectResearcher = RIGHT
    asked: list[tuple[Stage, str, tuple[Message, ...]]] = field(default_factory=list)
    times: int = 0

    async def ask(
        self, messages: Sequence[Message], session: str, *, is_last: bool = False
    ) -> Reply:
        stage = stage_of(messages[0].text)
        assert stage is not None
        self.asked.append((stage, session, tuple(messages)))
        reply = await self.model.ask(messages, session)
        if stage is not self.stage:
            return reply
        self.times += 1
        return Reply(self.twist(reply.text, self.times))


async def ran(
    model: Model,
    laboratory: Laboratory | None = None,
    folder: Path | None = None,
    plan: RunPlan = PLAN,
) -> Ran:
    return await Pipeline(model, laboratory or PaperLaboratory(), plan, folder).run()


def attempts_at(done: Ran, stage: Stage) -> list[str | None]:
    return [one.broken for one in done.attempts if one.stage == stage]


async def test_a_researcher_who_does_everything_right_is_asked_once_for_each_stage(
    tmp_path: Path,
) -> None:
    done = await ran(RIGHT, SandboxLaboratory(), tmp_path)
    assert (
        done.run.ending,
        done.run.completed,
        done.run.attempts,
        done.run.retries,
        done.run.refines,
    ) == (
        "completed",
        23,
        21,
        0,
        0,
    )
    assert [one.stage for one in done.attempts] == [int(stage) for stage in ASKING_STAGES]
    assert measure(done.run).composite == pytest.approx(1.0)
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len([row for row in rows if "value" in row]) == 10
    assert rows[-1]["summary"].keys() == {"plain", "momentum"}
    assert json.loads((tmp_path / "citations.json").read_text())[0]["known"] is True


async def test_one_who_keeps_only_rules_that_were_told_breaks_each_once_and_refines_once() -> None:
    done = await ran(UNTAUGHT, SandboxLaboratory())
    assert done.run.ending == "completed"
    # Every stage twice, but stages 14 and 15 come again after the refinement, and that is asked for
    # once more without a retry.
    assert (done.run.attempts, done.run.retries, done.run.refines) == (2 * 21 + 4 + 1, 21 + 2, 1)
    assert measure(done.run).composite == pytest.approx(0.4 + 0.3 * (1 - 23 / 47) + 0.3 * 0.5)


async def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    runs = [await ran(DirectResearcher(Researcher(seed))) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0].attempts != runs[2].attempts


async def test_a_broken_contract_is_said_in_the_same_session_with_a_rule_for_the_future() -> None:
    model = Twisted(Stage.SEARCH_STRATEGY, lambda text, times: "{}" if times == 1 else text)
    done = await ran(model)
    first, second = [one for one in model.asked if one[0] is Stage.SEARCH_STRATEGY]
    assert first[1] == second[1]
    assert second[2][: len(first[2])] == first[2]
    assert [message.role for message in second[2]] == ["system", "user", "assistant", "user"]
    assert second[2][-1].text.startswith("No, that is wrong: the field 'queries' is no list")
    assert "From now on, when you plan a literature search, always" in second[2][-1].text
    assert attempts_at(done, Stage.SEARCH_STRATEGY)[1:] == [None]
    assert (done.run.retries, done.run.ending) == (1, "completed")


async def test_a_contract_that_stays_broken_ends_the_run_after_the_retries_allowed() -> None:
    done = await ran(Twisted(Stage.KNOWLEDGE_EXTRACT, lambda text, times: "no cards"))
    assert len(attempts_at(done, Stage.KNOWLEDGE_EXTRACT)) == 3
    assert (done.run.ending, done.run.completed, done.run.retries) == ("failed", 5, 2)
    assert "knowledge extract" in done.run.why


async def test_a_fence_around_the_whole_file_is_not_part_of_it() -> None:
    done = await ran(Twisted(Stage.PROBLEM_DECOMPOSE, lambda text, times: f"```json\n{text}```"))
    assert (done.run.ending, done.run.retries) == ("completed", 0)


async def test_a_program_that_crashes_is_corrected_by_who_wrote_it() -> None:
    crash = 'raise ValueError("no such condition")\n'
    model = Twisted(Stage.CODE_GENERATION, lambda text, times: text + crash if times == 1 else text)
    done = await ran(model, SandboxLaboratory())
    assert done.run.ending == "completed"
    again = [one for one in done.attempts if one.stage == Stage.CODE_GENERATION]
    assert [one.is_retry for one in again] == [False, True]
    told = [one for one in model.asked if one[0] is Stage.CODE_GENERATION][-1][2][-1].text
    assert "ValueError: no such condition" in told


async def test_a_program_that_never_ends_is_stopped_and_the_stage_fails() -> None:
    laboratory = SandboxLaboratory(Limits(seconds=0.5, memory_mib=256))
    model = Twisted(Stage.CODE_GENERATION, lambda text, times: text + "while True:\n    pass\n")
    done = await ran(
        model, laboratory, plan=RunPlan("baseline", 1, 1, True, "step sizes", max_retries=0)
    )
    assert (done.run.ending, done.run.completed) == ("failed", 11)
    assert "ran for more than 0.5 seconds" in done.run.why


async def test_a_pivot_leads_back_to_the_hypotheses_and_at_most_two_are_followed() -> None:
    done = await ran(
        Twisted(Stage.RESEARCH_DECISION, lambda text, times: text.replace("PROCEED", "PIVOT"))
    )
    assert (done.run.ending, done.run.refines) == ("completed", 2)
    assert len(attempts_at(done, Stage.HYPOTHESIS_GEN)) == 3
    assert len(attempts_at(done, Stage.SYNTHESIS)) == 1
    assert done.run.retries == 0


async def test_a_refinement_goes_on_in_the_conversation_of_the_program_that_is_refined() -> None:
    twist = Twisted(
        Stage.RESEARCH_DECISION,
        lambda text, times: text.replace("PROCEED", "REFINE") if times == 1 else text,
    )
    done = await ran(twist)
    first, second = [one for one in twist.asked if one[0] is Stage.ITERATIVE_REFINE]
    assert first[1] == second[1]
    assert second[2][-1].text.startswith("No, that is not enough: momentum is best")
    # There were values enough, so no rule would have prevented it.
    assert "From now on" not in second[2][-1].text
    assert [one.visit for one in done.attempts if one.stage == Stage.ITERATIVE_REFINE] == [1, 2]
    assert done.run.completed == len(STAGES)


@pytest.mark.parametrize(
    ("gate", "old", "new", "back_to"),
    [
        (Stage.LITERATURE_SCREEN, '"keep": true', '"keep": false', Stage.LITERATURE_COLLECT),
        (Stage.QUALITY_GATE, '"verdict": "accept"', '"verdict": "revise"', Stage.PAPER_OUTLINE),
    ],
)
async def test_a_gate_that_refuses_leads_back_once_and_then_ends_the_run(
    gate: Stage, old: str, new: str, back_to: Stage
) -> None:
    once = await ran(
        Twisted(gate, lambda text, times: text.replace(old, new) if times == 1 else text)
    )
    assert (once.run.ending, once.run.rollbacks) == ("completed", 1)
    assert len(attempts_at(once, back_to)) == 2
    twice = await ran(Twisted(gate, lambda text, times: text.replace(old, new)))
    assert (twice.run.ending, twice.run.rollbacks, twice.run.completed) == (
        "failed",
        2,
        int(gate) - 1,
    )


async def test_a_citation_of_nothing_is_found_and_corrected_by_who_exported_the_paper() -> None:
    invented = Twisted(
        Stage.EXPORT_PUBLISH,
        lambda text, times: text.replace("[@arden2015]", "[@nobody1999]") if times == 1 else text,
    )
    done = await ran(invented)
    assert done.run.ending == "completed"
    assert (
        "cites nobody1999"
        in [one for one in invented.asked if one[0] is Stage.EXPORT_PUBLISH][-1][2][-1].text
    )


async def test_a_mistake_of_craft_is_only_reported_and_mended_in_the_next_answer(
    tmp_path: Path,
) -> None:
    slipping = DirectResearcher(SlippingResearcher(1, SlipChances(first=1.0, again=0.0, thin=0.0)))
    asked = Twisted(Stage.PAPER_DRAFT, lambda text, times: text, slipping)
    done = await ran(asked, SandboxLaboratory(), tmp_path, replace(PLAN, states_rules=False))
    assert (done.run.ending, done.run.refines) == ("completed", 0)
    spoilt = [stage for stage in ASKING_STAGES if any(stage in one.stages for one in SLIPS)]
    assert done.run.retries == len(spoilt)
    last = [one[2] for one in asked.asked if one[0] is Stage.PAPER_DRAFT][-1]
    assert [message.role for message in last] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]
    assert (
        last[3].text == "Error: draft.md was not accepted: it cites fewer than two works as [@key]"
    )
    assert last[5].text == "accepted: draft.md"


async def test_mistakes_are_the_same_for_every_condition_and_fewer_in_front_of_a_lesson() -> None:
    chances = SlipChances(first=1.0, left=0.0)
    prompt = opening(CONTRACTS[Stage.TOPIC_INIT], "step sizes", {})
    line = next(one.line for one in SLIPS if Stage.TOPIC_INIT in one.stages)
    block = f'\n\n<house_rules by="metaclaw">\n- {line}\n</house_rules>'
    first, again, taught = (
        SlippingResearcher(1, chances).answer(
            Prompt((Shown("system", prompt[0].text + placed), Shown("user", prompt[1].text)))
        )
        for placed in ("", "", block)
    )
    assert first == again
    assert "## Success" not in first.text  # type: ignore[union-attr]
    assert "## Success" in taught.text  # type: ignore[union-attr]


class Silent:
    """A model that does not answer."""

    async def ask(
        self, messages: Sequence[Message], session: str, *, is_last: bool = False
    ) -> Reply:
        raise ModelError("nobody is there")


async def test_a_model_that_does_not_answer_breaks_the_run_off_and_is_no_failure_of_a_stage() -> (
    None
):
    done = await ran(Silent())
    assert (done.run.ending, done.run.completed, done.run.attempts, done.run.why) == (
        "broken",
        0,
        0,
        "nobody is there",
    )
