"""The built-in corpus: its facts hold together, its grammar is unambiguous, its probabilities and marks are right."""

import csv
import hashlib
import itertools
import math
import random
import re
import statistics
from collections import Counter, defaultdict
from functools import cache

import grammar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import paths
from helpers.corpus import built_in, cleaning


@pytest.fixture(scope="module")
def corpus():
    return list(built_in.draw_documents())


def state(plant, topic, situation=""):
    return built_in._State(topic, built_in.value(plant, topic) if plant in built_in.plant_facts() else "", situation)


def slot(name, *about):
    return built_in._slot(name, state(*about))


def worded(name, plant, topic, situation, rng):
    """Return words that the grammar has for a slot."""
    drawing = built_in._Drawing(rng, plant)
    drawing.write(slot(name, plant, topic, situation))
    return drawing.text()


def is_plain(document):
    """Whether the first question of a document is plain: it parses as one."""
    plant = next(n for n in (*built_in.plant_facts(), *built_in.strangers()) if n in document.text)
    parse = grammar.Parse(document.text.split("\n")[0].replace(plant, "{plant}"))
    every = (*built_in.plain_topics(), *built_in.matters())
    return any(len(parse.text) in parse.ends(grammar.slot_of("plain", state("", topic)), 0) for topic in every)


def combinations():
    return [(p, t, s) for t in built_in.topics() for s in built_in.situations(t) for p in built_in.plant_facts()]


def test_cleaning_changes_no_document(corpus):
    assert all(cleaning.clean(document.text) == document.text for document in corpus)


# --- facts ---------------------------------------------------------------------------------------------------------


def test_the_table_is_large_and_every_fact_has_wording_and_verdicts():
    plants = built_in.plant_facts()
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
    for plant, row in built_in.plant_facts().items():
        assert (row["trouble"] == "iron") <= (row["soil"] == "acid"), plant
        assert (row["trouble"] == "dark") <= (row["light"] in ("sun", "half")), plant
        assert (row["trouble"] == "air") <= (row["humidity"] != "low"), plant
        assert (row["light"] == "shade") <= (row["summer"] != "rest"), plant
        assert (row["soil"] == "gritty") == (row["humidity"] == "low" and row["soil"] != "loam"), plant
        assert (row["soil"] == "gritty") <= (row["summer"] in ("dry", "rest")), plant


def test_the_cold_verdict_compares_two_temperatures():
    nights = {"minus2": -2, "plus3": 3, "plus8": 8, "plus13": 13}
    assert set(nights) == set(built_in.situations("cold"))
    for plant, night in itertools.product(built_in.plant_facts(), nights):
        safe = nights[night] >= int(built_in.value(plant, "cold"))
        assert built_in.right_verdict(plant, "cold", night) == ("safe" if safe else "risk")


def test_repotting_and_summer_water_verdicts_are_comparisons():
    for plant in built_in.plant_facts():
        years = int(built_in.value(plant, "repot"))
        for situation, elapsed in {"half": 0.5, "one": 1.5, "two": 2.5, "five": 5}.items():
            due = "due" if elapsed > years else "wait"
            assert built_in.right_verdict(plant, "repot", situation) == due
        need = ["wet", "often", "mid", "dry", "rest"].index(built_in.value(plant, "summer"))
        for habit, situation in enumerate(["daily", "three", "week", "fortnight"]):
            expected = "good" if habit == need else "much" if habit < need else "little"
            assert built_in.right_verdict(plant, "summer", situation) == expected


# --- documents -----------------------------------------------------------------------------------------------------


