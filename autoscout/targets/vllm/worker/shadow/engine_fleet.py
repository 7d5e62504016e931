"""Several vLLM engines with one virtual clock, behind a router. A single engine is a fleet of one.

Each engine has its own time, at which its last step ends. Events are processed in order of time. At the end of an
engine's step, the step's answers are delivered, then the requests that have arrived are assigned, then the next step
begins."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

from simulators import loaded
from virtual_clock import VirtualClock
from virtual_engine import TOKEN

routing = loaded("fleet_router")


class FleetEngine:
    """A vLLM engine with simulated execution (VirtualExecutor). `role`: "reads" (prefills for decoding engines),
    "answers" (decodes after a different engine's prefill), or "both". `open`: unfinished request → whether it has a
    token."""

    def __init__(self, engine: Any, role: str, number: int, each_step: bool) -> None:
        self.engine, self.role, self.number, self.each_step = engine, role, number, each_step
        self._core = core = engine.engine_core.engine_core
        self.executor = core.model_executor
        self.executor.scheduler = core.scheduler
        self.clock: VirtualClock = self.executor.clock
        self.open: dict[str, bool] = {}
        self.sent: dict[str, float] = {}  # when each request of this load was sent to the engine
        self.said: list[Any] = []  # outputs of the engine's last step, which ends at the engine's time
        self.lost = False
        self._glides = 0  # next steps that need no decision of the scheduler (VirtualExecutor.glide)
        self._tokens: list[Any] = []  # outputs of such a step
        self._early: dict[str, int] = {}  # request → number of tokens that step() returned before vLLM does

    @property
    def busy(self) -> bool:
        return bool(self.said) or self.engine.has_unfinished_requests()

    def step(self) -> list[Any]:
        """Runs the engine's next step and returns its outputs. vLLM's scheduler takes most of a simulation's time, so
        steps that only add a token to each running request run without it; settle() schedules their tokens at once."""
        if self._glides:
            self._glides -= 1
            self.executor.glide(self._core.batch_queue is not None)
            return self._tokens
        self.settle()
        said = self._new(self.engine.step())
        self._glides = 0 if self.each_step else self.executor.glides(self._core.batch_queue)
        if self._glides:
            self._tokens = [_Token(r.request_id.split("-")[0]) for r in self.executor.scheduler.running]
        return said

    def settle(self) -> None:
        """Has the scheduler schedule the tokens of the steps that ran without it, like accepted draft tokens."""
        self._glides = 0
        if self.executor.ahead:
            self._early = {token.request_id: self.executor.ahead for token in self._tokens}
            for request in self.executor.scheduler.running:
                request.spec_token_ids = [-1] * (self.executor.ahead - 1)
            left = self._new(self.engine.step())
            assert not left, "vLLM returned tokens that the simulation had not foreseen"

    def _new(self, outputs: list[Any]) -> list[Any]:
        """Returns the outputs without tokens that were delivered before."""
        found = []
        for output in outputs:
            if early := self._early.pop(output.request_id, 0):
                tokens = output.outputs[0].token_ids
                output.outputs[0].token_ids = tokens[early:]
                self._early[output.request_id] = max(0, early - len(tokens))
            if output.finished or output.outputs[0].token_ids:
                found.append(output)
        return found

    def begun(self) -> dict[str, float]:
        """Returns request → time at which its first step on this engine began. (vLLM appends a suffix to request names,
        which is removed.)"""
        return {name.split("-")[0]: at for name, at in self.executor.counts.scheduled.items()}

    def counted(self, seconds: float) -> dict[str, Any]:
        counts, begun = self.executor.counts, self.begun()
        names = ("steps", "glided", "preemptions", "asked", "cached", "most_running", "received", "transferring")
        return {
            **{name: getattr(counts, name) for name in names},
            "busy": counts.busy / max(seconds, 1e-12),
            "begun": len(begun),
            "waited": sum(at - self.sent[name] for name, at in begun.items()),
            "role": self.role,
            "lost": self.lost,
        }

    def load(self) -> Any:
        scheduler = self.executor.scheduler
        used = scheduler.kv_cache_manager.usage
        return routing.EngineLoad(self.number, len(self.open), len(scheduler.waiting), used)


class EngineFleet:
    """Acts as both the LLMEngine and the clock of serve.answered(). `losses`: seconds since a load began → index of the
    engine that fails at this time, until the end of the load."""

    def __init__(
        self,
        engines: Sequence[tuple[Any, str]],
        policy: dict[str, Any],
        losses: Sequence[tuple[float, int]],
        each_step: bool = False,
    ) -> None:
        """`engines`: (engine, its role) of each engine. `each_step`: whether vLLM's scheduler runs in each step, even
        where there is nothing to decide."""
        self.engines = [FleetEngine(engine, role, number, each_step) for number, (engine, role) in enumerate(engines)]
        for engine in self.engines:
            engine.executor.hand_over = self._handed_over
        self._routers = {role: routing.FleetRouter(policy, len(engines)) for role in ("reads", "answers", "both")}
        self._first = "reads" if any(engine.role == "reads" for engine in self.engines) else "both"
        self._losses = sorted(losses)
        self._clock = VirtualClock()
        self._asked: dict[str, tuple[Any, Any]] = {}  # (prompt, parameters) of unfinished requests
        self._session: Callable[[str], int] = lambda _: -1
        self._coming: list[tuple[float, int]] = []
        self.placed: dict[str, int] = {}  # request → index of the engine that answers it
        self.failed: dict[str, str] = {}  # requests that a failed engine had partly answered

    def begin(self, session: Callable[[str], int], loses: bool) -> None:
        """Begins a new load. `session`: returns a request's session, -1 for none. `loses`: whether engines fail during
        this load."""
        at = max([self._clock.total, *(engine.executor.free_at() for engine in self.engines)])
        for engine in self.engines:
            engine.executor.begin(at)
            engine.sent = {}
        self._clock.begin(at)
        self._session, self._coming = session, list(self._losses) if loses else []
        self.placed, self.failed = {}, {}

    def now(self) -> float:
        return self._clock.now()

    def skip(self, seconds: float) -> None:
        self._clock.skip(seconds)

    def has_unfinished_requests(self) -> bool:
        return any(engine.busy for engine in self.engines)

    def add_request(self, name: str, prompt: Any, params: Any) -> None:
        self._asked[name] = prompt, params
        if self._first == "reads":
            params = copy.copy(params)
            params.max_tokens, params.extra_args = 1, {"kv_transfer_params": {"do_remote_decode": True}}
        self._send(name, prompt, params, self._first)

    def _send(self, name: str, prompt: Any, params: Any, role: str) -> None:
        there = [engine.load() for engine in self.engines if engine.role == role and not engine.lost]
        router = self._routers[role]
        begun = routing.beginnings(prompt["prompt_token_ids"], router.block) if router.block else []
        chosen = self.engines[router.pick(there, begun, self._session(name))]
        self.placed[name] = chosen.number
        chosen.open[name] = False
        chosen.sent[name] = self.now()
        if not chosen.busy:
            chosen.clock.skip(self._clock.total - chosen.clock.total)
        chosen.settle()
        chosen.engine.add_request(name, prompt, params)

    def abort_request(self, names: list[str]) -> None:
        for engine in self.engines:
            engine.settle()
            engine.engine.abort_request([name for name in names if name in engine.open])
            engine.open = {name: said for name, said in engine.open.items() if name not in names}

    def step(self, until: float = float("inf")) -> list[Any]:
        """Runs an engine's next step and advances the clock to its end; returns the step's outputs. [] if the time
        `until` comes first."""
        while busy := [engine for engine in self.engines if engine.busy and not engine.lost]:
            first = min(busy, key=lambda engine: (engine.clock.total, not engine.said))
            loss = self._coming[0][0] if self._coming else float("inf")
            if min(loss, until) < first.clock.now():
                self._clock.skip(min(loss, until) - self.now())
                if until <= loss:
                    return []
                if ended := self._lose(self._coming.pop(0)[1]):
                    return ended
                continue
            self._clock.skip(first.clock.total - self._clock.total)
            if first.said:
                said, first.said = first.said, []
                self._note(first, said)
                if first.role != "reads":
                    return said
                continue
            first.said = first.step()
        return []

    def _note(self, engine: FleetEngine, said: list[Any]) -> None:
        for output in said:
            name = output.request_id
            if output.finished:
                engine.open.pop(name, None)
                prompt, params = self._asked[name]
                if engine.role == "reads":
                    params = copy.copy(params)
                    params.extra_args = {"kv_transfer_params": {**output.kv_transfer_params, "engine": engine.number}}
                    self._send(name, prompt, params, "answers")
                else:
                    del self._asked[name]
            else:
                engine.open[name] = engine.role != "reads"

    def _handed_over(self, number: int, name: str, at: float) -> None:
        self.engines[number].executor.leaving.append((at, name))

    def _lose(self, number: int) -> list[Any]:
        """Fails an engine. Its requests that have no token yet are sent to other engines, and the rest of its requests
        fail. Returns the outputs of failed requests."""
        lost = self.engines[number]
        lost.lost, lost.said = True, []
        names, lost.open = dict(lost.open), {}
        lost.settle()
        lost.engine.abort_request(list(names))
        again = [name for name, began in names.items() if not began]
        for name in again:
            self.add_request(name, *self._asked[name])
        self.failed |= {name: f"engine {number} was lost" for name, began in names.items() if began}
        return [_Ended(name) for name, began in names.items() if began]

    def scheduled(self) -> dict[str, float]:
        """Returns request → time (seconds of the load) at which its first step began, on the first engine to which it
        was sent."""
        found: dict[str, float] = {}
        for engine in self.engines:
            if engine.role == self._first:
                for name, at in engine.begun().items():
                    found[name] = max(at, found.get(name, at))  # the later time, if the first engine failed
        return found

    def counted(self) -> list[dict[str, Any]]:
        """Returns each engine's counts in the last load (see served.EngineCounts)."""
        return [engine.counted(self.now()) for engine in self.engines]


class _Token:
    """An output with one token, which does not end the request."""

    finished = False
    token_ids = (TOKEN,)

    def __init__(self, name: str) -> None:
        self.request_id, self.outputs = name, (self,)


class _Ended:
    """The last output of a request whose engine failed: no token."""

    finished = True
    token_ids: tuple[int, ...] = ()

    def __init__(self, name: str) -> None:
        self.request_id, self.outputs = name, (self,)
