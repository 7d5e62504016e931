"""How much an engine takes at once, and which of its steps take prompts at all.

A scheduler that overlaps with the device prepares the next step while one runs (vLLM's step_with_batch_queue, SGLang's
event_loop_overlap), so a prompt that arrives meanwhile joins the step after that.

Three engines hold prompts back for longer. vLLM V0 schedules once per `num_scheduler_steps` steps. AMD's fork of V1
takes no prompts for VLLM_SUBSEQUENT_DECODE_STEPS steps while VLLM_MIN_REQUEST_DECODE_STEP requests run. TensorRT-LLM's
engines with attention data parallelism (`attention_dp_config` with `enable_balance`, PyExecutor._balance_adp_requests)
wait until each of them has a prompt, then `batching_wait_iters` more steps, and `timeout_iters` steps if some have
none. Only one engine is simulated: since requests are dealt out in turn, two prompts waiting here imply that every
other engine has one, too.
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
    reserved: float = 0.0  # share of the running requests' answers that must have room before a new request is admitted
    held: int = 0  # steps without prompts after one that may take some
    held_from: int = 0  # this applies while at least so many requests run
    held_several: int = 0  # the number of such steps if several prompts wait
    apart: int = 0  # number of waiting prompts from which steps with prompts alone may follow each other
    ahead: bool = False  # the next step is prepared while one runs


class Turns:
    """The turns of prompts while requests are decoded."""

    def __init__(self, limits: EngineLimits) -> None:
        self.one, self.several, self.apart = limits.held, min(limits.held_several, limits.held), limits.apart
        self.since, self.alone = self.one, False  # steps without prompts; whether the last turn had prompts alone

    def left(self, waiting: int) -> int:
        """Steps until the next turn; 0 in one."""
        if self.alone and waiting >= self.apart:
            return 0
        return max((self.several if waiting > 1 else self.one) - self.since, 0)

    def read(self, alone: bool) -> None:
        """Records a step with prompts. `alone`: nothing was decoded in it."""
        self.since, self.alone = 0, alone

    def passed(self, steps: int) -> None:
        """Records steps without prompts."""
        self.alone = False
        if self.one:
            self.since = (self.since % self.one + steps - 1) % self.one + 1