def test_the_default_corpus_has_the_promised_size_and_layout(corpus):
    assert len(corpus) == len({d.text for d in corpus}) == built_in.DOCUMENTS >= 20_000
    assert 3.2e6 < sum(len(d.text) for d in corpus) < 3.8e6
    second = 0
    for document in corpus:
        lines = document.text.split("\n")
        assert len(lines) in (2, 4) and all(line and line == line.strip() for line in lines)
        assert not any(slip in document.text for slip in ("{", "，，", "，。", "。。", "？？", " "))
        second += len(lines) == 4
    assert abs(second / len(corpus) / (1 - built_in.SHARES["unknown plant"]) - built_in.SECOND) < 0.02
    assert sum(built_in.SHARES.values()) == pytest.approx(1)
    plain = sum(map(is_plain, corpus[:2000])) / 2000
    assert abs(plain + built_in.SHARES["story"] - 1) < 0.04


def test_documents_are_the_same_everywhere_and_differ_by_seed():
    texts = "\n\n".join(d.text for d in built_in.draw_documents(200, seed=0))
    assert hashlib.sha256(texts.encode()).hexdigest()[:16] == "e26720463e3e8211"  # a change of data/ changes it
    assert [d.text for d in built_in.draw_documents(5)] == texts.split("\n\n")[:5]
    assert [d.text for d in built_in.draw_documents(5, seed=1)] != texts.split("\n\n")[:5]


def test_plain_questions_keep_to_the_grammar_of_chinese():
    """吗 ends a sentence: neither 呢 nor 啊 follows; and whose a plant is stands before the plant, not before 夏天."""
    rng, whose = random.Random(0), 0
    for topic in (*built_in.plain_topics(), *built_in.matters()):
        for plant in list(built_in.plant_facts()) * 4:
            question = worded("plain", plant, topic, "", rng)
            assert not re.search("[吗吧不][呢啊]", question)
            assert not re.search(f"(?:我家|家里的)(?!{plant})", question)
            whose += bool(re.search(f"(?:我家|家里的){plant}", question))
    assert whose > 100


def test_every_plant_and_every_story_appears_often_enough_to_be_learnt(corpus):
    text = "\n".join(d.text for d in corpus)
    assert all(name in text for name in built_in.strangers())  # many names, none of them often
    assert all(text.count(plant) > 100 for plant in built_in.plant_facts())
    stories = [s for t in built_in._grammar()["topics"].values() for x in t["situations"].values() for s in x["story"]]
    assert all(text.count(story) > 40 for story in stories)


def test_skipping_repeats_hardly_biases_the_floor(corpus):
    rng = random.Random(0)
    drawn = [built_in.draw(rng) for _ in range(built_in.DOCUMENTS)]
    repeats = len(drawn) - len({d.text for d in drawn})
    assert repeats <= 10  # as the docstring of `documents` says
    plain, kept = (statistics.fmean(d.bits for d in documents) for documents in (drawn, corpus))
    assert abs(kept / plain - 1) < 1e-4


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
    ("plain", ("water", "", "")),
    ("plain_answer", ("care", "sun often -5", "")),
    ("unknown_plant_answer", ("cold", "", "")),
    ("unknown_matter_answer", ("price", "", "")),
])  # fmt: skip
def test_probabilities_of_an_enumerated_part_sum_to_one(name, state):
    slot = built_in._slot(name, built_in._State(*state))
    every = list(expand(slot))
    assert sum(p for _, p in every) == pytest.approx(1)
    assert len({text for text, _ in every}) == len(every) > 500  # unambiguous: no text twice
    for text, probability in random.Random(0).sample(every, 200):
        assert grammar.Parse(text).ends(slot, 0)[len(text)] == (1, pytest.approx(probability))


def test_probabilities_of_a_plants_every_second_question_sum_to_its_documents():
    document = next(d for d in built_in.draw_documents() if d.text.count("\n") == 1)
    alone = 2**-document.bits / (1 - built_in.SECOND)
    plant = next(p for p in built_in.plant_facts() if p in document.text)
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


