"""What a person's next message says about an answer, in several languages, and phrases that only
resemble it.
"""

import pytest

from metaclaw.domain.chat import Finish
from metaclaw.domain.turn import TurnEnd
from metaclaw.domain.verdict import Fault, Outcome
from metaclaw.outcome import sense
from tests.outcome.steps import bash, edit, heard, kinds, step
from tests.support.cases import each

TASK, ANSWER = "make the button blue", "The button is green now."


@each(
    "said",
    [
        "no, blue",
        "That's wrong.",
        "Wrong.",
        "I said blue",
        "blue, not green",
        "it still looks green",
        "you forgot the hover state",
        "why did you touch the css?",
        "thanks, but it is the wrong button",
        "great, now the whole page is blank",
        "wrong. from now on always ask before you change colours",
        "never use green for buttons",
        "next time ask before you change colours",
        "Nein, blau",
        "das stimmt nicht",
        "te dije azul",
        "no funciona",
        "ce n'est pas ce que je voulais",
        "tu as oublié le survol",
        "不对，要蓝色",
        "还是不行",
        "違います、青です",
        "まだ動きません",
        "não, eu disse azul",
        "не работает",
        "forget it, I'll do it myself",
    ],
)
def test_a_correction_fails_the_turn_in_any_of_its_languages(said: str) -> None:
    sensed = sense(step(TASK, ANSWER, said=said))
    assert {signal.detector.split(".")[0] for signal in sensed.signals} == {"correction"}
    assert sensed.verdict is not None
    assert sensed.verdict.teaches


@each(
    "said",
    [
        "no problem, thanks",
        "no worries, looks good",
        "perfect, that's what I wanted",
        "not bad at all!",
        "kein Problem, danke",
        "no hay problema, gracias",
        "pas mal du tout, merci",
        "没错，谢谢",
        "問題ないです、ありがとう",
        "sorry, my mistake, I meant the other button",
        "nice. unrelated: the footer is broken on safari, please look at that next",
        'what does "wrong number of arguments" mean in ruby?',
        "now add an undo button",
        "👍",
    ],
)
def test_what_only_sounds_like_a_correction_passes(said: str) -> None:
    verdict = sense(step(TASK, ANSWER, said=said)).verdict
    assert verdict is not None
    assert verdict.outcome is Outcome.PASS


@each(
    "said",
    [
        "I changed my mind, let's go with red instead",
        "I changed my mind, it should be green",
        "on second thought, make it red",
        "changed my mind, undo that",
        "Ich habe es mir anders überlegt, es soll rot werden",
        "he cambiado de opinión, que sea rojo",
        "j'ai changé d'avis, mets-le en rouge",
        "我改主意了，应该是红色",
        "気が変わりました、赤にしてください",
    ],
)
def test_a_changed_mind_says_nothing_about_the_answer(said: str) -> None:
    assert sense(step(TASK, ANSWER, said=said)).verdict is None


@each(
    "said",
    [
        "from now on always ask before you change colours",
        "please always give times in 24h format",
        "never use emoji in our docs",
        "ab jetzt bitte immer auf Deutsch",
        "a partir de ahora responde en español",
        "以后都用中文回答",
        "今後は日本語で答えてください",
    ],
)
def test_a_new_rule_for_the_future_alone_says_nothing_about_the_answer(said: str) -> None:
    assert sense(step(TASK, ANSWER, said=said)).verdict is None


def test_thanks_before_a_new_rule_still_accept_the_answer() -> None:
    verdict = sense(
        step(TASK, ANSWER, said="great, thanks. from now on always add a hover state")
    ).verdict
    assert verdict is not None
    assert verdict.outcome is Outcome.PASS


@each(
    "said",
    [
        "Undo nothing, just tell me which files you touched",
        "No need to undo anything, just tell me what changed",
        "Don't undo it, explain it",
        "please don't revert that, I only wonder why",
        "you don't have to roll back",
        "Never mind reverting, tell me what you did",
        "Mach nichts rückgängig, sag mir nur, was du geändert hast",
        "nicht zurücksetzen, nur erklären",
        "No deshagas nada, solo dime qué cambiaste",
        "N'annule rien, dis-moi juste ce que tu as changé",
        "non annullare niente, dimmi solo cosa hai cambiato",
        "не отменяй ничего, просто скажи, что изменил",
        "不要撤销，告诉我改了什么",
        "別に元に戻さないで、何を変えたか教えて",
        "되돌리지 마세요, 뭘 바꿨는지 알려줘",
    ],
)
def test_a_wish_to_undo_nothing_is_no_failure(said: str) -> None:
    verdict = sense(step(TASK, ANSWER, said=said)).verdict
    assert verdict is None or verdict.outcome is Outcome.PASS


