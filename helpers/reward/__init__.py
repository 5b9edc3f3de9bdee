"""Side door deeper/reward: an answerer becomes a better one, by reinforcement learning with answers one can check.

judge     whether an answer earns a reward, and where its verdict begins
rollout   openings and endings of answers, written by the model itself, many at once
asker     which questions are asked: those that go wrong, and all others
policy    log-probabilities of endings, KL divergence, entropy
grpo      group-relative policy optimisation: advantages and loss
dpo       direct preference optimisation: pairs and loss
job       one training run, by either of them
examine   the same questions before and after: put right, broken, and how sure that is
"""
