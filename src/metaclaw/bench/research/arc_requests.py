"""Which stage of AutoResearchClaw a request belongs to, and whether it asks for something once more.

Its requests carry no stage and its artefacts count no retries, so stages are told by a few words of the prompts. What is not
recognised is counted apart, and never guessed.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from metaclaw.bench.research.stages import Stage
from metaclaw.domain.chat import Json
from metaclaw.domain.turn import TurnKind
from metaclaw.store import RecordedTurn

_REPAIRS: Final[tuple[tuple[str, Stage], ...]] = (
    ("has validation errors", Stage.CODE_GENERATION),
    ("crashed during execution", Stage.CODE_GENERATION),
    ("Fix all validation issues in", Stage.ITERATIVE_REFINE),
    ("Fix all issues in the experiment code", Stage.ITERATIVE_REFINE),
)
_TASKS: Final[tuple[tuple[str, Stage], ...]] = (
    ("Create a SMART research goal", Stage.TOPIC_INIT),
    ("Decompose this research problem", Stage.PROBLEM_DECOMPOSE),
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
)
_MARKERS: Final = tuple((words, stage, kind) for kind, group in ((True, _REPAIRS), (False, _TASKS)) for words, stage in group)
# A task stands before what it quotes; before it stands at most a preamble, which in the stages that write has long rules of style.
_LOOKED_AT_CHARS: Final = 30_000


@dataclass(frozen=True, slots=True)
class Classified:
    """A request: its stage, and whether it mends what an earlier one of that stage gave. None where it is not recognised."""

    stage: Stage
    is_repair: bool


@dataclass(frozen=True, slots=True)
class Counted:
    """A run's requests. `attempts` are those of a known stage; retries are repairs, and requests that were sent before."""

    attempts: int
    retries: int
    unclassified: int


def classify(prompt: str) -> Classified | None:
    """The stage of a request by its user prompt: the marker that comes first in it."""
    shown = prompt[:_LOOKED_AT_CHARS]
    found = [(at, stage, is_repair) for marker, stage, is_repair in _MARKERS if (at := shown.find(marker)) >= 0]
    return Classified(*min(found)[1:]) if found else None


def count_requests(turns: Iterable[RecordedTurn]) -> Counted:
    """Count the main requests of one run; side requests (its judges, its lessons, the session's end) are none of a stage."""
    attempts = retries = unclassified = 0
    seen: set[bytes] = set()
    for recorded in turns:
        if recorded.turn.kind is not TurnKind.MAIN:
            continue
        body = recorded.turn.exchange.request
        found = classify(_prompt_in(body))
        if found is None:
            unclassified += 1
            continue
        digest = hashlib.sha256(body).digest()
        attempts += 1
        retries += found.is_repair or digest in seen or recorded.turn.retry_of is not None
        seen.add(digest)
    return Counted(attempts, retries, unclassified)


def _prompt_in(body: bytes) -> str:
    """The words of a chat request's user messages."""
    try:
        value: Json = json.loads(body)
    except ValueError:
        return ""
    listed = value.get("messages") or value.get("input") if isinstance(value, dict) else None
    messages = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return "\n".join(_flat(one.get("content")) for one in messages if one.get("role") == "user")


def _flat(content: Json) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
