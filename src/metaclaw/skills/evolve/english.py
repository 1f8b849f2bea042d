"""Standing instructions in English.

"Always" and "never" are everyday words, so they count only where they stand before a verb at the beginning of a clause, or behind
"you must" and the like: in "it never works", "I always wondered" and "as always" they tell, and do not ask.
"""

import re

from metaclaw.skills.evolve.grammar import Grammar, any_of

_VERB_LIST = """
accept add address adjust align allow annotate answer append apply approve archive ask assign assume attach avoid back backup be
begin block branch break bring build bump cache call cancel capitali[sz]e check choose cite clean clear clone close combine
comment commit compile compose compress compute confirm consider consult contact convert copy count cover create cut debug
declare default define delete deploy describe design disable display do document double-?check draft drop echo edit embed enable
encode end ensure escape estimate exclude execute expand explain export expose extend extract fetch fill filter find finish fix
focus follow force format generate get give go group guess handle have hide highlight ignore implement import include indent
index inform inline insert inspect install invent keep label leave let limit link lint list load lock log look lowercase make
mark match measure mention merge migrate mirror mock modify move name nest note notify number omit open optimi[sz]e order output
override overwrite paste pick pin ping place plan post prefer prefix prepare preserve press print prioriti[sz]e promise propose
protect prove provide publish pull push put quote raise read rebase recommend record redact refactor refer reference reformat
refrain refuse regenerate reject release rely remember remind remove rename render reorder repeat replace reply report request
require reset resolve respond restart restore retry return reuse revert review rewrite round run sanitize save say scan schedule
search send separate serve set share ship shorten show sign simplify skip sort speak specify spell spend split squash stage
start state stay stick store stream structure style submit suffix suggest summari[sz]e suppress swallow switch tag take talk
target tell test throw touch track translate treat trim trust try turn type update upgrade upload uppercase use validate verify
wait walk warn watch work wrap write
"""
_VERBS = "|".join(_VERB_LIST.split())
_IS_VERB = any_of(rf"(?:{_VERBS})$")
_TELLING_WORDS = """
a about after again am an and anything are as at ate available been before being better but by came can could did do does done
ending enough ever everything false fell felt for found from fun gave glad going gone gonna good got great had happen happens
happy has have he heard held her here him his how i if in into is it its kept knew knows late left less let's liked lost made
matter matters may me meant met might mind more must my needed nice nor nothing now of on on-call one or our over paid quite ran
ready right said saw seen sent she should slept so somebody someone something spoke stood sunny sure taught that the their them
then there these they this those thought to told too took true two under understood us used very wanted was we welcome went were
what when where which while who why will with without woke won worked works worn worse would wrong wrote you your
"""
_NOT_VERBS = frozenset(_TELLING_WORDS.split())
_VERBS_LIKE_PASTS = """
bleed bring cling embed exceed feed need ping proceed ring seed shed sing speed string succeed swing
"""
_ENDS_LIKE_VERB = frozenset(_VERBS_LIKE_PASTS.split())

_LEAD = (
    r"(?:(?:and|also|so|but|then|ok|okay|well|right|no|nope|yes|yeah|hey|hi|hello|please|pls|plz|thanks|thank you|thx|great"
    r"|good|nice|perfect"
    r"|again|listen|look|note|reminder|important|fyi|btw|by the way|oh|wtf|ugh|sorry|seriously|simply|just|claude|assistant|bot"
    r"|agent"
    r"|(?:as|like) i(?:'ve)? (?:said|told you)(?: before)?|i(?:'ve)?(?: already)? (?:said|told you)(?: before| already)?(?: that)?"
    r"|for (?:the )?future(?: reference)?|(?:as a )?(?:general |house |standing )?rule|one more thing"
    r"|ps)(?=[\s,:;!.–—-])[\s,:;!.–—-]*){0,6}"
)
_CLAUSE = rf"(?:^|[,;:–—(]\s*|\b(?:and|but|so|then|because)\s+){_LEAD}"
_DIRECTIVE = rf"(?:(?:always|never|please|only|just|don't|dont|do not|stop|avoid|no more)\b|(?:{_VERBS})\b)"
_NOW_ON = (
    r"(?:from (?:now|here|this point|today|this day) (?:on(?:wards?)?|forward)(?: out)?|going forward|moving forward|henceforth"
    r"|in (?:the )?future"
    r"|for (?:all )?future \w+(?: \w+)?|(?:starting|as of|effective) (?:now|today|immediately)|until further notice|next time)"
)
_EACH_TIME = (
    r"(?:(?:whenever|(?:every|each|any) ?time)\b|(?:if|when) (?:you|we)\b(?=.*\b(?:always|never|every"
    r" time)\b))[^,;:]{2,120}[,;:]\s*"
)
_BEFORE_EACH = r"(?:before|after|on|for|with|in) (?:every|each|any) \w+"
_HERE = (
    r"(?:(?:in|for|on|to|into|from|across|throughout|at) (?:this|our|the whole|the entire) (?:project|repo|repository|code"
    r" ?base|code|team|company|workspace"
    r"|org|organi[sz]ation|monorepo|package|office|house|department|department|lab))"
)
_WE_DO = rf"(?:we|you) (?:(?:always|never|only|all|generally|usually|do not|don't) )*(?:{_VERBS})\b"
_WORK = (
    r"(?:commits?|commit messages?|prs?|pull requests?|answers?|repl(?:y|ies)|responses?|changes?|branch(?:es)?|releases?"
    r"|e-?mails?|messages?|reports?|summar(?:y|ies))"
)

