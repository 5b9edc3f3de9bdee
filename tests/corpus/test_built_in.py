"""The built-in corpus: its facts hold together, its grammar is unambiguous, its probabilities and marks are right."""

import hashlib
import itertools
import math
import random
import statistics
from collections import Counter, defaultdict
from functools import cache

import grammar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.corpus import built_in, cleaning


@pytest.fixture(scope="module")
def corpus():
    return list(built_in.documents())


def combinations():
    return [(p, t, s) for t in built_in.topics() for s in built_in.situations(t) for p in built_in.facts()]


def test_cleaning_changes_no_document(corpus):
    assert all(cleaning.clean(document.text) == document.text for document in corpus)


# --- facts ---------------------------------------------------------------------------------------------------------


def test_the_table_is_large_and_every_fact_has_wording_and_verdicts():
    plants = built_in.facts()
    assert len(plants) >= 60 and len(built_in.topics()) >= 10
    assert len({row["latin"] for row in plants.values()}) == len(plants)
    grammar = built_in._grammar()["topics"]
    assert {topic["column"] for topic in grammar.values()} | {"latin"} == set(next(iter(plants.values())))
    for name, topic in grammar.items():
        used = Counter(built_in.value(plant, name) for plant in plants)
        assert set(used) == set(topic["values"]), name  # no unknown value, and none without a plant
        assert min(used.values()) >= 4, (name, used)  # a value is learnt from several plants
        for situation in topic["situations"].values():
            assert set(situation["rule"]) == set(topic["values"])
            assert set(situation["rule"].values()) <= set(topic["verdicts"])


def test_facts_of_one_plant_agree_with_each_other():
    for plant, row in built_in.facts().items():
        assert (row["trouble"] == "iron") <= (row["soil"] == "acid"), plant
        assert (row["trouble"] == "dark") <= (row["light"] in ("sun", "half")), plant
        assert (row["trouble"] == "air") <= (row["humidity"] != "low"), plant
        assert (row["light"] == "shade") <= (row["summer"] != "rest"), plant
        assert (row["soil"] == "gritty") == (row["humidity"] == "low" and row["soil"] != "loam"), plant
        assert (row["soil"] == "gritty") <= (row["summer"] in ("dry", "rest")), plant


def test_the_cold_verdict_compares_two_temperatures():
    nights = {"minus2": -2, "plus3": 3, "plus8": 8, "plus13": 13}
    assert set(nights) == set(built_in.situations("cold"))
    for plant, night in itertools.product(built_in.facts(), nights):
        safe = nights[night] >= int(built_in.value(plant, "cold"))
        assert built_in.verdict(plant, "cold", night) == ("safe" if safe else "risk")


def test_repotting_and_summer_water_verdicts_are_comparisons():
    for plant in built_in.facts():
        years = int(built_in.value(plant, "repot"))
        for situation, elapsed in {"half": 0.5, "one": 1.5, "two": 2.5, "five": 5}.items():
            due = "due" if elapsed > years else "wait"
            assert built_in.verdict(plant, "repot", situation) == due
        need = ["wet", "often", "mid", "dry", "rest"].index(built_in.value(plant, "summer"))
        for habit, situation in enumerate(["daily", "three", "week", "fortnight"]):
            expected = "good" if habit == need else "much" if habit < need else "little"
            assert built_in.verdict(plant, "summer", situation) == expected


# --- documents -----------------------------------------------------------------------------------------------------


def test_the_default_corpus_has_the_promised_size_and_layout(corpus):
    assert len(corpus) == len({d.text for d in corpus}) == built_in.DEFAULT >= 20_000
    assert 1.2e6 < sum(len(d.text) for d in corpus) < 1.7e6
    second = 0
    for document in corpus:
        lines = document.text.split("\n")
        assert len(lines) in (2, 4) and all(line and line == line.strip() for line in lines)
        assert not any(slip in document.text for slip in ("{", "，，", "，。", "。。", "？？", " "))
        second += len(lines) == 4
    assert abs(second / len(corpus) - built_in.SECOND) < 0.02


def test_documents_are_the_same_everywhere_and_differ_by_seed():
    texts = "\n\n".join(d.text for d in built_in.documents(200, seed=0))
    assert hashlib.sha256(texts.encode()).hexdigest()[:16] == "775f33b451227846"  # a change of data/ changes it
    assert [d.text for d in built_in.documents(5)] == texts.split("\n\n")[:5]
    assert [d.text for d in built_in.documents(5, seed=1)] != texts.split("\n\n")[:5]


def test_every_plant_and_every_story_appears_often_enough_to_be_learnt(corpus):
    text = "\n".join(d.text for d in corpus)
    assert all(text.count(plant) > 100 for plant in built_in.facts())
    stories = [s for t in built_in._grammar()["topics"].values() for x in t["situations"].values() for s in x["story"]]
    assert all(text.count(story) > 40 for story in stories)


