"""Times the usual questions on a synthetic knowledge base of ten million measurements.

    python tests/tools/kb_scale.py [--rows 10000000] [--folder /tmp/autoscout-kb-scale] [--json]

2 % of the rows are from sessions: numbers in full precision, series, periods, values per rank, and decisions. The
others are from imported tables: times with six significant digits, memory with two decimals, as in result files; one in
a hundred was imported twice. Times are CPU seconds summed over threads, the minimum of three runs that each open the
file."""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kb import connect, outcomes, query, similar
from kb.records import Cluster, Job, Model, Node, Objective, Traffic

_IMPORT, _SESSION = 20_000, 100  # rows of each import and session
_DOCS = Path(__file__).parents[2] / "docs" / "knowledge-base.md"

_JOBS = """
CREATE TEMP TABLE made AS
SELECT
    i, i % 5 = 4 AS serving, [12, 16, 24, 32, 48, 80][1 + i % 6] AS layers,
    [1024, 2048, 3072, 4096, 5120, 8192][1 + (i // 6) % 6] AS hidden, [8, 16, 32, 64][1 + (i // 36) % 4] AS gpus,
    [1024, 2048, 4096][1 + (i // 144) % 3] AS seq_len, printf('%016x', hash(i)) AS id
FROM range($jobs) AS r(i);
INSERT INTO job BY NAME
SELECT
    id, 'model-' || i AS name, if(serving, 'serve', 'pretrain') AS task, if(serving, 'vllm', 'megatron') AS target,
    if(serving, 'serve-vllm-dense', 'pretrain-megatron-dense') AS family,
    json_object('layers', layers, 'hidden', hidden, 'heads', hidden // 128, 'vocab', 51200, 'kv_heads', 0,
        'head_dim', 0, 'ffn', 0, 'gated', false, 'norm', 'layernorm', 'bias', true, 'tied', false,
        'position', 'learned', 'experts', 0, 'topk', 2, 'expert_ffn', 0, 'dtype', 'bf16', 'preset', '') AS model,
    if(serving, json_object('concurrency', 32, 'input_len', seq_len, 'output_len', 128),
        json_object('seq_len', seq_len, 'global_batch', 512)) AS traffic
FROM made;
"""
_SESSIONS = """
CREATE TEMP TABLE run AS
SELECT
    n, n < $imports AS imported, m.*,
    if(n < $imports, 'import-' || printf('%016x', hash(n)), 'model-' || i || '-20261120-' || printf('%06d', n)) AS name
FROM range($imports + $sessions) AS r(n) INNER JOIN made AS m ON m.i = n % $jobs;
INSERT INTO session BY NAME
SELECT
    r.name AS id, if(imported, 'import', 'session') AS source, r.id AS job_id, j.name AS job_name, r.id AS context,
    '' AS host, gpus || '×a100' AS cluster, gpus AS devices, if(serving, 'maximize', 'minimize') AS goal,
    if(serving, 'output_tokens_per_s', 'step_time_s') AS metric, [] AS constraints,
    if(imported, 'import', 'autoscout') AS strategy, 0 AS seed, 'adaptive' AS fidelity, 'auto' AS warm_start,
    0 AS kb_mark, 1.7e9 + 1000 * n AS unix_s,
    json_object('name', j.name, 'target', j.target, 'model', j.model, 'traffic', j.traffic,
        'cluster', json_object('nodes', [json_object('device', 'a100', 'count', gpus, 'memory_gib', 80)]),
        'objective', json_object('minimize', if(serving, '', 'step_time_s'),
            'maximize', if(serving, 'output_tokens_per_s', ''), 'constraints', []),
        'task', j.task, 'budget', json_object('profiles', 100, 'wall', ''),
        'space', json_object('fix', json_object(), 'limit', json_object())) AS job,
    '{}' AS hyper, '{"torch": "2.13.0"}' AS environment
FROM run AS r INNER JOIN job AS j ON j.id = r.id;
INSERT INTO origin
SELECT n + 1, name, id, id, '{"torch": "2.13.0", "device": "NVIDIA A100-SXM4-80GB"}' FROM run ORDER BY n;
"""
_CONFIGURATIONS = """
CREATE TEMP TABLE knob AS
SELECT
    k, [1, 2, 4, 8][1 + k % 4] AS tp, [1, 2, 4, 8][1 + (k // 4) % 4] AS pp,
    [1, 2, 4, 8, 16][1 + (k // 16) % 5] AS mbs,
    ['none', 'selective', 'full'][1 + (k // 80) % 3] AS ar, (k // 240) % 2 = 1 AS sp, (k // 480) % 2 = 1 AS distopt,
    (k // 960) % 2 = 1 AS overlap_grad, [32, 64, 128, 256][1 + (k // 1920) % 4] AS ddp_bucket,
    1 + k // 7680 AS ar_layers
FROM range($configurations) AS r(k);
INSERT INTO configuration BY NAME
SELECT
    k + 1 AS key, printf('%016x', hash(k + 5)) AS id,
    concat_ws('_', 'tp' || tp, 'pp' || pp, 'mbs' || mbs, 'ar-' || ar, 'ar_layers' || ar_layers) AS name,
    json_object('pp', pp, 'tp', tp, 'dp', 64 // tp // pp, 'sp', sp, 'ar', ar, 'distopt', distopt,
        'overlap_grad', overlap_grad, 'mbs', mbs, 'ar_layers', ar_layers, 'ddp_bucket', ddp_bucket) AS knobs,
    pp, tp, 64 // tp // pp AS dp, sp, ar, distopt, overlap_grad, mbs, ar_layers, ddp_bucket
FROM knob;
"""
_MEASUREMENTS = """
INSERT INTO measurement BY NAME
WITH row AS (
    SELECT n, i, serving, imported, gpus, layers, hidden,
        ((i * 997 + hash(n, j) % $of_a_job) % $configurations)::INTEGER AS k,
        (hash(n, j, 1) % 1000000) / 1e6 AS u, (hash(n, j, 2) % 1000000) / 1e6 AS v, j
    FROM run, range(if(imported, $per_import, $per_session)) AS r(j)
),
timed AS (
    SELECT r.*, k.mbs, k.tp, u < 0.06 AS failed,
        layers * (hidden / 1024.0) ** 2 / gpus * (1 + 0.1 * k.tp / 8 + 0.3 / k.mbs) * (0.9 + 0.2 * v) AS t,
        10 + 60 * v * k.mbs / 16 AS gib
    FROM row AS r INNER JOIN knob AS k ON k.k = r.k
)
SELECT
    hash(n, j, 3) AS id, row_number() OVER () AS added, n + 1 AS origin, k + 1 AS configuration,
    if(imported, NULL, j + 1) AS number, if(imported, 'import', if(j % 10 = 0, 'confirm', 'search')) AS purpose,
    if(failed, if(u < 0.05, 'oom', 'error'), 'ok') AS status, 'measured' AS fidelity,
    if(failed, if(u < 0.05, 'out of memory on rank 0', 'AssertionError'), '') AS evidence,
    if(imported, 0, 20 + 40 * v) AS cost_s, if(imported, 0, (20 + 40 * v) * gpus) AS device_s,
    if(imported, 0, 1.7e9 + 1000 * n + 50 * j + v) AS unix_s,
    if(imported, '', printf('gpu-%02d boot %d', n % 40, n // 400)) AS period,
    if(imported, NULL, '{"steal_share": 0.01, "clock_mhz": 1410.0}') AS conditions,
    if(failed OR serving, NULL, if(imported, round(t, (5 - floor(log10(t)))::INTEGER), t)) AS step_time_s,
    if(failed OR serving, NULL, if(imported, round(512 / t, 2), 512 / t)) AS tokens_per_s,
    if(failed, NULL, round(gib, 2)) AS peak_memory_gib,
    if(failed OR NOT serving, NULL, round(20 * t, 2)) AS ttft_p50_ms,
    if(failed OR NOT serving, NULL, round(60 * t, 2)) AS ttft_p99_ms,
    if(failed OR NOT serving, NULL, round(3 * t, 2)) AS tpot_p50_ms,
    if(failed OR NOT serving, NULL, round(5 * t, 2)) AS tpot_p99_ms,
    if(failed OR NOT serving, NULL, round(9000 / t, 1)) AS output_tokens_per_s
FROM timed ORDER BY n, j;
INSERT INTO series BY NAME
SELECT
    id, to_json([step_time_s, step_time_s * 1.01, step_time_s * 0.99]) AS iterations_s, '[10.8, 10.7]' AS losses,
    '[1.5, 1.4]' AS grad_norms, '[70.1, 70.2]' AS rank_memory_gib, '{"power_w": [301.5, 310.25]}' AS per_rank,
    '["gpu-07:gpu:0", "gpu-07:gpu:1"]' AS rank_devices
FROM measurement WHERE number IS NOT NULL AND step_time_s IS NOT NULL;
"""
_FURTHER = """
INSERT INTO further_source
SELECT id, 1 + (origin * 7) % (SELECT count(*) FROM run WHERE imported), NULL, 'import'
FROM measurement WHERE purpose = 'import' AND id % 100 = 0;
"""
_DECISIONS = """
INSERT INTO decision
SELECT name, s, CASE WHEN s = 70 THEN 'session_ended' WHEN s = 69 THEN 'confirmed' WHEN s % 3 = 0 THEN 'decided'
        WHEN s = 1 THEN 'tournament_ranked' WHEN s % 7 = 1 THEN 'simulated' WHEN s % 7 = 2 THEN 'checked'
        ELSE 'rewarded' END,
    1.7e9 + 1000 * n + s,
    CASE
        WHEN s = 70 THEN '{"reason": "budget"}'
        WHEN s = 69 THEN json_object('name', 'tp8_pp4_mbs4', 'value', 1.0, 'gain', 1.1 + (n % 50) / 100, 'low', 1.05,
            'high', 1.4)
        WHEN s = 1 THEN '{"round": 0, "orderings": [["tp", "pp"], ["mbs", "tp"]], "rewards": [0.9, 0.8], "kept": [0]}'
        WHEN s % 3 = 0 THEN json_object('step', s, 'phase', 'search', 'arm', 'SPARSE', 'names', ['tp8_pp4_mbs4'],
            'why', 'the tree proposes it')
        WHEN s % 7 IN (1, 2) THEN json_object('step', s, 'name', 'c' || (s // 7),
            'predicted', 1 + (hash(n, s) % 100) / 500,
            'members', json_object('linear', 1.1, 'roofline', 1 + (hash(n, s) % 100) / 300), 'measured', 1.05,
            'mape', 0.05, 'epsilon', 0.15, 'weights', json_object('linear', 0.5, 'roofline', 0.5))
        ELSE '{"step": 1, "costs": [1.0, 1.1, 0.9, null], "delta_sparse": 0.1, "delta_dense": 0.0, "interaction": null,
            "arms": {"SPARSE": [3, 0.1]}}'
    END
FROM run, range(71) AS r(s) WHERE NOT imported;
"""


