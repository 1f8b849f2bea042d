"""Hidden characters: invisible ones, look-alikes of Latin letters, and letters written as Unicode tags."""

import re
import unicodedata

_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0"
)
_TAGS = "\U000e0000-\U000e007f"
_SUPPLEMENT = "\U000e0100-\U000e01ef"
_WIDE = "\uff01-\uff5e"
_MATHEMATICAL = "\U0001d400-\U0001d7ff"
_ENCLOSED = "\u24b6-\u24e9"
# Cyrillic and Greek letters that look like Latin ones in most typefaces.
_LOOK_ALIKES = dict(
    zip(
        "аеорсухіјѕԁԛԝһӏьАВЕКМНОРСТУХІЈЅԌԚԜҮαοινρυκτΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
        "aeopcyxijsdqwhlbABEKMHOPCTYXIJSGQWYaoivpuktABEZHIKMNOPTYX",
        strict=True,
    )
)
_ALIKE = "".join(_LOOK_ALIKES)

INVISIBLE = re.compile(f"[{_INVISIBLE}{_TAGS}{_SUPPLEMENT}]")
HIDDEN = re.compile(
    f"[{_INVISIBLE}{_TAGS}{_SUPPLEMENT}{_WIDE}{_MATHEMATICAL}{_ENCLOSED}]|(?<=[A-Za-z0-9])[{_ALIKE}]|[{_ALIKE}](?=[A-Za-z0-9])"
)
"""Characters to remove or to replace by plain ones. Look-alikes match only next to a Latin letter or digit."""

_SUSPECT = re.compile(f"[{_INVISIBLE}{_TAGS}{_SUPPLEMENT}{_WIDE}{_MATHEMATICAL}{_ENCLOSED}{_ALIKE}]")
_HIDDEN_ON_PURPOSE = re.compile(
    f"(?<![\U0001f3f4{_TAGS}])[{_TAGS}]|[\u202a-\u202e\u2066-\u2069]"
    f"|(?<=[\x21-\x7e])[\u200b-\u200d\u2060\u00ad\ufeff](?=[\x21-\x7e])"
    f"|(?<=[A-Za-z])[{_ALIKE}](?=[A-Za-z])|(?<=[{_ALIKE}])[A-Za-z]{{2}}(?=[{_ALIKE}])"
)


def may_contain_hidden(text: str) -> bool:
    """Whether the text has any candidate for HIDDEN: a quick test before the exact one."""
    return not text.isascii() and _SUSPECT.search(text) is not None


def visible_form(found: str) -> str:
    """The plain character for one match of HIDDEN; empty for an invisible one."""
    code = ord(found[0])
    if 0xE0020 <= code <= 0xE007E:
        return chr(code - 0xE0000)
    if found in _LOOK_ALIKES:
        return _LOOK_ALIKES[found]
    return "" if INVISIBLE.match(found) else unicodedata.normalize("NFKC", found)


def without_hidden_characters(text: str) -> str:
    """The text without invisible characters and with look-alikes as plain letters."""
    return text if text.isascii() else HIDDEN.sub(lambda found: visible_form(found[0]), text)


def hides_characters(text: str) -> bool:
    """Whether the text hides characters on purpose. Joiners that a script or an emoji needs do not count."""
    return not text.isascii() and _HIDDEN_ON_PURPOSE.search(text) is not None
