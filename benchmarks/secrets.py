"""Planted secrets: how many are found, kind by kind, what is redacted that should not be, and how
fast.

    python -m benchmarks.secrets [--seed 0] [--count 10000] [--quick] [--json] [--assert-goals]

Each secret is drawn anew and stands in a text that could carry it; each is looked for in what
`Redactor.text` gives out, in what `Redactor.step` gives out and in what `render_step` shows of a
step that holds it somewhere. It has survived if any ten characters of it in a row are left (all of
it, where it is shorter). False redactions are counted on text without secrets, per thousand words.
Times are processor time of one thread."""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from benchmarks.secrets_ordinary import CODE, PROSE, ordinary
from benchmarks.secrets_planted import KINDS, KNOWN, Planted, plant
from metaclaw.domain.chat import Message, Part, Role, Text, ToolCall, ToolResult
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.turn import Scope, Stamp, Step, TurnEnd
from metaclaw.privacy import KnownSecrets, Redactor, render_step

RUN_CHARS = 10
GOAL_MB_PER_S = 5.0
MAX_FALSE_PER_1000 = 0.5
PLACES = ("task", "answer", "arguments", "result", "error", "said after", "two parts")
HOSTILE = {
    "one long token": "a1B2" * 50_000,
    "quotes": "\"'" * 100_000,
    "backslashes": "\\" * 200_000,
    "percents": "%41" * 70_000,
    "begins without ends": "-----BEGIN RSA PRIVATE KEY-----\n" * 6_000,
    "ends without begins": "-----END RSA PRIVATE KEY-----\n" * 6_000,
    "half tokens": "-eyJ.eyJ.-eyJ" * 15_000,
    "names without values": "password: " * 20_000,
    "names in a row": "api_key_token_secret_" * 9_500,
    "addresses": "https://a:b" * 18_000,
    "kinds": "kind: Secret\ndata:\n" * 10_000,
    "cookies": "Cookie: " * 25_000,
    "spaces": "password is" + " " * 200_000,
    "line breaks": "aB3dE6gH9\n" * 20_000,
    "zero-width": "a\u200b" * 100_000,
    "spoken": "the token of my old friend " * 7_500,
}


def survives(planted: Planted, shown: str) -> bool:
    """Whether a run of the secret's characters can still be read."""
    for hidden in planted.hidden:
        size = min(len(hidden), RUN_CHARS)
        if any(hidden[at : at + size] in shown for at in range(len(hidden) - size + 1)):
            return True
    return False


def step_with(planted: Planted, place: str, rng: random.Random) -> Step:
    """A step that holds the text in one of the places words can be in."""
    text = planted.text
    cut = rng.randrange(1, max(2, len(text)))
    answer: tuple[Part, ...] = (Text(text if place == "answer" else "I looked."),)
    if place == "two parts":
        answer = (Text(text[:cut]), Text(text[cut:]))
    call = ToolCall(
        "call_1", "bash", json.dumps({"command": text if place == "arguments" else "make"})
    )
    output = text if place in ("result", "error") else "ok"
    task = text if place == "task" else "Please look at this."
    said = text if place == "said after" else "thanks"
    return Step(
        turn=TurnId("t_1"),
        session=SessionId("s_1"),
        scope=Scope(),
        stamp=Stamp(0, 0, "", ()),
        model="m",
        task=task,
        history=(
            Message(Role.USER, (Text(task),)),
            Message(Role.ASSISTANT, (call,)),
            Message(Role.TOOL, (ToolResult("call_1", (Text(output),), place == "error"),)),
        ),
        tools=(),
        answer=answer,
        end=TurnEnd.COMPLETED,
        after=(Message(Role.USER, (Text(said),)),),
        said_after=said,
    )


def words_of(step: Step) -> str:
    """Everything a redacted step still says."""
    return "\n".join(
        (
            step.task,
            step.said_after or "",
            *_words(part for message in (*step.history, *step.after) for part in message.parts),
            "".join(_words(step.answer)),
        )
    )


def _words(parts: Iterable[Part]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Text):
            yield part.text
        elif isinstance(part, ToolCall):
            yield part.arguments
            yield (
                json.loads(part.arguments).get("command", "")
                if part.arguments.startswith("{")
                else ""
            )
        elif isinstance(part, ToolResult):
            yield from _words(part.parts)


def measure_recall(
    seed: int, count: int
) -> tuple[Counter[str], Counter[str], list[dict[str, str]]]:
    """How many of each kind were planted, how many survived anywhere, and which."""
    rng = random.Random(seed)
    plain = Redactor()
    kinds = (*KINDS, KNOWN)
    planted_of: Counter[str] = Counter()
    survived: Counter[str] = Counter()
    examples: list[dict[str, str]] = []
    for at in range(count):
        planted = plant(rng, kinds[at % len(kinds)])
        redactor = plain if planted.known is None else Redactor(KnownSecrets((planted.known,)))
        place = rng.choice(PLACES)
        step = step_with(planted, place, rng)
        shown = (
            ("text", redactor.text(planted.text).text),
            ("step", words_of(redactor.step(step))),
            ("evidence", render_step(step, redactor, 50_000)),
        )
        left = [name for name, text in shown if survives(planted, text)]
        planted_of[planted.kind] += 1
        if left:
            survived[planted.kind] += 1
            examples.append(
                {
                    "kind": planted.kind,
                    "carrier": planted.carrier,
                    "place": place,
                    "in": ", ".join(left),
                    "text": planted.text[:300],
                }
            )
    return planted_of, survived, examples


