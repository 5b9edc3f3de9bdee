"""Near duplicates: what MinHash finds is held against the exact Jaccard similarity of texts with random edits."""

import random

import numpy as np

from helpers.corpus import dedup

LETTERS = "".join(map(chr, range(0x4E00, 0x4E00 + 800)))


def write(tmp_path, texts, pieces=3):
    files = []
    for number, part in enumerate(np.array_split(np.arange(len(texts)), pieces)):
        files.append(tmp_path / f"{number}.npy")
        np.save(files[-1], dedup.signatures([texts[i] for i in part]))
    return files


def edited(text, edits, choice):
    """Return the text with so many characters replaced, inserted or left out."""
    letters = list(text)
    for _ in range(edits):
        at = choice.randrange(len(letters))
        letters[at : at + choice.choice((0, 1, 1))] = choice.choice((*choice.choices(LETTERS, k=2), ""))
    return "".join(letters)


def test_recall_and_precision_against_exact_similarity(tmp_path):
    choice = random.Random(0)
    pairs = []
    for n in range(600):
        text = "".join(choice.choices(LETTERS, k=choice.randrange(60, 300)))
        pairs.append((text, edited(text, n % 14, choice)))
    texts = [text for pair in pairs for text in pair]
    parent = dedup.clusters(write(tmp_path, texts), 0.7, np.ones(len(texts), bool))
    found = parent[0::2] == parent[1::2]
    exact = np.array([dedup.similarity(*pair) for pair in pairs])  # notebook 01 types it, and says that they agree
    assert dedup.similarity("春眠不觉晓，", "春眠不觉晓。") == 1 / 3 and dedup.similarity("春眠", "春眠") == 1
    assert exact.min() < 0.4 and exact.max() == 1
    alike, other = exact >= 0.8, exact < 0.6
    assert alike.sum() > 100 and other.sum() > 100
    assert found[alike].mean() >= 0.99  # recall, a tenth above the threshold
    assert found[other].mean() <= 0.01  # a tenth below it
    assert len(set(parent)) >= len(pairs)  # texts that have nothing in common are never joined
    assert (exact[found] >= 0.6).mean() >= 0.99  # precision


def test_a_cluster_is_named_after_its_first_document_and_joins_through_others(tmp_path):
    choice = random.Random(1)
    texts = ["".join(choices) for choices in (choice.choices(LETTERS, k=200) for _ in range(5))]
    chain = [texts[1]]
    for _ in range(6):
        chain.append(edited(chain[-1], 5, choice))
    assert dedup.similarity(chain[0], chain[-1]) < 0.5 < min(map(dedup.similarity, chain, chain[1:]))
    texts = [*texts, *chain[1:], texts[3]]
    parent = dedup.clusters(write(tmp_path, texts), 0.5, np.ones(len(texts), bool))
    assert list(parent) == [0, 1, 2, 3, 4, 1, 1, 1, 1, 1, 1, 3]


def test_documents_that_are_not_kept_stand_alone(tmp_path):
    texts = ["绿萝喜欢散射光，土干了再浇水。"] * 4
    keep = np.array([True, False, True, True])
    assert list(dedup.clusters(write(tmp_path, texts), 0.9, keep)) == [0, 1, 0, 0]
    assert list(dedup.clusters(write(tmp_path, texts), 0.9, np.zeros(4, bool))) == [0, 1, 2, 3]
    assert dedup.signatures([]).shape == (0, dedup.PERMUTATIONS)


def test_the_pieces_change_nothing(tmp_path):
    choice = random.Random(2)
    texts = [edited(text, 3, choice) for text in ["".join(choice.choices(LETTERS, k=90)) for _ in range(40)] * 3]
    found = [dedup.clusters(write(tmp_path, texts, n), 0.6, np.ones(len(texts), bool)) for n in (1, 4, 120)]
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
