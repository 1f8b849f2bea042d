"""Messages between the program and its engine survive any cutting of the pipe's bytes."""

from hypothesis import given
from hypothesis import strategies as st

from metaclaw.engine import frames
from metaclaw.engine.frames import Unpacker

_PIECES = st.builds(frames.AnswerPiece, id=st.integers(0, 2**40), text=st.text(max_size=50))
_FINISHES = st.builds(
    frames.Finished,
    id=st.integers(0, 9),
    at_length=st.booleans(),
    stop_sequence=st.none() | st.text(max_size=5),
    prompt_ids=st.lists(st.integers(0, 50_000), max_size=300),
    sampled_ids=st.just([1]),
    logprobs=st.just([-0.5]),
    cached_tokens=st.integers(0, 9),
)


@given(st.lists(_PIECES | _FINISHES, max_size=8), st.data())
def test_any_split_of_the_bytes_gives_the_same_messages(
    messages: list[frames.FromEngine], data: st.DataObject
) -> None:
    stream = b"".join(frames.pack(message) for message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    unpacker = Unpacker()
    bodies = [
        body
        for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for body in unpacker.feed(stream[begin:end])
    ]
    assert [frames.from_engine.decode(body) for body in bodies] == messages


def test_a_request_arrives_as_it_was_sent() -> None:
    message = frames.Generate(
        7,
        [frames.WrittenTurn("user", "é\0")],
        max_tokens=3,
        seed=2**63 - 1,
        stop=["\n"],
        top_logprobs=0,
    )
    [body] = Unpacker().feed(frames.pack(message))
    assert frames.to_engine.decode(body) == message
