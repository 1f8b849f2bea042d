"""A person's words in a prompt as OpenClaw sends it: behind a date, before a line about the
runtime, a program's message after.
"""

from metaclaw_bench.simulated.model import Message, Prompt, last_words, said


def test_what_an_agent_glues_to_a_persons_words_is_not_theirs() -> None:
    first = Message(
        "user",
        "[Mon 2026-03-16 01:02 UTC] Good morning.\n\nRuntime: agent=main | sessionId=day01 |"
        " node=v24",
    )
    assert said(first) == "Good morning."
    asked = Message("user", "[Sun 2026-11-15 16:08 UTC] [Previous Feedback] Good.\n\nMake a file.")
    floating = Message(
        "user", "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnone\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
    )
    prompt = Prompt(
        (Message("system", "You are."), first, Message("assistant", "Hello."), asked, floating)
    )
    assert last_words(prompt) == (3, "[Previous Feedback] Good.\n\nMake a file.")


def test_where_nobody_spoke_there_are_no_words() -> None:
    assert last_words(Prompt((Message("system", "You are."),))) is None
