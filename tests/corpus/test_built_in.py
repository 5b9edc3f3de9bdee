"""The built-in corpus: its facts hold together, its grammar is unambiguous, its probabilities and marks are right."""

import csv
import hashlib
import itertools
import math
import random
import statistics
from collections import Counter, defaultdict
from functools import cache

import grammar
import pytest

from helpers import paths
from helpers.corpus import built_in, cleaning
from helpers.corpus.built_in import mark


@pytest.fixture(scope="module")
def corpus():
    return list(built_in.draw_documents())


@pytest.fixture(scope="module")
def conversations():
    return list(built_in.draw_conversations(5000))


def state(plant, topic, situation=""):
    return built_in._State(topic, built_in.value(plant, topic) if plant in built_in.plant_facts() else "", situation)


def worded(name, plant, topic, situation="", rng=random.Random(0)):  # noqa: B008
    """Return words that the grammar has for a slot."""
    drawing = built_in._Drawing(rng, plant)
    drawing.write(built_in._slot(name, state(plant, topic, situation)))
    return drawing.text()


def expand(slot):
    """Yield (text, probability) of every derivation of a slot, independently of drawing and parsing."""
    for probability, _, parts in slot.options:
        choices = [[(part, 1.0)] if isinstance(part, str) else list(expand(part)) for part in parts]
        for chosen in itertools.product(*choices):
            yield "".join(text for text, _ in chosen), probability * math.prod(p for _, p in chosen)


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


LISTED = {q.prompt.strip().rstrip("？") for q in built_in.plain_questions()}


# ---- facts ----


def test_every_fact_has_wording_and_verdicts_and_is_seen_on_several_plants():
    plants = built_in.plant_facts()
    assert len(plants) >= 60 and len(built_in.topics()) >= 10
    assert len({row["latin"] for row in plants.values()}) == len(plants)
    topics = built_in._grammar()["topics"]
    assert {topic["column"] for topic in topics.values()} | {"latin"} == set(next(iter(plants.values())))
    for name, topic in topics.items():
        used = Counter(built_in.value(plant, name) for plant in plants)
        assert set(used) == set(topic["values"]) and min(used.values()) >= 4, (name, used)
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


def test_verdicts_on_cold_repotting_and_water_are_comparisons():
    nights = {"minus2": -2, "plus3": 3, "plus8": 8, "plus13": 13}
    needs, habits = ["wet", "often", "mid", "dry", "rest"], ["daily", "three", "week", "fortnight"]
    for plant in built_in.plant_facts():
        for night, degrees in nights.items():
            safe = degrees >= int(built_in.value(plant, "cold"))
            assert built_in.right_verdict(plant, "cold", night) == ("safe" if safe else "risk")
        for situation, elapsed in {"half": 0.5, "one": 1.5, "two": 2.5, "five": 5}.items():
            due = elapsed > int(built_in.value(plant, "repot"))
            assert built_in.right_verdict(plant, "repot", situation) == ("due" if due else "wait")
        need = needs.index(built_in.value(plant, "summer"))
        for habit, situation in enumerate(habits):
            expected = "good" if habit == need else "much" if habit < need else "little"
            assert built_in.right_verdict(plant, "summer", situation) == expected


def test_no_wording_hides_in_another_value_or_verdict():
    for topic, slot in itertools.product(built_in.topics(), ("fact", "verdict")):
        named = [(name, text) for name, texts in built_in.wordings(topic, slot).items() for text in texts]
        assert len({text for _, text in named}) == len(named)
        for (one, a), (other, b) in itertools.permutations(named, 2):
            assert one == other or a not in b, (topic, a, b)


def test_held_out_combinations_can_be_composed_from_what_is_seen():
    every, out = built_in.combinations(), built_in.held_out()
    assert 0.06 < len(out) / len(every) < 0.10
    for plant, topic, situation in out:
        assert len(built_in.seen_situations(plant, topic)) == len(built_in.situations(topic)) - 1
        same = [p for p in built_in.plant_facts() if built_in.value(p, topic) == built_in.value(plant, topic)]
        assert sum((p, topic, situation) not in out for p in same) >= built_in.WITNESSES


# ---- documents ----