def test_skipping_repeats_hardly_biases_the_floor(corpus):
    rng = random.Random(0)
    drawn = [built_in.draw(rng) for _ in range(built_in.DEFAULT)]
    repeats = len(drawn) - len({d.text for d in drawn})
    assert repeats <= 10
    plain, kept = (statistics.fmean(d.bits for d in documents) for documents in (drawn, corpus))
    assert abs(kept / plain - 1) < 1e-3


# --- exact probabilities -------------------------------------------------------------------------------------------


def test_bits_from_the_text_alone_equal_the_bits_of_the_drawing(corpus):
    for document in corpus[:1500]:
        count, probability = grammar.derive(document.text)
        assert count == 1
        assert -math.log2(probability) == pytest.approx(document.bits, abs=1e-9)
    assert grammar.bits(corpus[0].text) == pytest.approx(corpus[0].bits, abs=1e-9)


def expand(slot):
    """Yield (text, probability) of every derivation of a slot, independently of drawing and parsing."""
    for probability, parts in slot:
        choices = [[(part, 1.0)] if isinstance(part, str) else list(expand(part)) for part in parts]
        for chosen in itertools.product(*choices):
            yield "".join(text for text, _ in chosen), probability * math.prod(p for _, p in chosen)


@pytest.mark.parametrize("name,state", [
    ("second", ("pets", "mild", "")),
    ("answer", ("bloom", "rarely", "winter")),
    ("answer", ("feed", "rare", "hot")),
])  # fmt: skip
def test_probabilities_of_an_enumerated_part_sum_to_one(name, state):
    slot = built_in._slot(name, built_in._State(*state))
    every = list(expand(slot))
    assert sum(p for _, p in every) == pytest.approx(1)
    assert len({text for text, _ in every}) == len(every) > 500  # unambiguous: no text twice
    for text, probability in random.Random(0).sample(every, 200):
        assert grammar.Parse(text).ends(slot, 0)[len(text)] == (1, pytest.approx(probability))


def test_probabilities_of_a_plants_every_second_question_sum_to_its_documents():
    document = next(d for d in built_in.documents() if d.text.count("\n") == 1)
    alone = 2**-document.bits / (1 - built_in.SECOND)
    plant = next(p for p in built_in.facts() if p in document.text)
    total = 2**-document.bits
    for topic in built_in.topics():
        slot = built_in._slot("second", built_in._State(topic, built_in.value(plant, topic), ""))
        texts = [text.replace("{plant}", plant) for text, _ in expand(slot)]
        share = 0.0
        for text in random.Random(0).sample(texts, 20):  # all of them would take a minute
            try:
                share += 2 ** -grammar.bits(f"{document.text}\n{text}")
            except ValueError:
                assert share == 0  # the topic of the first question
        total += share and built_in.SECOND * alone / (len(built_in.topics()) - 1)
    assert total == pytest.approx(alone)


@cache
def entropy(slot):
    """Return (bits, characters) expected of a slot, by recursion over its alternatives."""
    total_bits = total_characters = 0.0
    for probability, parts in slot:
        total_bits -= probability * math.log2(probability)
        for part in parts:
            inner = (0, 3 if part == "{plant}" else len(part)) if isinstance(part, str) else entropy(part)
            total_bits += probability * inner[0]
            total_characters += probability * inner[1]
    return total_bits, total_characters


def test_the_mean_of_bits_is_the_entropy_computed_by_recursion(corpus):
    plants, topics = built_in.facts(), built_in.topics()
    expected = math.log2(len(plants) * len(topics)) - math.log2(built_in.SECOND) * built_in.SECOND
    expected -= math.log2(1 - built_in.SECOND) * (1 - built_in.SECOND)
    for plant, topic in itertools.product(plants, topics):
        seen = built_in.seen_situations(plant, topic)
        state = [built_in._State(topic, built_in.value(plant, topic), s) for s in seen]
        first = statistics.fmean(entropy(built_in._slot("first", s))[0] for s in state) + math.log2(len(seen))
        others = [built_in._State(t, built_in.value(plant, t), "") for t in topics if t != topic]
        second = statistics.fmean(entropy(built_in._slot("second", s))[0] for s in others) + math.log2(len(others))
        expected += (first + built_in.SECOND * second) / (len(plants) * len(topics))
    error = statistics.stdev(d.bits for d in corpus) / math.sqrt(len(corpus))
    assert 35 < expected < 50
    assert statistics.fmean(d.bits for d in corpus) == pytest.approx(expected, abs=4 * error)


# --- unambiguous ---------------------------------------------------------------------------------------------------


