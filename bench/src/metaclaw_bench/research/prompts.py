"""What the stages say to the model: the task with its material, and the correction when a contract
was broken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from metaclaw_bench.research.contracts import Broken, Contract, Files
from metaclaw_bench.research.stages import STAGES, Stage, title_of

SUBMIT: Final = "submit"
"""The tool by which a stage hands in its file, in the form with tools."""
REFUSED: Final = "was not accepted"
NOT_ENOUGH: Final = "No, that is not enough"
ACCEPTED: Final = "accepted: "
_MOST_MATERIAL_CHARS: Final = 6_000
_BEGINS: Final = "You are a careful researcher in stage {number:02d} of {count} ({title}) of a research pipeline."


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a stage's conversation. A message of the role `tool` says what became of the
    file in the message before it.
    """

    role: str
    text: str


def opening(contract: Contract, topic: str, files: Files) -> tuple[Message, Message]:
    """The first request of a stage: who it is and its material in the system text, and the task in
    few words.

    The material is what earlier stages wrote. It is apart from the task, so that what the task is
    about is told by the task alone."""
    system = [f"{system_of(contract.stage)} Answer with the contents of one file and nothing else."]
    system += [f"### {name}\n{_cut(files[name])}" for name in contract.needs]
    asked = [contract.task, f"Topic: {topic}", f"File: {contract.makes}", f"Form: {contract.form}"]
    return Message("system", "\n\n".join(system)), Message("user", "\n".join(asked))


def system_of(stage: Stage) -> str:
    """The beginning of the system text, which names the stage."""
    return _BEGINS.format(number=int(stage), count=len(STAGES), title=title_of(stage))


def stage_of(system: str) -> Stage | None:
    """The stage whose system text this is."""
    return next((stage for stage in STAGES if system.startswith(system_of(stage))), None)


def correction(broken: Broken) -> Message:
    """What is said when a contract was broken: what is wrong, and what holds from now on. This is
    what there is to learn from.
    """
    return Message(
        "user",
        f"No, that is wrong: {broken.why}.\n{standing(broken.rule)}\nPlease write the whole file"
        " again.",
    )


def report(file: str, broken: Broken) -> Message:
    """What the pipeline says of a file that it refuses, and nothing that would prevent it."""
    return Message("tool", f"Error: {file} {REFUSED}: {broken.why}")


def acceptance(file: str) -> Message:
    """What the pipeline says of a file that it keeps."""
    return Message("tool", f"{ACCEPTED}{file}")


def reconsideration(why: str, rule: str | None) -> Message:
    """What is said to a stage that has to be done again because of what came later; with the rule
    that would have prevented it.
    """
    said = f"{NOT_ENOUGH}: {why.rstrip('. ')}."
    return Message(
        "user",
        "\n".join(
            [said, *([standing(rule)] if rule else []), "Please write the whole file again."]
        ),
    )


def standing(rule: str) -> str:
    """A rule as a standing instruction."""
    return f"From now on, {rule}."


def is_told(rule: str, texts: Sequence[str]) -> bool:
    """Whether a rule stands somewhere in these texts, however its lines are broken."""
    wanted = " ".join(rule.split())
    return any(wanted in " ".join(text.replace("\n> ", " ").split()) for text in texts)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_MATERIAL_CHARS else f"{text[:_MOST_MATERIAL_CHARS]}\n(cut)\n"
