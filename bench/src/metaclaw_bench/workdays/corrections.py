"""How a person corrects a miss: seldom as a standing instruction, mostly in passing, and every time
in other words.

A program that only repeats what people lay down ("always …") learns little from such days: the rule
has to be written by whoever reads the corrections."""

from random import Random
from typing import Final

from metaclaw_bench.workdays.demands import Rule

_ALWAYS: Final = {"en": "always ", "de": "immer ", "fr": "toujours ", "es": "siempre "}
# {rule} is the rule as a request for this once, {topic} what it is about, {form} an example.
_WORDINGS: Final = {
    "en": (
        "That is not how it was meant: {rule}",
        "You could not know it, so here it is: {rule}",
        "I had to mend it by hand. What was wanted: {rule}",
        "Small thing, but it costs me time each morning: {rule}",
        "About {topic}: {form} would have been right.",
        "Why do the {topic} not look like {form}?",
        "The {topic} should have looked like {form}.",
        "With {topic} I was thinking of something like {form}.",
    ),
    "de": (
        "So war es nicht gemeint: {rule}",
        "Das konntest du nicht wissen, darum hier: {rule}",
        "Ich musste es von Hand ändern. Gewollt war: {rule}",
        "Eine Kleinigkeit, die mich Zeit kostet: {rule}",
        "Zu {topic}: {form} wäre richtig gewesen.",
        "Warum steht bei {topic} nicht so etwas wie {form}?",
        "Bei {topic} hätte ich {form} erwartet.",
        "Unter {topic} stelle ich mir etwas wie {form} vor.",
    ),
    "fr": (
        "Ce n'était pas l'idée : {rule}",
        "Tu ne pouvais pas le savoir, alors voilà : {rule}",
        "J'ai dû corriger à la main. Ce que je voulais : {rule}",
        "Un détail qui me coûte du temps : {rule}",
        "Pour {topic} : {form} aurait été juste.",
        "Pourquoi {topic} ne ressemble pas à {form} ?",
        "Pour {topic}, j'attendais {form}.",
        "Avec {topic}, je pensais à quelque chose comme {form}.",
    ),
    "es": (
        "No era esa la idea: {rule}",
        "No podías saberlo, así que aquí va: {rule}",
        "Tuve que corregirlo a mano. Lo que quería: {rule}",
        "Un detalle que me cuesta tiempo: {rule}",
        "Sobre {topic}: {form} habría sido correcto.",
        "¿Por qué {topic} no se parece a {form}?",
        "Para {topic} esperaba {form}.",
        "Con {topic} pensaba en algo como {form}.",
    ),
}


def wordings(rule: Rule, variant: str, language: str) -> tuple[str, ...]:
    """Every way a rule is told in a language; the first is a standing instruction, the others are
    said in passing.
    """
    standing = rule.says(variant, language)
    always = _ALWAYS[language]
    once = (
        standing.replace(always, "", 1)
        if always in standing
        else standing.replace(always.capitalize(), "", 1)
    )
    told = {
        "rule": once[:1].upper() + once[1:],
        "topic": rule.topic(language),
        "form": rule.example(variant),
    }
    return (standing, *(wording.format(**told) for wording in _WORDINGS[language]))


def correction(rule: Rule, variant: str, language: str, chance: Random) -> str:
    """One of the wordings."""
    return chance.choice(wordings(rule, variant, language))
