-- Ten million measurements in one file: what many rows have in common stands once (origin, configuration), metrics
-- are typed columns, and long series stand apart (series). Nothing is lost: every measurement comes back exactly.

DROP VIEW runs;
DROP VIEW best;
DROP VIEW failures;
DROP VIEW sessions;
DROP VIEW decisions;
DROP VIEW checks;
DROP VIEW orderings;

CREATE TABLE job_2 (
    id VARCHAR PRIMARY KEY,  -- content hash of task, target, model and traffic
    name VARCHAR NOT NULL,  -- as the first session called it
    task VARCHAR NOT NULL,
    target VARCHAR NOT NULL,
    family VARCHAR NOT NULL,  -- task-target-dense or -moe: how a lake is partitioned
    model JSON NOT NULL,
    traffic JSON NOT NULL
);

INSERT INTO job_2 BY NAME
SELECT
    *,
    concat_ws('-', task, target, if(coalesce(try_cast(model ->> 'experts' AS INTEGER), 0) > 0, 'moe', 'dense'))
        AS family
FROM job;
DROP TABLE job;
ALTER TABLE job_2 RENAME TO job;

-- Imports are sessions, too: somebody measured these rows for a job.
CREATE TABLE session_2 (
    id VARCHAR PRIMARY KEY,
    source VARCHAR NOT NULL,  -- session or import
    job_id VARCHAR NOT NULL,
    job_name VARCHAR NOT NULL,
    context VARCHAR NOT NULL,
    host VARCHAR NOT NULL,  -- '' unknown, or hashed if the operator wants that
    cluster VARCHAR NOT NULL,  -- as 8×a100 + 4×a40
    devices INTEGER NOT NULL,
    goal VARCHAR NOT NULL,  -- minimize or maximize …
    metric VARCHAR NOT NULL,  -- … this metric
    constraints VARCHAR[] NOT NULL,
    strategy VARCHAR NOT NULL,
    seed BIGINT NOT NULL,
    fidelity VARCHAR NOT NULL,
    warm_start VARCHAR NOT NULL,
    kb_mark BIGINT NOT NULL,  -- largest measurement.added that it may learn from
    unix_s DOUBLE NOT NULL,  -- of its start
    job JSON NOT NULL,
    hyper JSON NOT NULL,
    environment JSON NOT NULL
);

INSERT INTO session_2 BY NAME
SELECT
    *,
    'session' AS source,
    '' AS host,
    array_to_string(
        list_transform(
            from_json(job -> '$.cluster.nodes', '[{"device": "VARCHAR", "count": "INTEGER"}]'),
            lambda n: n.count || '×' || n.device
        ),
        ' + '
    ) AS cluster,
    list_sum(
        list_transform(
            from_json(job -> '$.cluster.nodes', '[{"device": "VARCHAR", "count": "INTEGER"}]'), lambda n: n.count
        )
    )::INTEGER AS devices
FROM session;
DROP TABLE session;
ALTER TABLE session_2 RENAME TO session;

-- What the measurements of one session have in common.
CREATE TABLE origin (
    key INTEGER NOT NULL,
    session VARCHAR NOT NULL,  -- that measured; may be unknown here
    job_id VARCHAR NOT NULL,
    context VARCHAR NOT NULL,
    environment JSON NOT NULL
);

INSERT INTO origin
SELECT row_number() OVER (ORDER BY min(added)), session, job_id, context, environment
FROM measurement
GROUP BY session, job_id, context, environment;