_GIVES = any_of(
    rf"{_CLAUSE}(?:you|we) (?:should|must|have to|need to|are to|ought to|shall|may|can|will)(?: please)? (?:always"
    r"|never)\b",
    rf"{_CLAUSE}(?:you|we) (?:always|never) (?:have to|need to|must|should)\b",
    rf"{_CLAUSE}(?:make|be) (?:very )?sure (?:that )?(?:to |you |we )(?:always|never)\b",
    rf"{_CLAUSE}i(?:'d| would)? (?:really )?(?:want|like|expect|need|prefer)(?: for)? you to (?:please )?(?:always"
    r"|never)\b",
    rf"{_CLAUSE}i (?:always|never) (?:want|need|expect|like|prefer)\b",
    rf"{_CLAUSE}i(?:'ve)?(?: already| repeatedly)? (?:told|asked|reminded) you (?:to (?:always|never)|(?:always|never)"
    r" to)\b",
    rf"{_CLAUSE}i (?:do not|don't) (?:ever )?want\b.*\b(?:again|ever|anymore|any more)\b",
    rf"{_CLAUSE}(?:don't|dont|do not) (?!worry|mind|panic|bother|forget)(?:ever\b|.*\b(?:again|anymore|any more|ever)\b)",
    rf"{_CLAUSE}don't forget to (?:{_VERBS})\b.*\b(?:again|next time|every|each|always)\b",
    rf"{_CLAUSE}(?:stop|quit) (?!running|existing|remaining|pending|nothing|everything|anything|something|being)\w+ing\b",
    rf"{_CLAUSE}no more (?!questions?|changes?|comments?|issues?|errors?|problems?|work|news|need|than|time|ideas?|luck"
    r"|fun|thoughts)\w+",
    rf"^{_LEAD}no (?:\w+ ){{1,4}}?(?:\w+, )?(?:ever|anymore|any more|again)\b",
    rf"{_CLAUSE}remember(?:\s*[:,]|,? to (?:{_VERBS})\b| that (?:we|i|you|our|my|all|every)\b)",
    rf"{_CLAUSE}(?:keep|bear) in mind (?:that )?(?:we|i|our|my|you)\b",
    rf"^{_LEAD}{_EACH_TIME}{_LEAD}(?:{_DIRECTIVE}|you (?:must|should|have to|need to)\b)",
    rf"^{_LEAD}{_BEFORE_EACH}(?:\s*[,:]\s*|\s+(?=please|always|never|you )){_LEAD}(?:{_DIRECTIVE}|you (?:must|should"
    r"|have to|need to)\b)",
    rf"^{_LEAD}{_DIRECTIVE}(?:(?!\b(?:that|which|who|what|why|how|where|whether|to)\b)[^.,])*\b(?:{_BEFORE_EACH}"
    r"|(?:whenever|every time|each time) (?:you|we))\b",
    rf"{_CLAUSE}{_HERE},?\s+{_LEAD}(?:{_WE_DO}|{_DIRECTIVE}|(?:all|every|each|any|no) [\w -]{{2,40}} (?:needs?|must"
    r"|should|ha(?:s|ve) to)\b)",
    rf"{_CLAUSE}{_WE_DO}.*\b(?:{_HERE}|here(?! (?:is|are|'s)\b))",
    r"\bour (?:team|company|project|code ?base|group|shop) (?:always|never|only) \w+s\b",
    r"\b(?:i(?:'d| would) (?:\w+ ){1,3}|it(?:'d| would) be (?:\w+ ){1,2})(?:if|that) you (?:could )?(?:always|never"
    r"|only)\b",
    r"\b(?:make it|get in(?:to)?) (?:a|the) habit\b|\b(?:new|standing|general|house|golden|hard|ground)"
    r" rule\b[^.:,]{0,20}[:,]\s*\w",
    rf"{_CLAUSE}(?:under no circumstances|on no account)\b|\bnot (?:allowed|permitted) to\b.*\b(?:ever|under any"
    r" circumstances)\b",
    rf"{_CLAUSE}never\s*,[^,]{{3,40}},\s*(?:{_VERBS})\b|{_CLAUSE}never again (?:{_VERBS})\b",
    r"^(?!(?:it|he|she|they|i|you|this|that|there|the \w+ (?:is|are|was))\b).{8,}[,;–—-] ?(?:always|every time|each"
    r" time|without exception|no exceptions)\W*$",
    r"\b(?:our|the) (?:convention|policy|rule|standard|house style|standard style)(?: here)? is\b",
    rf"^{_LEAD}(?:all|every|each|any|no) [\w -]{{2,40}} (?:must|should|has to|have to|needs? to|shall) (?:always|never)\b",
    rf"^{_LEAD}(?:every|each) {_WORK} (?:must|should|has to|needs? to|shall)\b",
    rf"^{_LEAD}(?!(?:the|a|an|this|that|my|your|its|he|she|they|who|what|users|clients|customers|people|visitors"
    r"|players|members|employees|callers"
    rf"|requests|threads|loops|buttons)\b)[a-z]+(?: [a-z]+)?s (?:must|should|have to|need to|shall) (?:always|never)\b",
    r"^(?:(?:can|could|would|will) you please|please)(?: from now on)? (?:always|never)\b",
    rf"^{_LEAD}as a (?:general )?rule\s*[,:]",
    rf"{_CLAUSE}always in [a-z□]+",
)
_BARE = any_of(rf"{_CLAUSE}(?:always|never)(?: ever|,? always)?\s+(?:please )?(?P<next>[a-z□][\w'□-]*)(?P<more>\s*\S)?")
_BARS = any_of(
    r"^(?!(?:can|could|would|will) you please\b).*\?\s*$|^(?:why|what|what's|how|who|where|when (?:did|do|does|is|was)"
    r"|is|are|was|were|do you|does|did|should i|should we|shall|which)\b",
    r"(?<!just for )(?<!not )(?<!only )\b(?:this time|just (?:this )?once|(?:only|just) this (?:once|time)|for now|for"
    r" the moment|for today|right now)\b",
    r"(?<!from )(?<!as of )(?<!starting )\b(?:today|tonight|tomorrow)\b|\bthis (?:morning|afternoon|evening|week|one"
    r"|once)\b|\btemporar",
    r"\b(?:in|for|of|on|to) this (?:specific |particular |one )?(?:function|file|test|script|class|method|loop|endpoint"
    r"|pr|pull request|e-?mail|paragraph"
    r"|message|answer|reply|response|section|case|document|doc|task|example|module|component|query|migration|commit"
    r"|branch|session|chat"
    r"|conversation|thread|table|page|story|poem|game)\b",
    r"\buntil (?!further notice)",
    r"^(?:suppose|imagine|pretend|hypothetically|assume|what if|let's say|once upon)\b|\b(?:i|we|they|it|he|she)"
    r" would(?! (?:\w+ ){1,3}(?:if|that) you\b| like you\b| like\b)\b|\bi wish\b",
    r"\bif (?:i|we|they|it|he|she) (?:always|never)\b|(?:^|[,.] ?)if you (?:always|never)\b",
    r"(?:^|[^\w])(?!i |we )(?:he|she|they|it|who|people|someone|everyone|everybody|[\w-]+) (?:also |always |once "
    r"|recently |often )?"
    r"(?<!\bi )(?<!\bas i )(?<!\bwe )(?:says?|said|tells?|told me|told us|wrote|writes|claims?|claimed|thinks?"
    r"|believes?|recommends?|recommended"
    r"|suggests?|suggested|mentions?|mentioned|states?|stated|warns?|warned|insists?|advises?|advised)\b.*\b(?:always"
    r"|never|from now on|in future)\b",
    r"\b(?:according to|supposedly|apparently|allegedly|telling (?:the|them|him|her|everyone|people|my|our)|the saying"
    r"|as they say|proverbs?|motto)\b.*\b(?:always|never)\b",
    r"\b(?:called|titled|named|the phrase|the word|the words) (?:\w+ )?(?:always|never)\b|\bagain (?:yet|until|before"
    r"|when)\b|\bthe next (?:answer|message|reply|one)\b",
    r"\bnever ?mind\b|\bnever say never\b|\bnever have i ever\b|\bnow or never\b|\bnever again\W*$",
)
_NEGATIVE = any_of(
    r"\b(?:never|don't(?! forget)|dont|do not|must not|mustn't|should not|shouldn't|may not|cannot|can't|no longer|no more"
    r"|avoid|refrain|under no circumstances|on no account|not allowed|not permitted|without"
    rf" exception)\b|\b(?:stop|quit) \w+ing\b|^{_LEAD}no (?!more\b)\w+.*\b(?:ever|anymore|again)\b"
)
_POSITIVE = any_of(
    rf"\balways\b|{_CLAUSE}(?:{_NOW_ON}|{_HERE})?[\s,:]*{_LEAD}(?!avoid\b|refrain\b|stop\b|do not\b)(?:{_VERBS})\b|(?<!ever"
    rf" )(?<!time )(?<!if )(?<!when )\bwe(?: only| all)? (?:{_VERBS})\b"
    rf"|\bremember to\b|\b(?:must|should|have to|need to) (?!not\b|never\b)\w+"
)


