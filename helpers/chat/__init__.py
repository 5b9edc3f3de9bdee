"""Side door deeper/chat: a writer becomes an answerer, by supervised fine-tuning.

data      conversations to learn from: a run's own, or the built-in grammar's with the floor of their answers
start     the base model, and what the tokens of the roles begin with
packing   conversations become windows: labels on answers only, none sees another
lora      LoRA: thin matrices beside frozen ones, and their merging
job       one fine-tuning run, with the loop of room 04
answer    answers to many conversations at once
"""
