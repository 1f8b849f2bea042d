"""Which stage of AutoResearchClaw a request belongs to, and whether it asks for something once
more.

Its requests carry no stage and its artefacts count no retries, so stages are told by a few words of
the prompts. What is not recognised is counted apart, and never guessed. A retry is a request that
begins with what is wrong, or says so at its end, or repeats an answered one of the same refine
cycle; but an experiment is improved in rounds, and a round that brought nothing makes the next one
the same."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from metaclaw_bench.json_types import Json
from metaclaw_bench.research.stages import Stage

_REPAIRS: Final[tuple[tuple[str, Stage], ...]] = (
    ("has validation errors", Stage.CODE_GENERATION),
    ("crashed during execution", Stage.CODE_GENERATION),
    ("Your generated code has CRITICAL issues", Stage.CODE_GENERATION),
    ("Fix the runtime error in", Stage.CODE_GENERATION),
    ("A code reviewer found these critical issues", Stage.CODE_GENERATION),
    ("CRITICAL CODE QUALITY ISSUES FOUND", Stage.CODE_GENERATION),
    ("Code review found", Stage.CODE_GENERATION),
    ("code you previously generated does NOT align", Stage.CODE_GENERATION),
    ("Fix all validation issues in", Stage.ITERATIVE_REFINE),
    ("Fix all issues in the experiment code", Stage.ITERATIVE_REFINE),
    ("EXPERIMENT REPAIR TASK", Stage.ITERATIVE_REFINE),
    ("Output ONLY valid YAML", Stage.EXPERIMENT_DESIGN),
    ("Revise the complete scientific manuscript", Stage.PAPER_DRAFT),
    ("CRITICAL LENGTH REQUIREMENT", Stage.PAPER_REVISION),
)
_AFTERTHOUGHTS: Final = ("THE PREVIOUS RESPONSE VIOLATED", "PREVIOUS ATTEMPT FAILED REVIEW")
# Its agents for figures and for reviewing code are known by the role the system prompt gives them:
# their prompts hold only data.
_ROLES: Final[tuple[tuple[str, Stage], ...]] = (
    ("expert academic paper analyst", Stage.RESULT_ANALYSIS),
    ("scientific visualization advisor", Stage.RESULT_ANALYSIS),
    ("scientific visualization programmer", Stage.RESULT_ANALYSIS),
    ("reviewer of scientific figures", Stage.RESULT_ANALYSIS),
    ("experiment code reviewer", Stage.CODE_GENERATION),
    ("scientific code reviewer", Stage.CODE_GENERATION),
    ("senior researcher reviewing experiment code", Stage.CODE_GENERATION),
)
_TASKS: Final[tuple[tuple[str, Stage], ...]] = (
    ("Create a SMART research goal", Stage.TOPIC_INIT),
    ("Decompose this research problem", Stage.PROBLEM_DECOMPOSE),
    ("Evaluate this research topic", Stage.PROBLEM_DECOMPOSE),
    ("Create a merged search strategy", Stage.SEARCH_STRATEGY),
    ("Generate candidate papers", Stage.LITERATURE_COLLECT),
    ("merged relevance+quality screening", Stage.LITERATURE_SCREEN),
    ("Extract structured knowledge cards", Stage.KNOWLEDGE_EXTRACT),
    ("Produce merged synthesis output", Stage.SYNTHESIS),
    ("falsifiable hypotheses", Stage.HYPOTHESIS_GEN),
    ("unconventional hypotheses", Stage.HYPOTHESIS_GEN),
    ("well-grounded hypotheses", Stage.HYPOTHESIS_GEN),
    ("contrarian hypotheses", Stage.HYPOTHESIS_GEN),
    ("hypotheses generated from three", Stage.HYPOTHESIS_GEN),
    ("Design an experiment plan", Stage.EXPERIMENT_DESIGN),
    ("Generate a Python experiment project", Stage.CODE_GENERATION),
    ("IMPLEMENTATION BLUEPRINT", Stage.CODE_GENERATION),
    ("Generate the Python file", Stage.CODE_GENERATION),
    ("Review this experiment code", Stage.CODE_GENERATION),
    ("Examine this experiment code", Stage.CODE_GENERATION),
    ("senior researcher reviewing experiment code", Stage.CODE_GENERATION),
    ("Evaluate whether this experiment code actually tests", Stage.CODE_GENERATION),
    ("Create schedule JSON", Stage.RESOURCE_PLANNING),
    ("Improve the experiment code", Stage.ITERATIVE_REFINE),
    ("results from an optimistic perspective", Stage.RESULT_ANALYSIS),
    ("Critically scrutinize the experiment results", Stage.RESULT_ANALYSIS),
    ("Audit the experimental methodology", Stage.RESULT_ANALYSIS),
    ("analyses from three different perspectives", Stage.RESULT_ANALYSIS),
    ("Analyze run metrics", Stage.RESULT_ANALYSIS),
    ("Make a PROCEED", Stage.RESEARCH_DECISION),
    ("make one of three decisions", Stage.RESEARCH_DECISION),
    ("Create a detailed paper outline", Stage.PAPER_OUTLINE),
    ("Simulate peer review", Stage.PEER_REVIEW),
    ("Revise the paper draft", Stage.PAPER_REVISION),
    ("Evaluate revised paper quality", Stage.QUALITY_GATE),
    ("Write retrospective archive", Stage.KNOWLEDGE_ARCHIVE),
    ("Format revised paper", Stage.EXPORT_PUBLISH),
    ("Write a FULL-LENGTH paper draft", Stage.PAPER_DRAFT),
    ("Write a full paper draft", Stage.PAPER_DRAFT),
    ("Write the following sections", Stage.PAPER_DRAFT),
    ("You are continuing a paper", Stage.PAPER_DRAFT),
    ("You are completing a paper", Stage.PAPER_DRAFT),
)
# A task stands before what it quotes; before it stands at most a preamble, which in the stages that
# write has long rules of style.
_LOOKED_AT_CHARS: Final = 30_000
_BEGINNING_CHARS: Final = 300
_END_CHARS: Final = 3_000
_FIRST_ERROR: Final = 400


@dataclass(frozen=True, slots=True)
class Classified:
    """A request: its stage, and whether it mends what an earlier one of that stage gave. None where
    it is not recognised.
    """

    stage: Stage
    is_repair: bool


@dataclass(frozen=True, slots=True)
class Counted:
    """A run's requests. `attempts` are those of a known stage; retries are repairs, and requests
    that were answered before.

    What nobody answered is no attempt: it was the provider that failed, and asking again is no
    fault of a stage. `cut_off` is true where the last request of the run was one of these."""

    attempts: int
    retries: int
    unclassified: int
    unanswered: int = 0
    cut_off: bool = False

    @property
    def are_there(self) -> bool:
        """Whether the run asked the proxy anything at all."""
        return self.attempts + self.unclassified + self.unanswered > 0

    @property
    def are_known(self) -> bool:
        """Whether attempts and retries can be told: where most requests are of no stage we know,
        its prompts are others.
        """
        return self.attempts > 0 and self.attempts >= self.unclassified


def classify(prompt: str, system: str = "") -> Classified | None:
    """The stage of a request: by the role its system prompt gives, else by the marker that comes
    first in its user prompt.

    A fault counts only if the prompt begins with it.
    """
    is_once_more = any(words in prompt[-_END_CHARS:] for words in _AFTERTHOUGHTS)
    role = min(_marked(_ROLES, system), default=None)
    if role is not None:
        return Classified(role[1], is_once_more)
    found = [(at, stage, True) for at, stage in _marked(_REPAIRS, prompt[:_BEGINNING_CHARS])]
    found += [(at, stage, False) for at, stage in _marked(_TASKS, prompt[:_LOOKED_AT_CHARS])]
    if not found:
        return None
    _, stage, is_repair = min(found)
    return Classified(stage, is_repair or is_once_more)


def _marked(markers: Iterable[tuple[str, Stage]], text: str) -> Iterator[tuple[int, Stage]]:
    return ((at, stage) for words, stage in markers if (at := text.find(words)) >= 0)


def count_requests(turns: Iterable[Mapping[str, Json]]) -> Counted:
    """Count the main requests of one run, given its turns as `GET /api/turns/{id}` has them.

    Side requests (its judges, its lessons, the session's end) belong to no stage.
    """
    attempts = retries = unclassified = unanswered = 0
    cut_off = False
    seen: set[bytes] = set()
    has_decided = False
    for turn in (one for one in turns if one.get("kind") == "main"):
        status = turn.get("status")
        cut_off = (
            turn.get("end") != "completed" or not isinstance(status, int) or status >= _FIRST_ERROR
        )
        messages = _messages_in(turn.get("request"))
        if cut_off:
            unanswered += 1
        elif (
            found := classify(_words_of(messages, "user"), _words_of(messages, "system"))
        ) is None:
            unclassified += 1
        else:
            if has_decided and found.stage < Stage.RESEARCH_DECISION:
                # The decision led back: the stages from here on are done once more, which is a
                # refine cycle and no retry.
                seen, has_decided = set(), False
            has_decided = has_decided or found.stage is Stage.RESEARCH_DECISION
            # Its own client asks again with more room for an answer, so only the messages tell.
            digest = hashlib.sha256(json.dumps(messages).encode()).digest()
            attempts += 1
            retries += found.is_repair or (
                digest in seen and found.stage is not Stage.ITERATIVE_REFINE
            )
            seen.add(digest)
    return Counted(attempts, retries, unclassified, unanswered, cut_off)


def _messages_in(value: Json) -> list[dict[str, Json]]:
    """The messages of a request in either of the wires it speaks."""
    if not isinstance(value, dict):
        return []
    listed = value.get("messages") or value.get("input")
    told: list[dict[str, Json]] = (
        [{"role": "system", "content": value["instructions"]}] if "instructions" in value else []
    )
    return told + (
        [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    )


def _words_of(messages: Iterable[Mapping[str, Json]], role: str) -> str:
    return "\n".join(_flat(one.get("content")) for one in messages if one.get("role") == role)


def _flat(content: Json) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