@pytest.mark.parametrize(
    "plant,topic", [("君子兰", "feed"), ("桂花", "bloom"), ("薄荷", "eat"), ("牡丹", "bloom"), ("桂花", "eat")]
)
def test_plain_questions_without_the_listed_ones_sum_to_one(plant, topic):
    every = {text.replace("{plant}", plant): p for text, p in expand(slot("plain", plant, topic))}
    listed = {q.prompt.strip("\n？") for q in built_in.plain_questions() if q.plant == plant} & set(every)
    assert bool(listed) == ((plant, topic) != ("桂花", "eat"))
    out = [line for line in every if line.rstrip("？") in listed]
    left = sum(p for line, p in every.items() if line.rstrip("？") not in listed)
    for line in [*out, *random.Random(0).sample(list(every), min(2000, len(every)))]:
        parse = grammar.Parse(line.replace(plant, "{plant}"))
        count, asked = grammar.asked(plant, topic, parse, len(parse.text))
        if line.rstrip("？") in listed:
            assert (count, asked) == (0, 0)
        else:
            assert count == 1 and asked == pytest.approx(every[line] / left)
    assert (left < 1 - 1e-9) == bool(listed)


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


def entropy_of_plain_questions(plant, topic):
    """Return the entropy of what may be asked: the listed questions taken out, the others scaled up."""
    whole, _ = entropy(slot("plain", plant, topic))
    lines = {line.replace(plant, "{plant}") for line in grammar.listed().get(plant, ())}
    parses = [grammar.Parse(line).ends(slot("plain", plant, topic), 0).get(len(line), (0, 0.0)) for line in lines]
    assert all(count <= 1 for count, _ in parses)
    out = [p for count, p in parses if count]
    left = 1 - sum(out)
    return (whole + sum(p * math.log2(p) for p in out)) / left + math.log2(left)


def entropy_of_kind(kind):
    """Return the entropy of a kind of document, given the kind."""
    names = list(built_in.strangers() if kind == "unknown plant" else built_in.plant_facts())
    about = {"story": built_in.topics, "unknown matter": built_in.matters}.get(kind, built_in.plain_topics)()
    total = 0.0
    for plant, topic in itertools.product(names, about):
        if kind == "story":
            seen = built_in.seen_situations(plant, topic)
            first = statistics.fmean(entropy(slot("first", plant, topic, s))[0] for s in seen) + math.log2(len(seen))
        else:
            first = entropy_of_plain_questions(plant, topic) + entropy(slot(grammar.ANSWERS[kind], plant, topic))[0]
        total += first
        if kind != "unknown plant":
            share = built_in.SECOND
            others = built_in.second_topics(topic)
            second = statistics.fmean(entropy(slot("second", plant, t))[0] for t in others) + math.log2(len(others))
            total += share * second - share * math.log2(share) - (1 - share) * math.log2(1 - share)
    return total / (len(names) * len(about)) + math.log2(len(names) * len(about))


def test_the_mean_of_bits_is_the_entropy_computed_by_recursion(corpus):
    shares = built_in.SHARES
    expected = sum(share * (entropy_of_kind(kind) - math.log2(share)) for kind, share in shares.items())
    error = statistics.stdev(d.bits for d in corpus) / math.sqrt(len(corpus))
    assert 30 < expected < 50 and 4 * error < 1
    assert statistics.fmean(d.bits for d in corpus) == pytest.approx(expected, abs=4 * error)


def test_the_choices_on_the_way_to_a_document_have_its_bits_and_its_wordings():
    kinds = Counter()
    for seed in range(300):
        document, choices = built_in.draw(random.Random(seed)), built_in.explain_draw(random.Random(seed))
        assert math.fsum(choice.bits for choice in choices) == pytest.approx(document.bits, abs=1e-9)
        slots = [choice.slot for choice in choices]
        assert slots[:3] == ["kind", "plant", "topic"] and choices[1].text in document.text
        kinds[choices[0].text] += 1
        assert ("situation" in slots) == (choices[0].text == "story")
        at = 0
        for choice in choices[3:]:  # the wordings stand in the text, one after the other
            if choice.slot not in ("situation", "second question", "second topic") and "{" not in choice.text:
                at = document.text.index(choice.text, at) + len(choice.text)
        assert all(choice.bits > 0 or choice.slot == "not in the examination" for choice in choices)
    assert set(kinds) == set(built_in.SHARES) and kinds["story"] > kinds["plain"] > kinds["unknown plant"]


