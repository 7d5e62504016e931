"""The Python face of a session: the same loop, journal, knowledge base and stopping rule as `tune`, driven by you.

study = autoscout.Study("job.toml")
while study.wants_more():
    for configuration in study.ask(2):
        study.tell(configuration, {"step_time_s": 0.27})      # or tell(configuration, failed="oom")
study.best()
"""

from kb.records import Status, Value

Knobs = dict[str, Value]
_FAILURES: tuple[Status, ...] = ("oom", "invalid", "error", "timeout", "wrong", "infrastructure", "killed")
