"""Latencies of requests under a sustained load, from the queueing model of lasting.py.

A load ends before its queues reach the stationary length, and the actual queues are shorter, the more so the closer the
engine is to saturation. For a queue that starts empty in heavy traffic (a reflected Brownian motion), the mean length
at time t is the stationary mean times

H(t) = 1 − 2 (1 + t) Φ(−√t) + 2 √t φ(√t), t = requests · (1 − utilization)² / (1 + squared variation of service times)

(Abate and Whitt, Transient behavior of regulated Brownian motion, 1987); the latencies use the average of H over the
duration of the load. All constants below are assumed, not fitted."""

import numpy as np
from scipy.special import ndtr, ndtri

from autoscout.simulate.serving.lasting import (
    EDGE,
    FULLEST,
    HALVINGS,
    Array,
    Balance,
    Load,
    Waits,
    quantile,
    used_of,
    waits,
)

_STABLE = 0.995  # largest utilization in the stationary formula; above it, the queue grows until the load ends
_FAR = 0.5  # tail of the wait in an initially empty queue, relative to that of a stationary queue
_MOSTLY = 0.7  # quantile above which latencies are dominated by waits for a free slot
_TIMES = np.exp(np.linspace(-14, 8, 400))  # grid of the table _MEANS, in units of the queue's relaxation time


def _mean_until(times: Array) -> Array:
    """(n,) mean of H over [0, t], for ascending times t."""
    root = np.sqrt(times)
    share = 1 - 2 * (1 + times) * ndtr(-root) + 2 * root * np.exp(-times / 2) / np.sqrt(2 * np.pi)
    area = np.cumsum(np.diff(times) * (share[1:] + share[:-1]) / 2)
    return np.concatenate([share[:1] * times[:1], area + share[0] * times[0]]) / times


_MEANS = _mean_until(_TIMES)


def _risen(times: Array) -> Array:
    return np.interp(np.log(np.maximum(times, _TIMES[0])), np.log(_TIMES), _MEANS)


