"""Texts written at random under a constraint, checked by regular expressions; masks against all texts there are."""

import itertools
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.generate import constraints
from helpers.generate.constraints import Constraint, quatrain, rhyme
from helpers.vocab import tokenizer

# some characters and how 中华新韵 rhymes them, written down by hand
HAND = {
    "十唐": "光霜乡长",
    "八寒": "天山年间",
    "十一庚": "风东穷",
    "十二齐": "期雨去",
    "十三支": "知诗日",
    "五微": "归微",
}
OTHERS = {
    "一麻": "花", "二波": "波", "三皆": "月", "四开": "来", "六豪": "高", "七尤": "秋", "八寒": "原", "九文": "春云",
    "十一庚": "雄翁", "十二齐": "儿绿", "十四姑": "湖", "": "，x",
}  # fmt: skip
LETTERS = "".join(HAND.values())
HAND["三皆"] = "月"  # stands in a word only, is no token of its own
MARKS = "，。！\n"
WORDS = ["天长", "山间", "风光", "东风", "归去", "诗", "年年", "长天光", "光，", "。日", "乡。\n", "明月"]
TOK = tokenizer.build_words(dict.fromkeys(WORDS, 2), LETTERS + MARKS)
EOS = TOK.eos_token_id
TEXTS = {i: tokenizer.decode(TOK, [i]) for i in range(len(TOK))}


def write(constraint: Constraint, max_new_tokens: int, pick) -> list[int]:
    """Write to the end, `pick` chooses among the allowed tokens; the document's end is one of them, but not kept."""
    state, ids = constraint.begin(TOK, EOS, max_new_tokens), []
    while not state.done and len(ids) < max_new_tokens:
        allowed = state.allowed(len(TOK))
        assert allowed.shape == (len(TOK),) and allowed.any()
        token = pick(allowed.nonzero().flatten().tolist())
        state.advance(token)
        if token != EOS:
            ids.append(token)
    return ids


def group(character: str) -> str:
    return next((name for name, members in HAND.items() if character in members), "")


def holds(constraint: Constraint, text: str) -> bool:
    """Whether a whole text meets a constraint: the definition, without automata."""
    counts = constraint.characters if isinstance(constraint.characters, tuple) else (constraint.characters,)
    lines = len(constraint.heads) or constraint.lines
    marks = "".join(map(re.escape, sorted(set("".join(constraint.ends) + "\n"))))

    def line(i: int) -> str:
        count = counts[i % len(counts)]
        body = rf"[^\W_]{{{count}}}" if count else rf"[^{marks}]+"
        return f"({body}){re.escape(constraint.ends[i % len(constraint.ends)])}"

    match = re.fullmatch("".join(map(line, range(lines))), text)
    if not match:
        return False
    rhymes = {group(match[number][-1]) for number in constraint.rhymes}
    heads_stand = all(body.startswith(head) for head, body in zip(constraint.heads, match.groups(), strict=False))
    return heads_stand and len(rhymes) < 2 and "" not in rhymes


@st.composite
def any_constraint(draw) -> Constraint:
    """Draw heads, lengths, ends and rhymes, each there or not."""
    heads = draw(st.text(LETTERS, max_size=4))
    characters = draw(st.one_of(st.integers(0, 7), st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)))
    lines = 0 if heads else draw(st.integers(1, 4))
    ends = draw(st.sampled_from([("，", "。"), ("。\n",), ("\n", "！")]))
    rhymes = tuple(draw(st.lists(st.integers(1, len(heads) or lines), max_size=3))) if characters else ()
    return Constraint(heads, characters, lines, ends, rhymes)


@settings(max_examples=300)
@given(any_constraint(), st.integers(0, 9), st.integers(0, 2**32), st.sampled_from(["any", "longest", "never end"]))
def test_no_constraint_is_ever_violated(constraint, more, seed, taste):
    """Whatever is chosen among the allowed tokens: the text can go on, fits, and meets the constraint in the end."""
    try:
        shortest = constraints._automaton(constraint, TOK).shortest
    except ValueError as error:
        assert "at once" in str(error)
        return
    stream = random.Random(seed)

    def pick(allowed: list[int]) -> int:
        if taste == "never end" and len(allowed) > 1:
            allowed = [token for token in allowed if token != EOS]
        if taste == "longest":
            longest = max(len(TEXTS[token]) for token in allowed)
            allowed = [token for token in allowed if len(TEXTS[token]) == longest]
        return stream.choice(allowed)

    ids = write(constraint, shortest + more, pick)
    assert len(ids) <= shortest + more
    assert holds(constraint, tokenizer.decode(TOK, ids))


SMALL = tokenizer.build_words({"天长": 2, "长天": 2, "天，": 2}, "天长，")
SMALL_TEXTS = {i: tokenizer.decode(SMALL, [i]) for i in range(len(SMALL))}
# three tokens, of two characters at most; x stands for all other letters
SMALL_WHOLE = ["".join(t) for n in range(7) for t in itertools.product("天长，x", repeat=n)]
SMALL_FORMS = (
    dict(characters=1, lines=2),
    dict(lines=1),
    dict(heads="天"),
    dict(heads="长", characters=2),
    dict(characters=(2, 1), lines=2),
)


