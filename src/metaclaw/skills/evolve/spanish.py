"""Standing instructions in Spanish."""

from metaclaw.skills.evolve.grammar import Grammar, any_of

_LEAD = (
    r"(?:(?:y|pero|entonces|ok|vale|bien|no(?=,)|sí|hola|gracias|por favor|importante|recuerda|como dije"
    r"|te dije)\b[\s,:;!.¡–—-]*){0,6}"
)
_CLAUSE = rf"(?:^¡?|[,;:–—(]\s*|\b(?:y|pero)\s+){_LEAD}"
_NOW_ON = (
    r"(?:a partir de (?:ahora|hoy)|de ahora en adelante|desde ahora|de hoy en adelante|en lo sucesivo|en (?:el )?futuro"
    r"|la próxima vez|hasta nuevo aviso)"
)
_TELLS = (
    r"(?:he|has|ha|hemos|han|había|habías|quise|quería|pensé|creí|fue|era|es|está|están|son|hay|falla|fallan|funciona|funcionan"
    r"|pasa|ocurre|sale"
    r"|da|tarda|devuelve|aparece|hace|será|sé|supe|vi|oí|tuve|me (?:ha|he|pregunt|gust|pareci)\w*)\b"
)
_VERB = (
    r"(?:responde|contesta|usa|utiliza|escribe|ejecuta|corre|pon|haz|añade|agrega|incluye|comprueba|verifica|revisa|prueba"
    r"|pregunta|formatea"
    r"|comenta|documenta|mantén|evita|guarda|crea|nombra|explica|muestra|llama|lee|empieza|termina|habla|envía|actualiza|ordena"
    r"|traduce|firma"
    r"|deja|sigue|prefiere|elige|instala|importa|di|da|trata|(?:re)?(?:respondan?|usen?|escriban?|utilicen?|ejecuten?|pongan?"
    r"|hagan?))"
)

_GIVES = any_of(
    rf"{_CLAUSE}{_NOW_ON}\b(?!.*\b(?:tal vez|quizás?|puede que|podríamos|\w{(3,)}(?:remos|aré|eré|iré|ará|erán"
    r"|arán))\b)(?!,?\s*(?:estoy|voy|va a|van a|hay|está|es|la|el|los|las)\b)(?=.*\w)",
    rf"{_CLAUSE}(?:siempre|nunca|jamás) (?!{_TELLS}|que\b|y\b|\w+[éíó]\b)\w+",
    rf"{_CLAUSE}{_VERB} (?:\w+ )?(?:siempre|nunca)\b",
    rf"{_CLAUSE}{_VERB}\b.*\b{_NOW_ON}\W*$",
    rf"{_CLAUSE}no \w+(?:es|as|éis|áis|en|an) (?:\w+ ){{0,2}}(?:nunca|jamás|más)\b|{_CLAUSE}no vuelvas? a\b|{_CLAUSE}dej[ae] de"
    r" \w+r",
    r"\bno quiero (?:ver|que)\b.*\b(?:más|nunca|jamás)\b",
    r"\b(?:debes|tienes que|hay que|deberías|usted debe|quiero que) (?:siempre|nunca)\b|\b(?:siempre|nunca) (?:debes|tienes que"
    r"|hay que)\b",
    rf"{_CLAUSE}(?:recuerda|recuerde|acuérdate de)(?:[:,]| que| siempre| \w+[aei]r\b)",
    r"\ben (?:este|nuestro) (?:proyecto|repo|repositorio|equipo),? (?:siempre |solo |nunca |no )?\w+[aei]mos\b",
    rf"^{_LEAD}(?:cada vez que|siempre que|cuando) \w+[^,]*,\s*(?:siempre |nunca |no )?{_VERB}\b.*",
)
SPANISH = Grammar(
    "es",
    lambda sentence: _GIVES.search(sentence) is not None,
    any_of(
        r"[?¿]|^(?:por qué|cómo|qué|quién|dónde|cuándo|debo|debería)\b",
        r"\b(?:esta vez|por ahora|de momento|por el momento|mañana|temporalmente|una sola vez|solo por esta vez)\b|(?<!de )\bhoy\b",
        r"\ben est[ea] (?:función|archivo|fichero|correo|mensaje|respuesta|caso|script|prueba|test|párrafo|conversación|chat"
        r"|tabla|clase)\b",
        r"\b(?:como siempre|casi siempre|casi nunca|para siempre|desde siempre|de siempre)\b",
        r"\b(?:dice|dijo|dicen|según|recomienda|recomiendan|afirma|cree|piensa)\b.*\b(?:siempre|nunca|jamás|ahora)\b",
        r"^(?:si (?:yo|siempre|nunca)|imagina|supongamos|supón)\b",
    ),
    any_of(
        r"\bsiempre\b",
        rf"{_CLAUSE}(?:{_NOW_ON}[\s,:]+)?{_LEAD}(?!evita|deja){_VERB}\b(?!.*\b(?:nunca|jamás)\b)",
        r"(?<!no )\b(?:usamos|utilizamos|escribimos|hacemos|ponemos)\b|\brecuerda (?!no\b)\w+r\b",
    ),
    any_of(r"\b(?:nunca|jamás|evita|deja de|dejes? de)\b|\bno (?!olvides)(?:\w+)"),
)
