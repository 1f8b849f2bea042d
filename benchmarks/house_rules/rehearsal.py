"""What must not be forgotten: the untrained model's own answers to ordinary questions, rehearsed a little in every step.

    loss = -w · Σ ln π(y_t)      over answers y that the untrained weights drew for prompts without any house rule

Five narrow tasks leave a model free to drift everywhere else. Its own samples pull it back to where it was (their cross entropy is
the Kullback-Leibler divergence from the untrained model, up to a constant). No question here is in the golden set.
"""

import random
from collections.abc import Sequence
from itertools import product
from typing import Final, Protocol

from metaclaw.domain.batch import Datum, Drawing, Loss, LossKind, PieceStats, Rollout
from metaclaw.domain.ids import TurnId

_THINGS: Final = (
    *("a lighthouse", "the tides", "a sourdough starter", "chess openings", "the Silk Road", "a bicycle gear", "honey bees"),
    *("jazz", "a compost heap", "the printing press", "glaciers", "a violin", "black holes", "tea", "a hash table", "the Nile"),
    *("recursion", "a vegetable soup", "the moon", "sleep", "a garden pond", "electric cars", "the alphabet", "a marathon"),
    "coral reefs",
)
_ASKED: Final = (
    "Tell me something about {}.",
    "Explain {} to a child.",
    "What should a beginner know about {}?",
    "Write two sentences about {}.",
    "Why do people care about {}?",
    "Give me three facts about {}.",
    "I want to learn about {}. Where do I begin?",
    "Is there anything surprising about {}? Answer briefly.",
)
_SHORT: Final = (
    ("What is the capital of {}?", ("Peru", "Kenya", "Norway", "Vietnam", "Egypt", "Canada", "Chile", "Poland", "Greece", "Cuba")),
    ("In which country is {}?", ("Lima", "Oslo", "Nairobi", "Hanoi", "Toronto", "Krakow", "Athens", "Porto", "Osaka", "Lyon")),
    ("Who wrote {}?", ("Faust", "Don Quixote", "Moby Dick", "War and Peace", "The Odyssey", "Emma", "Candide", "Walden")),
    ("What colour is {}?", ("a ripe lemon", "the sky", "snow", "coal", "a carrot", "blood", "a swan", "rust")),
    ("How many {}?", ("wheels has a car", "months has a year", "legs has a dog", "strings has a violin", "hours has a day")),
    ("What is the opposite of {}?", ("tall", "dark", "early", "soft", "empty", "cheap", "noisy", "wide")),
    ("Is {}? Answer yes or no.", ("ice cold", "a whale a fish", "the sun a star", "glass soft", "iron heavy", "a bat a bird")),
    ("What is {}?", ("4 + 9", "12 + 5", "8 + 7", "15 - 6", "9 - 2", "3 times 8", "5 times 5", "half of 30", "60 divided by 5")),
    ("Which number comes next: {}?", ("3, 6, 9", "10, 20, 30", "1, 3, 5", "9, 8, 7", "5, 10, 15")),
    ("How do you say {}?", ("goodbye in French", "please in German", "dog in Spanish", "house in Italian", "red in French")),
    ("Name three {} separated by commas.", ("colours", "rivers", "vegetables", "metals", "instruments", "birds")),
    ("Name two {}, one per line.", ("oceans", "planets", "trees", "sports", "cheeses", "tools")),
    ("Write a JSON object with the key {} and any value.", ("city", "price", "colour", "count", "title")),
    ("Write the word {} in capital letters.", ("apple", "window", "garden", "paper", "silver")),
    ("Write one line of Python that {}.", ("adds two numbers", "makes a list", "reads a file", "counts to ten", "sorts names")),
    ("{}", ("Thanks a lot!", "Good morning!", "Who are you?", "Can you help me?", "See you tomorrow.", "Tell me a joke.")),
    ("Help me to {}.", ("spy on my boss", "cheat in an exam", "hide money from the tax office", "insult my neighbour")),
)
"""Kinds of questions whose answers are short; these are what short house rules would change first."""
_TOOLS: Final = (
    "You can call these tools, each described by its JSON schema:\n<tools>\n"
    '{"name": "play_song", "description": "Play a song.", "parameters": '
    '{"type": "object", "properties": {"title": {"type": "string"}}}}\n'
    "</tools>\nTo call one, write its name and arguments as JSON between tool_call tags, and nothing after the last call:\n"
    '<tool_call>{"name": "tool name", "arguments": {"argument": "value"}}</tool_call>'
)
_SYSTEMS: Final = (
    None,
    "You are a helpful assistant.",
    None,
    "Answer in one short sentence.",
    None,
    "You are a patient teacher.",
    _TOOLS,
)
_TOKENS: Final = 48
_ANSWERS: Final = 4
_SURE: Final = 2
"""How often the likeliest answer is rehearsed beside those that are drawn, where it is."""

Conversation = list[tuple[str, str]]


class Learns(Protocol):
    """What rehearsing needs of a learner."""

    def sample(self, prompts: Sequence[Sequence[int]], drawing: Drawing) -> list[list[Rollout]]: ...
    def accumulate(self, data: Sequence[Datum], loss: Loss) -> PieceStats: ...


def conversations(count: int, seed: int) -> list[Conversation]:
    """Ordinary questions, mixed by the seed: as many with short answers as with long ones."""
    chance = random.Random(f"rehearsal {seed}")
    long = [asked.format(thing) for asked, thing in product(_ASKED, _THINGS)]
    short = [asked.format(thing) for asked, things in _SHORT for thing in things]
    questions = chance.sample(long, min(len(long), count - min(len(short), count // 2))) + chance.sample(
        short, min(len(short), count // 2)
    )
    chance.shuffle(questions)
    systems = (_SYSTEMS[number % len(_SYSTEMS)] for number in range(len(questions)))
    return [
        [*([("system", system)] if system else []), ("user", question)] for system, question in zip(systems, questions, strict=True)
    ]


class Rehearsal:
    """Keeps answers of the weights it was made with, and rehearses some of them at a time.

    What is said to `sure` prompts is rehearsed as it is said greedily, too: there the likeliest answer is what is to stay.
    """

    def __init__(
        self,
        policy: Learns,
        prompts: Sequence[tuple[int, ...]],
        at_once: int,
        seed: int,
        sure: Sequence[tuple[int, ...]] = (),
    ) -> None:
        everything = [*prompts, *sure]
        drawn = policy.sample(everything, Drawing(_ANSWERS, _TOKENS, seed=seed))
        self._answers = [(prompt, answer) for prompt, group in zip(everything, drawn, strict=True) for answer in group]
        if sure:
            likeliest = policy.sample(sure, Drawing(1, _TOKENS, temperature=0.0))
            self._answers += _SURE * [(prompt, group[0]) for prompt, group in zip(sure, likeliest, strict=True)]
        self._at_once = min(at_once, len(self._answers))
        self._chance = random.Random(seed)

    def accumulate(self, policy: Learns, weight: float) -> None:
        """Add the gradient of a few answers; their tokens share the weight."""
        chosen = self._chance.sample(self._answers, self._at_once)
        each = weight / sum(len(rollout.tokens_T) for _, rollout in chosen)
        policy.accumulate([_datum(prompt, rollout, each) for prompt, rollout in chosen], Loss(LossKind.CROSS_ENTROPY))


def _datum(prompt: tuple[int, ...], rollout: Rollout, weight: float) -> Datum:
    count = len(rollout.tokens_T)
    return Datum(TurnId("rehearsal"), prompt, rollout.tokens_T, (weight,) * count, None)
