"""Answers written in a rule's form. The text of this file is a part of every rule's check, too."""

import re

VIEWS = {"": str, "upper": str.upper, "first": lambda word: word[0]}


def pieces_of(form: str, given: dict[str, str]) -> list[tuple[str, int]]:
    """The right answer in pieces, each with 1 if it comes from the task."""
    return [
        (glue, 0) if glue else (VIEWS[view](given[name]), 1)
        for glue, name, view in re.findall(r"([^{}]+)|\{(\w+)\.?(\w*)\}", form)
    ]
