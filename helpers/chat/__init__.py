"""Side door deeper/chat: a writer becomes an answerer, by supervised fine-tuning.

data     conversations, a run's own or the built-in grammar's, as packed windows with labels on answers only
start    the base model and its tokenizer, ready for the roles
lora     LoRA: thin matrices beside frozen ones, and their merging
job      one fine-tuning run, with the loop of room 04
"""
