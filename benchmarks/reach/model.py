"""The scripted model. It knows what each sentence of the data set means, and repeats every injected
order as a rule.

SIMULATED: a capable model for `listen`, `judge` and `evolve`, in the shapes that the program asks
for. It sees only what the program sends, so a sentence that the program cuts away has no effect.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.reach.data import Record
from benchmarks.reach.lessons import Lesson
from benchmarks.reach.text import overlap, squeeze

Item = dict[str, Any]
_SURE = 0.6
"""The least share of a sentence that must have arrived for the model to understand it."""
CORRECTED = "Corrected: "
_READ, _FIND = "metaclaw_skill", "metaclaw_find"


def item(text: str, when: str = "always", *, op: str = "add", **fields: Any) -> Item:
    """One item of a `listen` answer."""
    return {
        "op": op,
        "kind": "rule",
        "text": text,
        "when": when,
        "examples": [],
        "scope": "everywhere",
        "targets": [],
        "expires": None,
        "speaker": "person",
        **fields,
    }


def message_text(message: Mapping[str, Any]) -> str:
    """The words of one chat message."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", "") for part in content or [] if isinstance(part, dict))


def section(prompt: str, title: str) -> str:
    """What stands below `== title` in a prompt of sections."""
    _, found, rest = prompt.partition(f"== {title}")
    return rest.partition("\n")[2].split("\n== ")[0].strip() if found else ""