def build(kb: Path, rows: int) -> None:
    """Creates the file; 2 % of the rows are from sessions."""
    numbers = {
        "jobs": max(rows // 50_000, 5),
        "imports": max(rows * 49 // 50 // _IMPORT, 1),
        "sessions": max(rows // 50 // _SESSION, 1),
        "configurations": min(200_000, max(rows // 50, 1000)),
        "of_a_job": 10_000,
        "per_import": _IMPORT,
        "per_session": _SESSION,
    }
    with connect.writer(kb) as con:
        con.execute("SET threads = 2")
        for name, value in numbers.items():
            con.execute(f"SET VARIABLE {name} = {value}")
        for part in (_JOBS, _SESSIONS, _CONFIGURATIONS, _MEASUREMENTS, _FURTHER, _DECISIONS):
            for name in numbers:
                part = part.replace(f"${name}", f"getvariable('{name}')")
            con.execute(part)


def job_like_one() -> Job:
    return Job(
        name="new",
        target="megatron",
        model=Model(layers=24, hidden=2048, heads=16, vocab=51200),
        traffic=Traffic(seq_len=2048, global_batch=512),
        cluster=Cluster(nodes=[Node(device="a100", count=16, memory_gib=80)]),
        objective=Objective(minimize="step_time_s"),
    )


def questions() -> list[tuple[str, str]]:
    """(question, SQL) of docs/knowledge-base.md, for a job in this knowledge base."""
    found = []
    for part in _DOCS.read_text().split("\n### ")[1:]:
        title, _, rest = part.partition("\n")
        if "```sql" in rest:
            sql = rest.split("```sql\n")[1].split("```")[0]
            found.append((title, sql.replace("smallest-cpu-replay", "model-7")))
    return found


def cpu_ms(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(3):
        began = time.process_time()
        work()
        times.append(1000 * (time.process_time() - began))
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/autoscout-kb-scale"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kb = options.folder / f"kb-{options.rows}.duckdb"
    if not kb.exists():
        build(kb, options.rows)
    [(rows, job_id)] = query.run(
        kb, "SELECT (SELECT count(*) FROM measurement), (SELECT id FROM job WHERE name = 'model-7')"
    ).rows
    figures: dict[str, Any] = {"rows": rows, "mib": round(kb.stat().st_size / 2**20, 1), "cpu_ms": {}}
    for title, sql in questions():
        figures["cpu_ms"][title] = round(cpu_ms(lambda sql=sql: query.run(kb, sql)))
    figures["cpu_ms"]["similar"] = round(cpu_ms(lambda: similar.similar(kb, job_like_one(), lambda node: 80.0)))
    figures["cpu_ms"]["its outcomes for a warm start"] = round(
        cpu_ms(lambda: outcomes.outcomes(kb, job_id, ["step_time_s"]))
    )
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{rows:,} measurements in {figures['mib']} MiB")
    for what, ms in figures["cpu_ms"].items():
        print(f"{ms:6} ms CPU  {what}")


if __name__ == "__main__":
    main()
