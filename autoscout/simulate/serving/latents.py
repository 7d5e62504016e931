"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1) as vLLM serves it
(model_executor/layers/attention/mla_attention.py). For each token the cache keeps one latent vector and one positional
key, which every tensor parallel rank stores in full.

Decoding computes attention in the latent space: W_UK is absorbed into the queries and W_UV into the output, so all
heads read the same key of `latent` + `position` numbers. Prefill expands latents to keys and values of each head, and
does so again in every step that continues a prompt. Prefill and decoding run the same projections once per token.

Only few measured runs are public (docs/lab/simulators-serving.md), so ERROR is a guess."""

from typing import Any, NamedTuple

import numpy as np

Array = Any  # a float or an array of floats

# Additional log error of models with latents. Predictions for DeepSeek-R1 are off by 10 % in vLLM, by 10 to 15 % in
# TensorRT-LLM 1.2 (MLPerf v6.0), and by 12 to 40 % in TensorRT-LLM 1.0.
ERROR = 0.2


class Latents(NamedTuple):
    """The dimensions of latent attention, (n,) each; `heads` is per device. `latent`: dimension of the keys' and
    values' latent; 0: ordinary attention."""

    queries: np.ndarray  # dimension of the queries' latent; 0: queries are projected directly
    latent: np.ndarray
    plain: np.ndarray  # dimensions of a head's query and key without the positional ones
    position: np.ndarray  # dimensions of the positional part of a query and key
    value: np.ndarray
    heads: np.ndarray
    hidden: np.ndarray

    @property
    def on(self) -> np.ndarray:
        return self.latent > 0

    @property
    def cached(self) -> np.ndarray:
        """(n,) numbers that the cache stores per token and layer."""
        return self.latent + self.position

    @property
    def head_dim(self) -> np.ndarray:
        """(n,) mean dimension of a head's key and value. Attention over prompts costs as much as with usual heads of
        this size."""
        return (self.plain + self.position + self.value) / 2

    def products(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(outputs, inputs) of a layer's projections: down to the latents (replicated on every rank), up to the
        queries, up to keys and values (in decoding, absorbed into queries and output), and output."""
        inputs = np.where(self.queries > 0, self.queries, self.hidden)
        return [
            (self.queries + self.cached, self.hidden),
            (self.heads * (self.plain + self.position), inputs),
            (self.heads * (self.plain + self.value), self.latent),
            (self.hidden, self.heads * self.value),
        ]

    def weights(self) -> np.ndarray:
        """(n,) number of a layer's attention weights per device."""
        return sum((outputs * inputs for outputs, inputs in self.products()), np.zeros(1))

    def decode_slope_us(self, kv_bytes: Array, queries: Array, gb_s: float, tflops: Array) -> np.ndarray:
        """Decode microseconds per token of context and layer, the larger of memory and compute: all heads share one
        read of the cached token, but each computes its products."""
        work = 2 * self.heads * queries * (self.cached + self.latent)
        return np.maximum(1e-3 * kv_bytes / gb_s, 1e-6 * work / tflops)

    def raised_bytes(self) -> np.ndarray:
        """(n,) bytes per token of expanded 16-bit keys and values, which prefill attention reads."""
        return 2 * self.heads * 2 * self.head_dim

    def raise_us(self, tflops: Array) -> np.ndarray:
        """(n,) microseconds to expand the keys and values of one token in one layer."""
        return 2e-6 * self.latent * self.heads * (self.plain + self.value) / tflops
