"""The house rules, one file each, standard library only: imported here, and copied beside the
checker of a written benchmark.

A rule's file, built-in or added by an owner, is called after the rule and defines:

    PLACE                   where its piece of text goes: inline, list, top, bottom, name, beside or log
    FORMS                   example by variant; the first variant is the usual one, the others contradict it
    SAYS, TOPIC             by language: the rule in the user's words, with {} for the example; what it is about
    fact(draw)              something made up that the rule has a say about; `told` is how the question tells it
    comply(fact, variant)   the piece as the rule wants it
    violate(fact, variant)  pieces that nearly are
    check(files, context)   assertions over a workspace, as (what, whether it holds)
    choices(fact, variant)  optional: a right option and wrong ones, where the pieces make none by themselves
    BEGINS                  optional, for rules that an owner adds: the day from which on it is in force
"""