class ScriptedModel:
    """Answers by purpose; without one, as the agent's model."""

    def __init__(
        self,
        data: Mapping[str, Sequence[Any]],
        lessons: Sequence[Lesson] = (),
        *,
        examples: bool = True,
    ) -> None:
        self._meanings: dict[str, Callable[[Sequence[str]], list[Item]]] = {}
        self._lessons = lessons
        self._orders = [str(injection["payload"]) for injection in data["injections"]]
        self._corrections = {str(record["said"]): record for record in data["corrections"]}
        self._replies = {
            squeeze(record["task"]): record["answer"]
            for record in (*data["corrections"], *data["harmless"])
        }
        self._skills = {
            squeeze(task): str(skill["name"])
            for skill in data["skills"]
            for task in (*skill["natural"], *skill["paraphrases"])
        }
        self._nothing = {
            squeeze(said)
            for said in (
                *data["no_rules"],
                *data["unrelated"],
                *(record["said"] for record in data["harmless"]),
            )
        }
        for rule in data["rules"]:
            self._means(
                rule["rule"],
                item(
                    rule["rule"],
                    rule["when"],
                    examples=rule.get("examples", []) if examples else [],
                ),
            )
        for fact in data["facts"]:
            self._means(fact["said"], item(fact["said"], kind="fact", expires=fact.get("expires")))
        for record in self._corrections.values():
            task = [record["task"]] if examples else []
            wanted = record["wanted"]
            self._means(
                record["said"],
                *([item(wanted, f"when asked: {record['task']}", examples=task)] if wanted else []),
            )
        for quoted in data["quoted"]:
            self._means(quoted["rule"], item(quoted["rule"]))
        for project in data["projects"]:
            self._means(project["rule"], item(project["rule"], scope=project["scope"]))
        for change in data["retractions"]:
            self._means(change["first"], item(change["first"]))
            self._meanings[change["then"]] = partial(_changed, change)

    def _means(self, said: str, *items: Item) -> None:
        self._meanings[said] = lambda rules: list(items)

    def answer(self, purpose: str, messages: Sequence[Mapping[str, Any]]) -> str:
        """The answer to one call."""
        last = message_text(messages[-1]) if messages else ""
        whole = "\n".join(map(message_text, messages))
        if purpose == "listen":
            return json.dumps(self.listen(last), ensure_ascii=False)
        if purpose == "confirm":
            return json.dumps(self._confirmed(last), ensure_ascii=False)
        if purpose == "judge":
            return json.dumps(self._judged(last), ensure_ascii=False)
        if purpose == "evolve":
            return json.dumps({"skills": self._evolved(whole)}, ensure_ascii=False)
        return self._reply(messages, whole)

    def lookup(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[str]
    ) -> tuple[str, dict[str, str]] | None:
        """The call by which the agent's model asks for the skill of its task: by name where the
        prompt names it, else by a search. None if there is none, or it has it.
        """
        asked = [message_text(message) for message in messages if message.get("role") == "user"]
        task = asked[-1] if asked else ""
        name = self._skills.get(squeeze(task))
        done = [
            call["function"]["name"]
            for message in messages
            for call in message.get("tool_calls") or ()
        ]
        if name is None or _READ in done:
            return None
        if _READ in tools and name in "\n".join(map(message_text, messages)):
            return _READ, {"name": name}
        return (_FIND, {"query": task}) if _FIND in tools and _FIND not in done else None

    def listen(self, prompt: str) -> dict[str, Any]:
        """What the person laid down, changed, took back or corrected, as far as it stands in the
        prompt.
        """
        message, rules = (
            section(prompt, "The message"),
            section(prompt, "Rules in force").splitlines(),
        )
        if squeeze(message) in self._nothing:
            return {"items": [], "correction": None}
        needed = self._skills.get(squeeze(message))
        if needed is not None and f"- {needed}:" in section(prompt, "Skills there are"):
            return {"items": [], "correction": None, "skills": [needed]}
        arrived = {said: overlap(message, said) for said in self._meanings}
        best = max(arrived, key=lambda said: (arrived[said], len(said)), default=None)
        understood = best if best is not None and arrived[best] >= _SURE else None
        items = [] if understood is None else self._meanings[understood](rules)
        for one in items:
            one["quote"] = understood if understood and understood in message else message
        items += [
            item(order, quote=order) for order in self._orders if overlap(message, order) >= _SURE
        ]
        lesson = next(
            (lesson for lesson in self._lessons if overlap(message, lesson.correction) >= _SURE),
            None,
        )
        corrected = understood if understood in self._corrections else lesson and lesson.correction
        return {"items": items, "correction": corrected}

    def _confirmed(self, prompt: str) -> dict[str, Any]:
        """The second opinion: right about whose wish it is in 19 of 20 cases."""
        understood = section(prompt, "What was understood")
        places = (n for n, order in enumerate(self._orders) if overlap(understood, order) >= _SURE)
        order = next(places, None)
        return {
            "by_person": order is None or order % 20 == 7,
            "lasting": True,
            "relation": "new",
            "target": None,
            "reason": "scripted",
        }

    def _judged(self, prompt: str) -> dict[str, Any]:
        record = prompt.partition("== The answer")[2] or prompt
        failed = any(said in record and CORRECTED not in record for said in self._corrections)
        for lesson in self._lessons:
            if max(record.rfind(lesson.wrong), record.rfind(lesson.right)) >= 0:
                failed = record.rfind(lesson.wrong) > record.rfind(lesson.right)
        score = -0.9 if failed else 0.9
        return {
            "outcome": "fail" if failed else "pass",
            "score": score,
            "reason": "scripted",
            "scores": [score],
        }

    def _evolved(self, prompt: str) -> list[dict[str, Any]]:
        for lesson in self._lessons:
            if lesson.correction in prompt:
                return [lesson.skill]
        for said, record in self._corrections.items():
            if record["wanted"] and said[:60] in prompt:
                slug = (
                    re.sub(r"[^a-z0-9]+", "-", record["wanted"].lower())[:40].strip("-") or "wanted"
                )
                body = (
                    f"1. {record['wanted']}.\n2. Look over the result once more.\n\nAnti-pattern:"
                    f" {record['answer'][:80]}"
                )
                trigger = f"When asked: {record['task']}"
                return [
                    {
                        "name": f"lesson-{slug}",
                        "trigger": trigger,
                        "body": body,
                        "category": "lesson",
                        "examples": [record["task"]],
                    }
                ]
        return []

    def _reply(self, messages: Sequence[Mapping[str, Any]], whole: str) -> str:
        """As the agent's model: wrong where the data says so, unless the prompt says better."""
        asked = [message_text(message) for message in messages if message.get("role") == "user"]
        last = asked[-1] if asked else ""
        for lesson in self._lessons:
            if lesson.task in whole:
                return lesson.right if lesson.key in whole else lesson.wrong
        for said, record in self._corrections.items():
            if squeeze(said) in squeeze(last):
                return CORRECTED + (record["wanted"] or "see above")
        return next(
            (reply for task, reply in self._replies.items() if task in squeeze(last)), "All right."
        )


def _changed(change: Record, rules: Sequence[str]) -> list[Item]:
    if change["after"] == "unchanged":
        return []
    targets = [
        line.split(":", 1)[0].strip(" -*")
        for line in rules
        if overlap(line, change["first"]) >= 0.8
    ]
    if change["after"] == "gone":
        return [item(change["then"], op="retract", targets=targets)]
    return [item(change["replacement"] or change["then"], op="replace", targets=targets)]
