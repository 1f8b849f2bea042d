"""Standing instructions in French."""

from metaclaw.skills.evolve.grammar import Grammar, any_of

_LEAD = (
    r"(?:(?:et|mais|alors|ok|bon|bien|non|oui|merci|bonjour|s'il te plaît|s'il vous plaît|important|surtout|rappel|je t'ai dit"
    r"|comme je l'ai dit)(?!\w)"
    r"[\s,:;!.–—-]*){0,6}"
)
_CLAUSE = rf"(?:^|[,;:–—(]\s*|\b(?:et|mais)\s+){_LEAD}"
_NOW_ON = (
    r"(?:désormais|dorénavant|à partir de maintenant|à partir d'aujourd'hui|à l'avenir|dès maintenant|dès à présent|la"
    r" prochaine fois|jusqu'à nouvel ordre)"
)
_VERB = (
    r"(?:réponds|répondez|utilise[sz]?|écris|écrivez|fais|faites|mets|mettez|lancez?|vérifiez?|ajoutez?|gardez?|formatez?"
    r"|commentez?|testez?|prends"
    r"|prenez|donnez?|nommez?|évitez?|exécutez?|emploie|employez|parlez?|poussez?|supprimez?|modifiez?|demandez?|créez?"
    r"|laissez?|expliquez?"
    r"|rédigez?|traduis|traduisez|indentez?|commitez?|lis|lisez|commencez?|terminez?|affichez?|envoyez?|envoie|trie|triez"
    r"|signez?|documentez?"
    r"|relis|relisez|préférez?|préfère|choisis|choisissez|installez?|importez?|renommez?|suis|suivez|arrondis|arrondissez"
    r"|montrez?|dis|dites|pense[sz]?|assure-toi|veillez?)"
)

_GIVES = any_of(
    rf"{_CLAUSE}{_NOW_ON}(?!\w)(?!,?\s*(?:il y a|c'est|ce sera|je |j'|le |la |les |tout ))(?!.*\b(?:peut-être|\w{(3,)}(?:era"
    r"|eront|erons|erai))\b).*\w",
    rf"{_CLAUSE}{_VERB}(?:-\w+)? (?:\w+ )?(?:toujours|systématiquement)\b",
    rf"{_CLAUSE}{_VERB}\b.*\b{_NOW_ON}\W*$",
    rf"{_CLAUSE}n(?:e |')\w+(?:e|s|ez)(?:-\w+)? (?:\w+ ){{0,2}}?(?:jamais|plus)\b",
    rf"^{_LEAD}toujours \w+(?:er|ir|re)\b|{_CLAUSE}ne jamais \w+(?:er|ir|re)\b|^{_LEAD}(?:plus )?jamais d[e'’]",
    r"^(?:.*[,;:]\s*)?(?:tu dois|vous devez|il faut|tu devrais) (?:toujours|ne jamais|ne plus)\b|\b(?:il|tu|vous) ne (?:faut"
    r"|dois|devez|devrais) (?:jamais|plus)\b",
    r"\bje (?:veux|voudrais|souhaite) que (?:tu|vous) (?:ne )?\w+ (?:\w+ )?(?:toujours|jamais|plus)\b",
    rf"{_CLAUSE}(?:souviens-toi|souvenez-vous|rappelle-toi|rappelez-vous)(?:[:,]| d[e']| qu[e'])|{_CLAUSE}n'oublie(?:z)? jamais\b",
    r"\bdans (?:ce projet|ce dépôt|ce repo|cette équipe|notre (?:projet|équipe)),? (?:on|nous) (?:n'|ne )?\w+",
    rf"{_CLAUSE}arrêtez? d[e']\s?(?:\w+'|\w+ )?\w+(?:er|ir|re)\b",
    rf"^{_LEAD}(?:chaque fois que|à chaque fois que|quand) (?:tu|vous)\b[^,]*,\s*{_VERB}\b",
)
FRENCH = Grammar(
    "fr",
    lambda sentence: _GIVES.search(sentence) is not None,
    any_of(
        r"\?\s*$|^(?:pourquoi|comment|que|qui|où|quand|faut-il|dois-je|est-ce)\b",
        r"\b(?:cette fois|pour l'instant|pour le moment|juste une fois|temporairement|demain|exceptionnellement"
        r"|provisoirement)\b|(?<!d')\baujourd'hui\b",
        r"\bdans (?:cette (?:fonction|réponse|conversation|classe|section)|ce (?:fichier|message|test|script|chat|cas|tableau)"
        r"|cet e-?mail)\b",
        r"\b(?:comme toujours|toujours pas|presque toujours|presque jamais|pour toujours|depuis toujours|toujours est-il)\b",
        r"\b(?:dit|disait|disent|recommande|affirme|(?:il|elle|on|qui|chef|collègue) pense|prétend)\b.*\b(?:toujours|jamais"
        r"|désormais)\b|^(?:selon|d'après)\b",
        r"^(?:si (?:je|on|nous|jamais)|imagine|supposons)\b",
    ),
    any_of(
        r"\b(?:toujours|systématiquement)\b",
        rf"{_CLAUSE}(?:{_NOW_ON}[\s,:]+)?{_LEAD}(?!évite){_VERB}\b(?!.*\bjamais\b)",
        r"\b(?:on|nous) (?:utilise|utilisons|écrit|écrivons|met|mettons|fait|faisons)\b|\bsouviens-toi de (?!ne\b)",
    ),
    any_of(r"\bjamais\b|\bn(?:e |')\w+.*\b(?:pas|plus|jamais)\b|\bévitez?\b|\barrêtez? d|\bne (?:pas|plus|jamais)\b"),
)
