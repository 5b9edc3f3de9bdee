"""Wrong answers to the exercises: what a learner may well write, and what the check of the exercise must refuse.

{stage: {number of the exercise: [(what is wrong, the lines that stand in place of all above the check), …]}}. Each one
breaks a rule that the task states. `test_notebooks` runs them, each just before the published solution.
"""

from exercises import WrongAnswers

WRONG_ANSWERS: dict[str, WrongAnswers] = {}

WRONG_ANSWERS["corpus"] = {
    1: [
        ("UTF-16 takes one byte for a letter", 'guess = {"utf-8": 9, "gb18030": 7, "utf-16-le": 7}'),
        ("the space is forgotten", 'guess = {"utf-8": 8, "gb18030": 6, "utf-16-le": 8}'),
        ("two of the three are left out", 'guess = {"utf-8": 9}'),
    ],
    2: [
        ("nats", "bits_per_document, bits_per_char, bits_per_char_of_the_rarer = math.log(8), math.log(8) / 4, 1.0"),
        ("the costs are multiplied", "bits_per_document, bits_per_char, bits_per_char_of_the_rarer = 2.0, 0.5, 1.0"),
        (
            "the more frequent document",
            "bits_per_document, bits_per_char, bits_per_char_of_the_rarer = 3.0, 0.75, (2 + math.log2(4 / 3)) / 4",
        ),
    ],
    3: [
        (
            "drawn once and remembered: another process draws another side",
            """
remembered = {}


def side(text):
    if text not in remembered:
        remembered[text] = random.choice(["train"] * 9 + ["val"])
    return remembered[text]
""",
        ),
        (
            "Python's hash is another in each process",
            """
def side(text):
    return "val" if hash(text) % 10 == 0 else "train"
""",
        ),
        (
            "only the beginning decides",
            """
def side(text):
    return "val" if partition.split_position(partition.digest(text[:5]), seed=0) < 0.1 else "train"
""",
        ),
        (
            "nine in ten are for validation",
            """
def side(text):
    return "train" if partition.split_position(partition.digest(text), seed=0) < 0.1 else "val"
""",
        ),
    ],
    4: [
        (
            "every line that begins like one, whatever its end",
            r"""
def without_forum_lines(text):
    kept = [row for row in text.split("\n") if not re.match(r"\d+楼|楼主|本帖最后由", row)]
    return "\n".join(kept)
""",
        ),
        (
            "the first author's lines, 楼主, are forgotten",
            r"""
FLOOR = re.compile(r"\d+楼 [^，。！？]+ \d{4}-\d\d-\d\d(?: \d{1,2}:\d\d)?")


def without_forum_lines(text):
    kept = [row for row in text.split("\n") if not FLOOR.fullmatch(row) and not re.fullmatch("本帖最后由 .+ 编辑", row)]
    return "\n".join(kept)
""",
        ),
        (
            "a removed line leaves an empty one",
            r"""
FLOOR = re.compile(r"^(?:楼主|\d+楼) [^，。！？\n]+ \d{4}-\d\d-\d\d(?: \d{1,2}:\d\d)?$", re.MULTILINE)
EDITED = re.compile("^本帖最后由 .+ 编辑$", re.MULTILINE)


def without_forum_lines(text):
    return EDITED.sub("", FLOOR.sub("", text))
""",
        ),
    ],
}

