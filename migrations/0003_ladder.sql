-- The ladder of fidelities: every number says on which rung it stands, in which measuring period and under which
-- conditions it was measured, and on which rank. A measurement knows every source that brought it. What machines did
-- to experiments counts as no failure. And what only a hostile file could bring in before there was a door goes.

-- ── the rung, the period, the conditions; what each rank saw ────────────────────────────────────────────────────────
-- First of all: DuckDB alters no table of which the same transaction has deleted rows.

ALTER TABLE measurement ALTER COLUMN fidelity TYPE VARCHAR
USING CASE fidelity WHEN 'profiled' THEN 'measured' WHEN 'simulated' THEN 'predicted' ELSE fidelity END;
UPDATE decision
SET body = replace(replace(body::VARCHAR, '"to":"profiled"', '"to":"measured"'), '"to":"simulated"', '"to":"predicted"')
WHERE type = 'fidelity_switched';
UPDATE decision
SET body = replace(replace(body::VARCHAR,
    '"fidelity":"profiled"', '"fidelity":"measured"'), '"fidelity":"simulated"', '"fidelity":"predicted"')
WHERE type = 'answered';
-- Of a session that is what was asked for: adaptive, profile or simulate.
UPDATE session SET fidelity = 'profile' WHERE fidelity = 'profiled';

ALTER TABLE measurement ADD COLUMN period VARCHAR DEFAULT '';
ALTER TABLE measurement ALTER COLUMN period SET NOT NULL;
ALTER TABLE measurement ADD COLUMN conditions JSON;  -- NULL: none were noted
ALTER TABLE series ADD COLUMN per_rank JSON;  -- metric → a value a rank; NULL: none
ALTER TABLE series ADD COLUMN rank_devices JSON;  -- host:kind:index of each rank; NULL: unknown

-- ── what no door would have let in: names that are not plain (kb/door.py), and all that hangs on them ──────────────

CREATE MACRO plain(name) AS coalesce(regexp_full_match(name, '[A-Za-z0-9][A-Za-z0-9_.-]{0,199}'), false);

-- A job that sessions of this machine have, too, is called as the first of them calls it.
UPDATE job
SET name = s.name
FROM (
    SELECT job_id, arg_min(job_name, unix_s) AS name FROM session
    WHERE id IN (SELECT session FROM journal) AND plain(id) AND plain(job_name) GROUP BY job_id
) AS s
WHERE s.job_id = job.id AND NOT plain(job.name);

CREATE TEMP TABLE bad_job AS SELECT id FROM job WHERE NOT (plain(name) AND plain(task) AND plain(target));
CREATE TEMP TABLE bad_session AS
SELECT id FROM session WHERE NOT (plain(id) AND plain(job_name)) OR job_id IN (FROM bad_job)
UNION
SELECT session FROM origin WHERE NOT plain(session)
UNION
SELECT session FROM decision WHERE NOT plain(session);
CREATE TEMP TABLE bad_origin AS
SELECT key FROM origin WHERE session IN (FROM bad_session) OR job_id IN (FROM bad_job);

DELETE FROM series WHERE id IN (SELECT id FROM measurement WHERE origin IN (FROM bad_origin));
DELETE FROM measurement WHERE origin IN (FROM bad_origin);
DELETE FROM origin WHERE key IN (FROM bad_origin);
DELETE FROM decision WHERE session IN (FROM bad_session);
DELETE FROM session WHERE id IN (FROM bad_session);
DELETE FROM journal WHERE session IN (FROM bad_session) OR NOT plain(session);
DELETE FROM lake_file WHERE session IN (FROM bad_session) OR NOT plain(session);
DELETE FROM forgotten WHERE NOT plain(session);
DELETE FROM job
WHERE id IN (FROM bad_job)
OR id NOT IN (SELECT job_id FROM session UNION SELECT job_id FROM origin);
DELETE FROM configuration WHERE key NOT IN (SELECT configuration FROM measurement);
DROP TABLE bad_origin;
DROP TABLE bad_session;
DROP TABLE bad_job;
DROP MACRO plain;

-- A folder of a lake is called like it.
UPDATE job
SET family
    = concat_ws('-', task, target, if(coalesce(try_cast(model ->> 'experts' AS INTEGER), 0) > 0, 'moe', 'dense'));