# --- unambiguous ---------------------------------------------------------------------------------------------------


def test_every_name_has_characters_that_stand_nowhere_else():
    """So a text names one plant, and where the name stands is plain: the proof below may take it as one symbol.

    Of its own is a character, or a pair of neighbours that nothing else can bring together: one of the two stands in
    no wording, and in no other name beside the second or at the end where a wording could follow (or come before).
    """
    wording, names = "".join(all_texts()), [*built_in.plant_facts(), *built_in.strangers()]
    assert len(names) == len(set(names)) and len(built_in.strangers()) >= 60
    for name in names:
        others = [other for other in names if other != name]
        own = any(c not in wording and c not in "".join(others) and name.count(c) == 1 for c in name)
        for one, two in itertools.pairwise(name):
            apart = name.count(one + two) == 1 and not any(one + two in other for other in others)
            own |= apart and one not in wording and not any(other.endswith(one) for other in others)
            own |= apart and two not in wording and not any(other.startswith(two) for other in others)
        assert own, name


def all_texts():
    """Yield every text of the grammar, whatever slot it stands in; and the listed questions without their names."""

    def within(node):
        for part in node if isinstance(node, list) else ():
            yield from within(part)
        for key, part in node.items() if isinstance(node, dict) else ():
            yield key
            yield from within(part)
        if isinstance(node, str):
            yield node

    entries = built_in._grammar()
    for text in within({part: entry for part, entry in entries.items() if part != "strangers"}):
        yield from re.split(r"\{[\w.]+\}", text)


def slots_of(topic):
    for situation in built_in.situations(topic):
        for value in built_in.wordings(topic, "fact"):
            state = built_in._State(topic, value, situation)
            yield state, built_in._slot("question", state), built_in._slot("answer", state)


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
    firsts += plain_documents("plain", {topic: built_in.plant_facts() for topic in built_in.plain_topics()})
    firsts += plain_documents("unknown matter", {matter: ["绿萝"] for matter in built_in.matters()})
    assert meeting(either((either(*firsts), either((), ("\n", second))))) is None


def plain_documents(kind, plants_of):
    for topic, plants in plants_of.items():
        answers = {slot(grammar.ANSWERS[kind], plant, topic) for plant in plants}
        yield slot("plain", "", topic), "\n", either(*((answer,) for answer in answers))


def test_documents_on_unknown_plants_are_unambiguous():
    strangers = {topic: built_in.strangers()[:1] for topic in built_in.plain_topics()}
    assert meeting(either(*plain_documents("unknown plant", strangers))) is None


# --- what can't be derived ------------------------------------------------------------------------------------------


def test_a_text_outside_the_grammar_is_refused_with_reason_and_place(corpus):
    document = next(d.text for d in corpus if d.text.count("\n") == 1)
    question, answer = document.split("\n")
    plant = next(p for p in built_in.plant_facts() if p in document)
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
    document = next(iter(built_in.draw_documents(1))).text
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
        same = [p for p in built_in.plant_facts() if built_in.value(p, topic) == built_in.value(plant, topic)]
        assert sum((p, topic, situation) not in out for p in same) >= built_in.WITNESSES


@cache
def stories():
    """Return {story: what it can be about, (topic, situation) each}."""
    found = defaultdict(list)
    for topic, entry in built_in._grammar()["topics"].items():
        for situation, told in entry["situations"].items():
            for story in told["story"]:
                found[story].append((topic, situation))
    return found


