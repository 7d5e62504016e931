-- What most questions are about, kept up to date as rows enter (kb/kept_up.py): the answers of `results` and
-- `knob_effects` are looked up, not computed from all measurements. Nothing here is more than what the other tables
-- say; a job whose rows, sessions or trusted authors change is computed anew, by `results_anew`.

ALTER VIEW results RENAME TO results_anew;

-- Jobs whose results are as kept here; `state` tells that what they rest on has changed.
CREATE TABLE kept (
    job_id VARCHAR NOT NULL,
    state UBIGINT NOT NULL
);

-- What a job's configurations are judged by, and which is best by its value alone.
CREATE TABLE aim (
    key INTEGER NOT NULL,
    job VARCHAR NOT NULL,
    job_id VARCHAR NOT NULL,
    context VARCHAR NOT NULL,
    cluster VARCHAR,
    goal VARCHAR NOT NULL,
    metric VARCHAR NOT NULL,
    constraints VARCHAR[],
    limits JSON,
    best INTEGER  -- a configuration's key; NULL: none has a value
);

CREATE TABLE kept_result (
    aim INTEGER NOT NULL,
    configuration INTEGER NOT NULL,
    value DOUBLE,
    lowest DOUBLE,
    highest DOUBLE,
    measurements INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    wrong BOOLEAN NOT NULL
);

CREATE TABLE kept_effect (
    aim INTEGER NOT NULL,
    knob VARCHAR NOT NULL,
    value VARCHAR,
    configurations BIGINT NOT NULL,
    failed BIGINT NOT NULL,
    best DOUBLE,
    median DOUBLE
);

CREATE VIEW results AS
SELECT
    a.job, c.name, r.value, a.metric, a.goal, r.measurements::BIGINT AS measurements, r.failed::BIGINT AS failed,
    r.wrong, r.lowest, r.highest, a.constraints, a.cluster, a.context, a.limits, a.job_id, c.id AS configuration_id,
    c.knobs AS configuration
FROM kept_result AS r
INNER JOIN aim AS a ON a.key = r.aim
INNER JOIN configuration AS c ON c.key = r.configuration;

CREATE OR REPLACE VIEW best AS
WITH confirmed AS (
    SELECT
        s.job_id, s.context, s.cluster, s.goal, s.metric, s.constraints, s.job -> 'space' AS limits,
        arg_max(d.body, s.unix_s) AS body
    FROM decision AS d
    INNER JOIN session AS s ON s.id = d.session
    WHERE d.type = 'confirmed' AND d.session NOT IN (SELECT session FROM authors WHERE level != 'answer')
    GROUP BY ALL
),

said AS (
    SELECT a.key AS aim, c.body, c.body ->> 'name' AS name
    FROM confirmed AS c
    INNER JOIN aim AS a
        ON a.job_id = c.job_id AND a.context = c.context AND a.cluster = c.cluster AND a.goal = c.goal
        AND a.metric = c.metric AND a.constraints = c.constraints AND a.limits IS NOT DISTINCT FROM c.limits
),

-- Of configurations that have one name the first by its id, as ever.
found AS (
    SELECT r.*, s.body, c.name, c.id, c.knobs
    FROM said AS s
    INNER JOIN configuration AS c ON c.name = s.name
    INNER JOIN kept_result AS r ON r.aim = s.aim AND r.configuration = c.key
    INNER JOIN aim AS a ON a.key = r.aim
    WHERE r.value IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY r.aim ORDER BY if(a.goal = 'minimize', r.value, -r.value), c.id) = 1
),

chosen AS (
    FROM found
    UNION ALL
    SELECT r.*, NULL AS body, c.name, c.id, c.knobs
    FROM aim AS a
    INNER JOIN kept_result AS r ON r.aim = a.key AND r.configuration = a.best
    INNER JOIN configuration AS c ON c.key = r.configuration
    WHERE a.key NOT IN (SELECT aim FROM found)
)

SELECT
    a.job, r.name,
    if(r.body IS NULL, r.value, try_cast(r.body ->> 'value' AS DOUBLE)) AS value,
    a.metric, a.goal, r.measurements::BIGINT AS measurements,
    try_cast(r.body ->> 'gain' AS DOUBLE) AS gain,
    try_cast(r.body ->> 'low' AS DOUBLE) AS low,
    try_cast(r.body ->> 'high' AS DOUBLE) AS high,
    r.body IS NOT NULL AS confirmed,
    a.constraints, a.cluster, a.limits, a.context, r.knobs AS configuration, r.id AS configuration_id, a.job_id
FROM chosen AS r
INNER JOIN aim AS a ON a.key = r.aim;

CREATE OR REPLACE VIEW knob_effects AS
SELECT
    a.job, a.metric, a.goal, e.knob, e.value, e.configurations, e.failed, e.best, e.median,
    if(a.goal = 'minimize',
        e.best / min(e.best) OVER (PARTITION BY e.aim),
        max(e.best) OVER (PARTITION BY e.aim) / e.best) AS behind,
    a.cluster, a.constraints, a.limits, a.context, a.job_id
FROM kept_effect AS e
INNER JOIN aim AS a ON a.key = e.aim;
