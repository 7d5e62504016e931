-- Whose word a row is: what came through a lake is answered for by who signed it, and counts for as much as that author
-- is trusted. Rows of sessions without an author are our own.

CREATE TABLE author (
    session VARCHAR PRIMARY KEY,
    author VARCHAR NOT NULL  -- as `autoscout kb trust` calls them; unsigned: nobody that is known signed it
);

CREATE TABLE trust (
    author VARCHAR PRIMARY KEY,
    level VARCHAR NOT NULL,  -- answer · hint · ignore
    key VARCHAR NOT NULL,  -- public ssh key; '' of unsigned
    unix_s DOUBLE NOT NULL  -- of the decision
);

CREATE VIEW authors AS
SELECT a.session, a.author, coalesce(t.level, 'hint') AS level
FROM author AS a
LEFT JOIN trust AS t ON t.author = a.author;

-- What follows is as it was, of those whose word answers.

CREATE OR REPLACE VIEW results AS
WITH sample AS (
    SELECT
        m.origin, m.configuration, m.status, s.cluster, o.context, o.job_id, m.other_metrics,
        b.job, b.goal, b.metric, b.constraints, b.limits,
        [
            m.step_time_s, m.step_time_min_s, m.tokens_per_s, m.peak_memory_gib, m.cpu_s, m.ttft_mean_ms,
            m.ttft_p50_ms, m.ttft_p99_ms, m.tpot_mean_ms, m.tpot_p50_ms, m.tpot_p99_ms, m.itl_p99_ms,
            m.e2el_mean_ms, m.e2el_p99_ms, m.requests_per_s, m.output_tokens_per_s, m.total_tokens_per_s,
            m.goodput_rps
        ] AS metrics,
        [
            'step_time_s', 'step_time_min_s', 'tokens_per_s', 'peak_memory_gib', 'cpu_s', 'ttft_mean_ms',
            'ttft_p50_ms', 'ttft_p99_ms', 'tpot_mean_ms', 'tpot_p50_ms', 'tpot_p99_ms', 'itl_p99_ms',
            'e2el_mean_ms', 'e2el_p99_ms', 'requests_per_s', 'output_tokens_per_s', 'total_tokens_per_s',
            'goodput_rps'
        ] AS names
    FROM measurement AS m
    INNER JOIN origin AS o ON o.key = m.origin
    INNER JOIN session AS s ON s.id = o.session
    INNER JOIN objectives AS b ON b.job_id = o.job_id AND b.cluster = s.cluster
    WHERE
        m.fidelity = 'measured' AND m.status != 'infrastructure'
        AND o.session NOT IN (SELECT session FROM authors WHERE level != 'answer')
),

judged AS (
    SELECT
        * EXCLUDE (metrics, names, other_metrics),
        -- A metric without a column of its own is in other_metrics. A constraint on what was not measured is not met.
        coalesce(
            metrics[list_position(names, metric)], try_cast(other_metrics ->> metric AS DOUBLE)
        ) AS measured,
        status = 'ok' AND measured > 0 AND len(list_filter(
            list_transform(constraints, lambda c: {
                'is': coalesce(
                    metrics[list_position(names, trim(regexp_extract(c, '^[^<>]*')))],
                    try_cast(other_metrics ->> trim(regexp_extract(c, '^[^<>]*')) AS DOUBLE)
                ),
                'than': trim(regexp_extract(c, '[<>]=?')),
                'bound': try_cast(regexp_extract(c, '[<>]=?(.*)$', 1) AS DOUBLE)
            }),
            lambda k: NOT coalesce(
                CASE k.than
                    WHEN '<=' THEN k.is <= k.bound
                    WHEN '>=' THEN k.is >= k.bound
                    WHEN '<' THEN k.is < k.bound
                    WHEN '>' THEN k.is > k.bound
                END, false)
        )) = 0 AS good
    FROM sample
),

