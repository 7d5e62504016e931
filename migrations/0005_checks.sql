-- A check says itself what each simulator predicted; those of older sessions left that to what was simulated before.

-- Each simulator against what the same session measured of the same configuration. `bias` > 0: predicts too much.
CREATE OR REPLACE VIEW simulator_accuracy AS
WITH checked AS (
    SELECT
        d.session, d.body ->> 'name' AS name, try_cast(d.body ->> 'measured' AS DOUBLE) AS measured, d.body,
        cardinality(coalesce((d.body -> 'members')::MAP(VARCHAR, DOUBLE), MAP {})) > 0 AS says
    FROM decision AS d
    WHERE d.type = 'checked' AND (d.body ->> 'measured') IS NOT NULL
),

older AS (
    SELECT session, name, any_value(measured) AS measured
    FROM checked WHERE NOT says
    GROUP BY ALL
),

held AS (
    SELECT session, measured, body FROM checked WHERE says
    UNION ALL
    SELECT d.session, o.measured, d.body
    FROM decision AS d
    INNER JOIN older AS o ON o.session = d.session AND o.name = (d.body ->> 'name')
    WHERE d.type = 'simulated'
),

predicted AS (
    SELECT
        s.job_name AS job, s.metric, s.cluster, h.session, h.measured,
        unnest(list_concat(
            [{'key': 'ensemble', 'value': try_cast(h.body ->> 'predicted' AS DOUBLE)}],
            map_entries((h.body -> 'members')::MAP(VARCHAR, DOUBLE))
        )) AS member
    FROM held AS h
    INNER JOIN session AS s ON s.id = h.session
)

SELECT
    job, member.key AS simulator, count(*) AS checks,
    avg(abs(member.value / measured - 1)) AS mape,
    avg(member.value / measured - 1) AS bias,
    max(abs(member.value / measured - 1)) AS worst,
    metric, cluster, session
FROM predicted
GROUP BY ALL;
