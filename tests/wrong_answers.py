r"""Wrong answers to the exercises: what a learner may well write, and what the check of the exercise must refuse.

`WRONG_ANSWERS[stage][number]` is the text of an exercise's wrong answers. Each begins with a line `# what is wrong`.
Below stand edits of the published solution, `part of it ⇒ what stands there instead` (lines that begin with `+ ` go on
with it), or else the whole answer. Each breaks a rule that the task states. `test_notebooks` runs them, each just
before the published solution.
"""

WRONG_ANSWERS: dict[str, dict[int, str]] = {}

WRONG_ANSWERS["corpus"] = {
    1: """
# nats
bits_per_document, bits_per_char, bits_per_char_of_the_rarer = math.log(8), math.log(8) / 4, 1.0
# the more frequent document
bits_per_document, bits_per_char, bits_per_char_of_the_rarer = 3.0, 0.75, (2 + math.log2(4 / 3)) / 4
""",
    2: """
# the entropy of the truth, whatever is believed
-math.log2(q) ⇒ -math.log2(p)
# nats
math.log2(q) ⇒ math.log(q)
# what was believed impossible is free
math.inf if q == 0 ⇒ 0 if q == 0
""",
    3: """
# drawn once and remembered: another process draws another side
remembered = {}
def side(text):
    if text not in remembered:
        remembered[text] = random.choice(["train"] * 9 + ["val"])
    return remembered[text]
# Python's hash is another in each process
partition.split_position(partition.digest(text), seed=0) < 0.1 ⇒ hash(text) % 10 == 0
# the same by its other name
partition.split_position(partition.digest(text), seed=0) < 0.1 ⇒ text.__hash__() % 10 == 0
# only the beginning decides
digest(text) ⇒ digest(text[:5])
""",
    4: """
# all pairs are compared
for other in near) ⇒ for other in range(len(train)))
# the texts they leak from, not the leaks
found.append(n) ⇒ found += list(near)[:1]
# only copies that are equal
>= threshold ⇒ >= 1
""",
}

WRONG_ANSWERS["vocab"] = {
    1: """
# a word seen once would not be used
tokens_if_seen_once = 1 ⇒ tokens_if_seen_once = len(encode(tokenizer, sentence))
""",
    2: """
# halves are dropped
text = waiting.decode(errors="ignore") ⇒ text = piece.decode(errors="ignore")
# everything at the end
texts.append(text) ⇒ texts.append("")
+     texts[-1:] = [b"".join(pieces).decode()] if pieces else []
# what waits is forgotten
waiting += piece ⇒ waiting = piece
""",
    3: """
# how often a run occurs does not count
pairs[pair] += times ⇒ pairs[pair] += 1
# the pieces stay as they are
(merge(pieces, best), times) ⇒ (pieces, times)
""",
    4: """
# the piece that would be missed most
min(without, ⇒ max(without,
# single characters go too
if len(piece) > 1] ⇒ if piece != "怎么"]
""",
}

WRONG_ANSWERS["words"] = {
    1: """
# both know it
my_sentence = "浇水"
# not Chinese
my_sentence = "GPT模型"
""",
    2: """
# from the right
def longest_match(text):
    most, pieces, end = max(map(len, words)), [], len(text)
    while end:
        n = next((n for n in range(min(end, most), 1, -1) if text[end - n : end] in words), 1)
        pieces.insert(0, text[end - n : end])
        end -= n
    return pieces
""",
}

WRONG_ANSWERS["parts"] = {
    1: "# one half after the other\nattention_layernorm(x) ⇒ attention_layernorm(x + a)\n"
    "# what came in is lost\nreturn x + a + b ⇒ return a + b",
}
WRONG_ANSWERS["scaling"] = {
    1: "# a straight line on plain axes\ny2 * (x / x2) ** slope ⇒ y2 + (y2 - y1) / (x2 - x1) * (x - x2)",
    2: "# the budget is not kept\nsize, ratio * size ⇒ size, budget\n# the ratio is\nratio * size ⇒ 20 * size",
}
WRONG_ANSWERS["since-llama"] = {
    1: "# the window is forgotten\nmin(T, window) ⇒ T\n# a short text fills the window, too\nmin(T, window) ⇒ window",
    2: "# the sums keep their own maxima\ns1 * f1 + s2 * f2 ⇒ s1 + s2\n# the values do\no1 * f1 + o2 * f2 ⇒ o1 + o2",
}