-- ── several sources ─────────────────────────────────────────────────────────────────────────────────────────────────

-- `measurement` names the source that has a row (kb/claims.py says which), and this the others that have it, too.
CREATE TABLE further_source (
    id UBIGINT NOT NULL,
    origin INTEGER NOT NULL,
    number INTEGER,
    purpose VARCHAR NOT NULL
);

-- What these files have beyond what is known to be theirs belonged to somebody else, too: they are looked at again.
DELETE FROM lake_file
WHERE
    session NOT IN (SELECT session FROM forgotten)
    AND measurements > coalesce((
        SELECT sum(n) FROM (
            SELECT o.session, m.n
            FROM (SELECT origin, count(*) AS n FROM measurement GROUP BY origin) AS m
            INNER JOIN origin AS o ON o.key = m.origin
        ) AS h
        WHERE h.session = lake_file.session
    ), 0);

-- ── views ───────────────────────────────────────────────────────────────────────────────────────────────────────────

DROP VIEW runs;
CREATE VIEW runs AS
SELECT
    coalesce(s.job_name, j.name) AS job,
    o.session,
    c.name,
    m.status,
    m.fidelity,
    m.purpose,
    m.step_time_s,
    m.tokens_per_s,
    m.peak_memory_gib,
    m.cost_s,
    make_timestamp((nullif(m.unix_s, 0) * 1000000)::BIGINT) AS ended,  -- NULL: an import does not know
    m.evidence,
    c.pp, c.tp, c.dp, c.cp, c.ep, c.etp, c.vpp, c.sp, c.ar, c.ar_method, c.ar_layers, c.mbs, c.distopt,
    c.overlap_grad, c.overlap_param, c.ddp_bucket, c.tp_comm, c.a100, c.a40, c.max_num_seqs,
    c.max_num_batched_tokens, c.block_size, c.gpu_memory_utilization, c.kv_cache_dtype, c.prefix_caching,
    c.chunked_prefill, c.eager, c.quantization, c.spec, c.stage, c.reduce_bucket,
    m.ttft_mean_ms, m.ttft_p50_ms, m.ttft_p99_ms, m.tpot_mean_ms, m.tpot_p50_ms, m.tpot_p99_ms, m.itl_p99_ms,
    m.e2el_mean_ms, m.e2el_p99_ms, m.requests_per_s, m.output_tokens_per_s, m.total_tokens_per_s, m.goodput_rps,
    m.step_time_min_s,
    m.cpu_s,
    m.device_s,
    m.number,
    m.added,
    s.source,
    s.cluster,
    s.host,
    m.period,
    m.conditions,
    o.context,
    o.job_id,
    c.id AS configuration_id,
    format('{:016x}', m.id) AS id,
    c.knobs AS configuration,
    json_merge_patch(
        coalesce(m.other_metrics, '{}'),
        json_object(
            'step_time_s', m.step_time_s, 'step_time_min_s', m.step_time_min_s, 'tokens_per_s', m.tokens_per_s,
            'peak_memory_gib', m.peak_memory_gib, 'cpu_s', m.cpu_s, 'ttft_mean_ms', m.ttft_mean_ms,
            'ttft_p50_ms', m.ttft_p50_ms, 'ttft_p99_ms', m.ttft_p99_ms, 'tpot_mean_ms', m.tpot_mean_ms,
            'tpot_p50_ms', m.tpot_p50_ms, 'tpot_p99_ms', m.tpot_p99_ms, 'itl_p99_ms', m.itl_p99_ms,
            'e2el_mean_ms', m.e2el_mean_ms, 'e2el_p99_ms', m.e2el_p99_ms, 'requests_per_s', m.requests_per_s,
            'output_tokens_per_s', m.output_tokens_per_s, 'total_tokens_per_s', m.total_tokens_per_s,
            'goodput_rps', m.goodput_rps
        )
    ) AS metrics,
    o.environment
FROM measurement AS m
INNER JOIN origin AS o ON o.key = m.origin
INNER JOIN configuration AS c ON c.key = m.configuration
LEFT JOIN session AS s ON s.id = o.session
LEFT JOIN job AS j ON j.id = o.job_id;