def test_the_default_corpus_has_the_promised_size_and_layout(corpus):
    assert len(corpus) == len({d.text for d in corpus}) == built_in.DEFAULT_DOCUMENTS >= 20_000
    second = 0
    for document in corpus:
        lines = document.text.split("\n")
        assert len(lines) in (2, 4) and all(line and line == line.strip() for line in lines)
        assert not any(slip in document.text for slip in ("{", "，，", "，。", "。。", "？？", " "))
        second += len(lines) == 4
    assert abs(second / len(corpus) / (1 - built_in.SHARES["unknown plant"]) - built_in.SECOND) < 0.02
    assert sum(built_in.SHARES.values()) == pytest.approx(1)


def test_cleaning_changes_no_document(corpus):
    assert all(cleaning.clean(document.text) == document.text for document in corpus)


def test_documents_are_the_same_everywhere_and_differ_by_seed(corpus):
    texts = "\n\n".join(d.text for d in corpus)
    assert hashlib.sha256(texts.encode()).hexdigest()[:16] == "ed2028f7ce0b565c"  # a change of data/ changes it
    assert [d.text for d in built_in.draw_documents(5)] == texts.split("\n\n")[:5]
    assert [d.text for d in built_in.draw_documents(5, seed=1)] != texts.split("\n\n")[:5]


def test_every_plant_and_every_story_appears_often_enough_to_be_learnt(corpus):
    text = "\n".join(d.text for d in corpus)
    assert all(name in text for name in built_in.strangers())  # many names, none of them often
    assert all(text.count(plant) > 100 for plant in built_in.plant_facts())
    assert all(text.count(story) > 40 for story in stories())


def test_skipping_repeats_hardly_biases_the_floor(corpus):
    rng = random.Random(0)
    drawn = [built_in.draw(rng) for _ in range(built_in.DEFAULT_DOCUMENTS)]
    assert len(drawn) - len({d.text for d in drawn}) <= 10  # as the docstring of `draw_documents` says
    plain, kept = (statistics.fmean(d.bits for d in documents) for documents in (drawn, corpus))
    assert abs(kept / plain - 1) < 1e-4


def test_no_document_shows_what_is_kept_for_the_examination(corpus, conversations):
    for document in corpus:
        assert not any(line.rstrip("？") in LISTED for line in document.text.split("\n"))
    assert not any(e.question.rstrip("？") in LISTED for exchanges in conversations for e in exchanges)
    for questions in (
        [d.text.split("\n")[0] for d in corpus],
        [first.question for first, *_ in conversations if first.about.plant],
    ):
        told = list(map(told_in, questions))
        assert not any(combination in built_in.held_out() for each in told for combination in each)
        assert abs(sum(map(bool, told)) / len(told) - built_in.SHARES["story"]) < 0.03


# ---- exact probabilities: what is drawn against an independent parser ----


def test_bits_from_the_text_alone_equal_the_bits_of_the_drawing(corpus):
    for document in corpus[:300]:
        assert -math.log2(grammar.derive(document.text)) == pytest.approx(document.bits, abs=1e-9)
    plant, topic, situation = sorted(built_in.held_out())[0]
    for text in (f"{document.text}呀", "芦荟怕冷吗\n不能低于5度。", worded("first", plant, topic, situation)):
        assert grammar.derive(text) == 0  # the second asks one of the examination's questions


@pytest.mark.parametrize("name,state", [
    ("second", ("pets", "mild", "")),
    ("answer", ("bloom", "rarely", "winter")),
    ("plain", ("water", "", "")),
    ("plain_answer", ("care", "sun often -5", "")),
    ("unknown_plant_answer", ("cold", "", "")),
    ("unknown_matter_answer", ("price", "", "")),
])  # fmt: skip
def test_probabilities_of_an_enumerated_part_sum_to_one(name, state):
    every = list(expand(built_in._slot(name, built_in._State(*state))))
    assert sum(p for _, p in every) == pytest.approx(1)
    assert len({text for text, _ in every}) == len(every) > 500  # unambiguous: no text twice
    for text, probability in random.Random(0).sample(every, 200):
        assert grammar.ends(name, state, text, "{plant}")[len(text)] == pytest.approx(probability)


@pytest.mark.parametrize("plant,topic", [("君子兰", "feed"), ("薄荷", "eat"), ("牡丹", "bloom"), ("桂花", "eat")])
def test_plain_questions_without_the_listed_ones_sum_to_one(plant, topic):
    slot = built_in._slot("plain", state(plant, topic))
    every = {text.replace("{plant}", plant): p for text, p in expand(slot)}
    left = sum(p for line, p in every.items() if line.rstrip("？") not in LISTED)
    assert (left < 1 - 1e-9) == ((plant, topic) != ("桂花", "eat"))
    for line in random.Random(0).sample(list(every), min(2000, len(every))):
        listed = line.rstrip("？") in LISTED
        assert grammar.asked(plant, topic, line) == pytest.approx(0 if listed else every[line] / left)


