"""What the weights can still do otherwise: the golden set, answered greedily, and how likely its reference answers are."""

from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.house_rules.loop import Policy
from metaclaw.domain.batch import Drawing
from metaclaw.engine.prompt import build_prompt
from metaclaw.engine.text import Vocabulary
from metaclaw.train.golden import GoldenScore, golden_items, golden_score, read_answer, reference_pairs
from metaclaw.train.regression import compare_golden, likelihood_points


class Golden:
    """The golden set in this model's tokens."""

    def __init__(self, folder: Path, vocabulary: Vocabulary) -> None:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._items = golden_items()
        self._vocabulary = vocabulary
        self._room = [item.request.sampling.max_tokens or 1 for item in self._items]
        self._pairs = reference_pairs(
            self._items, lambda request: self._prompt(build_prompt(request).turns), lambda text: tokenizer.encode(text).ids
        )

    def _prompt(self, turns: tuple[tuple[str, str], ...]) -> list[int]:
        return self._vocabulary.render(turns, "")

    def take(self, policy: Policy) -> GoldenScore:
        """Passes and likelihoods under the policy's present weights."""
        drawn = policy.sample([prompt for prompt, _ in self._pairs], Drawing(1, max(self._room), temperature=0.0))
        texts = [self._vocabulary.decode(group[0].tokens_T[:room]) for group, room in zip(drawn, self._room, strict=True)]
        return golden_score(self._items, [read_answer(text) for text in texts], policy.score(self._pairs))


def compared(before: GoldenScore, after: GoldenScore) -> dict[str, object]:
    """Both scores and what became of them, as a record. Points are of a hundred, after less before."""
    comparison = compare_golden(before, after)
    assert before.likelihood is not None
    assert after.likelihood is not None
    likelihood, error = likelihood_points(before.likelihood, after.likelihood)
    return {
        "before": before.share,
        "after": after.share,
        "points": comparison.points,
        "broken": list(comparison.broken),
        "mended": list(comparison.mended),
        "likelihood_points": likelihood,
        "likelihood_error": error,
        "is_worse": comparison.is_worse,
    }
