"""Answers written in a rule's form. The text of this file is a part of every rule's check, too."""

import re


def pieces_of(form: str, given: dict[str, str]) -> list[tuple[str, int]]:
    """The right answer in pieces, each with 1 if it comes from the task."""
    return [
        (glue, 0) if glue else (_seen(given[name], view), 1)
        for glue, name, view in re.findall(r"([^{}]+)|\{(\w+)\.?(\w*)\}", form)
    ]


def _seen(word: str, view: str) -> str:
    if view == "upper":
        return word.upper()
    return word[0] if view == "first" else word
