"""What one engine takes at once, and in which of its steps it takes prompts at all.

A scheduler that works beside the device has made up the next step while one runs (vLLM's step_with_batch_queue,
SGLang's event_loop_overlap): what comes meanwhile is in the one after it.

Three engines hold prompts back for longer. vLLM's version 0 schedules once for `num_scheduler_steps` steps. AMD's fork
of version 1 takes none for VLLM_SUBSEQUENT_DECODE_STEPS while VLLM_MIN_REQUEST_DECODE_STEP requests run.
TensorRT-LLM's engines with attention data parallelism (`attention_dp_config` with `enable_balance`,
PyExecutor._balance_adp_requests) wait until each of them has a prompt, `batching_wait_iters` steps more where all have,
`timeout_iters` steps where not all do. An engine is simulated alone: that the others have prompts is concluded from two
that wait here, as requests are dealt out in turn.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineLimits:
    """Of one engine. `kv_tokens`: what its cache holds."""

    kv_tokens: int
    max_seqs: int = 256
    batched_tokens: int = 8192
    block: int = 16
    chunked: bool = True
    long_prompt: int = 2**62  # tokens of one prompt that a step may take
    prefix_caching: bool = True
    version: int = 1
    reserved: float = 0.0  # share of the running requests' answers that must have room before another is admitted
    held: int = 0  # steps without prompts between two that may have some,
    held_from: int = 0  # where so many run
    held_several: int = 0  # the same where several prompts wait
    apart: int = 0  # so many must wait for a step of prompts alone to follow another at once
    ahead: bool = False  # the next step is made up while one runs


class Turns:
    """Of prompts, while requests are answered."""

    def __init__(self, limits: EngineLimits) -> None:
        self.one, self.several, self.apart = limits.held, min(limits.held_several, limits.held), limits.apart
        self.since, self.alone = self.one, False  # steps without prompts since the last turn; whether that had no other

    def left(self, waiting: int) -> int:
        """Steps until a turn: 0 in one."""
        if self.alone and waiting >= self.apart:
            return 0
        return max((self.several if waiting > 1 else self.one) - self.since, 0)

    def read(self, alone: bool) -> None:
        """A step had prompts, beside which others were answered or not."""
        self.since, self.alone = 0, alone

    def passed(self, steps: int) -> None:
        """So many had none."""
        self.alone = False
        if self.one:
            self.since = (self.since % self.one + steps - 1) % self.one + 1
