"""Gradients reduced while the backward pass still runs: the part of it that a step waits for.

The layers' gradients come in buckets, the last layers' first; one collective runs at a time. The next step's forward
pass needs the first layers' first. First in, first out serves these last; last in, first out serves them as soon as
they are there, and the others while the forward pass already runs.
"""

import numpy as np

Array = np.ndarray
MOST = 8  # buckets modelled one by one


def exposed_closed(reduced: Array, backward: Array, forward: Array, layers: Array, lifo: Array) -> Array:
    """(n,) seconds beyond compute. `reduced`: of all gradients; `backward`, `forward`: of one micro batch."""
    buckets = np.minimum(layers, MOST)
    one = reduced / buckets
    late = np.maximum(reduced - backward * (1 - 1 / buckets), one)  # after the end of the backward pass
    return np.where(lifo, np.maximum(one, late - forward * (1 - 1 / buckets)), late)


def exposed(reduced: Array, backward: Array, forward: Array, layers: Array, lifo: Array) -> Array:
    """The same, bucket by bucket, without preemption."""
    reduced, backward, forward, layers, lifo = np.broadcast_arrays(reduced, backward, forward, layers, lifo)
    buckets = np.minimum(layers, MOST)
    most = int(buckets.max(initial=1))
    one = reduced / buckets
    number = np.arange(most)[:, None]
    there = number < buckets
    ready = np.where(there, (number + 1) * (backward / buckets), np.inf)
    ended = np.full(ready.shape, np.inf)
    open_ = there.copy()
    now = np.zeros(reduced.shape)
    column = np.arange(reduced.size)
    for _ in range(most):
        waiting = np.where(open_, ready, np.inf)
        now = np.maximum(now, waiting.min(axis=0))
        come = open_ & (ready <= now)
        chosen = np.where(lifo, most - 1 - come[::-1].argmax(axis=0), come.argmax(axis=0))
        any_ = come.any(axis=0)
        now = np.where(any_, now + one, now)
        ended[chosen[any_], column[any_]] = now[any_]
        open_[chosen[any_], column[any_]] = False
    begun = backward
    for place in range(most):  # the forward pass of the next step, from the first layers on
        bucket = buckets - 1 - place
        needed = np.where(bucket >= 0, ended[np.maximum(bucket, 0), column], 0.0)
        begun = np.maximum(begun, needed) + np.where(bucket >= 0, forward / buckets, 0.0)
    return begun - backward - forward
