"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1) as vLLM serves it
(model_executor/layers/attention/mla_attention.py): for each token the cache keeps one latent and one positional key,
the same on every tensor parallel rank.

Decoding happens in the latent space: W_UK is absorbed into the queries and W_UV into the output, so all heads read one
key of `latent` + `position` numbers. For prompts, latents are expanded to keys and values of each head, again in every
step that continues a prompt. In both cases the same projections run once per token.

Few measured runs are known (docs/lab/simulators-serving.md), so ERROR is a guess.
"""

from typing import Any, NamedTuple

import numpy as np

Array = Any  # a float or an array of floats

# Additional standard deviation of log(measured / predicted). DeepSeek-R1 is off by 10 % in vLLM, by 10 to 15 % in
# TensorRT-LLM 1.2 (MLPerf v6.0), and by 12 to 40 % in TensorRT-LLM 1.0.
ERROR = 0.2


class Latents(NamedTuple):
    """(n,) each; `heads` of one device. `latent` 0: ordinary attention with keys and values of every head."""

    queries: np.ndarray  # rank of the queries' latent; 0: projected directly
    latent: np.ndarray
    plain: np.ndarray  # size of a head's query and key without the positional part
    position: np.ndarray  # size of the positional part
    value: np.ndarray
    heads: np.ndarray
    hidden: np.ndarray

    @property
    def on(self) -> np.ndarray:
        return self.latent > 0

    @property
    def cached(self) -> np.ndarray:
        """Numbers per token and layer in the cache."""
        return self.latent + self.position

    @property
    def head_dim(self) -> np.ndarray:
        """The mean size of a head's key and value; scores and weighting cost as much as in other models with heads of
        that size."""
        return (self.plain + self.position + self.value) / 2

    def products(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(outputs, inputs) of a layer's products: down (whole on every rank), up to the queries, up to keys and values
        or absorbed, out."""
        inputs = np.where(self.queries > 0, self.queries, self.hidden)
        return [
            (self.queries + self.cached, self.hidden),
            (self.heads * (self.plain + self.position), inputs),
            (self.heads * (self.plain + self.value), self.latent),
            (self.hidden, self.heads * self.value),
        ]

    def weights(self) -> np.ndarray:
        """Weights of a layer's attention on a device."""
        return sum((outputs * inputs for outputs, inputs in self.products()), np.zeros(1))

    def decode_slope_us(self, kv_bytes: Array, queries: Array, gb_s: float, tflops: Array) -> np.ndarray:
        """Microseconds per token of context and layer. The token is read once for all heads, each of which multiplies a
        key and a value."""
        work = 2 * self.heads * queries * (self.cached + self.latent)
        return np.maximum(1e-3 * kv_bytes / gb_s, 1e-6 * work / tflops)

    def raised_bytes(self) -> np.ndarray:
        """Bytes of keys and values per token that attention over prompts reads, in 16 bits."""
        return 2 * self.heads * 2 * self.head_dim

    def raise_us(self, tflops: Array) -> np.ndarray:
        """Microseconds to expand the keys and values of one token in one layer."""
        return 2e-6 * self.latent * self.heads * (self.plain + self.value) / tflops