WRONG_ANSWERS["faster"] = {
    1: "# again from p\nrest / rest.sum() ⇒ p\n# nothing is kept\n(p / q).clamp(max=1) ⇒ 0 * p\n+     return accept, p",
    2: "# no lowest\nlow + whole ⇒ whole\n# a value too many\n- 1) ⇒ + 0)\n# 0 / 0\n.clamp(min=1e-30) ⇒ .clamp(min=0)",
    3: "# no own token\nk + 1 ⇒ 1, k + 1\n# a = 1\nsum(a**n for n in range(k + 1)) ⇒ (1 - a**(k+1)) / (1 - a)",
}

WRONG_ANSWERS["tokenize"] = {
    1: """
# times, not through
bits / chars_per_token ⇒ bits * chars_per_token
# two to the power of the nats
np.exp(nats_per_token) ⇒ 2**nats_per_token
# the wrong way from nats to bits
nats_per_token / np.log(2) ⇒ nats_per_token * np.log(2)
# the characters are forgotten
bits, bits / chars_per_token, ⇒ bits, bits,
""",
    2: """
# the tokens are counted, not the answers
ends = [*starts[1:], tokens - 1] ⇒ ends = [*starts[1:], tokens]
# the first window is full, whatever the offset
range(offset or n_ctx, ⇒ range(n_ctx,
# an empty window for an offset of 0
range(offset or n_ctx, ⇒ range(offset,
# pairs of start and end
(start, end - start) ⇒ (start, end)
""",
    3: """
# the counted share alone
+ k * shorter) / (n + k) ⇒ ) / n
# the last token of the context is dropped
context[1:] ⇒ context[:-1]
# k is n
n, k = followers.total(), len(followers) ⇒ n = k = followers.total()
# a context that was never seen has nothing
if n else shorter ⇒ if n else 0.0
""",
    4: """
# in their order, and only the last window is looked at
sorted(range(len(lengths)), key=lambda number: -lengths[number]) ⇒ range(len(lengths))
enumerate(room) ⇒ list(enumerate(room))[-1:]
# n_ctx is always 128
room.append(n_ctx) ⇒ room.append(128)
# sorts the lengths in place, so its numbers are places in the sorted list
windows, room = [], [] ⇒ lengths.sort(reverse=True)
+     windows, room = [], []
# lengths instead of numbers
windows[at].append(number) ⇒ windows[at].append(lengths[number])
""",
}

WRONG_ANSWERS["train"] = {
    1: """
# the scores are not divided
q @ k.T / math.sqrt(q.shape[-1]) ⇒ q @ k.T
""",
    2: """
# a position may not look at itself
triu(1) ⇒ triu()
""",
    3: """
# numbers of different tokens are mixed
view(B, T, H, C // H).transpose(1, 2) ⇒ reshape(B, H, T, C // H)
""",
    4: """
# backwards
b * cos + a * sin ⇒ b * cos - a * sin
# neighbours are a pair
x[..., : D // 2], x[..., D // 2 :] ⇒ x[..., ::2], x[..., 1::2]
""",
    5: """
# the mean is subtracted, as in LayerNorm
weight * x / ⇒ weight * (x - x.mean(-1, keepdim=True)) /
""",
    6: """
# no gate
functional.silu(x @ gate.T) ⇒ functional.silu(x @ up.T)
""",
    7: """
# the second half reads the input, not the stream
feed_forward(norm_2(x)) ⇒ feed_forward(norm_2(x - attention(norm_1(x))))
""",
    8: """
# the table counts twice
V * C ⇒ 2 * V * C
# the last norm is forgotten
2 * L + 1 ⇒ 2 * L
""",
    9: """
# positions without a label count
labels != IGNORE ⇒ labels != 10**9
""",
    10: """
# the corrected means are kept
return w, m, v ⇒ return w, direction, size
""",
    11: """
# the gradient is never cleared
optimizer.zero_grad() ⇒ pass
# it is clipped after the step
nn.utils.clip_grad_norm_(model.parameters(), 1.0) ⇒ pass
""",
    12: """
# the mean of the means
(summed / n_labels).backward() ⇒ (summed / (labels != IGNORE).sum() / len(parts)).backward()
""",
    13: """
# also what comes later in one's own document
past & own ⇒ own
# a position may not look at itself
tril() ⇒ tril(-1)
""",
    14: """
# below the floor is overfitting
"D": "leak" ⇒ "D": "overfitting"
# one is left out
"E": "wrong labels" ⇒ "F": "wrong labels"
""",
}