WRONG_ANSWERS["vocab"] = {
    1: [("a single word, which both know", 'my_sentence = "水"')],
    2: [
        (
            "a share of the list, not of the text",
            """
def words_for(part):
    return round(part * len(words))
""",
        ),
        (
            "one word too few",
            """
def words_for(part):
    whole = sum(count for word, count in counts.items() if not word.isspace())
    so_far = 0
    for n, count in enumerate(words.values()):
        so_far += count
        if so_far >= part * whole:
            return n
""",
        ),
        (
            "the whole is only what the list covers",
            """
def words_for(part):
    so_far = 0
    for n, count in enumerate(words.values(), 1):
        so_far += count
        if so_far >= part * sum(words.values()):
            return n
""",
        ),
    ],
    3: [
        (
            "a word seen once would not be used",
            "tokens_if_seen_often = 1\ntokens_if_seen_once = len(encode(tokenizer, sentence))",
        ),
        ("two pieces, whatever it was", "tokens_if_seen_often = tokens_if_seen_once = 2"),
    ],
    4: [
        (
            "only the first occurrence",
            """
def merge(pieces, pair):
    for i in range(len(pieces) - 1):
        if (pieces[i], pieces[i + 1]) == tuple(pair):
            return [*pieces[:i], pieces[i] + pieces[i + 1], *pieces[i + 2 :]]
    return list(pieces)
""",
        ),
        (
            "what was merged is used again",
            """
def merge(pieces, pair):
    merged = []
    for left, right in zip(pieces, [*pieces[1:], ""]):
        if (left, right) == tuple(pair):
            merged.append(left + right)
        elif merged[-1:] != [pair[0] + pair[1]]:
            merged.append(left)
    return merged
""",
        ),
        (
            "another pair with the same characters is merged as well",
            """
def merge(pieces, pair):
    merged, i = [], 0
    while i < len(pieces):
        n = 2 if "".join(pieces[i : i + 2]) == "".join(pair) else 1
        merged.append("".join(pieces[i : i + n]))
        i += n
    return merged
""",
        ),
        (
            "no new list: the given one is changed",
            """
def merge(pieces, pair):
    i = 0
    while i < len(pieces) - 1:
        if (pieces[i], pieces[i + 1]) == tuple(pair):
            pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
        i += 1
    return pieces
""",
        ),
    ],
    5: [
        (
            "the shortest word first",
            """
def longest_match(text):
    pieces, i = [], 0
    while i < len(text):
        n = next((n for n in range(2, max_word_length + 1) if text[i : i + n] in words), 1)
        pieces.append(text[i : i + n])
        i += n
    return pieces
""",
        ),
        (
            "words of two characters are never tried",
            """
def longest_match(text):
    pieces, i = [], 0
    while i < len(text):
        n = next((n for n in range(max_word_length, 2, -1) if text[i : i + n] in words), 1)
        pieces.append(text[i : i + n])
        i += len(pieces[-1])
    return pieces
""",
        ),
        (
            "from the right",
            """
def longest_match(text):
    pieces, end = [], len(text)
    while end:
        n = next((n for n in range(min(end, max_word_length), 1, -1) if text[end - n : end] in words), 1)
        pieces.insert(0, text[end - n : end])
        end -= n
    return pieces
""",
        ),
    ],
}

WRONG_ANSWERS["tokenize"] = {
    1: [
        ("without <bos> and <eos>", "longest = int(np.diff(stream.documents, append=len(stream)).max()) - 2"),
        ("the offset of the last one", "longest = int(stream.documents.max())"),
        ("the mean", "longest = round(len(stream) / len(stream.documents))"),
    ],
    2: [
        ("how many ids there are, not the largest", "largest_id = 2**16"),
        ("half of the ids: one bit for a sign", "largest_id = 2**15 - 1"),
        ("one byte", "largest_id = 2**8 - 1"),
    ],
    3: [
        (
            "the ids are counted, not the answers",
            """
def windows_needed(tokens, n_ctx, stride):
    return 1 + -(-max(0, tokens - n_ctx) // stride)
""",
        ),
        (
            "rounded down",
            """
def windows_needed(tokens, n_ctx, stride):
    return 1 + max(0, tokens - 1 - n_ctx) // stride
""",
        ),
        (
            "a text shorter than a window needs none, or fewer",
            """
def windows_needed(tokens, n_ctx, stride):
    return 1 + -(-(tokens - 1 - n_ctx) // stride)
""",
        ),
        (
            "as if the windows did not overlap",
            """
def windows_needed(tokens, n_ctx, stride):
    return -(-(tokens - 1) // n_ctx)
""",
        ),
    ],
    4: [
        (
            "in their order, and only the last window is looked at",
            """
def pack(lengths, n_ctx):
    windows, free = [], 0
    for number, length in enumerate(lengths):
        if length > free:
            windows.append([])
            free = n_ctx
        windows[-1].append(number)
        free -= length
    return windows
""",
        ),
        (
            "n_ctx is always 128",
            """
def pack(lengths, n_ctx):
    windows, room = [], []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        at = next((at for at, free in enumerate(room) if lengths[number] <= free), len(room))
        if at == len(room):
            windows.append([])
            room.append(128)
        windows[at].append(number)
        room[at] -= lengths[number]
    return windows
""",
        ),
        (
            "sorts the lengths in place, so its numbers are places in the sorted list",
            """
def pack(lengths, n_ctx):
    lengths.sort(reverse=True)
    windows, room = [], []
    for number, length in enumerate(lengths):
        at = next((at for at, free in enumerate(room) if length <= free), len(room))
        if at == len(room):
            windows.append([])
            room.append(n_ctx)
        windows[at].append(number)
        room[at] -= length
    return windows
""",
        ),
        (
            "lengths instead of numbers",
            """
def pack(lengths, n_ctx):
    windows = []
    for length in sorted(lengths, reverse=True):
        window = next((window for window in windows if sum(window) + length <= n_ctx), None)
        if window is None:
            windows.append(window := [])
        window.append(length)
    return windows
""",
        ),
    ],
}