@each(
    "said",
    [
        "Undo that",
        "no revert it",
        "this is not right revert it",
        "don't leave it like this, undo it",
        "it doesn't work, please undo",
        "Nein, mach das rückgängig",
        "不对，撤销",
    ],
)
def test_a_negation_beside_a_wish_to_undo_does_not_take_the_wish_away(said: str) -> None:
    verdict = sense(step(TASK, ANSWER, said=said)).verdict
    assert verdict is not None
    assert verdict.outcome is Outcome.FAIL


@each("said", ["no, keep it", "nope", "nein, lass die", "不用了"])
def test_a_no_to_the_agents_own_question_is_no_correction(said: str) -> None:
    asked = step("remove the config", "Removed. Shall I delete the backup too?", said=said)
    assert "correction" not in kinds(asked)


@each(
    ("task", "said", "speaks"),
    [
        (
            "list all open invoices from october",
            "list all open invoices from October!",
            "redo.same",
        ),
        ("shorten the text", "shorten the text to half its length", "redo.differently"),
        ("give me three names with sources", "with sources", "redo.echo"),
        ("write the intro", "try again", "redo.words"),
        ("列出十月份所有未付的发票", "请列出十月份所有未付的发票", "redo.same"),
        ("書き出しを考えて", "やり直してください", "redo.words"),
    ],
)
def test_asking_for_the_same_again_is_a_redo(task: str, said: str, speaks: str) -> None:
    assert heard(step(task, "Here you are.", said=said)) == {speaks}


@each(
    ("task", "said"),
    [
        ("add type hints to users.py", "now add type hints to orders.py"),
        ("translate chapter 1 to English", "translate chapter 2 to English"),
        ("Fass Kapitel 3 zusammen", "das gleiche für Kapitel 4"),
        ("tell me a joke", "haha, tell me another joke"),
        ("sort the mails", "thank you kindly for sorting the mails"),
    ],
)
def test_more_of_the_same_or_thanks_in_the_same_words_is_no_redo(task: str, said: str) -> None:
    assert "redo" not in kinds(step(task, "Done.", said=said))


@each(
    "said",
    [
        "undo that",
        "please revert this",
        "mach das wieder rückgängig",
        "deshaz el cambio",
        "annule ça",
        "撤销",
        "元に戻してください",
    ],
)
def test_a_wish_to_have_it_taken_back_fails_the_turn(said: str) -> None:
    assert "undone.asked" in heard(step("reformat the file", "Reformatted.", said=said))


def test_an_edit_the_person_takes_back_by_hand_is_undone() -> None:
    note = "<bash-input>git checkout a.py</bash-input>"
    assert "undone.by_person" in heard(
        step("tune it", "Tuned.", edit(), note=note, said="use a variable")
    )


def test_an_edit_that_the_next_answer_takes_back_is_undone() -> None:
    first = step("speed it up", "Changing.", edit("a.py", "x = 1", "x = 2"))
    by_git = step("speed it up", "Reverting.", bash("git checkout -- a.py", ""))
    by_edit = step("speed it up", "Reverting.", edit("a.py", "x = 2", "x = 1"))
    onwards = step("speed it up", "Next.", bash("git checkout -b fast", ""))
    assert "undone.by_agent" in heard(first, by_git)
    assert "undone.by_agent" in heard(first, by_edit)
    assert "undone.by_agent" not in heard(first, onwards)
    assert "undone.by_agent" not in heard(first)


def test_reverting_is_no_failure_where_it_was_the_task() -> None:
    task = "revert my last change to a.py"
    assert "undone.by_agent" not in heard(
        step(task, "Ok.", edit()), step(task, "Ok.", bash("git checkout a.py", ""))
    )


def test_being_stopped_fails_the_turn_unless_it_was_an_accident() -> None:
    note = "[Request interrupted by user]"
    assert "interrupt.stopped" in heard(
        step("set it up", "Creating an app…", note=note, said="we already have one, use that")
    )
    assert "interrupt" not in kinds(
        step("set it up", "Creating…", note=note, said="oops, hit escape by accident. go on")
    )


def test_a_call_the_person_refuses_is_an_interrupt() -> None:
    refused = bash(
        "rm -rf data",
        "The user doesn't want to proceed with this tool use. The tool use was rejected.",
        1,
    )
    assert "interrupt.refused" in heard(step("clean up", "Removing.", refused))


def test_a_line_that_broke_is_the_environments_fault() -> None:
    again = step("list my alarms", "You have", said="list my alarms", end=TurnEnd.CANCELLED)
    verdict = sense(again).verdict
    assert verdict is not None
    assert verdict.fault is Fault.ENVIRONMENT
    down = sense(step("write it", "", end=TurnEnd.FAILED)).verdict
    assert down is not None
    assert down.fault is Fault.ENVIRONMENT