@settings(max_examples=30)
@given(st.sampled_from(SMALL_FORMS), st.integers(0, 2**32))
def test_masks_are_those_of_all_texts_there_are(form, seed):
    """A token of the small alphabet is allowed exactly if some text that meets the constraint begins so, and fits."""
    limit = 3
    constraint = Constraint(ends=("，",), **form)
    good = {text for text in SMALL_WHOLE if holds(constraint, text)}
    stream, text = random.Random(seed), ""
    try:
        state = constraint.begin(SMALL, SMALL.eos_token_id, limit)
    except ValueError:
        assert min(map(len, good), default=99) > limit
        return
    shortest: dict[str, int] = {}  # of the good texts that begin so
    for whole in sorted(good, key=len):
        for n in range(len(whole) + 1):
            shortest.setdefault(whole[:n], len(whole))
    ids: list[int] = []
    while not state.done and len(ids) < limit:
        allowed = state.allowed(len(SMALL)).tolist()
        assert allowed[SMALL.eos_token_id] == (text in good)
        possible = []
        for token, piece in SMALL_TEXTS.items():
            if piece and set(piece) <= set("天长，x") and not SMALL.convert_ids_to_tokens(token).startswith("<0x"):
                after = text + piece
                left = limit - len(ids) - 1
                expected = shortest.get(after, 99) - len(after) <= left
                assert allowed[token] == expected, (text, piece)
                possible += [token] * expected
        if not possible:
            break
        ids.append(stream.choice(possible))
        state.advance(ids[-1])
        text += SMALL_TEXTS[ids[-1]]
    assert text in good


def test_a_quatrain_whose_heads_spell_a_name():
    ids = write(quatrain("天长山风"), 32, random.Random(0).choice)
    lines = tokenizer.decode(TOK, ids).replace("。", "，").split("，")
    assert [len(line) for line in lines] == [7, 7, 7, 7, 0]
    assert "".join(line[0] for line in lines[:4]) == "天长山风"
    assert group(lines[1][-1]) == group(lines[3][-1]) != ""
    assert quatrain(characters=5).lines == 4


def test_rhymes_are_those_of_the_dictionary():
    for groups in (HAND, OTHERS):
        for name, members in groups.items():
            assert {rhyme(character) for character in members} == {name}


def test_ends_that_no_line_has_need_not_be_in_the_vocabulary():
    tok = tokenizer.build_words({}, "天长。")
    assert Constraint(heads="天", ends=("。", "，")).begin(tok, EOS, 5).allowed(len(tok)).any()
    with pytest.raises(ValueError, match="end '，'"):
        Constraint(heads="天天", ends=("。", "，")).begin(tok, EOS, 5)


def test_bytes_and_signals_and_ids_that_only_the_model_has_are_never_allowed():
    """A model's table is often rounded up: it is wider than its tokenizer is long."""
    state = Constraint(lines=1).begin(TOK, EOS, 10)
    mask = state.allowed(len(TOK) + 8)
    allowed = {TOK.convert_ids_to_tokens(i) for i in mask.nonzero().flatten().tolist()}
    assert {"天", "天长"} < allowed and not mask[len(TOK) :].any()
    assert not {name for name in allowed if name.startswith("<0x")}
    assert not set(TOK.all_special_tokens) & allowed and "<assistant>" in TOK.all_special_tokens
    with pytest.raises(ValueError, match="not allowed"):
        state.advance(TOK.pad_token_id)


def test_a_complete_text_takes_nothing_more():
    state = Constraint(lines=1, characters=1, ends=("。",)).begin(TOK, EOS, 9)
    for text in "天。":
        assert not state.allowed(len(TOK))[EOS] and not state.done
        state.advance(tokenizer.encode(TOK, text)[0])
    assert state.done and state.allowed(len(TOK)).nonzero().flatten().tolist() == [EOS]
    with pytest.raises(ValueError, match="not allowed"):
        state.advance(tokenizer.encode(TOK, "天")[0])


def test_another_kind_of_vocabulary():
    """Merges instead of words, and bytes, which no constraint can use."""
    tok = tokenizer.build_bpe(["天长地久，山高水长。" * 9], 400)
    state, text = quatrain("天山水长", 5).begin(tok, tok.eos_token_id, 40), ""
    stream = random.Random(0)
    while not state.done:
        token = stream.choice(state.allowed(len(tok)).nonzero().flatten().tolist())
        state.advance(token)
        text += tokenizer.decode(tok, [token])
    assert re.fullmatch(r"天\w{4}，山\w{4}。水\w{4}，长\w{4}。", text)
    with pytest.raises(ValueError, match="its tokens are bytes"):
        Constraint(heads="天").begin(tokenizer.build_bytes(), EOS, 50)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (dict(heads="李白"), "head '李' cannot be written"),
        (dict(ends=("；",), lines=2), "end '；'"),
        (dict(heads="天", characters=40), "may take 41 tokens, one a character: set max_new_tokens to 41"),
        (dict(heads="天霜", characters=1, rhymes=(1, 2)), "contradict each other"),
    ],
)
def test_what_cannot_be_met_is_refused_in_words(fields, words):
    with pytest.raises(ValueError, match=words):
        Constraint(**fields).begin(TOK, EOS, 40)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (dict(characters=-1), "characters"),
        (dict(characters=(5, 0)), "characters"),
        (dict(characters=[5, 7]), "a tuple of numbers"),
        (dict(heads="天长", lines=3), "2 heads"),
        (dict(ends=()), "ends"),
        (dict(rhymes=(5,), lines=4, characters=5), "1 to 4"),
        (dict(rhymes=(1,), lines=4), "rhymes needs characters"),
        (dict(ends="，"), "give a tuple"),
        (dict(), "no form"),
        (dict(characters=7, lines=-1), "no form"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        Constraint(**fields)


def test_without_pypinyin_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pypinyin", None)
    with pytest.raises(ModuleNotFoundError, match=r"\[text\]"):
        rhyme("天")
