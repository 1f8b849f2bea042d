"""Multi-choice questions about rules: options that keep them and options that break them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from metaclaw.plugin import ConfigError
from metaclaw_bench.questions import ChoiceCheck, Feedback, Round
from metaclaw_bench.workdays.draw import Draw
from metaclaw_bench.workdays.model import Answer, Item
from metaclaw_bench.workdays.tasks import InForce

HOW_TO_ANSWER = r"Answer using \bbox{X} or \bbox{X,Y} format."
_FEWEST_OPTIONS, _MOST_OPTIONS, _MOST_RIGHT = 4, 8, 6
_MOST_TRIES = 300


@dataclass(frozen=True, slots=True)
class _Option:
    """What an option says, whether it is to be ticked, and why."""

    text: str
    law: InForce
    is_right: bool
    why: str


def make_choice_item(draw: Draw, laws: Sequence[InForce], number: int) -> Item:
    """A multi-choice question about these rules: one, or several mixed."""
    inline = [law for law in laws if law.rule.place == "inline"]
    kind = draw.random.random()
    if len(laws) == 1 and inline and kind < 0.4:
        question, options = _which_says(draw, laws[0])
    else:
        question, options = _which_fit(draw, laws, is_inverse=kind > 0.8 and draw.level > 0.3)
    letters = ascii_uppercase[: len(options)]
    by_letter = dict(zip(letters, options, strict=True))
    answer = frozenset(letter for letter, option in by_letter.items() if option.is_right)
    text = "\n".join(
        [
            question,
            "",
            *(f"{letter}. {option.text}" for letter, option in by_letter.items()),
            "",
            HOW_TO_ANSWER,
        ]
    )
    feedback = Feedback(
        draw.random.choice(draw.words.right),
        options={letter: _explain(draw, option) for letter, option in by_letter.items()},
    )
    return Item(
        round=Round(f"r{number}", text, ChoiceCheck(tuple(letters), answer), feedback),
        rules=tuple(dict.fromkeys(law.rule.id for law in laws)),
        reference=_tick(answer),
        near_misses=_near_misses(letters, answer),
        option_rules={letter: option.law.rule.id for letter, option in by_letter.items()},
        effort=len(options) + len({option.law.rule.id for option in options}) - 1,
    )


def _option_count(draw: Draw) -> int:
    room = _MOST_OPTIONS - _FEWEST_OPTIONS
    return _FEWEST_OPTIONS + min(
        room, round(draw.level * room * 0.75 + draw.random.random() * 0.25 * room)
    )


def _which_fit(
    draw: Draw, laws: Sequence[InForce], *, is_inverse: bool
) -> tuple[str, list[_Option]]:
    """Which options are (or are not) as the user wants them."""
    count = _option_count(draw)
    right = draw.random.randint(1, min(_MOST_RIGHT, count - 1))
    ticked = set(draw.random.sample(range(count), right))
    words, options = draw.words, dict[str, _Option]()
    for nth in range(count):
        law, is_right = laws[nth % len(laws)], nth in ticked
        fits = is_right is not is_inverse
        text = _new_text(draw, law, options, fits=fits)
        options[text] = _Option(text, law, is_right, words.fits if fits else words.breaks)
    stems = words.which_break if is_inverse else words.which_fit
    topic = laws[0].rule.topic(draw.language) if len(laws) == 1 else words.mixed
    return draw.wording(stems).format(topic=topic), draw.random.sample(
        list(options.values()), count
    )


def _which_says(draw: Draw, law: InForce) -> tuple[str, list[_Option]]:
    """Which option is what was told, written as the user wants it: one is."""
    words, fact = draw.words, law.rule.fact(draw)
    kept, broken = law.rule.choices(fact, law.variant)
    options = {kept: _Option(kept, law, True, words.fits)}
    wrong = list(dict.fromkeys(text for text in broken if text and text != kept))
    for text in draw.random.sample(wrong, min(len(wrong), _option_count(draw) - 2)):
        options[text] = _Option(text, law, False, words.breaks)
    while len(options) < _FEWEST_OPTIONS or len(options) < _option_count(draw):
        other = _new_text(draw, law, options, fits=True)
        options[other] = _Option(other, law, False, words.other)
    stem = draw.wording(words.which_says).format(
        topic=law.rule.topic(draw.language), told=fact["told"]
    )
    return stem, draw.random.sample(list(options.values()), len(options))


def _new_text(draw: Draw, law: InForce, taken: Collection[str], *, fits: bool) -> str:
    """What keeps a rule, or breaks it, and is not among the options yet."""
    for _ in range(_MOST_TRIES):
        kept, broken = law.rule.choices(law.rule.fact(draw), law.variant)
        text = _one_line(kept if fits else draw.random.choice(broken))
        if text and text not in taken:
            return text
    raise ConfigError(
        f"rule {law.rule.id}: it makes up too few different facts for the options of a question."
        " Widen what it draws from."
    )


def _explain(draw: Draw, option: _Option) -> str:
    changed = [draw.words.changed] if option.law.has_changed else []
    return " ".join([option.why[0].upper() + option.why[1:], *changed, option.law.corrects(draw)])


def _one_line(piece: str) -> str:
    return " / ".join(line for line in piece.split("\n") if line.strip())


def _tick(letters: Sequence[str] | frozenset[str]) -> Answer:
    return Answer(rf"\bbox{{{','.join(sorted(letters))}}}")


def _near_misses(letters: str, answer: frozenset[str]) -> tuple[Answer, ...]:
    """One letter more, one fewer, and the right letters without a box."""
    more = next((letter for letter in letters if letter not in answer), None)
    fewer = sorted(answer)[1:]
    misses = [Answer(",".join(sorted(answer)))]
    if more is not None:
        misses.append(_tick(answer | {more}))
    if fewer:
        misses.append(_tick(fewer))
    return tuple(misses)