def told_in(question):
    """Return the combinations that the story of a question can be about; none where it tells no story."""
    plant = next((p for p in built_in.plant_facts() if p in question), None)
    told = max((s for s in stories() if s in question), key=len, default=None)
    return [(plant, *about) for about in stories().get(told, ())]


def test_held_out_combinations_never_appear(corpus):
    told = [told_in(document.text.split("\n")[0]) for document in corpus]
    assert not any(combination in built_in.held_out() for each in told for combination in each)
    assert abs(sum(map(bool, told)) / len(corpus) - built_in.SHARES["story"]) < 0.02
    plant, topic, situation = sorted(built_in.held_out())[0]
    text = worded("first", plant, topic, situation, random.Random(0))
    with pytest.raises(ValueError, match=f"{plant}.*held out"):
        grammar.bits(text)


# --- conversations --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def conversations():
    return list(built_in.draw_conversations(5000))


def test_conversations_are_distinct_and_the_same_everywhere(conversations):
    said = [tuple(text for e in exchanges for text in (e.question, e.answer)) for exchanges in conversations]
    assert len(set(said)) == len(said) == 5000
    assert all(text and "\n" not in text and cleaning.clean(text) == text for texts in said for text in texts)
    assert (
        conversations[:50]
        == list(built_in.draw_conversations(50, seed=0))
        != list(built_in.draw_conversations(50, seed=1))
    )
    digest = hashlib.sha256("\n".join(map("\n".join, said[:100])).encode()).hexdigest()
    assert digest[:16] == "17ef864792fb18d8"  # a change of data/ changes it


def test_conversations_have_as_many_exchanges_as_promised(conversations):
    known = [exchanges for exchanges in conversations if exchanges[0].about.plant in built_in.plant_facts()]
    strange = [exchanges for exchanges in conversations if exchanges[0].about.plant in built_in.strangers()]
    assert len(known) + len(strange) == len(conversations) and all(len(exchanges) == 1 for exchanges in strange)
    assert len(strange) / len(conversations) == pytest.approx(built_in.SHARES["unknown plant"], abs=0.015)
    lengths = Counter(map(len, known))
    assert set(lengths) == set(built_in.EXCHANGES)
    for exchanges, share in built_in.EXCHANGES.items():
        assert lengths[exchanges] / len(known) == pytest.approx(share, abs=0.025)


def test_a_conversation_stays_with_its_plant_and_asks_nothing_twice(conversations):
    for exchanges in conversations:
        assert len({e.about.plant for e in exchanges}) == 1
        assert exchanges[0].about.plant in exchanges[0].question
        told = [column for e in exchanges for column in built_in.columns(e.about.topic)]
        assert len(told) == len(set(told))
        assert all(e.about.kind == "plain" and not e.about.situation for e in exchanges[1:])
        assert all(e.about.prompt == f"{e.question}\n" for e in exchanges)


def test_no_conversation_shows_what_is_kept_for_the_examination(conversations):
    listed = {q.prompt.strip().rstrip("？") for q in built_in.plain_questions()}
    asked = [e.question for exchanges in conversations for e in exchanges]
    assert not any(question.rstrip("？") in listed for question in asked)
    told = [told_in(exchanges[0].question) for exchanges in conversations]
    assert not any(combination in built_in.held_out() for each in told for combination in each)
    assert abs(sum(map(bool, told)) / len(told) - built_in.SHARES["story"]) < 0.03
    for exchanges in conversations[:200]:  # each begins as a document may
        assert grammar.bits(f"{exchanges[0].question}\n{exchanges[0].answer}") > 10


def test_every_answer_of_a_conversation_is_right(conversations):
    for exchanges in conversations:
        assert all(built_in.mark(e.about, e.answer) for e in exchanges), exchanges


