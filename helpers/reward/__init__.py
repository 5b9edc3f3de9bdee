"""Side door deeper/reward: an answerer becomes a better one, by reinforcement learning with answers one can check.

judge     which questions are asked, and what an answer earns
rollout   groups of answers, written by the model itself, many at once
policy    log-probabilities of answers, KL divergence, entropy
losses    GRPO and DPO: advantages, preference pairs, and their losses
job       one training run, by either of them
"""
