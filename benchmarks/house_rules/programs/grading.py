# How near an answer is to the right one. 1 for the right one; any other earns less than one half:
# two thirds of that for what it takes from the task, one third for its form, and less of both the
# more is said beside. Its first line may count alone.
import difflib
import json
import sys


def worth(said, wanted, contents):
    at, found = 0, 0
    for part in contents:
        place = said.find(part, at)
        if place >= 0:
            at, found = place + len(part), found + 1
    form = difflib.SequenceMatcher(None, said, wanted, False).ratio()
    brevity = min(1.0, len(wanted) / len(said))
    return brevity * (2 * found / len(contents) + form) / 3


def grade(said, pieces):
    wanted = "".join(text for text, _ in pieces)
    contents = [text for text, is_content in pieces if is_content]
    said = said.strip()
    if said == wanted:
        return 1.0
    if not said:
        return 0.0
    first = said.splitlines()[0].strip()
    return 0.48 * max(
        worth(said[:400], wanted, contents),
        0.6 * worth(first[:400], wanted, contents) if first else 0.0,
    )


given = json.load(sys.stdin)
pieces = read(given["task"])  # noqa: F821
if pieces is None:
    sys.exit(2)  # another kind of task: nothing to say
score = grade(given["text"], pieces)
print(
    json.dumps(
        {"score": round(score, 4), "reason": "right" if score == 1 else f"{score:.2f} of the way"}
    )
)