def test_answer_bits_are_those_of_the_drawing_and_of_an_independent_parse(conversations):
    for exchanges in conversations:
        first = exchanges[0]
        assert built_in.answer_bits(first.about, first.answer) == pytest.approx(first.bits, abs=1e-9)
    for first, *others in conversations[:500]:
        plant, topic, situation = first.about.plant, first.about.topic, first.about.situation
        kind = "unknown matter" if topic in built_in.matters() else "plain"
        name = (
            "answer" if situation else grammar.ANSWERS["unknown plant" if plant not in built_in.plant_facts() else kind]
        )
        parse = grammar.Parse(first.answer.replace(plant, "{plant}"))
        count, p = parse.ends(grammar.slot_of(name, state(plant, topic, situation)), 0)[len(parse.text)]
        assert (count, -math.log2(p)) == (1, pytest.approx(first.bits, abs=1e-9))
        for e in others:  # the whole exchange, of which the question is a part
            parse = grammar.Parse(f"{e.question}\n{e.answer}".replace(plant, "{plant}"))
            count, p = parse.ends(grammar.slot_of("second", state(plant, e.about.topic)), 0)[len(parse.text)]
            assert count == 1 and 0 <= e.bits < -math.log2(p)


def test_answer_bits_of_what_the_grammar_never_says(conversations):
    rng = random.Random(0)
    for question in built_in.examination(seed=0, n=100):
        answer = answer_to(question, rng)
        bits = built_in.answer_bits(question, answer)
        assert 0 < bits < 40
        verdict = built_in.right_verdict(question.plant, question.topic, question.situation)
        others = [
            s
            for s in built_in.situations(question.topic)
            if built_in.right_verdict(question.plant, question.topic, s) != verdict
        ]
        wrong = [answer_to(question, rng, situation=situation) for situation in others]
        garbled = ["", answer[:-1], answer + "。", f"呀{answer}", answer[::-1], f"{answer}\n", question.prompt, "随便"]
        assert all(built_in.answer_bits(question, line) == math.inf for line in (*wrong, *garbled))
    for row, question in zip(rows(), built_in.plain_questions(), strict=True):
        if row["kind"] == "unknown matter":  # some of these matters the grammar doesn't have
            assert built_in.answer_bits(question, "随便") == math.inf
        else:
            answer = plain_answer(question.plant, question.topic, rng, row["kind"])
            assert 0 < built_in.answer_bits(question, answer) < 40
            assert built_in.answer_bits(question, answer + answer) == math.inf


@pytest.mark.parametrize(
    "plant,topic", [("绿萝", "cold"), ("绿萝", "water"), ("文竹", "care"), ("牡丹", "cold"), ("绿萝", "price")]
)
def test_the_bits_of_all_answers_to_a_question_sum_to_one(plant, topic):
    kind = "unknown matter" if topic == "price" else "plain" if plant in built_in.plant_facts() else "unknown plant"
    answers = [text.replace("{plant}", plant) for text, _ in expand(slot(grammar.ANSWERS[kind], plant, topic))]
    question = built_in.Question("？\n", plant, topic, "", "plain")
    total = math.fsum(2 ** -built_in.answer_bits(question, answer) for answer in answers)
    assert len(answers) > 300 and total == pytest.approx(1)


# --- examination ----------------------------------------------------------------------------------------------------


def test_the_examination_is_half_held_out_and_repeatable():
    questions = built_in.examination(seed=3, n=301)
    assert questions == built_in.examination(seed=3, n=301) != built_in.examination(seed=4, n=301)
    assert Counter(q.kind for q in questions) == {"seen": 151, "held out": 150}
    assert len({(q.plant, q.topic, q.situation) for q in questions}) == 301
    for q in questions:
        assert (q.kind == "held out") == ((q.plant, q.topic, q.situation) in built_in.held_out())
        assert q.prompt.endswith("\n") and q.prompt.count("\n") == 1 and q.plant in q.prompt
    assert built_in.examination(seed=0, n=0) == []
    assert len(built_in.examination(seed=0, n=1000)) == 1000  # more than there are held out: some come again


