"""The barrier between days reads what the proxy says of itself."""

from metaclaw_bench.running.learning import under_way


def test_what_is_still_to_be_learned_is_told_in_words() -> None:
    assert (
        under_way(
            {
                "learning": {
                    "pending": {
                        "turns": 0,
                        "sessions": 0,
                        "lessons": 0,
                        "evolutions": 0,
                        "candidates": 0,
                    }
                }
            }
        )
        == ()
    )
    assert under_way({"learning": {"pending": {"turns": 3, "candidates": 1}}}) == (
        "3 turns without a verdict",
        "1 skills under review",
    )


def test_a_proxy_that_cannot_say_yet_is_waited_for() -> None:
    assert under_way({"learning": {"pending": None}}) == (
        "what there is to learn is not known yet",
    )
    assert under_way({}) == ("what there is to learn is not known yet",)