DROP VIEW failures;
CREATE VIEW failures AS
SELECT
    job, session, name, status, fidelity, evidence, cost_s, device_s, ended, purpose, number, cluster, configuration,
    context, job_id, id
FROM runs
WHERE status NOT IN ('ok', 'infrastructure');

-- What machines did to experiments: no fact about any configuration.
CREATE VIEW incidents AS
SELECT
    s.job_name AS job, o.session, s.host, m.period, m.evidence, x.rank_devices, m.conditions, m.cost_s, m.device_s,
    make_timestamp((nullif(m.unix_s, 0) * 1000000)::BIGINT) AS ended,
    c.name, m.purpose, m.number, s.cluster, o.context, o.job_id, format('{:016x}', m.id) AS id
FROM measurement AS m
INNER JOIN origin AS o ON o.key = m.origin
INNER JOIN configuration AS c ON c.key = m.configuration
LEFT JOIN session AS s ON s.id = o.session
LEFT JOIN series AS x ON x.id = m.id
WHERE m.status = 'infrastructure';

-- Every source of every measurement.
CREATE VIEW sources AS
SELECT
    coalesce(s.job_name, j.name) AS job, o.session, s.source, m.purpose, m.number, m.in_runs, o.job_id,
    format('{:016x}', m.id) AS id
FROM (
    SELECT id, origin, number, purpose, true AS in_runs FROM measurement
    UNION ALL
    SELECT id, origin, number, purpose, false AS in_runs FROM further_source
) AS m
INNER JOIN origin AS o ON o.key = m.origin
LEFT JOIN session AS s ON s.id = o.session
LEFT JOIN job AS j ON j.id = o.job_id;

-- A metric on a rank.
CREATE VIEW ranks AS
WITH metric AS (
    SELECT
        id, from_json(rank_devices, '["VARCHAR"]') AS devices,
        unnest(map_entries(json_merge_patch(
            json_object('peak_memory_gib', rank_memory_gib), coalesce(per_rank, '{}'))::MAP(VARCHAR, DOUBLE[]))) AS of
    FROM series
),

value AS (
    SELECT id, devices, of.key AS metric, of.value AS ranks, unnest(range(len(of.value))) AS rank FROM metric
)

SELECT
    coalesce(s.job_name, j.name) AS job, o.session, c.name, v.rank, v.devices[v.rank + 1] AS device, v.metric,
    v.ranks[v.rank + 1] AS value, m.status, m.fidelity, m.period, s.host, s.cluster, o.context, o.job_id,
    format('{:016x}', m.id) AS id
FROM value AS v
INNER JOIN measurement AS m ON m.id = v.id
INNER JOIN origin AS o ON o.key = m.origin
INNER JOIN configuration AS c ON c.key = m.configuration
LEFT JOIN session AS s ON s.id = o.session
LEFT JOIN job AS j ON j.id = o.job_id;

-- Measurements of one period compare; those of two do by what was measured in both.
CREATE VIEW periods AS
SELECT
    s.host, m.period, s.cluster, count(*) AS measurements, count(*) FILTER (WHERE m.status = 'infrastructure') AS incidents,
    count(DISTINCT m.configuration) AS configurations, count(DISTINCT o.session) AS sessions,
    make_timestamp((min(nullif(m.unix_s, 0)) * 1000000)::BIGINT) AS first_ended,
    make_timestamp((max(nullif(m.unix_s, 0)) * 1000000)::BIGINT) AS last_ended
FROM measurement AS m
INNER JOIN origin AS o ON o.key = m.origin
LEFT JOIN session AS s ON s.id = o.session
WHERE m.period != ''
GROUP BY s.host, m.period, s.cluster;

-- One row per job, context, cluster, objective and configuration: the median of its correct measured runs.
DROP VIEW results;
CREATE VIEW results AS
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
    WHERE m.fidelity = 'measured' AND m.status != 'infrastructure'
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

