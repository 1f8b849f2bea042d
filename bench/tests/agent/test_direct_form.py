"""Files in an answer's text: what is taken for a file, what for words, and that the form can be
written and read back.
"""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaclaw_bench.agent.direct import files_in, with_files
from tests.support.cases import each

patiently = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
_LINES = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n", exclude_categories=["Cc"])),
    min_size=1,
    max_size=6,
)
_CONTENTS = _LINES.map(lambda lines: "".join(f"{line}\n" for line in lines)).filter(
    lambda text: "FILE" not in text
)
_NAMES = st.text(st.sampled_from('abü文 _-:."`'), min_size=1, max_size=8)
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map("/".join)


def _is_writable(path: str) -> bool:
    return (
        path == path.strip()
        and not {"`", '"'} <= set(path)
        and all(name.strip(". ") for name in path.split("/"))
    )


@patiently
@given(
    st.text("abc \n.", max_size=40).map(str.strip),
    st.dictionaries(_PATHS.filter(_is_writable), _CONTENTS | st.just(""), max_size=3),
)
def test_what_is_written_in_this_form_is_read_back(text: str, files: dict[str, str]) -> None:
    assert files_in(with_files(text, files)) == (text, files)


@patiently
@given(st.text())
def test_any_text_can_be_read(answer: str) -> None:
    text, files = files_in(answer)
    assert all(
        path and contents.endswith("\n") | (not contents) for path, contents in files.items()
    )
    assert files or text == answer.replace("\r\n", "\n").strip()


@each(
    ("answer", "text", "files"),
    [
        ("Just words.", "Just words.", {}),
        ("Done.\nFILE a/b.json\n{}\n", "Done.", {"a/b.json": "{}\n"}),
        ("FILE a\n1\n\n\nFILE b\n\n2", "", {"a": "1\n", "b": "2\n"}),
        ("FILE a\n```json\n{}\n```\nThat is all.", "That is all.", {"a": "{}\n"}),
        ("FILE a\n```json\n{}", "", {"a": "{}\n"}),
        ("FILE a\n{}\n```", "", {"a": "{}\n"}),
        ("FILE a.md\n````md\n# A\n```\ncode\n```\n````", "", {"a.md": "# A\n```\ncode\n```\n"}),
        ("FILE a.md\n# A\n```\ncode\n```", "", {"a.md": "# A\n```\ncode\n```\n"}),
        ("FILE a\n1\nFILE a\n2", "", {"a": "2\n"}),
        ("FILE ./x/../a:\n1", "", {"a": "1\n"}),
        ("FILE `with blanks.md`\n1", "", {"with blanks.md": "1\n"}),
        ("FILE formats are many.\nSo it is.", "FILE formats are many.\nSo it is.", {}),
        ("The FILE a\nb", "The FILE a\nb", {}),
        ("FILE empty", "", {"empty": ""}),
        ("x\r\nFILE a\r\n1\r\n", "x", {"a": "1\n"}),
    ],
)
def test_the_form_is_read_as_documented(answer: str, text: str, files: dict[str, str]) -> None:
    assert files_in(answer) == (text, files)