_NOW_ON_CUE = any_of(rf"\b{_NOW_ON}(?=\W|$)")
_ANY_CLAUSE = any_of(rf"{_CLAUSE}{_DIRECTIVE}(?!.*\b(?:(?<!like )that|which|who|what|why|how|where|whether|about)\b)")
_FORBIDS_OR_PLEADS = any_of(r"\b(?:please|don't|dont|do not|never|always|avoid|stop)\b")
_LEAD_ONLY = any_of(rf"{_LEAD}(?:when \w+[^,]*,\s*)?$")
_BEGINS_TO_ASK = any_of(
    rf"{_LEAD}(?:{_DIRECTIVE}|you\b(?!(?:'ll| will| can| may| might| could)\b)|(?:all|every|each|any|no|only)\b|i(?:'d| would)?"
    r" (?:want|like|expect|need|prefer)\b"
    rf"|we(?: always| never| only| don't| all)? (?:{_VERBS})\b)"
)
_TELLS = any_of(
    r"(?:i|it|he|she|they|there|we|you)\b|[\w'-]+(?: [\w'-]+){0,4}? (?:will|might|may|would|could|is|are|was|were|has|have|had"
    r"|am)\b(?!.*\b(?:must|should)\b)"
    r"|(?:the|a|an|this|that|my)\b(?!.*\b(?:must|should|have to|need to|go|goes)\b)"
)