WRONG_ANSWERS["train"] = {
    1: [
        ("bits", "my_loss = -math.log2(1 / 2)\nmy_perplexity = 2"),
        ("the sign", "my_loss = math.log(1 / 2)\nmy_perplexity = math.exp(-my_loss)"),
        ("two to the power of the nats", "my_loss = -math.log(1 / 2)\nmy_perplexity = 2**my_loss"),
    ],
    2: [
        (
            "also what comes later in one's own document",
            """
def document_mask(documents):
    numbers = torch.tensor(documents)
    return numbers[:, None] == numbers[None, :]
""",
        ),
        (
            "a position may not look at itself",
            """
def document_mask(documents):
    numbers = torch.tensor(documents)
    past = torch.ones(len(numbers), len(numbers), dtype=torch.bool).tril(-1)
    return past & (numbers[:, None] == numbers[None, :])
""",
        ),
        (
            "row and column are exchanged",
            """
def document_mask(documents):
    numbers = torch.tensor(documents)
    past = torch.ones(len(numbers), len(numbers), dtype=torch.bool).triu()
    return past & (numbers[:, None] == numbers[None, :])
""",
        ),
        (
            "numbers, not True and False: attention would add them to the scores",
            """
def document_mask(documents):
    numbers = torch.tensor(documents)
    return torch.ones(len(numbers), len(numbers)).tril() * (numbers[:, None] == numbers[None, :])
""",
        ),
    ],
    3: [
        (
            "the warm-up starts from a rate of zero",
            """
def my_rate(update, total, peak, warmup):
    if update < warmup:
        return peak * update / warmup
    progress = (update - warmup) / (total - warmup)
    return peak * 0.5 * (1 + math.cos(math.pi * progress))
""",
        ),
        (
            "the wave begins with the run, not after the warm-up",
            """
def my_rate(update, total, peak, warmup):
    if update < warmup:
        return peak * (update + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * update / total))
""",
        ),
        (
            "a quarter of a wave",
            """
def my_rate(update, total, peak, warmup):
    if update < warmup:
        return peak * (update + 1) / warmup
    return peak * math.cos(math.pi / 2 * (update - warmup) / (total - warmup))
""",
        ),
    ],
    4: [
        (
            "per micro-batch, not per label",
            """
def batch_loss(sums, labels):
    return sum(sums) / len(sums)
""",
        ),
        (
            "the weights are the losses",
            """
def batch_loss(sums, labels):
    return sum(total * total / count for total, count in zip(sums, labels)) / sum(sums)
""",
        ),
    ],
    5: [
        (
            "below the floor is overfitting",
            'diagnosis = {"A": "no learning", "B": "overfitting", "C": "healthy", "D": "overfitting"}',
        ),
        (
            "validation as low as training is a leak",
            'diagnosis = {"A": "no learning", "B": "overfitting", "C": "leak", "D": "leak"}',
        ),
        ("B is left out", 'diagnosis = {"A": "no learning", "C": "healthy", "D": "leak"}'),
    ],
}

