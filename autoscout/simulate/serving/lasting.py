"""The queueing model of a sustained load of unsynchronized requests: their number, rate and waits.

A prompt is computed in full chunks and a last step for the remainder. It adds c seconds to the steps of decoding
requests, so with n running requests and λ requests per second, a token takes

t = decode(n) / (1 − λ c), n = λ · output · t (Little's law)

A prompt waits as in an M/G/1 queue with utilization u and prefill time S: λ E[S²] / 2 (1 − u) on average, so long
prompts count by their square. For a decoding request, steps with and without prompts alternate as a two-state Markov
chain that begins right after its own prompt. Steps with prompts are few, but long, so many requests arrive during one.
Such steps are therefore a larger share of a short answer's steps than of a long one's. In a closed loop every user has
one request in progress, so λ is the rate at which the number of requests in progress equals the number of users."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from autoscout.simulate.serving.lockstep import alone_s, waits_s
from autoscout.simulate.serving.setup import Setup
from autoscout.simulate.serving.steps import decode_step_s, prefill_step_s

Array = np.ndarray
# Boundaries of the classes into which requests are divided by length, as quantiles; finer where lengths matter most.
_EDGES = np.array([0.0, 0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0])
_ROUNDS, _LITTLE = 10, 2  # bisection rounds for a closed loop's rate, and iterations of Little's law in each
_OPEN = 6  # iterations of Little's law for an open load
_FILLED = 2  # iterations until a full engine's step times match its number of running requests
HALVINGS = 12  # bisection steps to find a quantile
FULLEST = 0.98  # largest utilization in the stationary formulas, which diverge at 1
# An open load starts and ends with an empty engine, which reduces the mean number of running requests by this factor
# times (answer time / load time). Assumed; the factor would be 1/3 if answers took equally long at any load.
_BEGINS = 0.5
RUNNING = 0.97  # mean filled share of a saturated KV cache, which preemptions keep below 1; assumed
_SEVERAL = 2.0  # mean number of waiting prompts above which `held_several` applies (see held_back.py)
EDGE = 1e-6  # minimum distance of shares from 0 and 1, to keep their probits finite


class Lengths(NamedTuple):
    """Lengths of requests by class: (j, n) mean tokens of each class and (j, 1) its share of the requests; j = 1 if all
    requests have the same length."""

    tokens: Array
    weights: Array

    def mean(self, values: Array) -> Array:
        return (self.weights * values).sum(axis=0)


def lengths(quantiles: Array, mean: Array) -> Lengths:
    """Divides requests into the classes of _EDGES. `quantiles`: (101,) lengths / mean, at 0, 1, … 100 %."""
    if quantiles[0] == quantiles[100]:
        return Lengths(mean[None], np.ones((1, 1)))
    weights = np.diff(_EDGES)
    relative = np.interp((_EDGES[1:] + _EDGES[:-1]) / 2, np.linspace(0, 1, 101), quantiles)
    return Lengths(np.maximum((relative / (weights * relative).sum())[:, None] * mean, 1.0), weights[:, None])


def quantile(low: Array, high: Array, q: float, share: Callable[[Array], Array], halvings: int) -> Array:
    """(n,) the point between `low` and `high` where the distribution function `share` reaches q, by bisection."""
    for _ in range(halvings):
        middle = (low + high) / 2
        enough = share(middle) >= q
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return (low + high) / 2


class Load(NamedTuple):
    """The load of one engine, (n,) each. `cached`: prompt tokens from the prefix cache; `context`: mean context of a
    running request; `places`: slots, the limit on running requests; `users` (closed loop) or `rate` in requests per
    second; `in_front`: seconds of a request before it reaches the engine."""

    s: Setup
    inputs: Lengths  # prompt tokens to compute, without the cached ones
    outputs: Lengths
    cached: Array
    context: Array
    places: Array
    users: Array
    rate: Array
    in_front: Array

    @property
    def closed(self) -> Array:
        return self.users > 0

    @property
    def others(self) -> Array:
        """Share of the requests that may delay a given request: in a closed loop, those of the other users."""
        return np.where(self.closed, np.maximum(self.users - 1, 0.0) / np.maximum(self.users, 1.0), 1.0)

    def plain(self, n: Array) -> Array:
        """Seconds of a step without prompts, in which n sequences (at least one) decode."""
        n = np.maximum(n, 1.0)
        return decode_step_s(self.s.engine, n, n * self.context) * self.s.engine.per_step

    def turn(self, rate: Array, plain: Array, n: Array) -> Array:
        """Seconds between steps that may contain prompts (see held_back.py), while n requests run."""
        s = self.s
        several = rate * plain * (s.held + 1) > _SEVERAL
        held = np.where(several, np.minimum(s.held_several, s.held), s.held)
        return plain * np.maximum(np.where(n >= s.held_from, held, 0.0) + (s.version == 1), 1.0)

    def made_up(self, plain: Array, n: Array) -> Array:
        """Seconds that a prompt waits for the step that is already prepared when it arrives; 0 if no requests run."""
        return self.s.ahead * plain * np.minimum(n, 1.0)


def load_of(s: Setup, tokens: Array, room: Array, in_front: Array) -> Load:
    """The load of one engine, given (n,) tokens to compute per prompt, tokens that fit into the cache, and Load's
    `in_front`."""
    inputs, outputs = lengths(s.input_quantiles, s.input_len), lengths(s.output_quantiles, s.output_len)
    cached = s.input_len - tokens
    inputs = inputs._replace(tokens=np.maximum(inputs.tokens - cached, 1.0))
    answered = outputs.mean(outputs.tokens**2) / (2 * outputs.mean(outputs.tokens))  # mean generated tokens
    in_memory = RUNNING * room / (tokens + answered * (1 + s.reserved))
    places = np.minimum(s.max_seqs, np.maximum(in_memory, 1.0))
    users, rate = s.concurrency / s.replicas, s.rate / s.replicas
    return Load(s, inputs, outputs, cached, s.input_len + answered, places, users, rate, in_front)


class Reading(NamedTuple):
    """The prefill of prompts. (j, n) by length class: `own`: seconds; `steps`: number of steps; `left`: seconds of the
    last step if it has less than a full chunk. (n,) each: `plain`, `full`, `small`: seconds of steps without prompts,
    with a full chunk of `chunk` tokens and with a remainder of `few` tokens; `free`: prompt tokens that fit into a
    step; `adds`: seconds that a prompt adds to the steps of decoding requests; `moments`: E[own], E[own²], E[own³];
    `most`: highest prompts per second; `alone`: seconds that other engines wait for a prompt's step (lockstep.py)."""

    own: Array
    steps: Array
    left: Array
    plain: Array
    full: Array
    small: Array
    chunk: Array
    few: Array
    free: Array
    adds: Array
    moments: tuple[Array, Array, Array]
    most: Array
    alone: Array