WRONG_ANSWERS["generate"] = {
    1: """
# warmer, not colder
my_temperature = 1 / 0.22
""",
    2: """
# the token that reaches p goes as well
before >= p ⇒ shares.cumsum(-1) >= p
# > for >=: one more stays where the sum is exactly p
before >= p ⇒ before > p
# the tokens do not go back to their columns
torch.empty_like(logits).scatter(1, columns, ordered) ⇒ ordered
# the order of the first row for all rows
ordered, columns = logits.sort(dim=-1, descending=True) ⇒ columns = logits[0].argsort(descending=True)
+     columns = columns.expand(len(logits), -1)
+     ordered = logits.gather(1, columns)
""",
    3: """
# only the last token is read, and the past is forgotten
read(new, past) ⇒ read(new, None)
# with the past, everything is read again
read(new, past) ⇒ read(ids, past)
# the prompt is not returned
return ids ⇒ return ids[len(ids) - n :]
""",
    4: """
# all are multiplied
penalty if scores[token] < 0 else scores[token] / penalty ⇒ penalty
# a token that stands there twice is lowered twice
set(written) ⇒ written
# the penalty is always 1.5
penalty if scores[token] < 0 else scores[token] / penalty ⇒ 1.5 if scores[token] < 0 else scores[token] / 1.5
# all are lowered, written or not
set(written) ⇒ range(len(scores))
""",
}

WRONG_ANSWERS["serve"] = {
    1: """
# the silence counts in full for each of the four
[end - begin for begin, end in zip(due, answered, strict=True)] ⇒ [1, 1, 290, 290, 290, 290]
""",
    2: """
# everybody
origins = ["*"]
# without encryption as well
origins = ["https://friend.example", "http://friend.example"]
""",
    3: """
# asks again at once
await asyncio.sleep(int(headers["Retry-After"])) ⇒ pass
# everybody else waits as well
await asyncio.sleep ⇒ time.sleep
# waits once more after the last try
!= 429 or not left ⇒ != 429
["Retry-After"])) ⇒ ["Retry-After"]))
+     return status, answer
# one try too many
range(tries) ⇒ range(tries + 1)
# what was wrong is asked again
!= 429 ⇒ == 200
# always a second
int(headers["Retry-After"]) ⇒ 1.0 + (tries == 3)
""",
    4: r"""
# the last piece is lost
reason = chunk.reason ⇒ if (reason := chunk.reason) is not None:
+                 break
# all of them when the text is done
try: ⇒ await asyncio.wrap_future(future)
+     try:
# the loop is not woken
loop.call_soon_threadsafe(queue.put_nowait, chunk) ⇒ queue.put_nowait(chunk)
# a queue for threads: to wait for it stops the loop
asyncio.Queue() ⇒ __import__("queue").Queue()
lambda chunk: loop.call_soon_threadsafe(queue.put_nowait, chunk) ⇒ queue.put
await queue.get() ⇒ queue.get()
# who leaves is not noticed
finally: ⇒ except ZeroDivisionError:
""",
}

WRONG_ANSWERS["chat"] = {
    1: """
# the id moves, and whose it is does not
is_answer[1:] ⇒ is_answer[:-1]
# everything after the first answer's beginning
def labels_of(ids, is_answer):
    start = is_answer.index(True)
    return [IGNORE] * (start - 1) + ids[start:]
""",
    2: """
# the whole conversation, also what comes later
j <= i and talk[j] == talk[i] ⇒ talk[j] == talk[i]
# a smaller position is in the past, of whichever conversation
talk[j] == talk[i] ⇒ positions[j] <= positions[i]
# a conversation begins where the position falls: one of a single token is missed
position == 0 ⇒ position < positions[len(talk) - 1]
""",
    3: """
# only the outer level
list(model.modules()) ⇒ [model]
# what has no matrix is trained as before
model.requires_grad_(False) ⇒ pass
# α = r
alpha=2 * r ⇒ alpha=r
""",
    4: """
# >= for >: what just fits is shortened
> most ⇒ >= most
# the system line is not counted
sum(sizes) ⇒ sum(sizes[start:])
# a last question behind a system line goes
len(messages) - start > 1 ⇒ len(messages) > 1
# one message at a time: an answer without its question stays
del messages[start : start + 2], sizes[start : start + 2] ⇒ del messages[start], sizes[start]
""",
}

