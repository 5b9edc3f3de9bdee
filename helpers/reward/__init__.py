"""Side door deeper/reward: an answerer becomes a better one, by reinforcement learning with answers one can check.

judge     what is asked, what an answer earns, and where its verdict begins
rollout   openings and endings of answers, written by the model itself, many at once
policy    log-probabilities of endings, KL divergence, entropy
losses    GRPO and DPO: advantages, preference pairs, and their losses
job       one training run, by either of them
examine   the same questions before and after: put right, broken, and how sure that is
"""