def test_every_plant_name_has_a_character_of_its_own():
    """So a text names one plant, and where the name stands is plain: the proof below may take it as one symbol."""
    wording = "".join(part for t in built_in.topics() for part in texts_of(t))
    for plant in built_in.facts():
        others = "".join(name for name in built_in.facts() if name != plant)
        assert any(c not in wording and c not in others and plant.count(c) == 1 for c in plant), plant


def slots_of(topic):
    for situation in built_in.situations(topic):
        for value in built_in.wordings(topic, "fact"):
            state = built_in._State(topic, value, situation)
            yield state, built_in._slot("question", state), built_in._slot("answer", state)


def texts_of(topic):
    def texts(slot):
        for _, parts in slot:
            for part in parts:
                yield from [part.replace("{plant}", "")] if isinstance(part, str) else texts(part)

    for state, question, answer in slots_of(topic):
        yield from itertools.chain(texts(question), texts(answer), texts(built_in._slot("second", state)))


def meeting(root):
    """Return the text after which two derivations of one text meet, or None if a slot is unambiguous.

    A proof, not a sample: all texts of the slot are read at once, character by character. A configuration is what
    remains of a derivation (a stack of parts). Two derivations of one text end in the same configuration at the
    latest at its end, so it is enough to visit every set of configurations and find none in it twice.
    """
    numbers, stacks = {None: None}, []

    def push(parts, below):
        for part in reversed(parts):
            key = (part if isinstance(part, str) else id(part), below)
            if key not in numbers:
                numbers[key] = len(stacks)
                stacks.append((part, below))
            below = numbers[key]
        return below

    @cache
    def open_up(stack):
        """Return the configurations (text, below) with a text on top; ("", None) is the end."""
        if stack is None:
            return [("", None)]
        part, below = stacks[stack]
        if isinstance(part, str):
            return [(part, below)]
        return [c for _, parts in part for c in open_up(push(parts, below))]

    def twice(configurations):
        return len(set(configurations)) < len(configurations)

    if twice(open_up(push((root,), None))):
        return ""
    waiting = [(frozenset(open_up(push((root,), None))), "")]
    reached = {waiting[0][0]}
    while waiting:
        subset, read = waiting.pop()
        following = defaultdict(list)
        for text, below in subset:
            if text:
                following[text[0]] += [(text[1:], below)] if text[1:] else open_up(below)
        for character, configurations in following.items():
            if twice(configurations):
                return read + character
            if frozenset(configurations) not in reached:
                reached.add(frozenset(configurations))
                waiting.append((frozenset(configurations), read + character))
    return None


def either(*choices):
    return tuple((1 / len(choices), parts) for parts in choices)


def test_the_proof_finds_an_ambiguity_where_there_is_one():
    assert meeting(either(("a",), ("b",), ("ab", "c"))) is None
    assert meeting(either(("a",), ("a",))) == ""  # an alternative twice
    assert meeting(either(("ab",), ("a", "b"))) == "a"  # one text, cut in two ways
    maybe = either((), ("x",))
    assert meeting(either((maybe, "y", maybe))) is None
    assert meeting(either(("y", maybe, maybe))) == "yx"  # which of the two is the x?
    assert meeting(either((maybe, maybe))) == "x"


def test_the_grammar_is_unambiguous():
    """Values are left open in the answers: more than any single plant allows, so the proof covers every plant."""
    topics = built_in.topics()
    states = [built_in._State(topic, value, "") for topic in topics for value in built_in.wordings(topic, "fact")]
    second = either(*((built_in._slot("second", state),) for state in states))
    firsts = []
    for topic in topics:
        about = defaultdict(list)
        for state, question, answer in slots_of(topic):
            about[state.situation, question].append((answer,))
        assert len(about) == len(built_in.situations(topic))  # a question doesn't depend on the value
        firsts += [(question, "\n", either(*answers)) for (_, question), answers in about.items()]
    assert meeting(either((either(*firsts), either((), ("\n", second))))) is None


# --- what can't be derived ------------------------------------------------------------------------------------------


def test_a_text_outside_the_grammar_is_refused_with_reason_and_place(corpus):
    document = next(d.text for d in corpus if d.text.count("\n") == 1)
    question, answer = document.split("\n")
    plant = next(p for p in built_in.facts() if p in document)
    with pytest.raises(ValueError, match="names no plant"):
        grammar.bits("今天天气很好")
    with pytest.raises(ValueError, match=rf"character {len(document)}: .* goes on with '呀'"):
        grammar.bits(document + "呀")
    for wrong in (question, answer, f"{question}\n", f"{document}\n", f"\n{document}", f"{document}\n{document}",
                  document.replace("\n", ""), document.replace(plant, "{plant}"), f"{document}{{{plant}}}",
                  f"{question}\n{question}"):  # fmt: skip
        with pytest.raises(ValueError):
            grammar.bits(wrong)


