-- Tables are singular and only ever grow; views are plural and are what people query.
-- Times are unix seconds in tables (exact) and UTC timestamps in views.

CREATE TABLE job (
    id VARCHAR PRIMARY KEY,  -- content hash of task, target, model and traffic
    name VARCHAR NOT NULL,   -- as the first session called it
    task VARCHAR NOT NULL,
    target VARCHAR NOT NULL,
    model JSON NOT NULL,
    traffic JSON NOT NULL
);

CREATE TABLE session (
    id VARCHAR PRIMARY KEY,
    job_id VARCHAR NOT NULL,
    job_name VARCHAR NOT NULL,
    context VARCHAR NOT NULL,
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

CREATE TABLE measurement (
    id VARCHAR PRIMARY KEY,  -- content hash of the whole measurement
    added BIGINT NOT NULL,  -- grows with every ingest; gaps mean nothing
    session VARCHAR NOT NULL,  -- that measured it
    job_id VARCHAR NOT NULL,
    number INTEGER,  -- of the experiment in its session; NULL: known from a session that was answered with it
    purpose VARCHAR NOT NULL,  -- search · check · top_k · confirm · profile · answered
    configuration_id VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    context VARCHAR NOT NULL,
    status VARCHAR NOT NULL,
    fidelity VARCHAR NOT NULL,
    evidence VARCHAR NOT NULL,
    cost_s DOUBLE NOT NULL,
    device_s DOUBLE NOT NULL,
    unix_s DOUBLE NOT NULL,  -- of its end
    -- Everything else of the measurement, exactly.
    configuration JSON NOT NULL,
    metrics JSON NOT NULL,
    iterations_s JSON NOT NULL,
    losses JSON NOT NULL,  -- null: not a finite number
    grad_norms JSON NOT NULL,
    rank_memory_gib JSON NOT NULL,
    environment JSON NOT NULL,
    -- Copies out of metrics and configuration, for filters. NULL: not measured; the knob is inactive.
    step_time_s DOUBLE,
    step_time_min_s DOUBLE,
    tokens_per_s DOUBLE,
    peak_memory_gib DOUBLE,
    cpu_s DOUBLE,
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
    a40 INTEGER
);

-- Every journal event but session_started and experiment_ended, which have tables of their own.
CREATE TABLE decision (
    session VARCHAR NOT NULL,
    seq BIGINT NOT NULL,  -- line of the journal, from 0
    type VARCHAR NOT NULL,
    unix_s DOUBLE NOT NULL,
    body JSON NOT NULL,
    PRIMARY KEY (session, seq)
);

-- How much of each journal is in here. Only makes ingesting fast: all rows have their own identity.
CREATE TABLE journal (
    session VARCHAR PRIMARY KEY,
    bytes BIGINT NOT NULL,
    lines BIGINT NOT NULL
);

CREATE VIEW runs AS
SELECT
    coalesce(s.job_name, j.name) AS job,
    m.session,
    m.name,
    m.status,
    m.purpose,
    m.step_time_s,
    m.tokens_per_s,
    m.peak_memory_gib,
    m.cost_s,
    make_timestamp((m.unix_s * 1000000)::BIGINT) AS ended,
    m.evidence,
    m.pp, m.tp, m.dp, m.cp, m.ep, m.etp, m.vpp, m.sp, m.ar, m.ar_method, m.ar_layers, m.mbs, m.distopt,
    m.overlap_grad, m.overlap_param, m.ddp_bucket, m.tp_comm, m.a100, m.a40,
    m.step_time_min_s,
    m.cpu_s,
    m.device_s,
    m.fidelity,
    m.number,
    m.added,
    m.context,
    m.job_id,
    m.configuration_id,
    m.id,
    m.configuration,
    m.metrics,
    m.environment
FROM measurement AS m
LEFT JOIN session AS s ON s.id = m.session
LEFT JOIN job AS j ON j.id = m.job_id
ORDER BY m.added;

-- Per job, context and objective: the correct profiled configuration with the best median that meets the
-- constraints. A constraint on something that was not measured is not met.
CREATE VIEW best AS
WITH objective AS (
    SELECT DISTINCT job_id, goal, metric, constraints FROM session
),

sample AS (
    SELECT
        m.job_id, m.context, o.goal, o.metric, o.constraints, m.configuration_id, m.name, m.configuration,
        try_cast(m.metrics ->> o.metric AS DOUBLE) AS value
    FROM measurement AS m
    INNER JOIN objective AS o ON o.job_id = m.job_id
    WHERE
        m.status = 'ok'
        AND m.fidelity = 'profiled'
        AND len(list_filter(o.constraints, lambda c: NOT coalesce(
            CASE trim(regexp_extract(c, '[<>]=?'))
                WHEN '<=' THEN try_cast(m.metrics ->> trim(regexp_extract(c, '^[^<>]*')) AS DOUBLE)
                    <= try_cast(regexp_extract(c, '[<>]=?(.*)$', 1) AS DOUBLE)
                WHEN '>=' THEN try_cast(m.metrics ->> trim(regexp_extract(c, '^[^<>]*')) AS DOUBLE)
                    >= try_cast(regexp_extract(c, '[<>]=?(.*)$', 1) AS DOUBLE)
                WHEN '<' THEN try_cast(m.metrics ->> trim(regexp_extract(c, '^[^<>]*')) AS DOUBLE)
                    < try_cast(regexp_extract(c, '[<>]=?(.*)$', 1) AS DOUBLE)
                WHEN '>' THEN try_cast(m.metrics ->> trim(regexp_extract(c, '^[^<>]*')) AS DOUBLE)
                    > try_cast(regexp_extract(c, '[<>]=?(.*)$', 1) AS DOUBLE)
            END, false))) = 0
        AND NOT EXISTS (
            SELECT 1 FROM measurement AS w
            WHERE
                w.status = 'wrong' AND w.job_id = m.job_id AND w.context = m.context
                AND w.configuration_id = m.configuration_id
        )
),

candidate AS (
    SELECT
        job_id, context, goal, metric, constraints, configuration_id,
        median(value) AS value, count(*) AS measurements,
        any_value(name) AS name, any_value(configuration) AS configuration
    FROM sample
    WHERE value IS NOT NULL
    GROUP BY job_id, context, goal, metric, constraints, configuration_id
)

SELECT
    j.name AS job, c.name, c.value, c.metric, c.goal, c.measurements, c.constraints, c.context, c.configuration,
    c.configuration_id, c.job_id
FROM candidate AS c
LEFT JOIN job AS j ON j.id = c.job_id
QUALIFY row_number() OVER (
    PARTITION BY c.job_id, c.context, c.goal, c.metric, c.constraints
    ORDER BY if(c.goal = 'minimize', c.value, -c.value), c.configuration_id
) = 1
ORDER BY job, c.context, c.metric;

CREATE VIEW failures AS
SELECT
    coalesce(s.job_name, j.name) AS job,
    m.session, m.name, m.status, m.evidence, m.cost_s, m.device_s,
    make_timestamp((m.unix_s * 1000000)::BIGINT) AS ended,
    m.purpose, m.number, m.configuration, m.context, m.job_id, m.id
FROM measurement AS m
LEFT JOIN session AS s ON s.id = m.session
LEFT JOIN job AS j ON j.id = m.job_id
WHERE m.status != 'ok'
ORDER BY m.added;

CREATE VIEW sessions AS
WITH profiled AS (
    SELECT
        session, count(*) AS experiments, count(*) FILTER (WHERE status != 'ok') AS failed, sum(cost_s) AS cost_s
    FROM measurement
    WHERE number IS NOT NULL
    GROUP BY session
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
ORDER BY s.unix_s, s.id;

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
