"""Sessions: requests that continue each other, in conversations or in agents with side calls."""

from dataclasses import dataclass

import numpy as np

from kb.records import Sessions, Traffic

_PART = 4  # an agent's side call adds 1/4 of the tokens of a turn


@dataclass(frozen=True)
class Talks:
    """Requests of sessions, as arrays of shape (n,), ordered by session and by stage in the session. The requests of a
    stage are sent when all requests of the previous stage are answered. Turns have even stages; the side calls after a
    turn have the next odd stage.

    `on`: index of the request whose prompt and answer begin this prompt, -1 for none. `own`: number of new tokens in
    the prompt (in a first turn, after the prefix shared by its `group`). `input_len`: tokens of the whole prompt."""

    session: np.ndarray
    stage: np.ndarray
    on: np.ndarray
    group: np.ndarray
    own: np.ndarray
    input_len: np.ndarray
    output_len: np.ndarray

    def __len__(self) -> int:
        return len(self.session)


def talks(traffic: Traffic, sessions: Sessions, count: int, rng: np.random.Generator) -> Talks:
    """Draws whole sessions until there are at least `count` requests."""
    rows: list[tuple[int, int, int, int, int, int, int]] = []
    number = 0
    while len(rows) < count:
        turns = int(drawn(sessions.turns, 1, rng)[0])
        group = int(rng.integers(sessions.groups))
        inputs, outputs = drawn(traffic.input_len, turns, rng), drawn(traffic.output_len, turns, rng)
        before, context = -1, traffic.shared_prefix
        for turn in range(turns):
            asked, answered = int(inputs[turn]), int(outputs[turn])
            rows.append((number, 2 * turn, before, group, asked, context + asked, answered))
            before, context = len(rows) - 1, context + asked + answered
            if turn + 1 < turns:
                part = max(1, asked // _PART)
                side_call = (number, 2 * turn + 1, before, group, part, context + part, max(1, answered // _PART))
                rows += [side_call] * sessions.sub_calls
        number += 1
    return Talks(*np.array(rows, dtype=int).T)


def longest(traffic: Traffic, sessions: Sessions) -> int:
    """Returns the maximum prompt length in tokens."""
    turns, asked, answered = (
        max(given) if isinstance(given, list) else given
        for given in (sessions.turns, traffic.input_len, traffic.output_len)
    )
    return traffic.shared_prefix + turns * asked + (turns - 1) * answered


def drawn(given: int | list[int], count: int, rng: np.random.Generator) -> np.ndarray:
    """Returns `count` copies of a number, or `count` random draws interpolated between evenly spaced quantiles. Each is
    at least 1."""
    if not isinstance(given, list):
        return np.full(count, int(given))
    at = np.linspace(0, 1, len(given))
    return np.maximum(np.rint(np.interp(rng.random(count), at, given)), 1).astype(int)