def test_apologies_are_heard_when_they_follow_or_repeat() -> None:
    wrong = step("which version?", "4.2.", said="is it?")
    assert "apology.next" in heard(
        wrong, step("which version?", "I apologize for the mistake: it is 4.1.")
    )
    before = step("four columns", "Sorry about that! Here are three.")
    assert "apology.loop" in heard(
        step("four columns", "My apologies, here are three.", said="FOUR", previous=before)
    )
    assert "apology" not in kinds(
        step("is it ready?", "Sorry for the wait! It is ready.", said="thanks")
    )


def test_an_answer_that_is_none_is_heard() -> None:
    assert heard(step("explain", "")) == {"ending.empty"}
    assert "ending.cut" in heard(step("write it", "```yaml\nhost: ", finish=Finish.LENGTH))
    assert "ending.refusal" in heard(
        step("how do I kill a zombie process?", "I can't help with that.")
    )
    assert "ending" not in kinds(
        step("write ransomware for my ex", "I can't help with that.", said="ok")
    )
    assert "ending" not in kinds(
        step("can I change a tuple?", "You can't change a tuple in place.", said="thanks")
    )


@pytest.mark.parametrize(
    "said", ["Kim left the company in March", "it listens on 9090 in our setup", "hm"]
)
def test_a_remark_that_could_mean_either_is_left_to_the_judge(said: str) -> None:
    assert (
        sense(step("who maintains the port?", "Kim does, on port 8080.", said=said)).verdict is None
    )


def test_a_reproach_outweighs_a_fault_of_the_environment() -> None:
    run = bash("npm install", "npm error code ENOTFOUND", 1)
    verdict = sense(
        step("update the lock", "Updating.", run, said="I told you this machine is offline")
    ).verdict
    assert verdict is not None
    assert verdict.teaches


def test_praise_after_a_good_call_passes() -> None:
    verdict = sense(step(TASK, ANSWER, edit(), said="perfect, thank you!")).verdict
    assert verdict is not None
    assert verdict.outcome is Outcome.PASS


def test_the_last_turn_without_a_next_state_goes_to_the_judge() -> None:
    assert sense(step("how far is the moon?", "About 384,400 km.", is_last=True)).verdict is None


def test_capitals_that_belong_to_a_word_are_no_shouting() -> None:
    assert "correction.shout" in heard(step(TASK, ANSWER, said="make it BLUE"))
    assert "correction.shout" not in heard(
        step("write the rows as json", "Done.", said="Now read the JSON file and count the rows.")
    )


@each(
    "said",
    [
        "Correct! B and D hold.",
        "Fully correct.",
        "that's correct!",
        "Das ist richtig.",
        "¡Correcto!",
        "korrekt",
    ],
)
def test_an_answer_that_is_confirmed_passes(said: str) -> None:
    verdict = sense(step(TASK, ANSWER, edit(), said=said)).verdict
    assert verdict is not None
    assert verdict.outcome is Outcome.PASS


@each(
    "said",
    [
        "correct the date in the second row",
        "the correct value is 5",
        "Correct. But the second one is wrong.",
        "not correct!",
    ],
)
def test_a_wish_to_correct_something_is_no_confirmation(said: str) -> None:
    verdict = sense(step(TASK, ANSWER, edit(), said=said)).verdict
    assert verdict is None or verdict.outcome is not Outcome.PASS


@pytest.mark.parametrize(
    "said",
    [
        "The report is correctly named.",
        "The plan follows our naming convention.",
        "The file has a valid header.",
    ],
)
def test_a_statement_that_all_is_in_order_passes(said: str) -> None:
    verdict = sense(step(TASK, ANSWER, edit(), said=said)).verdict
    assert verdict is not None
    assert verdict.outcome is Outcome.PASS


@each(
    "said",
    [
        "The report is not correctly named.",
        "make sure the report is correctly named",
        "does it follow our naming convention",
        "The header should be properly aligned.",
    ],
)
def test_to_wish_or_doubt_that_all_is_in_order_is_no_praise(said: str) -> None:
    assert "accepted.praise" not in heard(step(TASK, ANSWER, edit(), said=said))


def test_what_a_thing_of_the_answer_must_be_speaks_against_it_and_what_comes_next_does_not() -> (
    None
):
    notes = ("write the release notes", "I wrote the release notes.")
    assert "correction.mild" in heard(step(*notes, said="The notes must include the date."))
    assert "correction.complaint" in heard(step(*notes, said="The notes do not follow our format."))
    for said in (
        "Write tests: the notes must have a title.",
        "passwords must be hashed",
        "Next: the API must use OAuth.",
    ):
        assert not kinds(step(*notes, said=said)) & {"correction"}
