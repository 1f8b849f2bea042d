"""The stages of the pipeline: their order, the gates, and where a decision or a refused gate leads
back to.
"""

from enum import IntEnum, StrEnum
from typing import Final


class Stage(IntEnum):
    """Twenty-three stages in eight phases, in the order they are run."""

    TOPIC_INIT = 1
    PROBLEM_DECOMPOSE = 2

    SEARCH_STRATEGY = 3
    LITERATURE_COLLECT = 4
    LITERATURE_SCREEN = 5
    KNOWLEDGE_EXTRACT = 6

    SYNTHESIS = 7
    HYPOTHESIS_GEN = 8

    EXPERIMENT_DESIGN = 9
    CODE_GENERATION = 10
    RESOURCE_PLANNING = 11

    EXPERIMENT_RUN = 12
    ITERATIVE_REFINE = 13

    RESULT_ANALYSIS = 14
    RESEARCH_DECISION = 15

    PAPER_OUTLINE = 16
    PAPER_DRAFT = 17
    PEER_REVIEW = 18
    PAPER_REVISION = 19

    QUALITY_GATE = 20
    KNOWLEDGE_ARCHIVE = 21
    EXPORT_PUBLISH = 22
    CITATION_VERIFY = 23


class Decision(StrEnum):
    """What the decision stage may say."""

    PROCEED = "PROCEED"
    REFINE = "REFINE"
    PIVOT = "PIVOT"


STAGES: Final = tuple(Stage)
LAST_STAGE: Final = STAGES[-1]

GATES: Final = {
    Stage.LITERATURE_SCREEN: Stage.LITERATURE_COLLECT,
    Stage.EXPERIMENT_DESIGN: Stage.HYPOTHESIS_GEN,
    Stage.QUALITY_GATE: Stage.PAPER_OUTLINE,
}
"""The gates, each with the stage that a refusal leads back to."""

LEADS_BACK_TO: Final = {
    Decision.REFINE: Stage.ITERATIVE_REFINE,
    Decision.PIVOT: Stage.HYPOTHESIS_GEN,
}

AUTHOR_OF: Final = {
    Stage.EXPERIMENT_RUN: Stage.CODE_GENERATION,
    Stage.CITATION_VERIFY: Stage.EXPORT_PUBLISH,
}
"""Stages that ask no model: the program does them, on what the named stage wrote, and that one is
asked again if they fail.
"""

ASKING_STAGES: Final = tuple(stage for stage in STAGES if stage not in AUTHOR_OF)


def title_of(stage: Stage) -> str:
    """The stage's name in words."""
    return stage.name.lower().replace("_", " ")
