"""Drawing tokens: what is allowed, how likely, and that a seed decides it alone."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.engine.batch import Sampler, draw
from metaclaw.engine.frames import SamplingOptions

_LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=12)


def _drawn(logits: list[float], options: SamplingOptions, count: int) -> Counter[int]:
    sampler = Sampler(options)
    row = torch.tensor([logits])
    return Counter(draw(row, [sampler])[0].token for _ in range(count))


@given(_LOGITS, st.floats(0.0, 2.0), st.integers(0, 2**63 - 1))
def test_the_logprob_is_that_of_the_raw_distribution_whatever_was_drawn_from(
    logits: list[float], temperature: float, seed: int
) -> None:
    options = SamplingOptions(temperature=temperature, top_k=2, presence_penalty=1.0, seed=seed)
    [drawn] = draw(torch.tensor([logits]), [Sampler(options)])
    assert drawn.logprob == pytest.approx(float(torch.tensor(logits).log_softmax(0)[drawn.token]), abs=1e-6)
    assert drawn.logprob <= 0.0


@given(_LOGITS)
def test_temperature_zero_takes_the_likeliest(logits: list[float]) -> None:
    [drawn] = draw(torch.tensor([logits]), [Sampler(SamplingOptions(temperature=0.0))])
    assert logits[drawn.token] == max(logits)


@given(_LOGITS, st.integers(1, 12), st.integers(0, 1000))
def test_top_k_draws_only_from_the_k_likeliest(logits: list[float], top_k: int, seed: int) -> None:
    [drawn] = draw(torch.tensor([logits]), [Sampler(SamplingOptions(top_k=top_k, seed=seed))])
    assert sum(value > logits[drawn.token] for value in logits) < top_k


@given(_LOGITS, st.floats(0.0, 0.999), st.integers(0, 1000))
def test_top_p_draws_only_from_the_smallest_set_that_holds_p(logits: list[float], top_p: float, seed: int) -> None:
    [drawn] = draw(torch.tensor([logits]), [Sampler(SamplingOptions(top_p=top_p, seed=seed))])
    probabilities = torch.tensor(logits).softmax(0).double()
    likelier = float(probabilities[probabilities > probabilities[drawn.token]].sum())
    assert likelier < top_p + 1e-6 or drawn.token == int(probabilities.argmax())


def test_a_wide_nucleus_is_searched_in_the_whole_vocabulary() -> None:
    flat = torch.zeros(1, 5000)
    tokens = {draw(flat, [Sampler(SamplingOptions(top_p=0.9, seed=seed))])[0].token for seed in range(300)}
    assert len(tokens) > 250


def test_tokens_come_as_often_as_the_distribution_says() -> None:
    logits = [0.0, 1.0, 2.0, -1.0]
    for temperature in (1.0, 0.5):
        expected = (torch.tensor(logits) / temperature).softmax(0)
        counts = _drawn(logits, SamplingOptions(temperature=temperature, seed=11), 4000)
        for token, probability in enumerate(expected.tolist()):
            # Four standard deviations; the seed is fixed, so this either always passes or never.
            assert abs(counts[token] / 4000 - probability) < 4 * (probability * (1 - probability) / 4000) ** 0.5


@given(st.integers(0, 2**63 - 1), st.integers(0, 3), st.lists(st.sampled_from([0.0, 0.7, 1.3]), min_size=3, max_size=3))
def test_a_seed_decides_the_draws_whoever_else_is_in_the_batch(seed: int, place: int, others: list[float]) -> None:
    torch.manual_seed(5)
    logits = torch.randn(20, 50)
    alone, crowded = Sampler(SamplingOptions(seed=seed)), Sampler(SamplingOptions(seed=seed))
    company = [Sampler(SamplingOptions(temperature=temperature)) for temperature in others]
    for row in logits:
        samplers = [*company[:place], crowded, *company[place:]]
        rows = torch.randn(4, 50)
        rows[place] = row
        assert draw(rows, samplers)[place] == draw(row.unsqueeze(0), [alone])[0]


def test_penalties_make_what_was_said_less_likely() -> None:
    logits = [5.0, 4.0, 3.0]
    assert _drawn(logits, SamplingOptions(temperature=0.0), 3) == {0: 3}
    assert _drawn(logits, SamplingOptions(temperature=0.0, presence_penalty=1.5), 2) == {0: 1, 1: 1}
    assert set(_drawn(logits, SamplingOptions(temperature=0.0, frequency_penalty=1.5), 6)) == {0, 1, 2}


def test_the_likeliest_alternatives_come_in_order() -> None:
    [drawn] = draw(torch.tensor([[1.0, 3.0, 2.0]]), [Sampler(SamplingOptions(temperature=0.0, top_logprobs=2))])
    assert [token for token, _ in drawn.top] == [1, 2]
    assert drawn.top[0][1] == drawn.logprob
