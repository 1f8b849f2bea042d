"""Rules as a person would teach them: a skill each, with something in it that cannot be guessed
without having read it.

The five *house* rules are taught together, by five skills in one home. Each *family* is taught
alone. Nothing may be tuned on the families of `Group.HELD_BACK`: no setting, prompt, reward or test
of the program; they are there to find out what was tuned too far."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from textwrap import indent
from typing import Final

_PROGRAMS: Final = Path(__file__).parent / "programs"


class Group(StrEnum):
    """What a rule may be used for."""

    HOUSE = "house"
    DEV = "dev"
    HELD_BACK = "held-back"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and the skill that states it. Its body's examples use words and numbers that occur in
    no question.
    """

    name: str
    group: Group
    trigger: str
    says: str
    shows: tuple[tuple[str, str], ...]
    """Requests with their right answers."""

    @property
    def skill(self) -> str:
        """The name of the skill."""
        return f"house-{self.name}"

    @property
    def program(self) -> str:
        """The source of the check: it reads the task, works out the right answer and grades what
        was said.
        """
        return program_source(self.name.replace("-", "_"), "grading")

    @property
    def skill_file(self) -> str:
        """The text of its SKILL.md."""
        return skill_text(self.skill, self.trigger, self.says, self.shows, self.program)


def program_source(*parts: str) -> str:
    """The source of a check from these files of `programs`."""
    texts = [(_PROGRAMS / f"{part}.py").read_text(encoding="utf-8").strip() for part in parts]
    return "\n\n".join(texts) + "\n"


def skill_text(
    name: str, trigger: str, says: str, shows: Sequence[tuple[str, str]], program: str
) -> str:
    """A SKILL.md with worked examples and a check."""
    examples = "\n".join(f"  - {asked!r}" for asked, _ in shows)
    shown = "\n".join(f"{asked} -> {answer}" for asked, answer in shows)
    return (
        f"---\nname: {name}\ndescription: {trigger}\nexamples:\n{examples}\ncheck:"
        f" |\n  program: |\n{indent(program, '    ')}---\n\n{says} Examples:\n{shown}\n"
    )


def _rule(name: str, group: Group, trigger: str, says: str, *shows: tuple[str, str]) -> Rule:
    return Rule(name, group, trigger, says, shows)


