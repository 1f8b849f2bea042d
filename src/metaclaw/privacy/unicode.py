"""Characters that hide: invisible ones, look-alikes of Latin letters, and letters smuggled in as tags."""

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
"""What is taken out or spelled plainly: look-alikes only where they touch a Latin letter or digit."""

_SUSPECT = re.compile(f"[{_INVISIBLE}{_TAGS}{_SUPPLEMENT}{_WIDE}{_MATHEMATICAL}{_ENCLOSED}{_ALIKE}]")
_SMUGGLED = re.compile(
    f"(?<![\U0001f3f4{_TAGS}])[{_TAGS}]|[\u202a-\u202e\u2066-\u2069]"
    f"|(?<=[\x21-\x7e])[\u200b-\u200d\u2060\u00ad\ufeff](?=[\x21-\x7e])"
    f"|(?<=[A-Za-z])[{_ALIKE}](?=[A-Za-z])|(?<=[{_ALIKE}])[A-Za-z]{{2}}(?=[{_ALIKE}])"
)


def may_hide(text: str) -> bool:
    """Whether there is any character at all that could be hiding: a quick look, before a close one."""
    return not text.isascii() and _SUSPECT.search(text) is not None


def unhidden(found: str) -> str:
    """What one match of HIDDEN stands for; empty where it is invisible."""
    code = ord(found[0])
    if 0xE0020 <= code <= 0xE007E:
        return chr(code - 0xE0000)
    if found in _LOOK_ALIKES:
        return _LOOK_ALIKES[found]
    return "" if INVISIBLE.match(found) else unicodedata.normalize("NFKC", found)


def plain(text: str) -> str:
    """The text as a reader would see it, or would have to fear it: nothing invisible, no disguised letters."""
    return text if text.isascii() else HIDDEN.sub(lambda found: unhidden(found[0]), text)


def smuggles(text: str) -> bool:
    """Whether the text hides something on purpose. Joiners in scripts and emoji that need them are not that."""
    return not text.isascii() and _SMUGGLED.search(text) is not None
