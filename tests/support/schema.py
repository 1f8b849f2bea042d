"""Values made from a JSON Schema, for fuzzing: what fits it, and now and then something that does
not.
"""

from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]

_ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def values(schema: Schema) -> st.SearchStrategy[Any]:
    """Values of the schema; the words it may use are enum, oneOf, type, properties, required,
    items, maxItems, maxLength.
    """
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "oneOf" in schema:
        return st.one_of([values(option) for option in schema["oneOf"]])
    match schema.get("type"):
        case "object":
            return _objects(schema)
        case "array":
            return st.lists(values(schema.get("items", {})), max_size=schema.get("maxItems", 3))
        case "string":
            return st.text(max_size=schema.get("maxLength", 20))
        case "integer":
            return st.integers()
        case "null":
            return st.none()
        case _:
            return _ANYTHING


def _objects(schema: Schema) -> st.SearchStrategy[dict[str, Any]]:
    if "properties" not in schema:
        return st.dictionaries(st.text(max_size=20), _ANYTHING, max_size=3)
    fields = {name: values(inner) for name, inner in schema["properties"].items()}
    required = {name: fields.pop(name) for name in schema.get("required", ())}
    return st.fixed_dictionaries(required, optional=fields)