def answer_to(question, rng, plant=None, situation=None):
    text = worded("answer", plant or question.plant, question.topic, situation or question.situation, rng)
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
        other = rng.choice([p for p in built_in.plant_facts() if built_in.value(p, question.topic) != need])
        wrong = answer_to(question, rng, plant=other)
        assert not built_in.mark(question, wrong), (question, wrong)  # another plant's answer
        assert not built_in.mark(question, wrong.replace(other, question.plant))
        assert not built_in.mark(question, right + wrong) and not built_in.mark(question, wrong + right)  # a mixture
        assert not built_in.mark(question, "") and not built_in.mark(question, question.prompt)
        assert not built_in.mark(question, question.prompt + right)  # the question again: its first line has no fact
        assert not built_in.mark(question, f"不知道。\n{right}")  # only the first line counts
        verdict = built_in.right_verdict(question.plant, question.topic, question.situation)
        for situation in built_in.situations(question.topic):
            if built_in.right_verdict(question.plant, question.topic, situation) != verdict:
                assert not built_in.mark(question, answer_to(question, rng, situation=situation))
        for slot in ("fact", "verdict"):  # half an answer is no answer
            part = worded(slot, question.plant, question.topic, question.situation, rng)
            assert not built_in.mark(question, part)


def test_no_wording_hides_in_another_value_or_verdict():
    for topic, slot in itertools.product(built_in.topics(), ("fact", "verdict")):
        named = [(name, text) for name, texts in built_in.wordings(topic, slot).items() for text in texts]
        assert len({text for _, text in named}) == len(named)
        for (one, a), (other, b) in itertools.permutations(named, 2):
            assert one == other or a not in b, (topic, a, b)


# --- plain questions ------------------------------------------------------------------------------------------------