-- Knobs that people filter by, NULL where inactive; `knobs` has all of them, exactly.
CREATE TABLE configuration (
    key INTEGER NOT NULL,
    id VARCHAR NOT NULL,  -- content hash of knobs
    name VARCHAR NOT NULL,  -- short: it leaves out what is off in the job's space
    knobs JSON NOT NULL,
    pp INTEGER,
    tp INTEGER,
    dp INTEGER,
    cp INTEGER,
    ep INTEGER,
    etp INTEGER,
    vpp INTEGER,
    sp BOOLEAN,
    ar VARCHAR,
    ar_method VARCHAR,
    ar_layers INTEGER,
    mbs INTEGER,
    distopt BOOLEAN,
    overlap_grad BOOLEAN,
    overlap_param BOOLEAN,
    ddp_bucket BIGINT,
    tp_comm INTEGER,
    a100 INTEGER,
    a40 INTEGER,
    max_num_seqs INTEGER,
    max_num_batched_tokens INTEGER,
    block_size INTEGER,
    gpu_memory_utilization DOUBLE,
    kv_cache_dtype VARCHAR,
    prefix_caching BOOLEAN,
    chunked_prefill BOOLEAN,
    eager BOOLEAN,
    quantization VARCHAR,
    spec VARCHAR,
    stage INTEGER,
    reduce_bucket BIGINT
);

INSERT INTO configuration BY NAME
SELECT
    row_number() OVER (ORDER BY min(added)) AS key, configuration_id AS id, name, any_value(configuration) AS knobs,
    any_value(pp) AS pp, any_value(tp) AS tp, any_value(dp) AS dp, any_value(cp) AS cp, any_value(ep) AS ep,
    any_value(etp) AS etp, any_value(vpp) AS vpp, any_value(sp) AS sp, any_value(ar) AS ar,
    any_value(ar_method) AS ar_method, any_value(ar_layers) AS ar_layers, any_value(mbs) AS mbs,
    any_value(distopt) AS distopt, any_value(overlap_grad) AS overlap_grad,
    any_value(overlap_param) AS overlap_param, any_value(ddp_bucket) AS ddp_bucket, any_value(tp_comm) AS tp_comm,
    any_value(a100) AS a100, any_value(a40) AS a40
FROM measurement
GROUP BY configuration_id, name;

-- No key on it: at ten million rows an index of random ids is a third of the file; who inserts looks first.
CREATE TABLE measurement_2 (
    id UBIGINT NOT NULL,  -- content hash of the whole measurement
    added BIGINT NOT NULL,  -- grows with every ingest; gaps mean nothing
    origin INTEGER NOT NULL,
    configuration INTEGER NOT NULL,
    number INTEGER,  -- of the experiment in its session; NULL: imported, or known from a session answered with it
    purpose VARCHAR NOT NULL,  -- search · check · top_k · confirm · profile · answered · import
    status VARCHAR NOT NULL,
    fidelity VARCHAR NOT NULL,
    evidence VARCHAR NOT NULL,
    cost_s DOUBLE NOT NULL,
    device_s DOUBLE NOT NULL,
    unix_s DOUBLE NOT NULL,  -- of its end
    -- The metrics, each in its column; NULL: not measured.
    step_time_s DOUBLE,
    step_time_min_s DOUBLE,
    tokens_per_s DOUBLE,
    peak_memory_gib DOUBLE,
    cpu_s DOUBLE,
    ttft_mean_ms DOUBLE,
    ttft_p50_ms DOUBLE,
    ttft_p99_ms DOUBLE,
    tpot_mean_ms DOUBLE,
    tpot_p50_ms DOUBLE,
    tpot_p99_ms DOUBLE,
    itl_p99_ms DOUBLE,
    e2el_mean_ms DOUBLE,
    e2el_p99_ms DOUBLE,
    requests_per_s DOUBLE,
    output_tokens_per_s DOUBLE,
    total_tokens_per_s DOUBLE,
    goodput_rps DOUBLE,
    other_metrics JSON  -- all others
);

CREATE TABLE series (
    id UBIGINT NOT NULL,
    iterations_s JSON NOT NULL,
    losses JSON NOT NULL,  -- null: not a finite number
    grad_norms JSON NOT NULL,
    rank_memory_gib JSON NOT NULL
);