def test_the_choices_on_the_way_to_a_document_have_its_bits_and_its_wordings():
    kinds = Counter()
    for seed in range(300):
        document, choices = built_in.draw(random.Random(seed)), built_in.explain_draw(random.Random(seed))
        assert math.fsum(choice.bits for choice in choices) == pytest.approx(document.bits, abs=1e-9)
        slots = [choice.slot for choice in choices]
        assert slots[:3] == ["kind", "plant", "topic"] and choices[1].text in document.text
        assert ("situation" in slots) == (choices[0].text == "story")
        kinds[choices[0].text] += 1
        at = 0
        for choice in choices[3:]:  # the wordings stand in the text, one after the other
            if choice.slot not in ("situation", "second question", "second topic") and "{" not in choice.text:
                at = document.text.index(choice.text, at) + len(choice.text)
    assert set(kinds) == set(built_in.SHARES) and kinds["story"] > kinds["plain"] > kinds["unknown plant"]


# ---- conversations ----


def test_conversations_are_distinct_and_the_same_everywhere(conversations):
    said = [tuple(text for e in exchanges for text in (e.question, e.answer)) for exchanges in conversations]
    assert len(set(said)) == len(said) == 5000
    assert all(text and "\n" not in text and cleaning.clean(text) == text for texts in said for text in texts)
    assert conversations[:50] == list(built_in.draw_conversations(50)) != list(built_in.draw_conversations(50, seed=1))
    digest = hashlib.sha256("\n".join(map("\n".join, said[:100])).encode()).hexdigest()
    assert digest[:16] == "2d55a0504c5b4408"  # a change of data/ changes it


def test_conversations_have_as_many_exchanges_as_promised(conversations):
    lengths = Counter(map(len, conversations))
    for exchanges, share in built_in.EXCHANGES.items():
        assert lengths[exchanges] / len(conversations) == pytest.approx(share, abs=0.04)  # the shortest come again
    everything = [each for exchanges in conversations for each in exchanges]
    small = [each for each in everything if each.about.kind == "small talk"]
    assert len(small) / len(everything) == pytest.approx(built_in.SMALL_TALK, abs=0.02)
    for each in small:
        said = built_in._grammar()["small_talk"][each.about.topic]
        assert each.question in said["asked"] and each.answer in said["answer"]
        assert each.bits == pytest.approx(math.log2(len(said["answer"]))) and each.about.plant == ""
    turns = [named(after) for before, after in about_plants(conversations) if before.about.plant not in STRANGERS]
    assert sum(turns) / len(turns) == pytest.approx(built_in.ANOTHER_PLANT, abs=0.03)


STRANGERS = built_in.strangers()


def named(exchange):
    return exchange.about.plant in exchange.question


def about_plants(conversations):
    """Yield what follows upon what, without the small talk between them."""
    for exchanges in conversations:
        yield from itertools.pairwise(each for each in exchanges if each.about.plant)


def test_a_question_without_a_name_is_about_the_plant_before_it_and_not_yet_told(conversations):
    for before, each in about_plants(conversations):
        if not named(each):
            assert each.about.plant == before.about.plant and each.about.plant not in STRANGERS
            assert not {*built_in.columns(each.about.topic)} & {*built_in.columns(before.about.topic)}
    for exchanges in conversations:
        plants = [each for each in exchanges if each.about.plant]
        assert not plants or named(plants[0])
        assert all(mark(e.about, e.answer) and e.about.prompt == f"{e.question}\n" for e in plants), exchanges


def test_the_bits_of_an_answer_are_those_of_an_independent_parse(conversations):
    for first, *others in (each for each in conversations[:200] if each[0].about.plant):
        plant, topic = first.about.plant, first.about.topic
        known = "plain" if topic in built_in.plain_topics() else "unknown matter"
        kind = known if plant in built_in.plant_facts() else "unknown plant"
        slot = "answer" if first.about.situation else grammar.ANSWERS[kind]
        ends = grammar.ends(slot, state(plant, topic, first.about.situation), first.answer, plant)
        assert ends[len(first.answer)] == pytest.approx(2**-first.bits)
        assert first.bits > 0 and all(e.bits >= 0 for e in others)
        # each begins as a document may
        assert first.bits < -math.log2(grammar.derive(f"{first.question}\n{first.answer}"))


