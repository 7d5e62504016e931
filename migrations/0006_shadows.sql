-- What the framework's own code said of a configuration without a GPU: one row a job, configuration, versions and way of
-- tracing, the newest. The traces themselves lie beside the knowledge base (shadows/); no row is a measurement, and none
-- leaves this machine.
CREATE TABLE shadow (
    job_id VARCHAR NOT NULL,
    configuration VARCHAR NOT NULL,  -- its id
    versions VARCHAR NOT NULL,  -- package version, …
    from_parts BOOLEAN NOT NULL,  -- composed of traces of small jobs
    job VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    knobs JSON NOT NULL,
    world INTEGER NOT NULL,
    verdict VARCHAR NOT NULL,  -- starts, refused, untraceable, timeout
    sentence VARCHAR NOT NULL,
    fullest_rank INTEGER NOT NULL,
    allocated_gib DOUBLE,
    low_gib DOUBLE,
    high_gib DOUBLE,
    reserved_gib DOUBLE,
    imbalanced_gib DOUBLE,  -- with experts
    device_gib DOUBLE,
    oom_probability DOUBLE,
    step_s DOUBLE,
    cpu_s DOUBLE NOT NULL,
    traced TIMESTAMP NOT NULL,
    PRIMARY KEY (job_id, configuration, versions, from_parts)
);

CREATE VIEW shadows AS
SELECT
    job, name, verdict, allocated_gib, low_gib, high_gib, reserved_gib, imbalanced_gib, device_gib, oom_probability,
    step_s, fullest_rank, world, from_parts, sentence, knobs, versions, cpu_s, traced
FROM shadow;