def measure_false(seed: int, library_chars: int) -> dict[str, tuple[int, int, list[str]]]:
    """For each ordinary text: words, redactions, and what was redacted."""
    redactor = Redactor()
    results = {}
    for name, text in ordinary(seed, library_chars).items():
        found = redactor.text(text).found
        words = len(text) if name in ("prose, Chinese", "prose, Japanese") else len(text.split())
        results[name] = (words, len(found), [text[one.start : one.end][:60] for one in found])
    return results


def measure_speed(seed: int) -> dict[str, float]:
    """Megabytes of UTF-8 per second of processor time, on ordinary text and on text made to be
    slow.
    """
    redactor = Redactor(
        KnownSecrets(f"Known{at}-{random.Random(at).getrandbits(80):020x}" for at in range(20))
    )
    texts = ordinary(seed, library_chars=2_000_000)
    bodies = {
        "code": texts["code, standard library"],
        "prose": texts["prose, documentation"],
        "logs": texts["logs"] * 40,
    }
    bodies["dense with names of secrets"] = "\n".join((*PROSE.values(), *CODE.values())) * 20
    return {
        name: _rate(redactor, text)
        for name, text in (
            bodies | {f"hostile, {name}": text for name, text in HOSTILE.items()}
        ).items()
    }


def _rate(redactor: Redactor, text: str) -> float:
    pieces = [text[at : at + 100_000] for at in range(0, len(text), 100_000)]
    began = time.process_time()
    for piece in pieces:
        redactor.text(piece)
    return len(text.encode()) / 1e6 / max(1e-9, time.process_time() - began)


def report(
    facts: dict[str, object],
    recall: list[tuple[str, int, int]],
    false: dict[str, tuple[int, int, list[str]]],
    speed: dict[str, float],
) -> None:
    """The numbers, for people."""
    print(
        f"planted {facts['planted']}  survived {facts['survived']}  kinds {facts['kinds']}  seed"
        f" {facts['seed']}"
    )
    print(f"{'kind':32} planted survived  recall")
    for kind, planted, lost in recall:
        print(f"{kind:32} {planted:7} {lost:8}  {1 - lost / planted:6.1%}")
    print(f"\n{'ordinary text':32}   words redacted  per 1,000")
    for name, (words, found, _) in false.items():
        print(f"{name:32} {words:7} {found:8}  {1000 * found / words:9.3f}")
    print(f"{'all':32} {facts['words']:7} {facts['false']:8}  {facts['false_per_1000']:9.3f}")
    print("\nMB/s of processor time")
    for name, rate in speed.items():
        print(f"{name:40} {rate:7.2f}")


def main() -> int:
    """Prints the numbers; with --assert-goals, 1 where a goal is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.secrets",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--json", action="store_true", help="the numbers as JSON")
    parser.add_argument(
        "--quick", action="store_true", help="no speed, and no library of the interpreter"
    )
    parser.add_argument(
        "--assert-goals",
        action="store_true",
        help="exit 1 if a secret survives or ordinary text suffers",
    )
    given = parser.parse_args()
    planted, survived, examples = measure_recall(given.seed, given.count)
    false = measure_false(given.seed, 0 if given.quick else 3_000_000)
    speed = {} if given.quick else measure_speed(given.seed)
    words, wrong = sum(one[0] for one in false.values()), sum(one[1] for one in false.values())
    facts: dict[str, object] = {
        "seed": given.seed, "planted": planted.total(), "survived": survived.total(), "kinds": len(planted), "words": words,
        "false": wrong, "false_per_1000": 1000 * wrong / words,
    }  # fmt: skip
    recall = [(kind, planted[kind], survived[kind]) for kind in planted]
    if given.json:
        print(
            json.dumps(
                facts
                | {
                    "recall": recall,
                    "false_by_text": false,
                    "mb_per_s": speed,
                    "survivors": examples,
                },
                indent=1,
            )
        )
    else:
        report(facts, recall, false, speed)
        for example in examples[:20]:
            print("survived:", json.dumps(example, ensure_ascii=False))
        for name, (_, _, found) in false.items():
            for text in found[:8]:
                print(f"redacted in {name}: {text!r}")
    missed = (
        survived.total() > 0
        or 1000 * wrong / words > MAX_FALSE_PER_1000
        or min((speed[name] for name in ("code", "prose") if name in speed), default=GOAL_MB_PER_S)
        < GOAL_MB_PER_S
    )
    return 1 if given.assert_goals and missed else 0


if __name__ == "__main__":
    sys.exit(main())