INSERT INTO series
SELECT ('0x' || id)::UBIGINT, iterations_s, losses, grad_norms, rank_memory_gib
FROM measurement
WHERE concat(iterations_s, losses, grad_norms, rank_memory_gib) != '[][][][]'
ORDER BY added;

INSERT INTO measurement_2 BY NAME
SELECT
    ('0x' || m.id)::UBIGINT AS id, m.added, o.key AS origin, c.key AS configuration, m.number, m.purpose, m.status,
    m.fidelity, m.evidence, m.cost_s, m.device_s, m.unix_s,
    try_cast(m.metrics ->> 'step_time_s' AS DOUBLE) AS step_time_s,
    try_cast(m.metrics ->> 'step_time_min_s' AS DOUBLE) AS step_time_min_s,
    try_cast(m.metrics ->> 'tokens_per_s' AS DOUBLE) AS tokens_per_s,
    try_cast(m.metrics ->> 'peak_memory_gib' AS DOUBLE) AS peak_memory_gib,
    try_cast(m.metrics ->> 'cpu_s' AS DOUBLE) AS cpu_s,
    nullif(json_merge_patch(m.metrics,
        '{"step_time_s": null, "step_time_min_s": null, "tokens_per_s": null, "peak_memory_gib": null, "cpu_s": null}'
    )::VARCHAR, '{}')::JSON AS other_metrics
FROM measurement AS m
INNER JOIN origin AS o
    ON o.session = m.session AND o.job_id = m.job_id AND o.context = m.context AND o.environment = m.environment
INNER JOIN configuration AS c ON c.id = m.configuration_id AND c.name = m.name
ORDER BY m.added;
DROP TABLE measurement;
ALTER TABLE measurement_2 RENAME TO measurement;

-- What is in here from a lake, or has been put there: looked at once.
CREATE TABLE lake_file (
    hash VARCHAR PRIMARY KEY,  -- of its bytes; its name
    session VARCHAR NOT NULL,
    measurements BIGINT NOT NULL,
    decisions BIGINT NOT NULL
);

-- Sessions that somebody wanted to be forgotten: they never come back, from no journal and no lake.
CREATE TABLE forgotten (
    session VARCHAR PRIMARY KEY,
    unix_s DOUBLE NOT NULL
);

-- ── views: plural, and what people query; docs/knowledge-base.md says what their columns mean ──────────────────────

CREATE VIEW runs AS
SELECT
    coalesce(s.job_name, j.name) AS job,
    o.session,
    c.name,
    m.status,
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
    m.fidelity,
    m.number,
    m.added,
    s.source,
    s.cluster,
    s.host,
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

CREATE VIEW failures AS
SELECT
    job, session, name, status, evidence, cost_s, device_s, ended, purpose, number, cluster, configuration, context,
    job_id, id
FROM runs
WHERE status != 'ok';

-- One row per objective that some session of a job had: what its measurements are judged by.
CREATE VIEW objectives AS
SELECT DISTINCT
    s.job_id, j.name AS job, s.cluster, s.goal, s.metric, s.constraints, s.job -> 'space' AS limits
FROM session AS s
INNER JOIN job AS j ON j.id = s.job_id;