WRONG_ANSWERS["recipes"] = {
    1: """
# all settings
a.items() if b[name] != value ⇒ a.items()
# only the first difference
if b[name] != value} ⇒ if name == next((name for name in a if b[name] != a[name]), None)}
# b before a
(value, b[name]) ⇒ (b[name], value)
""",
    2: """
# one side only
return 2 * sum ⇒ return sum
# exactly k
range(k, n + 1) ⇒ [k]
""",
    3: "# it has this value already\nmomentum=0.95 ⇒ momentum=0.8\n# two at once\nmomentum=0.95 ⇒ momentum=0.95, lr=1",
}

WRONG_ANSWERS["reward"] = {
    1: """
# itself is among the others
(rewards.sum() - rewards) ⇒ rewards.sum()
# always two others
(len(rewards) - 1) ⇒ 2
""",
    2: """
# any letter counts as Chinese
all("一" <= c <= "鿿" for c in line) ⇒ line.isalpha()
# only neighbouring lines are compared
len(set(lines)) == len(lines) ⇒ all(a != b for a, b in zip(lines, lines[1:]))
# no character may come twice in a line
len(set(line)) > 1 ⇒ len(set(line)) == 5
""",
    3: """
# without the model before
now - before ⇒ now
# without beta
beta * (won - lost) ⇒ won - lost
# the loser is to win
(won - lost) ⇒ (lost - won)
# a loss for each pair
logsigmoid(margin).mean() ⇒ logsigmoid(margin)
""",
    4: """
# the plain difference of the logarithms, which can be negative
(logs.exp() - 1 - logs).mean() ⇒ (-logs).mean()
# r upside down
torch.tensor(log_before) - torch.tensor(log_now) ⇒ torch.tensor(log_now) - torch.tensor(log_before)
# the mean is taken first
torch.tensor(log_before) - torch.tensor(log_now) ⇒ (torch.tensor(log_before) - torch.tensor(log_now)).mean()
# the sum
mean() ⇒ sum()
""",
}

WRONG_ANSWERS["your-text"] = {
    1: """
# UTF-16 takes one byte for a letter
guess = {"utf-8": 9, "gb18030": 7, "utf-16-le": 7}
""",
    2: r"""
# every line that begins like one, whatever its end
HEADER.fullmatch(row) or EDITED.fullmatch(row) ⇒ re.match(r"(\d+楼|楼主|本帖最后由) ", row)
# the first author's lines, 楼主, are forgotten
(?:楼主|\d+楼) ⇒ \d+楼
# a removed line leaves an empty one
continue ⇒ row = ""
""",
    3: """
# the price of the whole text, odd lines included
cheapest > 7 ⇒ bits(text, trust) / len(text) > 7
# the dearest line decides
cheapest = math.inf ⇒ cheapest = 0
min(cheapest ⇒ max(cheapest
""",
}

WRONG_ANSWERS["tournament"] = {
    1: """
# nats per character
/ math.log(2) / ratio ⇒ / ratio
""",
    2: r"""
# pairs side by side: one that begins inside another is missed
import re
def frequent_pairs(texts, count):
    numbers = {}
    for text in texts:
        for pair in re.findall("[\u4e00-\u9fff]{2}", text):
            numbers[pair] = numbers.get(pair, 0) + 1
    return dict(sorted(numbers.items(), key=lambda item: (-item[1], item[0]))[:count])
# all that is no comma and no line end counts as Chinese
"\u4e00" <= left <= "\u9fff" and "\u4e00" <= right <= "\u9fff" ⇒ not {left, right} & set("，\n")
# ties in the order of the text
(-item[1], item[0]) ⇒ -item[1]
""",
    3: """
# > for >=
>= characters ⇒ > characters
# the last row before it
def at_equal_text(curve, characters_per_update, characters):
    rows = [row for row in curve if row["step"] * characters_per_update <= characters]
    return rows[-1]["bits_per_char"] if rows else None
# the end of the curve where so much was never read
return None ⇒ return curve[-1]["bits_per_char"]
""",
    4: """
# the ratios are exchanged
ratio / other_ratio ⇒ other_ratio / ratio
# rounded to the nearest multiple
math.ceil ⇒ round
# always one multiple more
math.ceil(n_ctx * ratio / other_ratio / 8) ⇒ (int(n_ctx * ratio / other_ratio) // 8 + 1)
""",
    5: """
# one way round
return abs(statistics.mean(values[ ⇒ return (statistics.mean(values[
seen = abs( ⇒ seen = -(
# more, and not at least as much
- 1e-9 ⇒ + 1e-9
# groups of the first one's size twice
if place not in deal] ⇒ if place not in deal][:len(one)]
""",
}
