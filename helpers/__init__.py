"""The logic behind the notebooks: one package per room, in the order of the course, and one module per job.

The ground floor knows no room:

    paths       where everything lies: the repository, a run, the folder of each room
    wording     messages in the reader's language; phrases that many share: what to run again, "did you mean"
    files       atomic writes of files and folders, SHA-256 fingerprints
    manifest    what a room was made from and what it holds; whether it still fits the room before it
    progress    how far a long piece of work is: a bar in a notebook, a note for the runner
    parallel    shards mapped over processes, with a progress bar
    device      CPU or GPU, mixed precision, memory, the speed of matrix products
    report      one HTML page about a run, and one to publish

The rooms; a room imports the ground floor and the rooms before it, and each package's own docstring lists its modules:

    corpus      01  raw text becomes clean documents: formats, charsets, cleaning rules, deduplication, split
    vocab       02  documents become a tokenizer: word segmentation, word list, Unigram, BPE, characters, bytes
    tokens      03  documents become memory-mapped token shards, windows and labels; n-gram baselines
    model           the GPT of notebook 04: the one that trains, writes and answers; folders of the library
    train       04  windows become a model: its loss, the training loop, checkpoints
    generate    05  a model becomes a writer: sampling, constraints, explanations
    serve       06  a writer becomes an HTTP service: continuous batching, authentication, streaming, metrics

Side doors that make models of their own, from rooms of the six:

    chat            a writer becomes an answerer: supervised fine-tuning on conversations, LoRA
    reward          an answerer becomes a better one: a judge, GRPO, DPO

    examine     measures that others know: minimal pairs, multiple choice
    run         runs the notebooks in order, and sweeps of runs: python -m helpers.run
    show        everything that is for the eyes: figures, dashboards, panels; only notebooks import it
"""
