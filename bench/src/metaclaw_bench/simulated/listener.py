"""What the simulated provider reads out of a person's message: each sentence that says `always`,
`never` or the like is a rule.
"""

import json
import re
from typing import Final

_MESSAGE: Final = "== The message\n"
_STANDING: Final = re.compile(
    r"\b(?:always|never|whenever|from now on|before you|immer|nie|niemals|ab jetzt|siempre|nunca|a"
    r" partir de ahora|toujours|jamais"
    r"|désormais)\b",
    re.IGNORECASE,
)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|\n+")


def laid_down(said: str) -> list[str]:
    """The standing instructions in what a person says, in order."""
    sentences = (one.strip() for one in _SENTENCE_END.split(said))
    return [one for one in sentences if _STANDING.search(one) and not one.endswith("?")]


def unheard(prompt: str) -> str:
    """The answer to a listen call of a model that hears no rules."""
    return '{"items": [], "correction": null}'


def listened(prompt: str) -> str:
    """The answer to a listen call."""
    rules = laid_down(prompt.rsplit(_MESSAGE, 1)[-1])
    fields: dict[str, object] = {
        "op": "add",
        "kind": "rule",
        "when": "always",
        "examples": [],
        "scope": "everywhere",
        "targets": [],
        "expires": None,
    }
    return json.dumps(
        {
            "items": [
                {**fields, "text": rule, "quote": rule, "speaker": "person"} for rule in rules
            ],
            "correction": None,
        },
        ensure_ascii=False,
    )


def confirmed() -> str:
    """The second opinion on a rule: the person wants it from now on."""
    return json.dumps({"by_person": True, "lasting": True, "relation": "new", "target": None})