def reading(load: Load, n: Array) -> Reading:
    """The prefill of prompts while n requests run."""
    s, e, prompts, mean = load.s, load.s.engine, load.inputs.tokens, load.inputs.mean
    free = np.maximum(s.batched_tokens * e.pp - n, 1.0)
    chunk = np.where(s.chunked, np.minimum(free, s.long_prompt * e.pp), prompts.max(axis=0))
    whole = np.floor(prompts / chunk)
    rest = prompts - whole * chunk
    some = rest > 0
    few = np.clip(mean(rest) / np.maximum(mean(1.0 * some), 1e-9), 1.0, chunk)
    owner = mean(prompts**2) / mean(prompts)  # mean prompt length, weighted by tokens
    beside, plain = n * load.context, load.plain(n)

    def step(tokens: Array, keys: Array) -> Array:
        return prefill_step_s(e, 1.0, tokens, tokens * keys, n, beside, s.batched_tokens)

    full = np.maximum(step(chunk, load.cached + owner / 2), plain)
    small = np.clip(step(few, load.cached + few / 2), plain, full)
    more = (full - small) / np.maximum(chunk - few, 1e-9)
    left = np.where(rest < few, plain + (small - plain) * rest / few, small + more * (rest - few)) * some
    own, steps = whole * full + left, whole + some
    a_token = (plain + (full - plain) * free / chunk) / free
    alone = np.zeros_like(plain)
    if np.any(e.meeting > 1):
        alone = alone_s(e, few, few * (load.cached + few / 2), n, beside, s.batched_tokens)
    return Reading(
        own=own,
        steps=steps,
        left=left,
        plain=plain,
        full=full,
        small=small,
        chunk=chunk,
        few=few,
        free=free,
        adds=mean(own - steps * plain),
        moments=(mean(own), mean(own**2), mean(own**3)),
        most=1 / (mean(prompts) * a_token),
        alone=alone,
    )


class Waits(NamedTuple):
    """The wait of a prompt behind other prompts, (n,) each. `busy`: probability that it waits; `wait`: mean seconds of
    a wait; `spread`: coefficient of variation of the waits, at least 1 (the value of an exponential distribution)."""

    busy: Array
    wait: Array
    spread: Array

    def within(self, seconds: Array) -> Array:
        """Probability that the wait is below `seconds`, by a hyperexponential distribution with balanced means."""
        uneven = np.sqrt((self.spread**2 - 1) / (self.spread**2 + 1))
        often, seldom = (1 + uneven) / 2, (1 - uneven) / 2
        after = np.maximum(seconds, 0.0) / np.maximum(self.wait, 1e-12)
        longer = often * np.exp(-2 * often * after) + seldom * np.exp(-2 * seldom * after)
        return np.where(seconds >= 0, 1 - self.busy * longer, 0.0)


