"""A simulated researcher that makes mistakes of craft: malformed JSON, missing citations, broken
code.

It is no model and never called one. It knows every house rule and makes its mistakes by chance,
drawn from the seed, the stage, the topic and how often it was asked, so two conditions meet the
same luck. In front of a lesson about a mistake it makes it less often. Nobody states a rule: as the
evolver it reads, in what the program shows it, what was wrong, and writes one line about it; as the
judge it reads whether an answer was refused."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from metaclaw_bench.json_types import Json
from metaclaw_bench.research.contracts import CONTRACTS
from metaclaw_bench.research.prompts import ACCEPTED, NOT_ENOUGH, REFUSED, SUBMIT, stage_of
from metaclaw_bench.research.references import refined, write
from metaclaw_bench.research.simulated import material_in, topic_of
from metaclaw_bench.research.stages import ASKING_STAGES, Stage
from metaclaw_bench.simulated.model import (
    Broken,
    Call,
    Prompt,
    Purpose,
    Said,
    Thought,
    without_placed,
)
from metaclaw_bench.simulated.verdicts import record_in

_ASKED_AGAIN: Final = re.compile(rf"{re.escape(NOT_ENOUGH)}: ([^\n]+)")


@dataclass(frozen=True, slots=True)
class Slip:
    """A mistake: how a right file looks with it, by which words of a report an evolver knows it,
    and the line that it writes then.
    """

    stages: frozenset[Stage]
    spoils: tuple[Callable[[str], str], ...]
    report: str
    line: str

    def is_reported(self, text: str) -> bool:
        return re.search(self.report, text, re.IGNORECASE) is not None


@dataclass(frozen=True, slots=True)
class SlipChances:
    """The probability of a mistake at a stage, in an answer to the report of one, and of an
    experiment too thin to decide; and the share of it that is left where a lesson is in the prompt.
    """

    first: float = 0.12
    again: float = 0.1
    thin: float = 0.5
    left: float = 0.1


def _with_comma(text: str) -> str:
    return re.sub(r"\s*([\]}])\s*$", r",\n\1\n", text)


def _as_python(text: str) -> str:
    return f"{json.loads(text)!r}\n"


def _with_comment(text: str) -> str:
    return text.replace("\n", "  // as agreed\n", 1)


def _with_prose(text: str) -> str:
    return f"Here is the file you asked for:\n\n{text}"


def _cut(text: str) -> str:
    return text[: len(text) * 4 // 5]


def _without_citations(text: str) -> str:
    return re.sub(r" ?\[@\w+\]", "", text)


def _without_years(text: str) -> str:
    return re.sub(r",\n *year = \{\d+\}", "", text)


def _without_last_section(text: str) -> str:
    found = list(re.finditer(r"^## .*$", text, re.MULTILINE))
    return text[: found[-1].start()] if found else ""


def _unclosed(text: str) -> str:
    return text.replace("statistics.fmean(ends)", "statistics.fmean(ends", 1)


def _misspelt(text: str) -> str:
    return text.replace("statistics.fmean(ends)", "statistics.fmean(end)")


def _with_numpy(text: str) -> str:
    return text.replace("import json\n", "import json\nimport numpy as np\n", 1)


def _without_last_row(text: str) -> str:
    return "\n".join(text.rstrip().split("\n")[:-1]) + "\n"


def _making(suffix: str) -> frozenset[Stage]:
    return frozenset(stage for stage in ASKING_STAGES if CONTRACTS[stage].makes.endswith(suffix))


SLIPS: Final = (
    Slip(
        _making(".json"),
        (_with_comma, _as_python, _with_comment, _with_prose, _cut),
        r"is not json",
        "A .json file holds JSON alone: double quotes, no comment, no comma after the last entry,"
        " closed to the end.",
    ),
    Slip(
        frozenset((Stage.PAPER_DRAFT, Stage.PAPER_REVISION, Stage.EXPORT_PUBLISH)),
        (_without_citations,),
        r"cites fewer than two works",
        "Cite two works or more in the paper, in the form [@key], with keys of cards.json.",
    ),
    Slip(
        frozenset((Stage.LITERATURE_COLLECT,)),
        (_without_years,),
        r"has no year",
        "Give every BibTeX entry its year = {…} beside author and title.",
    ),
    Slip(
        frozenset((Stage.TOPIC_INIT, Stage.SYNTHESIS, Stage.PAPER_OUTLINE)),
        (_without_last_section,),
        r"there is no section",
        "Write every section that the form names, down to the last heading, with text under it.",
    ),
    Slip(
        frozenset((Stage.RESULT_ANALYSIS,)),
        (_without_last_row,),
        r"the table has no row",
        "Give every condition a row of the table, plain and momentum alike.",
    ),
    Slip(
        _making(".py"),
        (_unclosed,),
        r"no python that can be read",
        "Read the program once more before you submit it: every bracket closed, such as fmean(ends).",
    ),
    Slip(
        _making(".py"),
        (_misspelt,),
        r"name ['\"`]?\w+['\"`]? is not defined|NameError",
        "Use only names that the program defines: it is the list ends whose fmean is taken.",
    ),
    Slip(
        _making(".py"),
        (_with_numpy,),
        r"imports \w+, which is not there",
        "Import nothing but the standard library, such as random and statistics; numpy is missing.",
    ),
)
THIN: Final = Slip(
    frozenset((Stage.ITERATIVE_REFINE,)),
    (),
    r"measured too seldom",
    "Measure every condition of the experiment with five seeds or more when you improve its program.",
)


@dataclass(frozen=True, slots=True)
class SlippingResearcher:
    """A simulated model for the stages, their judge and evolver."""

    seed: int = 0
    chances: SlipChances = SlipChances()

    def answer(self, prompt: Prompt) -> Thought:
        """What it says in the role it is asked in."""
        match prompt.purpose:
            case Purpose.JUDGE:
                return Said(json.dumps(_judged(prompt)))
            case Purpose.EVOLVE:
                return Said(json.dumps({"skills": _lessons(prompt)}))
            case _:
                return self._worked(prompt)

    def heard(self, prompt: str) -> str:
        """The answer to a listen call: no rule is ever stated, but the pipeline asks for more."""
        found = _ASKED_AGAIN.search(prompt)
        return json.dumps({"items": [], "correction": found[1] if found else None})

    def _worked(self, prompt: Prompt) -> Thought:
        asked = [message.text for message in prompt.messages if message.role == "user"]
        system = without_placed(prompt.messages[0].text)
        stage = stage_of(system)
        if stage is None or not asked:
            return Broken(400)
        if prompt.messages[-1].role == "tool" and prompt.messages[-1].text.startswith(ACCEPTED):
            return Said("Done.")
        answers = sum(message.role == "assistant" for message in prompt.messages)
        chance = Random(f"{self.seed}\0{int(stage)}\0{topic_of(asked[0])}\0{answers}")
        text = self._file(stage, topic_of(asked[0]), prompt, chance, is_first=not answers)
        if SUBMIT not in prompt.tools:
            return Said(text)
        return Said("", (Call(SUBMIT, {"content": text}),))

    def _file(
        self, stage: Stage, topic: str, prompt: Prompt, chance: Random, *, is_first: bool
    ) -> str:
        # Everything is drawn whatever the prompt holds: both conditions meet the same luck.
        slip = chance.choice([one for one in SLIPS if stage in one.stages] or [THIN])
        spoil = chance.choice(slip.spoils or (str,))
        slips, is_thin = chance.random(), chance.random()
        files = material_in(without_placed(prompt.messages[0].text))
        if stage is Stage.ITERATIVE_REFINE:
            # The report of a thin experiment stands in this conversation.
            is_told = THIN.is_reported(prompt.text)
            is_thorough = is_told or is_thin >= self._chance(THIN, prompt, self.chances.thin)
            text = refined(files, by_rule=True, is_thorough=is_thorough)
        else:
            text = write(stage, topic, files, by_rule=True)
        usual = self.chances.first if is_first else self.chances.again
        return spoil(text) if slips < self._chance(slip, prompt, usual) else text

    def _chance(self, slip: Slip, prompt: Prompt, usual: float) -> float:
        return usual * self.chances.left if slip.line in _flat(prompt.placed) else usual


def _flat(text: str) -> str:
    return " ".join(text.split())


def _judged(prompt: Prompt) -> dict[str, Json]:
    # What followed an answer stands behind it in the record.
    is_refused = REFUSED in record_in(prompt.text).rpartition("## ")[2]
    said, score = ("fail", -1) if is_refused else ("pass", 1)
    return {"outcome": said, "score": score, "reason": "as the pipeline received it"}


def _lessons(prompt: Prompt) -> list[Json]:
    shown = _flat(prompt.text)
    return [
        _lesson(one) for one in (*SLIPS, THIN) if one.is_reported(shown) and one.line not in shown
    ]


def _lesson(slip: Slip) -> Json:
    tasks = [CONTRACTS[stage].task for stage in sorted(slip.stages)]
    return {
        "name": "-".join(re.findall(r"[a-z]+", slip.line.lower())[:5]),
        "trigger": f"When the task is one of these: {' '.join(tasks[:4])}",
        "body": slip.line,
        "category": "research",
        "examples": list[Json](tasks),
        "check": None,
        "replaces": None,
        "kind": "lesson",
        "text": slip.line,
    }