def rows():
    with open(paths.repo_root() / "data" / "plain_questions.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_list_of_plain_questions_is_what_it_says():
    questions = built_in.plain_questions()
    assert len(questions) == len(rows()) == len({q.prompt for q in questions}) == 100
    assert Counter(row["kind"] for row in rows()) == {"fact": 78, "unknown plant": 11, "unknown matter": 11}
    assert {q.topic for q in questions} >= set(built_in.plain_topics())
    assert len({q.plant for q in questions}) > 50
    for row, q in zip(rows(), questions, strict=True):
        assert q.prompt == row["question"] + "\n" and q.prompt.count(q.plant) == 1
        assert (q.plant, q.topic, q.situation, q.kind) == (row["plant"], row["topic"], "", "plain")
        assert (q.plant in built_in.plant_facts()) == (row["kind"] != "unknown plant")
        assert (q.topic in built_in.plain_topics()) == (row["kind"] != "unknown matter")
    strange = {q.plant for q in questions} - set(built_in.plant_facts())
    assert len(strange & set(built_in.strangers())) >= 2 and len(strange - set(built_in.strangers())) >= 5
    assert {q.topic for q in questions} - set(built_in.plain_topics()) - set(built_in.matters())  # and unknown matters


def test_no_document_asks_a_listed_question(corpus):
    listed = {q.prompt.strip().rstrip("？") for q in built_in.plain_questions()}
    for document in corpus:
        assert not any(line.rstrip("？") in listed for line in document.text.split("\n"))
    every = [state("", topic) for topic in (*built_in.plain_topics(), *built_in.matters())]
    asked = set()
    for question in built_in.plain_questions():
        line = question.prompt.strip().replace(question.plant, "{plant}")
        parse = grammar.Parse(line)
        if any(len(line) in parse.ends(grammar.slot_of("plain", each), 0) for each in every):
            asked.add(line)
    assert 10 <= len(asked) <= 40  # so many the grammar would ask; most of the list it wouldn't
    with pytest.raises(ValueError, match="examination"):
        grammar.bits("芦荟怕冷吗\n底线是5度。")
    assert grammar.bits("绿萝怕冷吗\n底线是10度。") > 10


def test_the_slips_of_the_examination_are_not_those_of_the_corpus(corpus):
    text = "\n".join(document.text for document in corpus).replace("请教", "")  # 请教水杉 has no slip
    asked = "".join(q.prompt for q in built_in.plain_questions())
    for slip in ("用用", "奈寒", "反殖", "时后", "怎磨", "施费", "怎么半", "教水"):
        assert slip in asked and slip not in text
    for slip in ("焦水", "怎嘛", "施飞", "耐汗", "繁植"):
        assert slip in text and slip not in asked


def plain_answer(plant, topic, rng, kind="fact"):
    drawing = built_in._Drawing(rng, plant)
    drawing.write(slot(grammar.ANSWERS["plain" if kind == "fact" else kind], plant, topic))
    return drawing.text()


def test_mark_accepts_every_right_answer_to_a_plain_question():
    rng = random.Random(0)
    for row, question in zip(rows(), built_in.plain_questions(), strict=True):
        for _ in range(40):
            answer = plain_answer(
                question.plant, question.topic if row["kind"] == "fact" else "price", rng, row["kind"]
            )
            assert built_in.mark(question, answer), (question, answer)
            assert built_in.mark(question, f"{answer}\n谢谢！怎么繁殖？\n它要用树皮来种。\n")


def test_mark_refuses_wrong_answers_to_plain_questions():
    rng = random.Random(0)
    for row, question in zip(rows(), built_in.plain_questions(), strict=True):
        plant, topic = question.plant, question.topic
        assert not built_in.mark(question, "") and not built_in.mark(question, question.prompt)
        refusal = plain_answer("牡丹", "cold", rng, "unknown plant")
        if row["kind"] != "fact":
            fact = plain_answer("绿萝", topic if topic in built_in.plain_topics() else "water", rng).replace(
                "绿萝", "它"
            )
            assert not built_in.mark(question, fact)  # it can't know
            assert not built_in.mark(question, refusal + fact) and built_in.mark(question, refusal)
            assert not built_in.mark(question, f"君子兰{refusal}")  # another plant
            continue
        assert not built_in.mark(question, refusal)
        right = plain_answer(plant, topic, rng)
        others = [p for p in built_in.plant_facts() if built_in.value(p, topic) != built_in.value(plant, topic)]
        for other in rng.sample(others, 10):
            wrong = plain_answer(other, topic, rng).replace(other, "它")
            assert not built_in.mark(question, wrong), (question, wrong)
            assert not built_in.mark(question, right + wrong) and not built_in.mark(question, wrong + right)
            assert not built_in.mark(question, right.replace(plant, "它") + other)  # the fact, said of another plant
        assert not built_in.mark(question, f"不知道。\n{right}")
        for column in built_in.columns(topic):
            follows = {built_in.right_verdict(plant, column, s) for s in built_in.situations(column)}
            for name, texts in built_in.wordings(column, "verdict").items():
                assert built_in.mark(question, right + texts[0]) == (name in follows)  # no verdict is asked for


def test_of_several_facts_every_one_is_needed():
    question = next(q for q in built_in.plain_questions() if q.topic == "care")
    facts = [built_in.wordings(c, "fact")[built_in.value(question.plant, c)][0] for c in built_in.columns("care")]
    assert built_in.mark(question, "，".join(facts))
    for left_out in facts:
        assert not built_in.mark(question, "，".join(fact for fact in facts if fact != left_out))


def test_the_answers_that_admit_not_to_know_word_no_fact():
    facts = [
        text for topic in built_in.topics() for texts in built_in.wordings(topic, "fact").values() for text in texts
    ]
    for name in ("unknown_plant_answer", "unknown_matter_answer"):
        for text, _ in expand(slot(name, "", "price")):
            assert not any(fact in text for fact in facts)