class Felt:
    """Means and quantiles of TTFT, TPOT, ITL and E2EL, (n,) seconds each."""

    def __init__(self, load: Load, b: Balance, way: Array) -> None:
        """`way`: (n,) seconds that a prompt's last tokens spend in the later pipeline stages."""
        self.load, self.balance, self.way = load, b, way
        s, k, closed = load.s, b.read, load.closed
        self.per_step = s.engine.per_step
        each = b.answers.token / self.per_step
        gaps, several = load.outputs.tokens - 1, load.outputs.tokens >= 1.5
        answer = load.outputs.mean(gaps * each)
        self.several = load.outputs.weights * several / np.maximum(load.outputs.mean(1.0 * several), 1e-12)
        self.tpot = (self.several * each).sum(axis=0)
        self.itl = answer * self.per_step / np.maximum(load.outputs.mean(gaps), 1e-12)
        whole = load.users / np.maximum(b.rate, 1e-12)
        self.requests = s.requests / s.replicas
        self.turn = load.turn(b.rate, b.answers.plain, b.running)
        self.waits, self.far = self._turn()
        self.made_up = load.made_up(b.answers.plain, b.running) * load.others
        alone = self.waits.busy * self.waits.wait + self.turn / 2 + self.made_up
        self.waited = np.where(
            closed, np.maximum(whole - load.in_front - k.moments[0] - way - answer, load.others * alone), alone
        )
        self.queued = b.rate * self.waited
        use = np.where(closed, 0.0, np.minimum(load.rate / b.capacity, 1e9))
        self.place, self.often, self.far_place = self._place(use)
        self.growing = np.maximum(use - 1, 0.0) * (self.requests / np.maximum(load.rate, 1e-12)) / 2
        # All users of a closed loop send their first request at once.
        self.once = np.where(closed, np.minimum(load.users / self.requests, 1.0), 0.0)
        self.burst = np.minimum(load.users, load.places) / k.most
        first = self.once * np.maximum(self.burst / 2 - self.waited, 0.0)
        self.ttft = load.in_front + k.moments[0] + way + self.waited + first + self.place + self.growing
        self.e2el = self.ttft + answer
        self.use = np.where(closed, 1.0, use)
        served = np.where(closed, b.rate, np.minimum(load.rate, b.capacity))
        rounds = self.requests / np.maximum(np.minimum(load.places, load.users), 1e-12)
        last = np.where(len(load.outputs.weights) == 1, np.ceil(rounds - 0.01) - rounds, 0.5)
        # The last requests of a full engine run in ever smaller batches. `requests / served` includes waits for slots.
        last = np.where(closed, last, 1 - np.minimum(use, 1.0) / 2)
        seconds = self.requests / np.maximum(served, 1e-12) + last * (k.moments[0] + answer)
        self.seen = self.requests / seconds  # requests per second of the whole run
        self.ending = 1 - self.requests / np.maximum(served, 1e-12) / seconds  # share of the run after the last arrival

    def _turn(self) -> tuple[Waits, Array]:
        """(the wait of a prompt for its first step, (n,) the tail of this wait relative to a stationary queue's).
        Prompts that arrive during a step are computed in the next one, together if they fit. If λ prompts per second
        each add b seconds to a step that takes `plain` seconds without prompts, and ρ = λ b, a mean step takes S =
        plain / (1 − ρ). An arriving prompt meets a step of S + λ E[b²] / (1 − ρ²) on average, waits for half of it, and
        then for the prompts that arrived during it. If they do not fit into one step, the queue is M/G/1, and its
        service time is the time that a prompt occupies in full steps."""
        load, b = self.load, self.balance
        k, plain, mean = b.read, b.answers.plain, load.inputs.mean
        w = waits(k, b.rate)
        adds = np.minimum(b.rate * k.adds, FULLEST)
        found = self.turn / (1 - adds) + b.rate * mean((k.own - k.steps * plain) ** 2) / (1 - adds**2)
        at_once = found * (0.5 + adds)
        used, uneven = used_of(k, b.rate), mean(load.inputs.tokens**2) / mean(load.inputs.tokens) ** 2
        risen = _risen(self.requests * (1 - used) ** 2 / uneven)
        queue = used / k.most * uneven / 2 / (1 - used) * risen
        wait = np.maximum(np.maximum(at_once, queue + self.turn / 2) - self.turn / 2, 1e-9) / w.busy
        far = _FAR + (1 - _FAR) * risen * np.sqrt(np.minimum(queue / np.maximum(at_once, 1e-12), 1.0))
        return w._replace(wait=np.where(load.closed, w.wait, wait)), np.where(load.closed, 1.0, far)

    def _place(self, use: Array) -> tuple[Array, Array, Array]:
        """(seconds that a request waits for a free slot, the probability of waiting, the wait's tail relative to a
        stationary queue's), by Sakasegawa's approximation of M/G/c with one server per slot. `use`: utilization. All
        slots are busy at once less often than the utilization suggests, because requests are answered faster in smaller
        batches. The first requests find free slots and do not wait."""
        places, b, stable = self.load.places, self.balance, np.minimum(use, _STABLE)
        uneven = 1 + float(np.var(self.load.s.output_quantiles))
        often = np.minimum(b.running / places, stable) ** (np.sqrt(2 * (places + 1)) - 1)
        later = np.maximum(self.requests - places, 0.0)
        risen = _risen(later * (1 - stable) ** 2 / uneven)
        queue = uneven / 2 / (b.capacity * (1 - stable)) * risen
        return often * queue * later / self.requests, often, _FAR + (1 - _FAR) * risen

    def ttft_at(self, q: float) -> Array:
        load, k, plain = self.load, self.balance.read, self.balance.answers.plain
        # In a closed loop, the length of a long queue hardly varies.
        full = np.where(load.closed, self.queued / (1 + self.queued), 0.0)
        wide = self.waited / np.sqrt(1 + self.queued) + self.turn / 4
        turn = plain / 2 + (self.turn - plain) * q + self.made_up
        busy = np.maximum(self.waits.busy * load.others, 1e-9)
        waited = np.maximum(self.waited - self.made_up, 0.0)
        felt = self.waits._replace(busy=busy, wait=np.where(load.closed, waited / busy, self.waits.wait))
        most = np.where(load.closed, np.maximum(load.users - 1, 0) * k.moments[0] + self.waited, 20 * self.ttft)

        def share(seconds: Array) -> Array:
            left = seconds - k.own
            steady = ndtr((left - self.waited) / wide)
            return load.inputs.mean(full * steady + (1 - full) * felt.within(left - turn))

        longest = k.own.max(axis=0) + self.turn + self.made_up + most
        read = quantile(np.zeros_like(plain), longest, q, share, HALVINGS + 4)
        begun = self.burst * np.clip((q - 1 + self.once) / np.maximum(self.once, 1e-9), 0, 1)
        usual = k.moments[0] + self.waited
        read = np.where(read > usual, usual + (read - usual) * self.far, read)
        waited = np.maximum(read + self.way, begun)
        often = np.sqrt(np.maximum(self.often, 1e-12))  # waits overlap, so more requests wait, but for a shorter time
        place = self.place / often * np.maximum(np.log(often / (1 - q)), 0.0)
        return load.in_front + waited + place * np.where(q > _MOSTLY, self.far_place, 1.0) + 2 * self.growing * q

    def tpot_at(self, q: float) -> Array:
        """(n,) quantile q of TPOT. Step times grow with the running requests (`elastic`), which fluctuate like a
        Poisson variable."""
        n, b = np.maximum(self.balance.running, 1.0), self.balance
        elastic = np.log(self.load.plain(n * 1.1 + 0.1) / self.load.plain(n)) / np.log((n * 1.1 + 0.1) / n)
        crowded = np.exp(float(ndtri(q)) * elastic * np.where(self.load.closed, 0.3, 1.0) / np.sqrt(n))
        return b.answers.at(self.several, q) * crowded / self.per_step

    def itl_at(self, q: float) -> Array:
        b, k, above = self.balance, self.balance.read, 1 - q
        mean, plain = self.load.inputs.mean, self.balance.answers.plain
        rate = self.load.others * b.rate
        starts = rate * b.token * mean(k.steps)
        some = -np.expm1(-starts)
        share_full = some * mean(np.floor(self.load.inputs.tokens / k.chunk)) / mean(k.steps)
        number = rate * b.answers.by_time  # number of prompts that arrive during a step with prompts
        beyond = ndtri(np.clip(1 - above / np.maximum(some, 1e-9), EDGE, 1 - EDGE))
        drawn = np.maximum(number + beyond * np.sqrt(number), 1.0)
        several = np.minimum(plain + (k.small - plain) * mean(self.load.inputs.tokens) / k.few * drawn, k.full)
        return np.where(above < share_full, k.full, np.where(above < some, several, plain))

    def e2el_at(self, q: float) -> Array:
        """(n,) quantile q of E2EL. Waits and answer lengths are assumed independent, so beyond the median their squared
        deviations add up."""
        each, token = self.balance.answers.token / self.per_step, self.balance.token / self.per_step
        usual, long = (self.load.s.output_len * self.load.s.output_quantiles[round(100 * p)] - 1 for p in (0.5, q))
        half = len(each) // 2  # the length classes on both sides of the median
        own = usual * (each[half - 1 : half + 1].mean(axis=0) if half else each[0])
        # The median of a sum lies below its mean. The difference is smaller than the sum of the components' differences
        # of mean and median, and mostly that of the more skewed component.
        wait_s = self.ttft_at(0.5)
        below, shorter = self.ttft - wait_s, self.e2el - self.ttft - own
        squares = np.maximum(below**2 + shorter**2, 1e-18)
        middle = self.e2el - (below**3 + shorter**3) / squares
        if q == 0.5:
            return middle
        first, slow = self.ttft_at(q) - wait_s, self.tpot_at(q) - self.tpot_at(0.5)
        return middle + np.sqrt(first**2 + ((long - usual) * token) ** 2 + (usual * slow) ** 2)