WRONG_ANSWERS["generate"] = {
    1: [
        ("warmer, not colder", "my_temperature = 1 / 0.22"),
        ("the share itself", "my_temperature = 0.9"),
        ("greedy", "my_temperature = 0"),
    ],
    2: [
        (
            "the token that reaches p goes as well",
            """
def my_top_p(logits, p):
    ordered, columns = logits.sort(dim=-1, descending=True)
    ordered = ordered.masked_fill(ordered.softmax(-1).cumsum(-1) >= p, -torch.inf)
    return torch.empty_like(logits).scatter(1, columns, ordered)
""",
        ),
        (
            "> for >=: one more stays where the sum is exactly p",
            """
def my_top_p(logits, p):
    ordered, columns = logits.sort(dim=-1, descending=True)
    shares = ordered.softmax(-1)
    ordered = ordered.masked_fill(shares.cumsum(-1) - shares > p, -torch.inf)
    return torch.empty_like(logits).scatter(1, columns, ordered)
""",
        ),
        (
            "the tokens do not go back to their columns",
            """
def my_top_p(logits, p):
    ordered = logits.sort(dim=-1, descending=True).values
    shares = ordered.softmax(-1)
    return ordered.masked_fill(shares.cumsum(-1) - shares >= p, -torch.inf)
""",
        ),
        (
            "the order of the first row for all rows",
            """
def my_top_p(logits, p):
    columns = logits[0].argsort(descending=True)
    ordered = logits[:, columns]
    shares = ordered.softmax(-1)
    ordered = ordered.masked_fill(shares.cumsum(-1) - shares >= p, -torch.inf)
    return torch.empty_like(logits).scatter(1, columns.expand(len(logits), -1), ordered)
""",
        ),
    ],
    3: [
        (
            "only the last token is read, and the past is forgotten",
            """
def write_greedily(read, ids, n):
    ids, new = list(ids), list(ids)
    for _ in range(n):
        logits, _ = read(new, None)
        new = [int(logits.argmax())]
        ids += new
    return ids
""",
        ),
        (
            "with the past, everything is read again",
            """
def write_greedily(read, ids, n):
    ids, past = list(ids), None
    for _ in range(n):
        logits, past = read(ids, past)
        ids.append(int(logits.argmax()))
    return ids
""",
        ),
        (
            "the prompt is not returned",
            """
def write_greedily(read, ids, n):
    written, new, past = [], list(ids), None
    for _ in range(n):
        logits, past = read(new, past)
        new = [int(logits.argmax())]
        written += new
    return written
""",
        ),
    ],
    4: [
        (
            "all are multiplied",
            """
def penalized(scores, written, penalty):
    scores = list(scores)
    for token in set(written):
        scores[token] = scores[token] * penalty
    return scores
""",
        ),
        (
            "a token that stands there twice is lowered twice",
            """
def penalized(scores, written, penalty):
    scores = list(scores)
    for token in written:
        scores[token] = scores[token] * penalty if scores[token] < 0 else scores[token] / penalty
    return scores
""",
        ),
        (
            "the penalty is always 1.5",
            """
def penalized(scores, written, penalty):
    scores = list(scores)
    for token in set(written):
        scores[token] = scores[token] * 1.5 if scores[token] < 0 else scores[token] / 1.5
    return scores
""",
        ),
    ],
}

