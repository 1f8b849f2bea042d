"""Where keys stand in a TOML text."""

import tomllib

import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.config.sources import line_of, statements
from tests.support.cases import each
from tests.support.depth import tries

TEXT = '''\
# comment with [brackets] = "and" quotes
top = """a
[not.a.table]
b = 1 """ # after
[ "quo.ted" . plain ] # header comment
key = [ # [
  "]", 'x]', # "
  { a = 1 },
]
"other key" = 'it''s'
[[list]]
x = 1
[list.inner]
y = "\\"="
[[list]]
x = 2
a.b.c = 3'''.replace("'it''s'", "'its'")


@each(
    ("path", "line"),
    [
        (("top",), 2),
        (("quo.ted",), 5),
        (("quo.ted", "plain"), 5),
        (("quo.ted", "plain", "key"), 6),
        (("quo.ted", "plain", "key", 2, "a"), 6),
        (("quo.ted", "plain", "other key"), 10),
        (("list", 0, "x"), 12),
        (("list", 0, "inner", "y"), 14),
        (("list", 1), 15),
        (("list", 1, "x"), 16),
        (("list", 1, "a", "b", "c"), 17),
        (("nowhere",), None),
    ],
)
def test_a_key_is_found_on_its_line(path: tuple[str | int, ...], line: int | None) -> None:
    tomllib.loads(TEXT)
    assert line_of(TEXT, path) == line


_SCALARS = st.text(max_size=8) | st.integers(-5, 5) | st.booleans()
_LEAVES = _SCALARS | st.lists(_SCALARS, max_size=3)
_TREES = st.dictionaries(
    st.text(max_size=5),
    st.dictionaries(st.text(max_size=5), _LEAVES, max_size=3)
    | st.lists(st.dictionaries(st.text(max_size=5), _LEAVES), min_size=1, max_size=3),
    max_size=4,
)


@given(_TREES)
@settings(max_examples=tries(50, nightly=750), deadline=None)
def test_every_statement_of_a_written_tree_is_found_once(
    tree: dict[str, dict[str, object] | list[dict[str, object]]],
) -> None:
    text = tomlkit.dumps(tree)
    wanted = set()
    for name, section in tree.items():
        entries = (
            [((name,), section)]
            if isinstance(section, dict)
            else [((name, n), entry) for n, entry in enumerate(section)]
        )
        for path, entry in entries:
            wanted |= {(*path, key) for key in entry}
    found = [path for statement in statements(text) for path in statement.paths & wanted]
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))