@given(st.text(max_size=40), st.integers(0, 80))
def test_any_text_gives_bits_or_a_value_error(noise, at):
    document = next(iter(built_in.documents(1))).text
    for text in (noise, document[:at] + noise + document[at:], document[:at] + noise + document[at + len(noise) :]):
        try:
            assert grammar.derive(text)[0] == 1 and grammar.bits(text) > 20
        except ValueError as error:
            assert str(error)


# --- held out -------------------------------------------------------------------------------------------------------


def test_held_out_combinations_can_be_composed_from_what_is_seen():
    every, out = combinations(), built_in.held_out()
    assert 0.06 < len(out) / len(every) < 0.10
    for plant, topic, situation in out:
        assert len(built_in.seen_situations(plant, topic)) == len(built_in.situations(topic)) - 1
        same = [p for p in built_in.facts() if built_in.value(p, topic) == built_in.value(plant, topic)]
        assert sum((p, topic, situation) not in out for p in same) >= built_in.WITNESSES


def test_held_out_combinations_never_appear(corpus):
    plants = list(built_in.facts())
    stories = defaultdict(list)
    for topic, entry in built_in._grammar()["topics"].items():
        for situation, told in entry["situations"].items():
            for story in told["story"]:
                stories[story].append((topic, situation))
    for document in corpus:
        question = document.text.split("\n")[0]
        plant = next(p for p in plants if p in question)
        told = max((s for s in stories if s in question), key=len)
        assert not any((plant, *about) in built_in.held_out() for about in stories[told])
    plant, topic, situation = sorted(built_in.held_out())[0]
    text, _ = built_in._wording("first", plant, topic, situation, random.Random(0))
    with pytest.raises(ValueError, match=f"{plant}.*held out"):
        grammar.bits(text)


# --- examination ----------------------------------------------------------------------------------------------------


def test_the_examination_is_half_held_out_and_repeatable():
    questions = built_in.examination(seed=3, n=301)
    assert questions == built_in.examination(seed=3, n=301) != built_in.examination(seed=4, n=301)
    assert Counter(q.held_out for q in questions) == {False: 151, True: 150}
    assert len({(q.plant, q.topic, q.situation) for q in questions}) == 301
    for q in questions:
        assert q.held_out == ((q.plant, q.topic, q.situation) in built_in.held_out())
        assert q.prompt.endswith("\n") and q.prompt.count("\n") == 1 and q.plant in q.prompt
    assert built_in.examination(seed=0, n=0) == []
    assert len(built_in.examination(seed=0, n=1000)) == 1000  # more than there are held out: some come again


def answer_to(question, rng, plant=None, situation=None):
    text, _ = built_in._wording("answer", plant or question.plant, question.topic, situation or question.situation, rng)
    return text


def test_mark_accepts_every_right_answer_and_what_follows_it():
    rng = random.Random(0)
    for question in built_in.examination(seed=0, n=1000):
        answer = answer_to(question, rng)
        assert built_in.mark(question, answer), (question, answer)
        assert built_in.mark(question, f"{answer}\n谢谢！怎么繁殖？\n")


def test_mark_refuses_wrong_answers():
    rng = random.Random(0)
    for question in built_in.examination(seed=1, n=1000):
        right = answer_to(question, rng)
        need = built_in.value(question.plant, question.topic)
        other = rng.choice([p for p in built_in.facts() if built_in.value(p, question.topic) != need])
        wrong = answer_to(question, rng, plant=other)
        assert not built_in.mark(question, wrong), (question, wrong)  # another plant's answer
        assert not built_in.mark(question, wrong.replace(other, question.plant))
        assert not built_in.mark(question, right + wrong) and not built_in.mark(question, wrong + right)  # a mixture
        assert not built_in.mark(question, "") and not built_in.mark(question, question.prompt)
        assert not built_in.mark(question, question.prompt + right)  # the question again: its first line has no fact
        assert not built_in.mark(question, f"不知道。\n{right}")  # only the first line counts
        verdict = built_in.verdict(question.plant, question.topic, question.situation)
        for situation in built_in.situations(question.topic):
            if built_in.verdict(question.plant, question.topic, situation) != verdict:
                assert not built_in.mark(question, answer_to(question, rng, situation=situation))
        for slot in ("fact", "verdict"):  # half an answer is no answer
            part, _ = built_in._wording(slot, question.plant, question.topic, question.situation, rng)
            assert not built_in.mark(question, part)


def test_no_wording_hides_in_another_value_or_verdict():
    for topic, slot in itertools.product(built_in.topics(), ("fact", "verdict")):
        named = [(name, text) for name, texts in built_in.wordings(topic, slot).items() for text in texts]
        assert len({text for _, text in named}) == len(named)
        for (one, a), (other, b) in itertools.permutations(named, 2):
            assert one == other or a not in b, (topic, a, b)