WRONG_ANSWERS["serve"] = {
    1: [
        (
            "how late a question was sent, without its answer",
            """
due, sent, answered = [0, 10, 20, 30, 40, 50], [0, 10, 300, 301, 302, 303], [1, 11, 301, 302, 303, 304]
waits = [late - early for early, late in zip(due, sent)]
""",
        ),
        (
            "every clock starts with the probe",
            """
due, sent, answered = [0, 10, 20, 30, 40, 50], [0, 10, 300, 301, 302, 303], [1, 11, 301, 302, 303, 304]
waits = answered
""",
        ),
        (
            "the silence counts in full for each of the four",
            """
due, sent, answered = [0, 10, 20, 30, 40, 50], [0, 10, 300, 301, 302, 303], [1, 11, 301, 302, 303, 304]
waits = [1, 1, 290, 290, 290, 290]
""",
        ),
    ],
    2: [
        ("everybody", 'origins = ["*"]'),
        ("without its scheme", 'origins = ["friend.example"]'),
        ("without encryption as well", 'origins = ["https://friend.example", "http://friend.example"]'),
    ],
    3: [
        (
            "asks again at once",
            """
async def ask_patiently(client, body, tries=3):
    for _ in range(tries):
        async with client.post("/", json=body) as response:
            answer = await response.json()
        if response.status != 429:
            break
    return response.status, answer
""",
        ),
        (
            "waits once more after the last try",
            """
async def ask_patiently(client, body, tries=3):
    for _ in range(tries):
        async with client.post("/", json=body) as response:
            answer = await response.json()
        if response.status != 429:
            break
        await asyncio.sleep(int(response.headers["Retry-After"]))
    return response.status, answer
""",
        ),
        (
            "one try too many",
            """
async def ask_patiently(client, body, tries=3):
    for left in reversed(range(tries + 1)):
        async with client.post("/", json=body) as response:
            answer = await response.json()
        if response.status != 429 or not left:
            return response.status, answer
        await asyncio.sleep(int(response.headers["Retry-After"]))
""",
        ),
        (
            "what was wrong is asked again",
            """
async def ask_patiently(client, body, tries=3):
    for left in reversed(range(tries)):
        async with client.post("/", json=body) as response:
            answer = await response.json()
        if response.status == 200 or not left:
            return response.status, answer
        await asyncio.sleep(int(response.headers.get("Retry-After", 0)))
""",
        ),
        (
            "the response itself instead of the answer in it",
            """
async def ask_patiently(client, body, tries=3):
    for left in reversed(range(tries)):
        async with client.post("/", json=body) as response:
            if response.status != 429 or not left:
                return response.status, response
        await asyncio.sleep(int(response.headers["Retry-After"]))
""",
        ),
    ],
    4: [
        (
            "a piece as it is: a line break ends the event",
            r"""
async def post_stream(request, engine):
    context = (await request.json())["context"]
    loop, queue = asyncio.get_running_loop(), asyncio.Queue()
    listener = partial(loop.call_soon_threadsafe, queue.put_nowait)
    engine.submit(context, Settings(max_new_tokens=40), listener=listener)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    reason = None
    while reason is None:
        chunk = await queue.get()
        reason = chunk.reason
        await response.write(f"data: {chunk.text}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response
""",
        ),
        (
            "the last piece is lost",
            r"""
async def post_stream(request, engine):
    context = (await request.json())["context"]
    loop, queue = asyncio.get_running_loop(), asyncio.Queue()
    listener = partial(loop.call_soon_threadsafe, queue.put_nowait)
    engine.submit(context, Settings(max_new_tokens=40), listener=listener)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    while (chunk := await queue.get()).reason is None:
        await response.write(f"data: {json.dumps(chunk.text)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response
""",
        ),
        (
            "no [DONE]",
            r"""
async def post_stream(request, engine):
    context = (await request.json())["context"]
    loop, queue = asyncio.get_running_loop(), asyncio.Queue()
    listener = partial(loop.call_soon_threadsafe, queue.put_nowait)
    engine.submit(context, Settings(max_new_tokens=40), listener=listener)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    reason = None
    while reason is None:
        chunk = await queue.get()
        reason = chunk.reason
        await response.write(f"data: {json.dumps(chunk.text)}\n\n".encode())
    return response
""",
        ),
        (
            "events, but all of them when the text is done",
            r"""
async def post_stream(request, engine):
    context = (await request.json())["context"]
    chunks = []
    await asyncio.wrap_future(engine.submit(context, Settings(max_new_tokens=40), listener=chunks.append))
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for chunk in chunks:
        await response.write(f"data: {json.dumps(chunk.text)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response
""",
        ),
    ],
}