DROP VIEW sessions;
CREATE VIEW sessions AS
WITH profiled AS (
    SELECT
        o.session, sum(p.experiments)::BIGINT AS experiments, sum(p.failed)::BIGINT AS failed,
        sum(p.incidents)::BIGINT AS incidents, sum(p.cost_s) AS cost_s
    FROM (
        SELECT
            origin, count(*) AS experiments, count(*) FILTER (WHERE status NOT IN ('ok', 'infrastructure')) AS failed,
            count(*) FILTER (WHERE status = 'infrastructure') AS incidents, sum(cost_s) AS cost_s
        FROM measurement
        WHERE number IS NOT NULL
        GROUP BY origin
        UNION ALL
        SELECT
            f.origin, count(*) AS experiments,
            count(*) FILTER (WHERE m.status NOT IN ('ok', 'infrastructure')) AS failed,
            count(*) FILTER (WHERE m.status = 'infrastructure') AS incidents, sum(m.cost_s) AS cost_s
        FROM further_source AS f INNER JOIN measurement AS m ON m.id = f.id
        WHERE f.number IS NOT NULL
        GROUP BY f.origin
    ) AS p
    INNER JOIN origin AS o ON o.key = p.origin
    GROUP BY o.session
),

-- The last word of each session on whether it goes on, and on its best.
ending AS (
    SELECT
        session, arg_max(type, seq) AS type, arg_max(body ->> 'reason', seq) AS reason, max(unix_s) AS unix_s
    FROM decision
    WHERE type IN ('session_ended', 'session_resumed')
    GROUP BY session
),

found AS (
    SELECT session, arg_max(body, seq) AS body FROM decision WHERE type = 'best_found' GROUP BY session
),

confirmed AS (
    SELECT session, arg_max(body, seq) AS body FROM decision WHERE type = 'confirmed' GROUP BY session
)

SELECT
    s.id AS session,
    s.job_name AS job,
    if(e.type = 'session_ended', 'ended', 'open') AS state,
    if(e.type = 'session_ended', e.reason, NULL) AS reason,
    coalesce(p.experiments, 0) AS experiments,
    coalesce(p.failed, 0) AS failed,
    coalesce(p.incidents, 0) AS incidents,
    coalesce(c.body ->> 'name', f.body ->> 'name') AS best,
    try_cast(coalesce(c.body ->> 'value', f.body ->> 'value') AS DOUBLE) AS value,
    s.metric,
    s.goal,
    try_cast(c.body ->> 'gain' AS DOUBLE) AS gain,
    try_cast(c.body ->> 'low' AS DOUBLE) AS low,
    try_cast(c.body ->> 'high' AS DOUBLE) AS high,
    make_timestamp((s.unix_s * 1000000)::BIGINT) AS started,
    if(e.type = 'session_ended', make_timestamp((e.unix_s * 1000000)::BIGINT), NULL) AS ended,
    coalesce(p.cost_s, 0) AS cost_s,
    s.cluster,
    s.host,
    s.strategy,
    s.seed,
    s.fidelity,
    s.warm_start,
    s.kb_mark,
    s.context,
    s.job_id
FROM session AS s
LEFT JOIN profiled AS p ON p.session = s.id
LEFT JOIN ending AS e ON e.session = s.id
LEFT JOIN found AS f ON f.session = s.id
LEFT JOIN confirmed AS c ON c.session = s.id
WHERE s.source = 'session'
ORDER BY s.unix_s, s.id;

DROP VIEW imports;
CREATE VIEW imports AS
WITH row AS (
    SELECT origin, id, status FROM measurement WHERE purpose = 'import'
    UNION ALL
    SELECT f.origin, m.id, m.status FROM further_source AS f INNER JOIN measurement AS m ON m.id = f.id
    WHERE f.purpose = 'import'
)

SELECT
    s.id AS import, s.job_name AS job, count(m.id) AS measurements,
    count(m.id) FILTER (WHERE m.status NOT IN ('ok', 'infrastructure')) AS failed,
    s.hyper ->> 'reader' AS reader, s.hyper ->> 'file' AS file,
    make_timestamp((s.unix_s * 1000000)::BIGINT) AS imported, s.environment, s.job_id
FROM session AS s
LEFT JOIN origin AS o ON o.session = s.id
LEFT JOIN row AS m ON m.origin = o.key
WHERE s.source = 'import'
GROUP BY ALL;
