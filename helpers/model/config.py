"""The shape of a GPT: one frozen dataclass, and its sizes and FLOPs, computed from it.

The names are the field's, and those of notebook 04. Knows no weights and no file.
"""

from dataclasses import dataclass
from typing import Any

from helpers.wording import did_you_mean

# what notebook 04 calls an architecture: the fields in which it differs from LLaMA
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": dict(
        norm="layer", norm_eps=1e-5, positions="learned", mlp="gelu", qkv_bias=True, out_bias=True, mlp_bias=True
    ),
    "qwen3": dict(qk_norm=True),
    "moe": dict(qk_norm=True, n_experts=4, aux_loss_coef=5e-4),
}


@dataclass(frozen=True)
class GPTConfig:
    """What a GPT is made of. Raises ValueError for a shape that cannot be."""

    vocab_size: int  # V, rows of the token table
    n_ctx: int  # T, the most positions that it sees at once
    n_embd: int  # C, numbers per position in the stream
    n_layer: int  # L, blocks
    n_head: int  # H, heads of queries
    n_kv_head: int = 0  # K, heads of keys and values, which the queries' heads share; 0: as many as n_head
    head_size: int = 0  # D; 0: n_embd / n_head
    n_inner: int = 0  # F, width inside the feed-forward network, or inside one expert; 0: the usual one, 8/3 or 4 · C
    norm: str = "rms"  # "rms": root mean square, a weight each; "layer": mean and variance, a weight and a bias each
    norm_eps: float = 1e-6
    positions: str = "rotary"  # "rotary": queries and keys are turned; "learned": a table is added to the tokens'
    rope_theta: float = 10_000.0  # rotary: the slowest pair turns once in about 2π · rope_theta positions
    mlp: str = "swiglu"  # "swiglu": gated, three matrices; "gelu": two (tanh's approximation, as in GPT-2)
    qk_norm: bool = False  # an RMSNorm on each head of queries and keys (Qwen3)
    qkv_bias: bool = False  # a bias on queries, keys and values (GPT-2, Qwen2)
    out_bias: bool = False  # a bias on what attention adds to the stream (GPT-2)
    mlp_bias: bool = False  # a bias on the matrices of the feed-forward network (GPT-2)
    tied: bool = True  # the token table is the output matrix, too
    sliding_window: int = 0  # how many positions a query sees, itself included; 0: all before it
    n_experts: int = 0  # E, feed-forward networks per block, among which a router chooses; 0: one, and no router
    experts_per_token: int = 1
    normalize_experts: bool = False  # the chosen experts' weights are scaled to a sum of 1
    aux_loss_coef: float = 0.0  # weight of the loss that spreads the tokens over the experts
    dropout: float = 0.0  # share of the embeddings, and of what each half of a block adds, that is dropped in training

    def __post_init__(self) -> None:
        if not self.head_size and self.n_embd % self.n_head:
            raise ValueError(
                f"n_embd {self.n_embd} cannot be divided among {self.n_head} heads: choose n_embd = n_head × head size"
            )
        usual = {
            "n_kv_head": self.n_head,
            "head_size": self.n_embd // self.n_head,
            # three matrices of 8/3 cost what two of 4 cost
            "n_inner": 4 * self.n_embd if self.mlp == "gelu" else 64 * round(self.n_embd * 8 / 3 / 64) or 64,
        }
        for name, value in usual.items():
            object.__setattr__(self, name, getattr(self, name) or value)
        if self.n_head % self.n_kv_head:
            raise ValueError(f"{self.n_head} query heads cannot share {self.n_kv_head} key/value heads evenly")
        if self.positions == "rotary" and self.head_size % 2:
            raise ValueError(
                f"n_embd {self.n_embd} gives each of {self.n_head} heads {self.head_size} numbers, and rotary "
                "positions turn pairs of them: choose n_embd = n_head × an even head size"
            )
        if self.n_experts and not 1 <= self.experts_per_token <= self.n_experts:
            raise ValueError(
                f"experts_per_token is {self.experts_per_token}: choose 1 … n_experts, which is {self.n_experts}"
            )

    @property
    def window(self) -> int:
        """How many tokens it sees at once; within a sliding window, sliding attention is plain attention."""
        return min(self.n_ctx, self.sliding_window or self.n_ctx)

    def sizes(self, n_ctx: int = 0) -> dict[str, int]:
        """Return the parameters, those active for one token, those in embeddings, and training FLOPs per token.

        FLOPs per token = 6 × (parameters that multiply a token) + 6 × n_layer × n_ctx × n_embd for attention over half
        the window on average (Kaplan et al. 2020; PaLM, appendix B, halved because the mask is causal). `n_ctx` is the
        length of a window; 0 means all positions of the model.
        """
        C, F, D, H, K = self.n_embd, self.n_inner, self.head_size, self.n_head, self.n_kv_head
        norm = C * (2 if self.norm == "layer" else 1)
        # 1. a block: attention, and one feed-forward network or several with a router
        attention = C * (H + 2 * K) * D + H * D * C
        attention += (H + 2 * K) * D * self.qkv_bias + C * self.out_bias + 2 * D * self.qk_norm
        matrices = 3 if self.mlp == "swiglu" else 2
        feed_forward = matrices * C * F + ((matrices - 1) * F + C) * self.mlp_bias
        router = C * self.n_experts
        block = attention + 2 * norm + feed_forward * max(1, self.n_experts) + router
        active = attention + 2 * norm + feed_forward * (self.experts_per_token if self.n_experts else 1) + router
        # 2. tables: tied, the tokens' is the output matrix, and counts once
        tokens, positions = self.vocab_size * C, self.n_ctx * C if self.positions == "learned" else 0
        tables = tokens * (1 if self.tied else 2) + positions
        multiplying = self.n_layer * active + norm + tokens
        return {
            "parameters": self.n_layer * block + norm + tables,
            "active_parameters": self.n_layer * active + norm + tables,
            "embedding_parameters": tokens + positions,
            "flops_per_token": 6 * (multiplying + self.n_layer * (n_ctx or self.n_ctx) * H * D),
        }


def make_config(architecture: str, vocab_size: int, **shape: Any) -> GPTConfig:
    """Return the config of an architecture of notebook 04; `shape`: more fields of GPTConfig, n_ctx, n_embd, ….

    Fields that the architecture does not have are left out: a dense model has no experts, GPT-2 shares no keys. Raises
    ValueError for an unknown architecture.
    """
    if architecture not in ARCHITECTURES:
        raise ValueError(f"architecture '{architecture}' is unknown{did_you_mean(architecture, list(ARCHITECTURES))}")
    lacks = {"n_kv_head"} if architecture == "gpt2" else set()
    if architecture != "moe":
        lacks |= {"n_experts", "experts_per_token", "aux_loss_coef"}
    own = {name: value for name, value in shape.items() if name not in lacks}
    return GPTConfig(vocab_size=vocab_size, **ARCHITECTURES[architecture] | own)