WRONG_ANSWERS["chat"] = {
    1: [
        (
            "whose the id is moves, and the id does not",
            """
def labels_of(ids, is_answer):
    return [i if own else IGNORE for i, own in zip(ids[:-1], is_answer[1:])]
""",
        ),
        (
            "the id moves, and whose it is does not",
            """
def labels_of(ids, is_answer):
    return [i if own else IGNORE for i, own in zip(ids[1:], is_answer[:-1])]
""",
        ),
        (
            "everything after the first answer's beginning",
            """
def labels_of(ids, is_answer):
    start = is_answer.index(True)
    return [IGNORE] * (start - 1) + ids[start:]
""",
        ),
    ],
    2: [
        (
            "the whole conversation, also what comes later",
            """
def may_see(positions):
    talk = [sum(position == 0 for position in positions[: i + 1]) for i in range(len(positions))]
    return [[a == b for a in talk] for b in talk]
""",
        ),
        (
            "a smaller position is in the past, of whichever conversation",
            """
def may_see(positions):
    return [[j <= i and positions[j] <= positions[i] for j in range(len(positions))] for i in range(len(positions))]
""",
        ),
        (
            "a conversation begins where the position falls: one of a single token is missed",
            """
def may_see(positions):
    talk = [0]
    for before, position in zip(positions, positions[1:]):
        talk.append(talk[-1] + (position < before))
    return [[j <= i and talk[j] == talk[i] for j in range(len(talk))] for i in range(len(talk))]
""",
        ),
    ],
    3: [
        (
            "A twice",
            """
def lora_numbers(inputs, outputs, r):
    return 2 * r * inputs
""",
        ),
        (
            "their product",
            """
def lora_numbers(inputs, outputs, r):
    return (r * inputs) * (outputs * r)
""",
        ),
        (
            "the rank is always 8",
            """
def lora_numbers(inputs, outputs, r):
    return 8 * (inputs + outputs)
""",
        ),
    ],
    4: [
        (
            ">= for >: what just fits is shortened",
            """
def shorten(messages, sizes, most):
    messages, sizes = list(messages), list(sizes)
    start = 1 if messages[0]["role"] == "system" else 0
    while sum(sizes) >= most and len(messages) - start > 1:
        del messages[start : start + 2], sizes[start : start + 2]
    return messages
""",
        ),
        (
            "the system line is not counted",
            """
def shorten(messages, sizes, most):
    messages, sizes = list(messages), list(sizes)
    start = 1 if messages[0]["role"] == "system" else 0
    while sum(sizes[start:]) > most and len(messages) - start > 1:
        del messages[start : start + 2], sizes[start : start + 2]
    return messages
""",
        ),
        (
            "a last question behind a system line goes",
            """
def shorten(messages, sizes, most):
    messages, sizes = list(messages), list(sizes)
    start = 1 if messages[0]["role"] == "system" else 0
    while sum(sizes) > most and len(messages) > 1:
        del messages[start : start + 2], sizes[start : start + 2]
    return messages
""",
        ),
        (
            "one message at a time: an answer without its question stays",
            """
def shorten(messages, sizes, most):
    messages, sizes = list(messages), list(sizes)
    start = 1 if messages[0]["role"] == "system" else 0
    while sum(sizes) > most and len(messages) - start > 1:
        del messages[start], sizes[start]
    return messages
""",
        ),
    ],
}

