"""Procedures that the agent's model gets wrong until it has read how; what one lesson costs is
measured on them.
"""

from dataclasses import dataclass
from random import Random
from typing import Any


@dataclass(frozen=True)
class Lesson:
    """One task, its wrong and right answer, the person's correction, and the skill that a good
    evolver writes about it.

    The model answers right exactly when `key` stands in its prompt.
    """

    task: str
    wrong: str
    correction: str
    right: str
    key: str
    later: str
    name: str
    trigger: str
    body: str
    check: str | None = None

    @property
    def skill(self) -> dict[str, Any]:
        proposed = {
            "name": self.name,
            "trigger": self.trigger,
            "body": self.body,
            "category": "lesson",
            "examples": [self.task, self.later],
        }
        return proposed if self.check is None else {**proposed, "check": self.check}


LESSONS = (
    Lesson(
        "make the shipping label for order 5521",
        "Label for order 5521 is ready as an A4 page with the address on top.",
        "No, that's wrong. Shipping labels are A6 and carry the order number as a Code 128"
        " barcode.",
        "Label for order 5521 is ready: A6, address, order number as Code 128 barcode.",
        "Code 128",
        "make the shipping label for order 6034",
        "shipping-label",
        "When a shipping label for an order must be made",
        "1. Set the page to A6.\n2. Put the address at the top left.\n3. Print the order number as"
        " a Code 128 barcode below it.\n\nAnti-pattern: an A4 page with the address only.",
        "pattern: Code 128",
    ),
    Lesson(
        "write the handover for the night shift on ward 3",
        "Handover ward 3: all patients are well, nothing special.",
        "That is not a handover. It goes in SBAR order, one paragraph for each bed.",
        "Handover ward 3 in SBAR order: bed 1, situation, background, assessment, recommendation;"
        " bed 2 likewise.",
        "SBAR",
        "write the handover for the early shift on ward 5",
        "ward-handover",
        "When a handover between shifts on a ward must be written",
        "1. Go through the beds in order.\n2. Write each paragraph in SBAR order.\n3. End with what"
        " is due in the next hours.\n\nAnti-pattern: one sentence for the whole ward.",
        "pattern: SBAR",
    ),
    Lesson(
        "cut the recording of the lecture into clips",
        "Cut into 6 clips of ten minutes each.",
        "Wrong, clips end at a change of topic and start with a two second title card.",
        "Cut into 4 clips at changes of topic, each with a two second title card.",
        "title card",
        "cut the recording of the panel into clips",
        "lecture-clips",
        "When a recording of a lecture must be cut into clips",
        "1. Find the changes of topic.\n2. Cut there, whatever the length.\n3. Put a two second"
        " title card before each clip.\n\nAnti-pattern: clips of equal length.",
        "pattern: title card",
    ),
    Lesson(
        "prepare the sample for the soil analysis",
        "Sample prepared: 200 g from the surface in a plastic bag.",
        "No, you did it wrong: soil samples are mixed from fifteen cores of 20 cm and air dried"
        " first.",
        "Sample prepared: fifteen cores of 20 cm mixed, air dried, 200 g in a paper bag.",
        "fifteen cores",
        "prepare the sample for the soil analysis of the north field",
        "soil-sample",
        "When a soil sample must be prepared for analysis",
        "1. Take fifteen cores of 20 cm across the field.\n2. Mix them and dry them in the air.\n3."
        " Fill 200 g into a paper bag.\n\nAnti-pattern: one handful from the surface.",
        "pattern: fifteen cores",
    ),
)
_SENTENCES = (
    "Read a file before you edit it and quote the exact lines that change.",
    "Use absolute paths in every call of a tool.",
    "A command that needs the network asks for approval first.",
    "Keep the plan short and mark each step when it is complete.",
    "Output longer than the limit is cut in the middle.",
    "Search with a pattern before you list a whole directory.",
    "Report an error with its message and the command that gave it.",
    "The sandbox allows writing below the working directory only.",
    "Answer in paragraphs, with a heading where there are several parts.",
    "Never change the history of a remote branch.",
    "Stage single hunks when a file holds unrelated changes.",
    "State which version of a tool you have used.",
)


def agent_prompt(tokens: int, seed: int = 0) -> str:
    """A system prompt of about this many tokens, as long as those of agents are; four characters
    count as one token.
    """
    random = Random(seed)
    sentences = ["You are a helpful agent."]
    length = 0
    while length < tokens * 4 - 24:
        sentence = f"{random.randrange(10_000)}. {random.choice(_SENTENCES)}"
        sentences.append(sentence)
        length += len(sentence) + 1
    return "\n".join(sentences)
