"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1) as vLLM serves it
(model_executor/layers/attention/mla_attention.py): the cache keeps one latent and one key's positions of a token, the
same on every tensor parallel rank.

Tokens that are generated are computed in the space of latents: W_UK is absorbed into the queries and W_UV into the
output, so that all heads read one key of `latent` + `position` numbers. Prompts have their keys and values raised to
the heads, again in every step that goes on with a prompt. Either way the same products project, once a token.

Few runs are known (docs/lab/simulators-serving.md), so ERROR is a guess.
"""

from typing import Any, NamedTuple

import numpy as np

Array = Any  # a float or an array of floats

# Standard deviation of log(measured / predicted) that they add: DeepSeek-R1 is 10 % off in vLLM, 10 to 15 in
# TensorRT-LLM 1.2 (MLPerf v6.0), 12 to 40 in 1.0.
ERROR = 0.2


class Latents(NamedTuple):
    """(n,) each, `heads` of one device; `latent` 0: keys and values for every head, without any of these."""

    queries: np.ndarray  # rank of the queries' latent; 0: projected directly
    latent: np.ndarray
    plain: np.ndarray  # of a head's query and key, without a position
    position: np.ndarray  # and with one
    value: np.ndarray
    heads: np.ndarray
    hidden: np.ndarray

    @property
    def on(self) -> np.ndarray:
        return self.latent > 0

    @property
    def cached(self) -> np.ndarray:
        """Numbers in the cache for a token of one layer."""
        return self.latent + self.position

    @property
    def head_dim(self) -> np.ndarray:
        """The mean of a head's key and value, with which scores and weighting cost what other models' do."""
        return (self.plain + self.position + self.value) / 2

    def products(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(outputs, inputs) of a layer's products: down (every rank has these whole), up to the queries, up to keys and
        values or absorbed, out."""
        inputs = np.where(self.queries > 0, self.queries, self.hidden)
        return [
            (self.queries + self.cached, self.hidden),
            (self.heads * (self.plain + self.position), inputs),
            (self.heads * (self.plain + self.value), self.latent),
            (self.hidden, self.heads * self.value),
        ]

    def weights(self) -> np.ndarray:
        """Of a layer's attention on a device."""
        return sum((outputs * inputs for outputs, inputs in self.products()), np.zeros(1))

    def decode_slope_us(self, kv_bytes: Array, queries: Array, gb_s: float, tflops: Array) -> np.ndarray:
        """Per token of context of one layer: read once for all heads, which multiply each with a key and a value."""
        work = 2 * self.heads * queries * (self.cached + self.latent)
        return np.maximum(1e-3 * kv_bytes / gb_s, 1e-6 * work / tflops)

    def raised_bytes(self) -> np.ndarray:
        """What attention of prompts reads of a token: its keys and values, in 2 bytes."""
        return 2 * self.heads * 2 * self.head_dim

    def raise_us(self, tflops: Array) -> np.ndarray:
        """To raise the keys and values of one token of a layer."""
        return 2e-6 * self.latent * self.heads * (self.plain + self.value) / tflops