grouped AS (
    SELECT
        job, job_id, context, cluster, goal, metric, constraints, limits, configuration,
        median(measured) FILTER (WHERE good) AS value,
        min(measured) FILTER (WHERE good) AS lowest,
        max(measured) FILTER (WHERE good) AS highest,
        count(*) FILTER (WHERE good) AS measurements,
        count(*) FILTER (WHERE status != 'ok') AS failed,
        bool_or(status = 'wrong') AS wrong
    FROM judged
    GROUP BY ALL
)

SELECT
    g.job, c.name, if(g.wrong, NULL, g.value) AS value, g.metric, g.goal, g.measurements, g.failed, g.wrong,
    g.lowest, g.highest, g.constraints, g.cluster, g.context, g.limits, g.job_id, c.id AS configuration_id,
    c.knobs AS configuration
FROM grouped AS g
INNER JOIN configuration AS c ON c.key = g.configuration
WHERE
    -- Within the limits of [space]; an inactive knob breaks none.
    coalesce(len(list_filter(
        map_entries((g.limits -> 'fix')::MAP(VARCHAR, VARCHAR)),
        lambda e: coalesce(c.knobs ->> e.key, e.value) != e.value)), 0) = 0
    AND coalesce(len(list_filter(
        map_entries((g.limits -> 'limit')::MAP(VARCHAR, VARCHAR[])),
        lambda e: NOT coalesce(list_contains(e.value, c.knobs ->> e.key), true))), 0) = 0;

CREATE OR REPLACE VIEW best AS
WITH confirmed AS (
    SELECT
        s.job_id, s.context, s.cluster, s.goal, s.metric, s.constraints, s.job -> 'space' AS limits,
        arg_max(d.body, s.unix_s) AS body
    FROM decision AS d
    INNER JOIN session AS s ON s.id = d.session
    WHERE d.type = 'confirmed' AND d.session NOT IN (SELECT session FROM authors WHERE level != 'answer')
    GROUP BY ALL
)

SELECT
    r.job, r.name,
    if(c.body IS NULL, r.value, try_cast(c.body ->> 'value' AS DOUBLE)) AS value,
    r.metric, r.goal, r.measurements,
    try_cast(c.body ->> 'gain' AS DOUBLE) AS gain,
    try_cast(c.body ->> 'low' AS DOUBLE) AS low,
    try_cast(c.body ->> 'high' AS DOUBLE) AS high,
    c.body IS NOT NULL AS confirmed,
    r.constraints, r.cluster, r.limits, r.context, r.configuration, r.configuration_id, r.job_id
FROM results AS r
LEFT JOIN confirmed AS c
    ON c.job_id = r.job_id AND c.context = r.context AND c.cluster = r.cluster AND c.goal = r.goal
    AND c.metric = r.metric AND c.constraints = r.constraints AND c.limits IS NOT DISTINCT FROM r.limits
    AND (c.body ->> 'name') = r.name
WHERE r.value IS NOT NULL
QUALIFY row_number() OVER (
    PARTITION BY r.job, r.job_id, r.context, r.cluster, r.goal, r.metric, r.constraints, r.limits
    ORDER BY c.body IS NULL, if(r.goal = 'minimize', r.value, -r.value), r.configuration_id
) = 1;

-- What each session cost, and what it was spared, since it was known already: device-hours, those of all devices together.
CREATE VIEW device_hours AS
WITH spent AS (
    SELECT o.session, sum(m.device_s) / 3600 AS hours
    FROM measurement AS m
    INNER JOIN origin AS o ON o.key = m.origin
    WHERE m.number IS NOT NULL
    GROUP BY o.session
),

saved AS (
    SELECT session, sum(try_cast(body ->> '$.measurement.device_s' AS DOUBLE)) / 3600 AS hours
    FROM decision
    WHERE type = 'answered'
    GROUP BY session
)

SELECT
    s.job_name AS job, s.id AS session, coalesce(a.author, '') AS author, s.cluster, coalesce(p.hours, 0) AS spent,
    coalesce(v.hours, 0) AS saved, make_timestamp((s.unix_s * 1000000)::BIGINT) AS started
FROM session AS s
LEFT JOIN authors AS a ON a.session = s.id
LEFT JOIN spent AS p ON p.session = s.id
LEFT JOIN saved AS v ON v.session = s.id
WHERE s.source = 'session';
