-- Verdicts of `autoscout gate`: one side against another.

CREATE VIEW gates AS
SELECT
    s.job_name AS job,
    d.body ->> 'a' AS a,
    d.body ->> 'b' AS b,
    d.body ->> 'verdict' AS verdict,
    try_cast(d.body ->> 'ratio' AS DOUBLE) AS ratio,
    try_cast(d.body ->> 'low' AS DOUBLE) AS low,
    try_cast(d.body ->> 'high' AS DOUBLE) AS high,
    try_cast(d.body ->> 'p_worse' AS DOUBLE) AS p_worse,
    try_cast(d.body ->> 'margin' AS DOUBLE) AS margin,
    try_cast(d.body ->> 'pairs' AS BIGINT) AS pairs,
    d.body ->> 'sentence' AS sentence,
    make_timestamp((d.unix_s * 1000000)::BIGINT) AS happened,
    d.body ->> 'a_session' AS a_session,
    d.session AS b_session
FROM decision AS d
LEFT JOIN session AS s ON s.id = d.session
WHERE d.type = 'gated';