-- One row per job, context, cluster, objective and configuration: the median of its correct profiled runs.
CREATE VIEW results AS
WITH sample AS (
    SELECT
        m.origin, m.configuration, m.status, m.fidelity, s.cluster, o.context, o.job_id, m.other_metrics,
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
    WHERE m.fidelity = 'profiled'
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

-- Per job, context, cluster, limits and objective: what was confirmed last by re-measuring in turns if its winner is
-- still known as correct, else the correct configuration with the best median.
CREATE VIEW best AS
WITH confirmed AS (
    SELECT
        s.job_id, s.context, s.cluster, s.goal, s.metric, s.constraints, s.job -> 'space' AS limits,
        arg_max(d.body, s.unix_s) AS body
    FROM decision AS d
    INNER JOIN session AS s ON s.id = d.session
    WHERE d.type = 'confirmed'
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

-- What a knob's value goes with: of all configurations of the job that have it, how many failed, and how good the best
-- and the median are. `behind` = cost of the best with this value / cost of the job's best.
CREATE VIEW knob_effects AS
WITH entry AS (
    SELECT
        job, job_id, context, cluster, metric, goal, constraints, limits, value AS measured, measurements, failed,
        unnest(map_entries(configuration::MAP(VARCHAR, VARCHAR))) AS knob
    FROM results
),

grouped AS (
    SELECT
        job, job_id, context, cluster, metric, goal, constraints, limits, knob.key AS knob, knob.value AS value,
        count(*) AS configurations,
        count(*) FILTER (WHERE measured IS NULL AND failed > 0) AS failed,
        if(goal = 'minimize', min(measured), max(measured)) AS best,
        median(measured) AS median
    FROM entry
    GROUP BY job, job_id, context, cluster, metric, goal, constraints, limits, knob.key, knob.value
)

SELECT
    job, metric, goal, knob, value, configurations, failed, best, median,
    if(goal = 'minimize',
        best / min(best) OVER (
            PARTITION BY job, job_id, context, cluster, metric, goal, constraints, limits),
        max(best) OVER (
            PARTITION BY job, job_id, context, cluster, metric, goal, constraints, limits) / best) AS behind,
    cluster, constraints, limits, context, job_id
FROM grouped;

CREATE VIEW sessions AS
WITH profiled AS (
    SELECT
        o.session, sum(p.experiments)::BIGINT AS experiments, sum(p.failed)::BIGINT AS failed, sum(p.cost_s) AS cost_s
    FROM (
        SELECT
            origin, count(*) AS experiments, count(*) FILTER (WHERE status != 'ok') AS failed, sum(cost_s) AS cost_s
        FROM measurement
        WHERE number IS NOT NULL OR purpose = 'import'
        GROUP BY origin
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

CREATE VIEW imports AS
SELECT
    s.id AS import, s.job_name AS job, count(m.id) AS measurements,
    count(m.id) FILTER (WHERE m.status != 'ok') AS failed, s.hyper ->> 'reader' AS reader, s.hyper ->> 'file' AS file,
    make_timestamp((s.unix_s * 1000000)::BIGINT) AS imported, s.environment, s.job_id
FROM session AS s
LEFT JOIN origin AS o ON o.session = s.id
LEFT JOIN measurement AS m ON m.origin = o.key
WHERE s.source = 'import'
GROUP BY ALL;

CREATE VIEW models AS
SELECT
    id AS job_id, name AS job, task, target, family,
    try_cast(model ->> 'layers' AS INTEGER) AS layers,
    try_cast(model ->> 'hidden' AS INTEGER) AS hidden,
    try_cast(model ->> 'heads' AS INTEGER) AS heads,
    try_cast(model ->> 'kv_heads' AS INTEGER) AS kv_heads,
    try_cast(model ->> 'ffn' AS INTEGER) AS ffn,
    try_cast(model ->> 'vocab' AS INTEGER) AS vocab,
    try_cast(model ->> 'experts' AS INTEGER) AS experts,
    model ->> 'dtype' AS dtype,
    try_cast(traffic ->> 'seq_len' AS INTEGER) AS seq_len,
    try_cast(traffic ->> 'global_batch' AS INTEGER) AS global_batch,
    try_cast(traffic ->> 'rate' AS DOUBLE) AS rate,
    try_cast(traffic ->> 'concurrency' AS INTEGER) AS concurrency,
    model, traffic
FROM job;

CREATE VIEW clusters AS
WITH node AS (
    SELECT
        cluster, devices, job_id,
        unnest(from_json(
            job -> '$.cluster.nodes', '[{"device": "VARCHAR", "count": "INTEGER", "memory_gib": "DOUBLE"}]')) AS node
    FROM session
)

SELECT
    cluster, node.device AS device, node.count AS count, nullif(node.memory_gib, 0) AS memory_gib, devices,
    count(DISTINCT job_id) AS jobs, count(*) AS sessions
FROM node
GROUP BY ALL;

CREATE VIEW versions AS
SELECT DISTINCT
    s.job_name AS job, e.session, e.context, e.entry.key AS component, e.entry.value AS version, s.unix_s AS session_unix_s
FROM (
    SELECT session, context, unnest(map_entries(environment::MAP(VARCHAR, VARCHAR))) AS entry FROM origin
) AS e
LEFT JOIN session AS s ON s.id = e.session;

CREATE VIEW decisions AS
SELECT
    s.job_name AS job,
    d.session,
    d.seq,
    make_timestamp((d.unix_s * 1000000)::BIGINT) AS happened,
    d.type,
    try_cast(d.body ->> 'step' AS BIGINT) AS step,
    d.body ->> 'phase' AS phase,
    d.body ->> 'arm' AS arm,
    coalesce(d.body ->> 'name', d.body ->> '$.measurement.name', d.body ->> 'names') AS name,
    d.body ->> 'why' AS why,
    d.body
FROM decision AS d
LEFT JOIN session AS s ON s.id = d.session
ORDER BY s.unix_s, d.session, d.seq;

-- The 2×2 grids: costs of {base, candidate} structure × {base, candidate} dense point, and what came of them.
CREATE VIEW grids AS
SELECT
    s.job_name AS job,
    d.session,
    try_cast(d.body ->> 'step' AS BIGINT) AS step,
    try_cast(d.body ->> '$.costs[0]' AS DOUBLE) AS base_base,
    try_cast(d.body ->> '$.costs[1]' AS DOUBLE) AS base_candidate,
    try_cast(d.body ->> '$.costs[2]' AS DOUBLE) AS candidate_base,
    try_cast(d.body ->> '$.costs[3]' AS DOUBLE) AS candidate_candidate,
    try_cast(d.body ->> 'delta_sparse' AS DOUBLE) AS delta_sparse,
    try_cast(d.body ->> 'delta_dense' AS DOUBLE) AS delta_dense,
    try_cast(d.body ->> 'interaction' AS DOUBLE) AS interaction,
    d.body -> 'arms' AS arms,
    make_timestamp((d.unix_s * 1000000)::BIGINT) AS happened,
    d.seq
FROM decision AS d
LEFT JOIN session AS s ON s.id = d.session
WHERE d.type = 'rewarded'
ORDER BY s.unix_s, d.session, d.seq;

CREATE VIEW arms AS
SELECT
    g.job, g.session, g.step, g.entry.key AS arm, g.entry.value[1] AS pulls, g.entry.value[2] AS reward,
    g.step = max(g.step) OVER (PARTITION BY g.session) AS last
FROM (
    SELECT job, session, step, unnest(map_entries(arms::MAP(VARCHAR, DOUBLE[]))) AS entry FROM grids
) AS g;

CREATE VIEW checks AS
SELECT
    s.job_name AS job,
    d.session,
    try_cast(d.body ->> 'step' AS BIGINT) AS step,
    d.body ->> 'name' AS name,
    try_cast(d.body ->> 'predicted' AS DOUBLE) AS predicted,
    try_cast(d.body ->> 'measured' AS DOUBLE) AS measured,
    try_cast(d.body ->> 'mape' AS DOUBLE) AS mape,
    try_cast(d.body ->> 'epsilon' AS DOUBLE) AS epsilon,
    make_timestamp((d.unix_s * 1000000)::BIGINT) AS happened,
    d.body -> 'weights' AS weights,
    d.seq
FROM decision AS d
LEFT JOIN session AS s ON s.id = d.session
WHERE d.type = 'checked'
ORDER BY s.unix_s, d.session, d.seq;

-- Each simulator against what the same session measured of the same configuration. `bias` > 0: predicts too much.
CREATE VIEW simulator_accuracy AS
WITH predicted AS (
    SELECT
        d.session, s.job_name AS job, s.metric, s.cluster, d.body ->> 'name' AS name,
        unnest(list_concat(
            [{'key': 'ensemble', 'value': try_cast(d.body ->> 'predicted' AS DOUBLE)}],
            map_entries((d.body -> 'members')::MAP(VARCHAR, DOUBLE))
        )) AS member
    FROM decision AS d
    INNER JOIN session AS s ON s.id = d.session
    WHERE d.type = 'simulated'
),

checked AS (
    SELECT
        d.session, d.body ->> 'name' AS name, any_value(try_cast(d.body ->> 'measured' AS DOUBLE)) AS measured
    FROM decision AS d
    WHERE d.type = 'checked' AND (d.body ->> 'measured') IS NOT NULL
    GROUP BY ALL
)

SELECT
    p.job, p.member.key AS simulator, count(*) AS checks,
    avg(abs(p.member.value / c.measured - 1)) AS mape,
    avg(p.member.value / c.measured - 1) AS bias,
    max(abs(p.member.value / c.measured - 1)) AS worst,
    p.metric, p.cluster, p.session
FROM predicted AS p
INNER JOIN checked AS c ON c.session = p.session AND c.name = p.name
GROUP BY ALL;

-- The weights of the simulators in the ensemble at each check: how well each fits what is known of the job.
CREATE VIEW simulator_fits AS
SELECT
    job, session, step, entry.key AS simulator, entry.value AS weight, seq
FROM (
    SELECT job, session, step, seq, unnest(map_entries(weights::MAP(VARCHAR, DOUBLE))) AS entry FROM checks
) AS c;

-- Tournament results: one row per ordering and round.
CREATE VIEW orderings AS
WITH ranked AS (
    SELECT
        session, seq,
        try_cast(body ->> 'round' AS BIGINT) AS round,
        from_json(body -> 'orderings', '[["VARCHAR"]]') AS orderings,
        from_json(body -> 'rewards', '["DOUBLE"]') AS rewards,
        from_json(body -> 'kept', '["BIGINT"]') AS kept,
        seq = max(seq) OVER (PARTITION BY session) AS final
    FROM decision
    WHERE type = 'tournament_ranked'
),

entry AS (
    SELECT session, seq, round, rewards, kept, final, unnest(range(len(orderings))) AS i, orderings
    FROM ranked
)

SELECT
    s.job_name AS job,
    e.session,
    e.round,
    e.orderings[e.i + 1] AS ordering,
    e.rewards[e.i + 1] AS reward,
    list_contains(e.kept, e.i) AS kept,
    e.final AND list_contains(e.kept, e.i) AS winner,
    s.unix_s AS session_unix_s,
    s.job_id,
    e.seq
FROM entry AS e
LEFT JOIN session AS s ON s.id = e.session
ORDER BY s.unix_s, e.session, e.seq, reward DESC, e.i;

-- What sessions took over from earlier jobs, and what it was worth to them.
CREATE VIEW warm_starts AS
SELECT
    s.job_name AS job,
    d.session,
    d.body -> 'sources' AS sources,
    try_cast(d.body ->> 'carried' AS INTEGER) AS carried,
    try_cast(d.body ->> 'tried' AS INTEGER) AS tried,
    try_cast(d.body ->> 'failed' AS INTEGER) AS failed,
    d.body ->> 'best' AS best_carried,
    try_cast(d.body ->> 'behind' AS DOUBLE) AS behind,
    try_cast(d.body ->> 'rank' AS INTEGER) AS rank,
    try_cast(d.body ->> 'experiments' AS INTEGER) AS experiments,
    try_cast(d.body ->> 'first_within' AS INTEGER) AS first_within,
    d.body ->> 'sentence' AS sentence
FROM decision AS d
LEFT JOIN session AS s ON s.id = d.session
WHERE d.type = 'warm_start_worth'
ORDER BY s.unix_s, d.session;
