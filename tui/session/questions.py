"""The ten questions of docs/knowledge-base.md, as SQL for a job."""

_TEN = {
    "What is best, and confirmed?": """
SELECT name, value, metric, gain, low, high, confirmed, cluster FROM best WHERE job = {job}""",
    "Which five are the best?": """
SELECT name, value, measurements, lowest, highest FROM results
WHERE job = {job} AND metric = {metric} AND value IS NOT NULL ORDER BY value LIMIT 5""",
    "Which knob matters most?": """
SELECT knob, max(behind) AS best_with_its_worst_value, arg_min(value, (behind, value)) AS best_value
FROM knob_effects WHERE job = {job} AND metric = {metric} GROUP BY knob ORDER BY 2 DESC, knob LIMIT 5""",
    "What fails, and why?": """
SELECT job, status, evidence, count(*) AS times, any_value(name) AS example
FROM failures GROUP BY job, status, evidence ORDER BY times DESC LIMIT 5""",
    "Where did the time go?": """
SELECT purpose, status, count(*) AS experiments, round(sum(cost_s)) AS seconds, round(sum(device_s)) AS device_seconds
FROM runs WHERE purpose != 'import' GROUP BY ALL ORDER BY seconds DESC""",
    "How did sessions end?": """
SELECT job, state, reason, experiments, failed, best, round(gain, 2) AS gain, warm_start
FROM sessions ORDER BY started DESC LIMIT 5""",
    "How far are simulators off?": """
SELECT simulator, sum(checks) AS checks, round(100 * avg(mape), 1) AS mape_percent,
    round(100 * avg(bias), 1) AS bias_percent
FROM simulator_accuracy GROUP BY simulator ORDER BY 3""",
    "Which knobs lead winners?": """
SELECT ordering[:3] AS begins_with, count(*) FILTER (WHERE winner) AS won, count(*) AS played
FROM orderings GROUP BY 1 ORDER BY won DESC, played DESC, begins_with LIMIT 5""",
    "What do versions change?": """
SELECT v.version AS torch, count(DISTINCT v.session) AS sessions, min(r.value) AS best_step_time_s
FROM versions AS v INNER JOIN results AS r ON r.context = v.context
WHERE v.component = 'torch' AND r.job = {job} AND r.metric = {metric} GROUP BY 1 ORDER BY 1""",
    "What were warm starts worth?": """
SELECT job, carried, tried, best_carried, round(100 * behind, 1) AS percent_behind, rank, first_within, experiments
FROM warm_starts ORDER BY session DESC LIMIT 5""",
}


def ten_questions(job: str, metric: str) -> dict[str, str]:
    """Each question with its SQL for this job and metric."""
    filled = {"{job}": _quoted(job), "{metric}": _quoted(metric)}
    found = {}
    for question, sql in _TEN.items():
        for name, value in filled.items():
            sql = sql.replace(name, value)
        found[question] = sql.strip()
    return found


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