WRONG_ANSWERS["recipes"] = {
    1: [
        (
            "all settings",
            """
def differences(a, b):
    return {name: (a[name], b[name]) for name in a}
""",
        ),
        (
            "only the first difference",
            """
def differences(a, b):
    for name in a:
        if a[name] != b[name]:
            return {name: (a[name], b[name])}
    return {}
""",
        ),
        (
            "b before a",
            """
def differences(a, b):
    return {name: (b[name], a[name]) for name in a if a[name] != b[name]}
""",
        ),
    ],
    2: [
        (
            "means",
            """
def paired(before, after):
    if len(before) < 2 or sum(before) == sum(after):
        return "unclear"
    return "better" if sum(after) < sum(before) else "worse"
""",
        ),
        (
            "one seed is enough",
            """
def paired(before, after):
    if all(new < old for old, new in zip(before, after)):
        return "better"
    return "worse" if all(new > old for old, new in zip(before, after)) else "unclear"
""",
        ),
        (
            "only the first two seeds",
            """
def paired(before, after):
    if len(before) < 2:
        return "unclear"
    if after[0] < before[0] and after[1] < before[1]:
        return "better"
    return "worse" if after[0] > before[0] and after[1] > before[1] else "unclear"
""",
        ),
    ],
    3: [
        (
            "single values",
            """
def reached(curve, level, width):
    return next((seconds for seconds, value in curve if value <= level), None)
""",
        ),
        (
            "all of the last values instead of their mean",
            """
def reached(curve, level, width):
    for end in range(width, len(curve) + 1):
        if all(value <= level for _, value in curve[end - width : end]):
            return curve[end - 1][0]
""",
        ),
        (
            "the number of the point instead of its seconds",
            """
def reached(curve, level, width):
    for end in range(width, len(curve) + 1):
        if sum(value for _, value in curve[end - width : end]) / width <= level:
            return end - 1
""",
        ),
        (
            "at the start the mean of fewer values",
            """
def reached(curve, level, width):
    for end in range(1, len(curve) + 1):
        values = [value for _, value in curve[max(0, end - width) : end]]
        if sum(values) / len(values) <= level:
            return curve[end - 1][0]
""",
        ),
    ],
    4: [
        (
            "the seconds are forgotten",
            """
def tokens_per_update(tokens_per_second, seconds, updates):
    return tokens_per_second / updates
""",
        ),
        (
            "divided by the seconds instead of the updates",
            """
def tokens_per_update(tokens_per_second, seconds, updates):
    return tokens_per_second * updates / seconds
""",
        ),
    ],
}

WRONG_ANSWERS["reward"] = {
    1: [
        (
            "itself is among the others",
            """
def leave_one_out(rewards):
    return [reward - sum(rewards) / (len(rewards) - 1) for reward in rewards]
""",
        ),
        (
            "divided by all",
            """
def leave_one_out(rewards):
    return [reward - (sum(rewards) - reward) / len(rewards) for reward in rewards]
""",
        ),
        (
            "always two others",
            """
def leave_one_out(rewards):
    return [reward - (sum(rewards) - reward) / 2 for reward in rewards]
""",
        ),
    ],
    2: [
        (
            "any letter counts as Chinese",
            r"""
def five(poem):
    lines = poem.split("\n")
    shaped = all(len(line) == 5 and line.isalpha() for line in lines)
    varied = len(set(lines)) == len(lines) and all(len(set(line)) > 1 for line in lines)
    return float(len(lines) >= 2 and shaped and varied)
""",
        ),
        (
            "only neighbouring lines are compared",
            r"""
def five(poem):
    lines = poem.split("\n")
    shaped = all(len(line) == 5 and all("一" <= c <= "鿿" for c in line) for line in lines)
    varied = all(a != b for a, b in zip(lines, lines[1:])) and all(len(set(line)) > 1 for line in lines)
    return float(len(lines) >= 2 and shaped and varied)
""",
        ),
        (
            "no character may come twice in a line",
            r"""
def five(poem):
    lines = poem.split("\n")
    shaped = all(len(line) == 5 and all("一" <= c <= "鿿" for c in line) for line in lines)
    varied = len(set(lines)) == len(lines) and all(len(set(line)) == 5 for line in lines)
    return float(len(lines) >= 2 and shaped and varied)
""",
        ),
    ],
    3: [
        (
            "all wrong counts as mixed",
            """
def mixed(p, n):
    return 1 - p**n
""",
        ),
        (
            "exactly one is right",
            """
def mixed(p, n):
    return n * p * (1 - p) ** (n - 1)
""",
        ),
        (
            "groups of two, whatever n",
            """
def mixed(p, n):
    return 2 * p * (1 - p)
""",
        ),
    ],
    4: [
        (
            "the plain difference of the logarithms, which can be negative",
            """
def estimate(log_now, log_before):
    return (torch.tensor(log_now) - torch.tensor(log_before)).mean().item()
""",
        ),
        (
            "r upside down",
            """
def estimate(log_now, log_before):
    logs = torch.tensor(log_now) - torch.tensor(log_before)
    return (logs.exp() - 1 - logs).mean().item()
""",
        ),
        (
            "the mean is taken first",
            """
def estimate(log_now, log_before):
    log = (torch.tensor(log_before) - torch.tensor(log_now)).mean()
    return (log.exp() - 1 - log).item()
""",
        ),
        (
            "the sum",
            """
def estimate(log_now, log_before):
    logs = torch.tensor(log_before) - torch.tensor(log_now)
    return (logs.exp() - 1 - logs).sum().item()
""",
        ),
    ],
}

