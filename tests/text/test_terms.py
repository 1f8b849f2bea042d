"""Which words a text is indexed under."""

from metaclaw.text import count_terms, list_terms, stem
from tests.support.cases import each


@each(
    ("one", "other"),
    [
        ("parseHTTPRequest", "parsing HTTP requests"),
        ("parse-http-request", "parse_http_request"),
        ("getUserName", "get_user_name"),
        ("validation", "validating"),
        ("validate", "validator"),
        ("configuration", "configured"),
        ("migrations", "migrate"),
        ("creation", "created"),
        ("queries", "query"),
        ("stopped", "stopping"),
        ("Café", "cafe"),
        ("ｆｕｌｌｗｉｄｔｈ", "fullwidth"),
        ("PYTHON3", "python"),
        ("STRASSE", "straße"),
    ],
)
def test_forms_of_one_word_share_a_term(one: str, other: str) -> None:
    assert set(count_terms(one)) & set(count_terms(other))


@each(
    ("one", "other"),
    [
        ("JavaScript", "java"),
        ("GitHub", "git"),
        ("TypeScript", "script"),
        ("form", "format"),
        ("c++", "c#"),
        ("document", "docker"),
    ],
)
def test_different_words_do_not(one: str, other: str) -> None:
    assert not set(count_terms(one)) & set(count_terms(other))


def test_identifiers_are_taken_apart_and_kept_whole() -> None:
    assert list_terms("maxRetryCount") == ["maxretrycount", "max", "retri", "count"]
    assert list_terms("snake_case_name") == ["snak", "cas", stem("name")]
    assert list_terms("HTTPServer") == ["httpserv", "http", "serv"]


def test_words_that_say_nothing_are_left_out() -> None:
    assert count_terms("the of and please would you can it 12 2026 9 x") == {}


def test_random_identifiers_are_left_out_but_short_names_with_digits_stay() -> None:
    assert list_terms("a8bf4930 0x7f3a9c 16T09 123e4567e89b12d3") == []
    assert list_terms("sha256 ipv4 http2 404") == [
        "sha256",
        "sha",
        "ipv4",
        "ipv",
        "http2",
        "http",
        "404",
    ]


def test_chinese_gives_pairs_and_leaves_out_particles() -> None:
    assert list_terms("请帮我写周报") == ["写周", "周报"]
    assert list_terms("我的数据") == ["数据"]
    assert list_terms("日") == ["日"]


def test_japanese_keeps_kanji_and_katakana_and_leaves_out_hiragana() -> None:
    assert list_terms("メールを日本語で書いて") == ["メール", "日本", "本語", "書"]


def test_korean_gives_pairs() -> None:
    assert list_terms("데이터 분석") == ["데이", "이터", "분석"]


def test_occurrences_are_counted_in_order_of_first_appearance() -> None:
    assert count_terms("deploy docker, deploying Docker; helm") == {
        "deploi": 2,
        "dock": 2,
        "helm": 1,
    }


def test_words_with_signs_are_known_languages_only() -> None:
    assert list_terms("c++ C# i++ a+banana #docker") == ["c++", "c#", "banana", "dock"]


@each(
    "text",
    [
        "\0\0",
        "\ud800\udfff",
        "a" * 100_000,
        "_" * 1000,
        "😀" * 50,
        "ﷺ",
        "\u0301\u0301",
        "İ",
        "ẞ" * 50,
        "́",
        "1" * 5000,
    ],
)
def test_hostile_text_is_harmless(text: str) -> None:
    assert all(0 < len(term) <= 40 for term in count_terms(text))
