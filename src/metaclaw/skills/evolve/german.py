"""Standing instructions in German."""

from metaclaw.skills.evolve.grammar import Grammar, any_of

_LEAD = (
    r"(?:(?:und|also|aber|ok|okay|gut|nein|ja|hey|hallo|danke|bitte|super|übrigens|wichtig|merk dir|wie gesagt|ich sagte"
    r"|denk daran)\b[\s,:;!.–—-]*){0,6}"
)
_CLAUSE = rf"(?:^|[,;:–—(]\s*|\b(?:und|aber|dann)\s+){_LEAD}"
_VERB = (
    r"(?:antworte|schreib(?:e)?|verwende?|nutze?|benutze?|nimm|mach(?:e)?|führe?|prüfe?|teste|committe|pushe?|formatiere|gib"
    r"|lass|lasse|füge?"
    r"|erstelle|lösche?|ändere|halte|starte|frag(?:e)?|erkläre?|zeige?|sage?|arbeite|rufe?|lies|beginne|beende|sprich|sende"
    r"|schick(?:e)?"
    r"|speichere|baue?|lege?|setze?|behalte|bleib(?:e)?|vermeide|achte|stelle?|überprüfe?|kommentiere|dokumentiere|installiere"
    r"|importiere"
    r"|kopiere|melde|nenne|bezeichne|übersetze?|aktualisiere|nummeriere|sortiere|entferne|fass(?:e)?|veröffentliche|deploye"
    r"|merge|rechne"
    r"|duze|sieze|fange?|beachte|liefere|[a-zäöü]+iere)"
)
_NOW_ON = (
    r"(?:ab (?:jetzt|sofort|heute|nun)|von (?:jetzt|nun|heute) an|künftig|zukünftig|in zukunft|fortan|nächstes mal|beim"
    r" nächsten mal|bis auf weiteres)"
)
_EVER = r"(?:immer|stets|grundsätzlich|nie|niemals|nie wieder|nie mehr|auf keinen fall)"

_GIVES = any_of(
    rf"{_CLAUSE}{_NOW_ON}\b(?!\s*(?:bin|ist|war|waren|sind|wird|wurde|könnte|habe|hatte|gibt|kommt|werden|vielleicht"
    r"|hoffentlich)\b)",
    rf"{_CLAUSE}{_VERB}\b[^,;]*\b{_NOW_ON}\b",
    rf"^(?:kannst|könntest|würdest|können|könnten) (?:du|sie) bitte\b.*\b(?:{_NOW_ON}|{_EVER})\b",
    rf"{_CLAUSE}{_VERB} (?:(?:bitte|mir|dabei|mich|dich|dir|uns|[\w-]+) ){{0,3}}{_EVER}\b",
    rf"^(?:bitte |[a-zäöü]+,? bitte )?[a-zäöüß]+en sie (?:[\w-]+ ){{0,4}}{_EVER}\b",
    rf"^{_LEAD}{_EVER}\b.*(?:en|ern|eln)\b\W*$",
    rf"\bbitte {_EVER}\b",
    r"\b(?:du|sie|ihr|wir) (?:sollst|sollen|sollt|musst|müssen|müsst|darfst|dürfen|dürft|solltest|sollten) (?:[\w-]+"
    rf" ){{0,4}}{_EVER}\b",
    r"\bmerke? dir\s*[:,]|\bmerke? dir,? dass\b|^denke? (?:bitte )?(?:immer )?daran\b",
    r"^(?:in|für) (?:diesem|dieses|unserem|unser) (?:projekt|repo|repository|team) \w+en wir\b|\bwir \w+en (?:hier|in diesem"
    r" (?:projekt|repo|repository))\b",
    rf"{_CLAUSE}(?:bitte )?(?:{_VERB} )?(?:[\w-]+ )?keine?n? [\w -]+ mehr\b(?! (?:zeit|lust|geld))",
    r"^(?:bitte )?hör(?:en sie)? auf\b",
    rf"\b(?:jedes mal|immer),? wenn du\b[^,]+,\s*{_LEAD}{_VERB}\b",
)
GERMAN = Grammar(
    "de",
    lambda sentence: _GIVES.search(sentence) is not None,
    any_of(
        r"^(?!(?:kannst|könntest|würdest|können|könnten) (?:du|sie) bitte\b).*\?\s*$|^(?:warum|wieso|weshalb|wie(?! gesagt)|was"
        r"|wer|wo|wann|soll|sollte|muss|kann|darf|ist|hat|gibt)\b",
        r"\b(?:diesmal|dieses mal|vorerst|erst ?mal|fürs erste|vorläufig|ausnahmsweise|einmalig|im moment|morgen)\b|(?<!ab"
        r" )(?<!von )\bheute\b",
        r"\bin (?:diesem (?:fall|test|skript|abschnitt|brief|chat|gespräch|text)|dieser (?:datei|funktion|klasse|methode|mail"
        r"|antwort|nachricht|sitzung))\b",
        r"\bfür diese (?:aufgabe|antwort|datei)\b",
        r"\b(?:wie immer|immer noch|noch immer|immer wieder|schon immer|fast immer|fast nie|noch nie|für immer|immerhin)\b",
        r"\bimmer (?:besser|schlechter|größer|kleiner|schneller|langsamer|öfter|länger|schlimmer|teurer|mehr|weniger|weiter)\b",
        r"\b(?:sagt|sagte|meint|meinte|behauptet|empfiehlt|schreibt|schrieb|erzählt)\b.*\b(?:immer|nie|niemals|künftig|ab"
        r" jetzt)\b|^laut\b",
        r"^(?:wenn wir|falls wir|angenommen|stell dir vor)\b|\b(?:wäre|würde)\b",
    ),
    any_of(
        r"\b(?:immer|stets|grundsätzlich)\b",
        rf"{_CLAUSE}(?:{_NOW_ON}[\s,:]+)?{_LEAD}(?!vermeide){_VERB}\b(?!.*\b(?:nie|niemals|nicht|keine?n?|auf keinen fall)\b)",
        r"\bwir\b(?!.*\b(?:nie|niemals|nicht|keine?n?)\b)|\bnur noch\b|\bmerk dir\b(?!.*\b(?:nie|niemals|nicht|keine?n?)\b)",
    ),
    any_of(r"\b(?:nie|niemals|nicht|kein|keine|keinen|keinem|auf keinen fall|vermeide|hör auf|hören sie auf)\b"),
)