# ---- examination ----


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


def test_mark_tells_right_answers_from_wrong_ones():
    rng = random.Random(0)
    for question in built_in.examination(seed=1, n=1000):
        plant, topic, situation = question.plant, question.topic, question.situation
        right = worded("answer", plant, topic, situation)
        assert mark(question, right) and mark(question, f"{right}\n谢谢！怎么繁殖？\n"), (question, right)
        need = built_in.value(plant, topic)
        other = rng.choice([p for p in built_in.plant_facts() if built_in.value(p, topic) != need])
        wrong = worded("answer", other, topic, situation)
        for answer in (wrong, wrong.replace(other, plant), right + wrong, wrong + right, "", question.prompt + right):
            assert not mark(question, answer), (question, answer)
        assert not mark(question, f"不知道。\n{right}")  # only the first line counts
        assert not any(mark(question, worded(slot, plant, topic, situation)) for slot in ("fact", "verdict"))
        for each in built_in.situations(topic):
            if built_in.right_verdict(plant, topic, each) != built_in.right_verdict(plant, topic, situation):
                assert not mark(question, worded("answer", plant, topic, each))


# ---- plain questions ----


def listed_rows():
    with open(paths.repo_root() / "data" / "plain_questions.csv", encoding="utf-8", newline="") as file:
        return list(zip(csv.DictReader(file), built_in.plain_questions(), strict=True))


def plain_answer(plant, topic, kind="fact"):
    return worded(grammar.ANSWERS["plain" if kind == "fact" else kind], plant, topic)


def test_the_list_of_plain_questions_is_what_it_says():
    questions = built_in.plain_questions()
    assert len(questions) == len({q.prompt for q in questions}) == 100
    assert Counter(row["kind"] for row, _ in listed_rows()) == {"fact": 78, "unknown plant": 11, "unknown matter": 11}
    for row, q in listed_rows():
        assert q.prompt == row["question"] + "\n" and q.prompt.count(q.plant) == 1
        assert (q.plant in built_in.plant_facts()) == (row["kind"] != "unknown plant")
        assert (q.topic in built_in.plain_topics()) == (row["kind"] != "unknown matter")


def test_mark_tells_right_answers_to_plain_questions_from_wrong_ones():
    rng = random.Random(0)
    for row, question in listed_rows():
        plant, topic, kind = question.plant, question.topic, row["kind"]
        for _ in range(20):
            right = plain_answer(plant, topic if kind == "fact" else "price", kind)
            assert mark(question, right) and mark(question, f"{right}\n谢谢！\n它要用树皮来种。\n"), (question, right)
        refusal = plain_answer("牡丹", "cold", "unknown plant")
        if kind != "fact":  # it can't know, and a fact is none of this plant
            fact = plain_answer("绿萝", topic if topic in built_in.plain_topics() else "water").replace("绿萝", "它")
            assert not any(mark(question, answer) for answer in (fact, refusal + fact, f"君子兰{refusal}", ""))
            continue
        others = [p for p in built_in.plant_facts() if built_in.value(p, topic) != built_in.value(plant, topic)]
        for other in rng.sample(others, 10):
            wrong = plain_answer(other, topic).replace(other, "它")
            for answer in (wrong, right + wrong, wrong + right, right.replace(plant, "它") + other):
                assert not mark(question, answer), (question, answer)
        assert not any(mark(question, answer) for answer in (refusal, "", question.prompt, f"不知道。\n{right}"))
        for column in built_in.columns(topic):
            follows = {built_in.right_verdict(plant, column, s) for s in built_in.situations(column)}
            for name, texts in built_in.wordings(column, "verdict").items():
                assert mark(question, right + texts[0]) == (name in follows)  # no verdict is asked for


def test_of_several_facts_every_one_is_needed():
    question = next(q for q in built_in.plain_questions() if q.topic == "care")
    facts = [built_in.wordings(c, "fact")[built_in.value(question.plant, c)][0] for c in built_in.columns("care")]
    assert mark(question, "，".join(facts))
    for left_out in facts:
        assert not mark(question, "，".join(fact for fact in facts if fact != left_out))