def used_of(k: Reading, rate: Array) -> Array:
    """Share of the engine's capacity that prompts use."""
    return np.minimum(rate / k.most, FULLEST)


def waits(k: Reading, rate: Array) -> Waits:
    """Waits in an M/G/1 queue: the first two moments by Pollaczek and Khinchine."""
    first, second, third = k.moments
    used = used_of(k, rate)
    busy = np.clip(rate * first, 1e-9, FULLEST)
    wait = second / (2 * first) / (1 - used)
    squared = (2 * (busy * wait) ** 2 + rate * third / (3 * (1 - used))) / busy
    return Waits(busy, wait, np.sqrt(np.maximum(squared / wait**2 - 1, 1.0)))


class Answering(NamedTuple):
    """The decoding of answers. (j, n) by length class: `share`: mean share of an answer's steps that contain prompts;
    it varies between answers with a probit-normal distribution of location `middle` and scale `spread`. (n,) each:
    `by_time`, `plain`: seconds of a step with and without prompts."""

    share: Array
    middle: Array
    spread: Array
    by_time: Array
    plain: Array

    @property
    def token(self) -> Array:
        return self.plain + self.share * (self.by_time - self.plain)

    def at(self, weights: Array, q: float) -> Array:
        """(n,) quantile q of the seconds per token over all answers. `weights`: (j, n) share of each length class."""

        def share(probit: Array) -> Array:
            return (weights * ndtr((probit - self.middle) / self.spread)).sum(axis=0)

        ends = np.full(self.plain.shape, 8.0)
        return self.plain + ndtr(quantile(-ends, ends, q, share, HALVINGS)) * (self.by_time - self.plain)


def answering(load: Load, k: Reading, rate: Array, token: Array, plain: Array) -> Answering:
    mean, starts = load.inputs.mean, load.others * rate * token * load.inputs.mean(k.steps)
    # Prompts that arrive during a prefill share the next step, as far as its token budget allows.
    together = np.clip(
        starts / np.maximum(-np.expm1(-starts), 1e-12), 1.0, np.maximum(k.free / mean(load.inputs.tokens), 1.0)
    )
    mixed = mean((k.own - k.left) * k.full + k.left**2) / k.moments[0]
    by_time = plain + np.maximum(mixed - plain, 0.0) * together  # `mixed` may be computed for fewer running requests
    share = np.clip((token - plain) / np.maximum(by_time - plain, 1e-12), EDGE, 1 - EDGE)
    at_first = share * by_time / (share * by_time + (1 - share) * plain)
    used = used_of(k, rate)
    run = np.maximum(mean(k.own * k.steps) / k.moments[0] / (1 - used), 1.0)  # consecutive prompt steps
    kept = np.clip(1 - 1 / run - np.minimum(share / (1 - share) / run, 1.0), 0.0, 0.999)
    gaps = np.maximum(load.outputs.tokens - 1, 1.0)
    sums = (1 - kept**gaps) / (1 - kept)
    of_each = np.clip(share + (at_first - share) * sums / gaps, EDGE, 1 - EDGE)
    alike = np.clip(((1 + kept) / (1 - kept) - 2 * kept * sums / ((1 - kept) * gaps)) / gaps, EDGE, 1 - EDGE)
    correlation = np.clip(np.sin(np.pi / 2 * alike), EDGE, 1 - EDGE)  # exact if the mean share is 1/2
    spread = np.sqrt(correlation / (1 - correlation))
    return Answering(of_each, ndtri(of_each) * np.sqrt(1 + spread**2), spread, by_time, plain)


class Balance(NamedTuple):
    """The steady state of an engine, (n,) each. `rate`, `capacity`: actual and highest requests per second; `running`:
    mean number of running requests; `token`: mean seconds of a step; `waited`: the part of `token` spent waiting for
    other engines."""

    rate: Array
    capacity: Array
    running: Array
    token: Array
    waited: Array
    read: Reading
    answers: Answering


def balance(load: Load) -> Balance:
    """The steady state under a load. Steps with prompts hardly depend on the running requests, so the times of such
    steps are computed only twice."""
    gaps = np.maximum(load.s.output_len, 1.0) / load.s.engine.per_step
    k, capacity, n = _fullest(load, gaps)
    rate, n, plain, token = _settled(load, k, capacity, (n, k.plain), gaps)
    waited = _waited(load, k, rate, plain)  # wait for other engines, which `token` includes
    k = reading(load, _met(load, k, rate, n, gaps * token))
    slower = _slower(load, answering(load, k, rate, token, plain + waited), token)
    rate, n, _, token = _settled(load, k, capacity, (n, plain), gaps * slower)
    n = _met(load, k, rate, n, gaps * slower * token)
    plain = load.plain(n)
    token = np.where(load.closed, token, _step(load, k, rate, plain))
    waited, answers = _answers(load, k, rate, plain, token)
    return Balance(rate, capacity, n, token, waited, k, answers)


