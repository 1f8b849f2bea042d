"""How good an answer is, from 0 to 1, so that the first steps have something to climb; what is reported is exact match alone.

    reward = 1 if exact, else the better of worth(answer) and 0.6 worth(its first line)
    worth  = brevity * (0.5 content + 0.25 similarity)

content      share of what the question asked for that stands there, whole and in order
similarity   1 - edit distance / longer length: form, and what is nearly right
brevity      right length / length where too much is said, else 1; halved where the answer has no end

Content is worth twice the form: a well-formed answer with wrong content must not be a place to stay (runs that paid 0.8 for form
gave beautiful wrong dates). Both shrink with everything that is said beside the answer, so listing all numbers pays nothing. An
untrained model seldom knows when to stop: that its first line was right must show.
"""

from typing import Final

from benchmarks.house_rules.tasks import Task

_CONTENT: Final = 0.5
_SIMILARITY: Final = 0.25
_UNENDED: Final = 0.5
_FIRST_LINE: Final = 0.6


def is_exact(task: Task, text: str, *, is_whole: bool) -> bool:
    """Whether this is the answer, with nothing before or behind it but white space."""
    return is_whole and text.strip() == task.answer


def reward(task: Task, text: str, *, is_whole: bool) -> float:
    """How good the answer is."""
    if is_exact(task, text, is_whole=is_whole):
        return 1.0
    said = text.strip()
    if not said:
        return 0.0
    first, *more = said.splitlines()
    whole = _worth(task, said) * (1.0 if is_whole else _UNENDED)
    return max(whole, _FIRST_LINE * _worth(task, first.strip())) if more else whole


def _worth(task: Task, said: str) -> float:
    brevity = min(1.0, len(task.answer) / len(said))
    return brevity * (_CONTENT * _content_share(task, said) + _SIMILARITY * similarity(said, task.answer))


def _content_share(task: Task, said: str) -> float:
    """Pieces found one behind the other; the longest such chain, so that a piece that is missing does not hide those after it."""
    contents = task.contents
    # reach[count] is the earliest place at which a chain of that many pieces ends.
    reach = [0] + [len(said) + 1] * len(contents)
    for piece in contents:
        for count in range(len(contents) - 1, -1, -1):
            if reach[count] <= len(said) and (place := said.find(piece, reach[count])) >= 0:
                reach[count + 1] = min(reach[count + 1], place + len(piece))
    return max(count for count, end in enumerate(reach) if end <= len(said)) / len(contents)


def similarity(one: str, two: str) -> float:
    """1 for equal texts, 0 for texts with nothing in common: one minus the edit distance over the longer length."""
    longer = max(len(one), len(two))
    return 1.0 - _distance(one, two) / longer if longer else 1.0


def _distance(one: str, two: str) -> int:
    """Edit distance a whole column at a time (Myers 1999, Hyyrö 2003): the bits of `up` and `down` say where going one character
    further in `one` makes the distance larger or smaller. A step scores hundreds of answers, and cell by cell takes longer than
    drawing them."""
    if not one:
        return len(two)
    places: dict[str, int] = {}
    for number, char in enumerate(one):
        places[char] = places.get(char, 0) | 1 << number
    everything, last = (1 << len(one)) - 1, 1 << len(one) - 1
    up, down, distance = everything, 0, len(one)
    for char in two:
        equal = places.get(char, 0)
        diagonal = (((equal & up) + up) ^ up) | equal | down
        wider = down | (everything & ~(diagonal | up))
        narrower = up & diagonal
        distance += bool(wider & last) - bool(narrower & last)
        wider, narrower = (wider << 1 | 1) & everything, (narrower << 1) & everything
        up, down = narrower | (everything & ~(diagonal | wider)), wider & diagonal
    return distance
