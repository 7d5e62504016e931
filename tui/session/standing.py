"""A session's status as text, with its meaning and what the user can do."""

import shlex
import time
from typing import Literal

import msgspec

from autoscout.job.duration import seconds
from tui.session.state import State
from tui.text import clock

SILENT_S = 30.0  # how long there may be no event while no experiment is running, in seconds
Kind = Literal[
    "empty", "loading", "starting", "running", "waiting", "paused", "silent", "crashed",
    "infeasible", "failed", "interrupted", "ended",
]  # fmt: skip
_PHASES = {
    "starting": "starting",
    "default": "measuring the default",
    "opening": "looking around",
    "tournament": "tournament",
    "search": "searching",
    "repeat": "measuring front-runners again",
    "confirm": "re-measuring the finalists",
    "ended": "ended",
}
REASONS = {
    "budget": "the budget of experiments is spent",
    "wall": "the wall-clock budget is spent",
    "failures": "as many runs failed as the job allows",
    "device_time": "the budget of device time is spent",
    "converged": "no improvement for a long time",
    "settled": "probably no configuration is at least 1 % better",
    "exhausted": "every configuration of the space was tried",
    "interrupted": "interrupted",
    "failed": "failed",
    "profiled": "one experiment, profiled",
    "stopped": "the user stopped it",
}
MARKS = {
    "waiting": ("◌", "~"),
    "paused": ("‖", "="),
    "silent": ("!", "!"),
    "crashed": ("✗", "x"),
    "infeasible": ("✗", "x"),
    "failed": ("✗", "x"),
    "interrupted": ("✗", "x"),
    "ended": ("■", "#"),
}


class Standing(msgspec.Struct, frozen=True):
    kind: Kind
    words: str
    advice: str = ""  # what the user should know or do; "" if there is nothing


def standing(state: State, alive: bool | None, read: float = 1.0, message: str = "", kb: str = "") -> Standing:
    """A session's status. `alive`: whether its process is running, None for a recording; `read`: share of the journal
    that has been read; `message`: the engine's last message; `kb`: the knowledge base, if it is not the default one."""
    resume = shlex.join(["autoscout", "tune", "--resume", state.session, *(["--kb", kb] if kb else [])])
    if state.job is None:
        if read < 1.0:
            return Standing("loading", "reading the journal …")
        return Standing("empty", "waiting for the session to begin …", "the journal holds no event yet")
    if read < 1.0:
        return Standing("loading", f"reading the journal: {read:.0%}")
    if state.ended is not None:
        return _ended(state, message, resume)
    phase = _PHASES.get(state.phase, state.phase)
    if alive is False:
        lost = " The running experiment is lost." if state.running else ""
        output = f" Its last message: {message}" if message else ""
        return Standing(
            "crashed",
            "the session's process is gone",
            f"{state.searched} experiments are kept.{lost}{output}\ncontinue it:  {resume}",
        )
    if state.waiting is not None:
        return _waiting(state)
    if state.paused and not state.running:
        return Standing("paused", "paused; p continues")
    if alive and (silent := _silent(state)):
        return silent
    if state.phase == "starting" and not state.runs:
        return Standing("starting", "starting: builds the space, fits the simulators, checks the machine")
    return Standing("running", f"pausing after this experiment: {phase}" if state.paused else phase)


def _ended(state: State, message: str, resume: str) -> Standing:
    assert state.ended is not None
    over, why = state.ended, state.ended.problem or message
    if over.reason == "failed" and (over.exit_code == 3 or (state.failures and state.best is None)):
        advice = "relax the constraint that is missed, allow more of the space, or raise the budget"
        return Standing("infeasible", "ended: nothing feasible", advice if state.failures else why)
    if over.reason == "failed":
        return Standing("failed", "ended: failed", f"{why}\ntry again:  {resume}".strip())
    if over.reason == "interrupted":
        return Standing("interrupted", "ended: interrupted", f"everything measured is kept; continue it:  {resume}")
    more = f"nothing is proven yet; continue the final rounds with a longer limit:  {resume} --wall 2h"
    advice = more if cut_short(state) else ""
    return Standing("ended", f"ended: {REASONS.get(over.reason, over.reason)}", advice)


def cut_short(state: State) -> bool:
    """Whether the wall-clock limit ended the final rounds before they decided."""
    by_limit = state.ended is not None and state.ended.reason == "wall"
    return by_limit and state.confirmed is not None and not state.confirmed.decided


def _waiting(state: State) -> Standing:
    assert state.waiting is not None
    holder = state.waiting
    who = f"session {holder.holder}" if holder.holder else "another AutoScout"
    process = f" (process {holder.pid})" if holder.pid else ""
    since = time.strftime("%H:%M:%S", time.localtime(holder.at))
    return Standing(
        "waiting",
        f"waiting for the devices for {clock(max(0.0, state.now - holder.at))}",
        f"{who}{process} measures on this machine; this session has waited since {since} and will continue by itself",
    )


def _silent(state: State) -> Standing | None:
    """The status of a session that has had no event for too long, else None. The limit is SILENT_S, plus the job's
    timeout during an experiment; while the session starts, it is 120 s or a tenth of the time budget, if longer."""
    assert state.job is not None
    silence = state.now - state.last
    allowed = SILENT_S + (state.job.launch.timeout_s if state.running else 0.0)
    wall = seconds(state.job.budget.wall) if state.job.budget.wall else 0.0
    if silence <= allowed or (state.phase == "starting" and not state.running and silence <= max(120.0, wall / 10)):
        return None
    ran = f"the experiment should have ended after {state.job.launch.timeout_s:g} s" if state.running else (
        "no experiment runs; the engine may fit a model of a large space, or hang"
    )  # fmt: skip
    return Standing(
        "silent",
        f"engine silent for {clock(silence)}",
        f"{ran}.  autoscout stop {state.session} --now  ends it, and what was measured is kept",
    )