def _gives(sentence: str) -> bool:
    if _GIVES.search(sentence) or any(_asks_for_ever(sentence, cue) for cue in _NOW_ON_CUE.finditer(sentence)):
        return True
    return any(_is_verb(found["next"]) and found["more"] is not None for found in _BARE.finditer(sentence))


def _asks_for_ever(sentence: str, cue: re.Match[str]) -> bool:
    """Whether what stands around "from now on" is asked for, and not told."""
    before, after = sentence[: cue.start()], sentence[cue.end() :].lstrip(" ,:;–—-")
    if _ANY_CLAUSE.search(before):
        # "Write about life in the future" asks for something else.
        return not cue[0].endswith("future") or _FORBIDS_OR_PLEADS.search(sentence) is not None
    if not _LEAD_ONLY.search(before.rstrip(" ") + " " if before.strip() else ""):
        return _BEGINS_TO_ASK.match(after) is not None and before.rstrip().endswith((",", ";", ":", "but", "and", "so", "-"))
    if sentence[cue.end() :].strip() in (":", "："):
        return True
    asked = after.strip(" .!")
    return bool(asked) and (_BEGINS_TO_ASK.match(after) is not None or (" " in asked and _TELLS.match(after) is None))


def _is_verb(word: str) -> bool:
    """Whether a word behind a bare "always" or "never" is a verb in the imperative: not an adjective, a past tense or a habit."""
    if _IS_VERB.match(word) or word in _ENDS_LIKE_VERB:
        return True
    if word in _NOT_VERBS or "□" in word or not word.isalpha() or len(word) < 3:
        return False
    return not word.endswith(("ed", "ing", "ly", "ness", "tion", "ful")) and (not word.endswith("s") or word.endswith(("ss", "us")))


ENGLISH = Grammar("en", _gives, _BARS, _POSITIVE, _NEGATIVE)