def _met(load: Load, k: Reading, rate: Array, n: Array, answer_s: Array) -> Array:
    """Mean number of running requests over the whole load; lower while an open load starts and ends (see _BEGINS)."""
    lasts = load.s.requests / load.s.replicas / np.maximum(rate, 1e-12)
    return np.where(load.closed, n, n / (1 + _BEGINS * (k.moments[0] + answer_s) / lasts))


def _answers(load: Load, k: Reading, rate: Array, plain: Array, token: Array) -> tuple[Array, Answering]:
    """((n,) seconds that a step without prompts waits for other engines, the decoding of answers)."""
    waited = _waited(load, k, rate, plain)
    return waited, answering(load, k, rate, token, plain + waited)


def _waited(load: Load, k: Reading, rate: Array, plain: Array) -> Array:
    if not np.any(k.alone > 0):
        return np.zeros_like(plain)
    share = np.minimum(rate * plain * load.inputs.mean(k.steps), 1.0)
    turn = load.turn(rate, plain, np.full_like(plain, np.inf)) / plain
    return waits_s(load.s.engine, k.alone, share, np.where(load.s.version == 1, turn, 1.0))


def _step(load: Load, k: Reading, rate: Array, plain: Array) -> Array:
    return (plain + _waited(load, k, rate, plain)) / np.maximum(1 - load.others * rate * k.adds, 1 - FULLEST)


def _fullest(load: Load, gaps: Array) -> tuple[Reading, Array, Array]:
    """(prefill, requests per second, running requests) at full load: all slots occupied, or prompts computed without a
    pause."""
    n = load.places
    k = reading(load, n)
    all_taken = k.plain

    def capacity_of(k: Reading) -> Array:
        return np.minimum(load.places / (gaps * all_taken + load.places * k.adds), k.most)

    for _ in range(_FILLED):
        capacity = capacity_of(k)
        n = np.minimum(load.places, capacity * gaps * _step(load, k, capacity, k.plain))
        k = reading(load, n)
    return k, capacity_of(k), n


def _settled(
    load: Load, k: Reading, capacity: Array, begun: tuple[Array, Array], gaps: Array
) -> tuple[Array, Array, Array, Array]:
    """((n,) requests per second, running requests, seconds of a step without prompts and of any step) in the steady
    state, by fixed-point iterations of Little's law and, for a closed loop, bisection of the rate. `begun`: running
    requests, and seconds of a step without prompts, to begin with."""
    n, plain = begun
    low, high = np.zeros_like(n), capacity
    most = np.where(load.closed, np.minimum(load.places, load.users), load.places)
    rate, time = np.minimum(load.rate, capacity), np.ones_like(n)
    token, wanted = plain, n
    rounds, little = (_ROUNDS, _LITTLE) if np.any(load.closed) else (1, _OPEN)
    for _ in range(rounds):
        rate = np.where(load.closed, (low + high) / 2, rate)
        wanted = rate * gaps * token
        for _ in range(little):
            n = (n + 3 * np.clip(wanted, 1e-3, most)) / 4
            plain = load.plain(n)
            token = _step(load, k, rate, plain)
            wanted = rate * gaps * token
        w, at_turn = waits(k, rate), load.turn(rate, plain, n) / 2 + load.made_up(plain, n)
        time = load.in_front + load.others * (w.busy * w.wait + at_turn) + k.moments[0] + gaps * token
        many = (rate * time >= load.users) | (wanted > load.places)
        low, high = np.where(many, low, rate), np.where(many, rate, high)
    # Bisection fails where one more running request makes the step time jump, and its resolution is too coarse for few
    # users.
    by_time = np.where(wanted > 0.99 * load.places, np.minimum(rate, load.users / time), load.users / time)
    return np.where(load.closed, np.minimum(by_time, capacity), rate), n, plain, token


def _slower(load: Load, answers: Answering, token: Array) -> Array:
    """(n,) time of an answer relative to the same number of mean steps. The ratio exceeds 1, because requests often
    start while other prompts are computed, so their steps contain prompts more often than the mean step."""
    gaps = load.outputs.tokens - 1
    taken = load.outputs.mean(gaps * answers.token) / np.maximum(load.outputs.mean(gaps) * token, 1e-12)
    return np.where(load.s.output_len > 1, np.maximum(taken, 1.0), 1.0)
