-- What an iteration of RL went into, too (autoscout/targets/command/worker/iterations/phase_clock.py).

CREATE OR REPLACE VIEW parts AS
WITH of_runs AS (
    SELECT
        job, session, name, status, fidelity, step_time_s, ended, job_id, configuration_id, id,
        unnest([
            'forward_backward_s', 'gradients_s', 'optimizer_s',
            'rollout_s', 'reward_s', 'logprobs_s', 'weights_s', 'wait_s', 'other_s', 'update_s'
        ]) AS metric,
        metrics
    FROM runs
)
SELECT
    job, session, name,
    regexp_replace(metric, '_s$', '') AS part,
    try_cast(metrics ->> metric AS DOUBLE) AS seconds,
    try_cast(metrics ->> metric AS DOUBLE) / step_time_s AS share,
    step_time_s, status, fidelity, ended, job_id, configuration_id, id
FROM of_runs
WHERE metrics ->> metric IS NOT NULL;
