"""How much an engine takes at once, and in which of its steps it takes prompts at all.

A scheduler that overlaps with the device has already prepared the next step while one runs (vLLM's
step_with_batch_queue, SGLang's event_loop_overlap), so a prompt that arrives meanwhile joins the step after it.

Three engines hold prompts back for longer. vLLM V0 schedules once per `num_scheduler_steps` steps. AMD's fork of V1
takes none for VLLM_SUBSEQUENT_DECODE_STEPS while VLLM_MIN_REQUEST_DECODE_STEP requests run. TensorRT-LLM's engines with
attention data parallelism (`attention_dp_config` with `enable_balance`, PyExecutor._balance_adp_requests) wait until
each of them has a prompt, then `batching_wait_iters` more steps, and `timeout_iters` steps if some have none. Only one
engine is simulated: since requests are dealt out in turn, two prompts that wait here imply that the others have one,
too.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineLimits:
    """Limits of one engine. `kv_tokens`: capacity of its cache."""

    kv_tokens: int
    max_seqs: int = 256
    batched_tokens: int = 8192
    block: int = 16
    chunked: bool = True
    long_prompt: int = 2**62  # tokens of one prompt that a step may take
    prefix_caching: bool = True
    version: int = 1
    reserved: float = 0.0  # share of the running requests' answers that must have room before another is admitted
    held: int = 0  # steps without prompts between two that may have some
    held_from: int = 0  # while at least this many requests run
    held_several: int = 0  # the same while several prompts wait
    apart: int = 0  # waiting prompts from which steps of prompts alone may follow each other
    ahead: bool = False  # the next step is prepared while one runs


class Turns:
    """The turns of prompts while requests are decoded."""

    def __init__(self, limits: EngineLimits) -> None:
        self.one, self.several, self.apart = limits.held, min(limits.held_several, limits.held), limits.apart
        self.since, self.alone = self.one, False  # steps without prompts; whether the last turn was prompts alone

    def left(self, waiting: int) -> int:
        """Steps until the next turn; 0 in one."""
        if self.alone and waiting >= self.apart:
            return 0
        return max((self.several if waiting > 1 else self.one) - self.since, 0)

    def read(self, alone: bool) -> None:
        """Records a step with prompts, in which others decoded or not."""
        self.since, self.alone = 0, alone

    def passed(self, steps: int) -> None:
        """Records steps without prompts."""
        self.alone = False
        if self.one:
            self.since = (self.since % self.one + steps - 1) % self.one + 1
