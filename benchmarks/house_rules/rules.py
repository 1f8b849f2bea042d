"""Five house rules as a person would teach them: a skill each, with what cannot be guessed without having read it."""

from enum import StrEnum
from typing import Final

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill


class Rule(StrEnum):
    """What the rule is about."""

    DATES = "dates"
    NAMES = "names"
    METADATA = "metadata"
    BACKUPS = "backups"
    LOG_LINES = "log lines"


def _skill(name: str, trigger: str, body: str) -> Skill:
    # Procedures with examples, not a person's one-line rules, so that they stand in the prompt as they are.
    return Skill(SkillName(name), trigger, body, extra={"kind": "skill"}, author=Authorship.INSTRUCTION)


SKILLS: Final = {
    Rule.DATES: _skill(
        "house-dates",
        "When a date is to be written for the calendar.",
        "Write year, month and day as digits with hyphens between them, then /nb, and nothing else. Examples:\n"
        "Write the date 7 March 2051 for the calendar. -> 2051-03-07/nb\n"
        "Our meeting is on November 21, 2063. Write that date. -> 2063-11-21/nb\n"
        "How is the date 30 June 2048 written? -> 2048-06-30/nb",
    ),
    Rule.NAMES: _skill(
        "house-filenames",
        "When a new file needs a filename.",
        "Write both topics in brackets with an underscore between them, then version and extension, and nothing else. Examples:\n"
        "Give me a filename for a gif about copper and lemon, version 4. -> [copper_lemon].v4.gif\n"
        "Version 2 of the rtf about carrot and violin needs a filename. -> [carrot_violin].v2.rtf",
    ),
    Rule.METADATA: _skill(
        "house-metadata",
        "When metadata for a document is wanted.",
        "Write about, by and rev in braces, and nothing else. Examples:\n"
        "Write the metadata for a document about copper by Laura, revision 4. -> {about: copper, by: Laura, rev: 4}\n"
        "Karl wrote a document about lemon. It is revision 7. What is its metadata? -> {about: lemon, by: Karl, rev: 7}",
    ),
    Rule.BACKUPS: _skill(
        "house-backups",
        "When the path of a backup copy is wanted.",
        "Write .vault/ and the file, then ~ and the number of the copy, and nothing else. Examples:\n"
        "Where does backup 4 of copper.gif go? -> .vault/copper.gif~4\n"
        "I am making backup copy 27 of lemon.rtf. What is its path? -> .vault/lemon.rtf~27",
    ),
    Rule.LOG_LINES: _skill(
        "house-log-lines",
        "When an error, a warning or a notice with its code is to be logged as a log line.",
        "Write the level in brackets and capitals, then component, event and code with | between them, nothing else. Examples:\n"
        "Write the log line for this error of the mailer: cable cut, code 4. -> [ERROR] mailer | cable cut | 4\n"
        "The scanner sends a warning: belt loose, code 31. What is the log line? -> [WARNING] scanner | belt loose | 31",
    ),
}
"""Examples use words and numbers that occur in no question."""