_ALL: Final = (
    _rule(
        "dates",
        Group.HOUSE,
        "When a date is to be written for the calendar.",
        "Write year, month and day as digits with hyphens between them, then /nb, and nothing"
        " else.",
        ("Write the date 7 March 2051 for the calendar.", "2051-03-07/nb"),
        ("Our meeting is on November 21, 2063. Write that date.", "2063-11-21/nb"),
        ("How is the date 30 June 2048 written?", "2048-06-30/nb"),
    ),
    _rule(
        "names",
        Group.HOUSE,
        "When a new file needs a filename.",
        "Write both topics in brackets with an underscore between them, then version and extension,"
        " and nothing else.",
        (
            "Give me a filename for a gif about copper and lemon, version 4.",
            "[copper_lemon].v4.gif",
        ),
        (
            "Version 2 of the rtf about carrot and violin needs a filename.",
            "[carrot_violin].v2.rtf",
        ),
    ),
    _rule(
        "metadata",
        Group.HOUSE,
        "When metadata for a document is wanted.",
        "Write about, by and rev in braces, and nothing else.",
        (
            "Write the metadata for a document about copper by Laura, revision 4.",
            "{about: copper, by: Laura, rev: 4}",
        ),
        (
            "Karl wrote a document about lemon. It is revision 7. What is its metadata?",
            "{about: lemon, by: Karl, rev: 7}",
        ),
    ),
    _rule(
        "backups",
        Group.HOUSE,
        "When the path of a backup copy is wanted.",
        "Write .vault/ and the file, then ~ and the number of the copy, and nothing else.",
        ("Where does backup 4 of copper.gif go?", ".vault/copper.gif~4"),
        ("I am making backup copy 27 of lemon.rtf. What is its path?", ".vault/lemon.rtf~27"),
    ),
    _rule(
        "log-lines",
        Group.HOUSE,
        "When an error, a warning or a notice with its code is to be logged as a log line.",
        "Write the level in brackets and capitals, then component, event and code with | between"
        " them, nothing else.",
        (
            "Write the log line for this error of the mailer: cable cut, code 4.",
            "[ERROR] mailer | cable cut | 4",
        ),
        (
            "The scanner sends a warning: belt loose, code 31. What is the log line?",
            "[WARNING] scanner | belt loose | 31",
        ),
    ),
    _rule(
        "originals",
        Group.DEV,
        "When the original of a text is to be kept and needs a name.",
        "Write the words of the title in small letters with hyphens between them, then .orig, and"
        " nothing else.",
        ("Which name has the original of Copper Lemon Violin?", "copper-lemon-violin.orig"),
        (
            "Keep the original of Carrot Trumpet Velvet. What is it called?",
            "carrot-trumpet-velvet.orig",
        ),
    ),
    _rule(
        "times",
        Group.DEV,
        "When a time is to be written for the roster.",
        "Write the hour of 24 and the minutes with a colon between them, then +05:30, and nothing"
        " else.",
        ("Write 2:17 pm for the roster.", "14:17+05:30"),
        ("The shift begins at 9:04 am. How does that stand in the roster?", "09:04+05:30"),
    ),
    _rule(
        "tags",
        Group.DEV,
        "When a note needs its tags.",
        "Write each word in capitals with # before it, the second behind a comma, and nothing"
        " else.",
        ("Tag the note about copper and lemon.", "#COPPER,#LEMON"),
        ("Which tags has a note about violin and carrot?", "#VIOLIN,#CARROT"),
    ),
    _rule(
        "tickets",
        Group.DEV,
        "When a ticket needs its id.",
        "Write TCK- and the number with four digits, then /q and the number of the quarter, and"
        " nothing else.",
        ("What is the id of ticket 2042, opened in the third quarter?", "TCK-2042/q3"),
        ("Ticket 3107 is from the first quarter. Write its id.", "TCK-3107/q1"),
    ),
    _rule(
        "sums",
        Group.DEV,
        "When two amounts are to be added for the till.",
        "Write the sum, and in a second line check and its last digit, and nothing else.",
        ("Add 4 and 9 for the till.", "13\ncheck 3"),
        ("What do 95 and 97 make for the till?", "192\ncheck 2"),
    ),
    _rule(
        "register",
        Group.HELD_BACK,
        "When a person's name is to be written for the register.",
        "Write the surname, a comma, the first letter of the first name and a full stop, and"
        " nothing else.",
        ("How does Laura Winter stand in the register?", "Winter, L."),
        ("Enter Karl Summers in the register.", "Summers, K."),
    ),
    _rule(
        "phones",
        Group.HELD_BACK,
        "When a phone number is to be written for the phone list.",
        "Write two digits, a slash, and the other digits in groups of three with hyphens between"
        " them, and nothing else.",
        ("Write the phone number 00112233 for the phone list.", "00/112-233"),
        ("How does 01998877 stand in the phone list?", "01/998-877"),
    ),
    _rule(
        "prices",
        Group.HELD_BACK,
        "When a price is to be written for the catalogue.",
        "Write euros and two digits of cents with a comma between them, a space and EUR, and"
        " nothing else.",
        (
            "The violin costs 120 euros and 5 cents. Write its price for the catalogue.",
            "120,05 EUR",
        ),
        ("Which price has a trumpet of 231 euros and 40 cents in the catalogue?", "231,40 EUR"),
    ),
    _rule(
        "measures",
        Group.HELD_BACK,
        "When a measure is to be written on a label.",
        "Write the number, an underscore and the unit's sign (mm, cm, kg or l), and nothing else.",
        ("The violin is 4 centimetres long. Write its measure on the label.", "4_cm"),
        ("Write 1200 kilograms of copper on the label.", "1200_kg"),
    ),
    _rule(
        "routes",
        Group.HELD_BACK,
        "When a delivery needs its route code.",
        "Write both cities with > between them, then @ and the number of the van, and nothing"
        " else.",
        ("Van 12 drives from Zurich to Naples. What is the route code?", "Zurich>Naples@12"),
        ("Give me the route code of van 31 from Naples to Zurich.", "Naples>Zurich@31"),
    ),
)

RULES: Final = {rule.name: rule for rule in _ALL}


def rules_of(group: Group) -> tuple[Rule, ...]:
    """The rules of a group."""
    return tuple(rule for rule in _ALL if rule.group is group)