WRONG_ANSWERS["tournament"] = {
    1: [
        (
            "multiplied by the ratio",
            """
def bits_per_character(nats, ratio):
    return nats / math.log(2) * ratio
""",
        ),
        (
            "nats per character",
            """
def bits_per_character(nats, ratio):
    return nats / ratio
""",
        ),
        (
            "a bit is taken for 1/ln 2 nats",
            """
def bits_per_character(nats, ratio):
    return nats * math.log(2) / ratio
""",
        ),
    ],
    2: [
        (
            "pairs side by side: one that begins inside another is missed",
            r"""
import re


def frequent_pairs(texts, count):
    numbers = {}
    for text in texts:
        for pair in re.findall("[\u4e00-\u9fff]{2}", text):
            numbers[pair] = numbers.get(pair, 0) + 1
    return dict(sorted(numbers.items(), key=lambda item: (-item[1], item[0]))[:count])
""",
        ),
        (
            "all that is no comma and no line end counts as Chinese",
            r"""
def frequent_pairs(texts, count):
    numbers = {}
    for text in texts:
        for left, right in zip(text, text[1:]):
            if not {left, right} & set("，\n"):
                numbers[left + right] = numbers.get(left + right, 0) + 1
    return dict(sorted(numbers.items(), key=lambda item: (-item[1], item[0]))[:count])
""",
        ),
        (
            "ties in the order of the text",
            r"""
def frequent_pairs(texts, count):
    numbers = {}
    for text in texts:
        for left, right in zip(text, text[1:]):
            if "\u4e00" <= left <= "\u9fff" and "\u4e00" <= right <= "\u9fff":
                numbers[left + right] = numbers.get(left + right, 0) + 1
    return dict(sorted(numbers.items(), key=lambda item: -item[1])[:count])
""",
        ),
    ],
    3: [
        (
            "> for >=",
            """
def at_equal_text(curve, characters_per_update, characters):
    rows = [row for row in curve if row["step"] * characters_per_update > characters]
    return rows[0]["bits_per_char"] if rows else None
""",
        ),
        (
            "the last row before it",
            """
def at_equal_text(curve, characters_per_update, characters):
    rows = [row for row in curve if row["step"] * characters_per_update <= characters]
    return rows[-1]["bits_per_char"] if rows else None
""",
        ),
        (
            "the end of the curve where so much was never read",
            """
def at_equal_text(curve, characters_per_update, characters):
    rows = [row for row in curve if row["step"] * characters_per_update >= characters]
    return (rows or curve[-1:])[0]["bits_per_char"]
""",
        ),
    ],
    4: [
        (
            "the ratios are exchanged",
            """
def equal_window(n_ctx, ratio, other_ratio):
    return 8 * math.ceil(n_ctx * other_ratio / ratio / 8)
""",
        ),
        (
            "rounded to the nearest multiple",
            """
def equal_window(n_ctx, ratio, other_ratio):
    return 8 * round(n_ctx * ratio / other_ratio / 8)
""",
        ),
        (
            "always one multiple more",
            """
def equal_window(n_ctx, ratio, other_ratio):
    return 8 * (int(n_ctx * ratio / other_ratio) // 8 + 1)
""",
        ),
    ],
}
