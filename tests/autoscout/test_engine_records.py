"""An engine is one record: names in all spellings, rows by release, and nothing in the code that asks for a name."""

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from record_files import own_engines, shipped_engines

from autoscout.simulate import engine_records
from autoscout.simulate.engine_records import families, family_of, release_of
from autoscout.simulate.serving.served_by import EngineRelease, engines_of, served, strange_releases
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.step import Training
from autoscout.simulate.validation.against import score
from autoscout.simulate.validation.serving_tables import columns_of_rows
from autoscout.simulate.validation.training_tables import columns_of
from kb.records import AutoscoutError

LLAMA = {"model": "llama-3-8b", "gpu": "H100", "input_len": 500, "output_len": 200, "concurrency": 16, "requests": 60}
ROWS = [
    {**LLAMA, "framework": framework, "version": version, **load}
    for framework, version in (
        ("vLLM", "0.6.5"), ("vLLM", "0.11.0"), ("vLLM", "0.18.0"), ("vLLM", ""), ("SGLang", "0.5.9"),
        ("TensorRT-LLM", "0.10"), ("TensorRT-LLM", "1.2.0rc2"), ("lmdeploy TurboMind", "0.2.0"), ("Deepspeed-MII", ""),
    )
    for load in ({}, {"concurrency": "", "batch": 16})
]  # fmt: skip
TRAINED = [
    {"framework": framework, "source": source, "model": "llama2-13b", "gpu": "H100", "n_gpus": 8, "tp": 2,
     "seq_len": 4096, "global_batch": 64, "micro_batch": 1, "precision": "bf16", "ar": ar, "round": submitted}
    for framework, source in (
        ("llm-foundry FSDP", "llm_foundry"), ("InternEvo", ""), ("fms-fsdp", "fms_fsdp"), ("torchtitan FSDP2", ""),
        ("Megatron-Bridge 26.06", ""), ("litgpt finetune", ""), ("HuggingFace Trainer", ""), ("NeMo AutoModel", ""),
        ("NVIDIA NeMo Framework Release 25.09", "mlperf"),
        ("somebody's", "vTrain"),
    )
    for ar in ("none", "selective")
    for submitted in ("", "v5.1")
]  # fmt: skip
[NEW] = re.findall(r"```toml\n(\[\[release]].*?)```", Path("docs/architecture.md").read_text(), re.DOTALL)
MINE = """
name = "Fastserve"
task = "serve"
names = ["fastserve", "fast serve"]

[[release]]
since = "1"
like = "vllm 0.18"

[release.launches]
source = "its profiler"
n = 3
times = 0.5
"""


def predicted(rows: list[dict[str, Any]], metric: str = "tpot_mean_ms") -> tuple[list[float], list[float]]:
    columns, _ = columns_of_rows(rows)
    found = ServingSimulator(metric).predict({name: values for name, values in columns.items() if name != "row"})
    return found.value.tolist(), found.error.tolist()


def test_every_figure_says_where_it_is_from_and_how_it_is_fitted_again() -> None:
    for family in families().values():
        for row in family.rows:
            if family.task == "serve":
                served(family, row)  # no group is missing, none has an unknown figure
            for name, group in row.groups.items():
                assert family.task == "train" or name in (*EngineRelease.__struct_fields__, "cache")
                where = (family.stem, row.since, name)
                assert group["source"], where
                assert isinstance(group["n"], int), where
                if command := group.get("fitted_by", ""):
                    tool = command.removeprefix("python -m ").replace(".", "/")
                    assert Path(f"{tool}.py").exists(), where


@pytest.mark.parametrize(
    ("text", "stem"),
    [
        ("vLLM", "vllm"), ("vllm-rocm 0.9.1", "vllm"), ("SGLang v0.5.9", "sglang"), ("TensorRT-LLM", "tensorrt-llm"),
        ("TensorRT_LLM", "tensorrt-llm"), ("trtllm", "tensorrt-llm"), ("TRT-LLM 1.2", "tensorrt-llm"),
        ("NIM (TensorRT-LLM)", "tensorrt-llm"), ("LMDeploy/TurboMind", "turbomind"), ("llama.cpp", "llama-cpp"),
        ("TGI", None), ("", None), ("HuggingFace Trainer", "huggingface"), ("HF Trainer", "huggingface"),
        ("Transformers 4.56", "huggingface"), ("TRL", "huggingface"), ("TRL SFTTrainer", "huggingface"),
        ("NVIDIA NeMo Framework Release 25.09", "megatron-core"), ("NeMo AutoModel", "automodel"),
        ("Megatron-Bridge 26.06", "megatron-bridge"), ("Megatron-LM", "megatron-core"), ("MCore", "megatron-core"),
        ("HF Trainer + DeepSpeed", "deepspeed"), ("DeepSpeed ZeRO-3", "deepspeed"), ("MindSpeed", None),
    ],
)  # fmt: skip
def test_a_family_has_its_names_in_all_spellings(text: str, stem: str | None) -> None:
    found = [one.stem for task in ("serve", "train") if (one := family_of(text, task))]
    assert found == ([stem] if stem else [])


def test_a_release_is_its_row_s_and_one_that_nobody_knows_the_nearest() -> None:
    vllm = families()["vllm"]
    assert vllm.at((0, 10, 2)).since == (0, 8)
    assert vllm.at((99,)).since == vllm.rows[-1].since
    texts = {"v0.14.1": (0, 14, 1), "1.2.0rc2.post2": (1, 2, 0), "nightly-5b8c30d62b754b57": None, "gpt-oss-dev": None}
    assert {text: release_of(text) for text in texts} == texts
    said = engines_of({"framework": np.array(["vLLM 0.6.5", "vLLM"]), "version": np.array(["", "nightly"])}, 2)
    assert said.own(lambda e: e.schedule.prompts_first).tolist() == [True, False]


def trained(rows: list[dict[str, Any]]) -> list[list[float]]:
    columns = columns_of(rows)
    return [simulator().predict(columns).value.tolist() for simulator in (Training, Memory)]


def test_what_records_and_sources_are_called_changes_no_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record under another name and file, and rows that call it so."""
    before = predicted(ROWS), trained(TRAINED)
    stems = list(families())
    renamed = {stem: f"engine{chr(97 + i)}" for i, stem in enumerate(stems)}

    def called(row: dict[str, Any], task: str) -> dict[str, Any]:
        known, text = family_of(row["framework"], task), row["framework"]
        for name in sorted(known.names, key=len, reverse=True) if known else ():
            text = re.sub(
                name.replace(" ", "[^a-z0-9]+"), renamed[known.stem] if known else "", text, flags=re.IGNORECASE
            )
        return {**row, "source": "elsewhere", "framework": text}

    rows = [called(row, "serve") for row in ROWS], [called(row, "train") for row in TRAINED]
    for stem in stems:
        text = (engine_records.folder() / f"{stem}.toml").read_text()
        text = re.sub(r"^names = \[.*?\]$", f'names = ["{renamed[stem]}"]', text, flags=re.MULTILINE | re.DOTALL)
        text = re.sub(r"^name = .*$", 'name = "renamed"', text, flags=re.MULTILINE)
        for other in stems:
            text = re.sub(rf'(like|runs_on) = "{other}\b', rf'\1 = "{renamed[other]}', text)
        (tmp_path / f"{renamed[stem]}.toml").write_text(text)
    with shipped_engines(tmp_path, monkeypatch):
        after = predicted(rows[0]), trained(rows[1])
    for now, then in zip(after, before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_a_release_is_one_row_in_a_person_s_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{**LLAMA, "framework": "vLLM", "version": version} for version in ("0.29", "0.30.1")]
    (before, same), _ = predicted(rows)
    assert before == same
    shipped = (engine_records.folder() / "vllm.toml").read_text()
    with own_engines(tmp_path, monkeypatch, vllm=f"{shipped}\n{NEW}"):
        (old, new), _ = predicted(rows)
    assert old == before
    assert new > 1.5 * old  # more work of the host than the device hides


def test_an_engine_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to what `predict --against` says of a table."""
    rows = [{**LLAMA, "framework": name, "version": "1.0"} for name in ("Fast-Serve", "vLLM 0.18", "another")]
    with own_engines(tmp_path, monkeypatch, mine=MINE):
        (own, vllm, _), (error, usual, unknown) = predicted([{**row, "version": ""} for row in rows])
    assert own == vllm
    assert error == usual < unknown


def test_a_table_of_a_new_engine_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{**LLAMA, "framework": "fastserve", "concurrency": users, "tpot_ms": 9 + users / 8} for users in (4, 8, 16)]
    with (tmp_path / "t.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    with own_engines(tmp_path, monkeypatch, mine=MINE):
        told = score(tmp_path / "t.csv")
    assert (told.metrics["tpot_mean_ms"].rows, told.skipped) == (3, {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'task = "serve"\n[[release]]\nsince = "1"\nlike = "mine 1"\n',
            "its `like` refers back to itself: mine → mine",
        ),
        (
            'task = "serve"\n[[release]]\nsince = "1"\nlike = "vlm 1"\n',
            "like = 'vlm 1' is unknown; did you mean 'vllm'?",
        ),
        ('task = "serve"\nnames = ["vLLM"]\n[[release]]\nsince = "1"\n', "is also a name in"),
        ('task = "serve"\n[[release]]\nsince = "2"\n[[release]]\nsince = "1"\n', "release 2: `since` must be"),
        ('task = "serve"\n[[release]]\nsince = "1"\n[release.host]\nstep = 1.0\n', "[host] needs `source` and `n`"),
        ('task = "cook"\n[[release]]\nsince = "1"\n', "needs task = 'serve' or 'train'"),
        ("task = \n", "mine.toml"),
    ],
)
def test_a_record_that_cannot_be_read_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    with own_engines(tmp_path, monkeypatch, mine=text), pytest.raises(AutoscoutError, match=re.escape(said)):
        families()


def test_a_group_that_is_missing_or_misspelled_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = MINE.replace("times = 0.5", "tymes = 0.5")
    with own_engines(tmp_path, monkeypatch, mine=figures), pytest.raises(AutoscoutError, match="tymes"):
        predicted([{**LLAMA, "framework": "fastserve"}])
    bare = MINE.replace('like = "vllm 0.18"\n', "")
    with own_engines(tmp_path, monkeypatch, mine=bare), pytest.raises(AutoscoutError, match="schedule"):
        predicted([{**LLAMA, "framework": "fastserve"}])


def test_a_release_that_is_not_said_is_any_of_the_last_two_years_until_rows_settle_it() -> None:
    versions = ("0.7", "0.11", "0.20", "")
    (*said, unsaid), (*errors, error) = predicted([{**LLAMA, "framework": "vLLM", "version": v} for v in versions])
    assert min(said) < unsaid < max(said)
    assert error > errors[1]  # of its most likely one
    columns, _ = columns_of_rows([{**LLAMA, "framework": "vLLM", "concurrency": users} for users in (4, 8, 16)])
    old, _ = predicted([{**LLAMA, "framework": "vLLM", "version": "0.7", "concurrency": users} for users in (4, 8, 16)])
    simulator = ServingSimulator("tpot_mean_ms")
    before = abs(np.log(simulator.predict(columns).value / old))
    simulator.fit(columns, np.array(old))
    assert (abs(np.log(simulator.predict(columns).value / old)) < 0.5 * before).all()
    likely = {dict(choice)["version"]: value for (_, choice), value in simulator.unsaid.items()}
    assert likely["0.7"] > likely["0.14"]


def test_weights_of_8_bits_may_bring_scales_for_a_cache_of_as_many() -> None:
    """64 users of 922 and 7,373 tokens fill the cache of 16 bits, and not that of 8 (InferenceX: 0.38 s to the first
    token on B200); 7,373 and 922 fill both on H200 (39.8 s)."""
    load = {"model": "llama-3-70b", "framework": "vLLM", "quantization": "fp8", "tp": 1, "concurrency": 64}
    rows = [
        {**load, "gpu": gpu, "input_len": i, "output_len": o, "range_ratio": 0.11, "version": "0.18.0", "kv_dtype": kv}
        for gpu, i, o in (("B200", 922, 7373), ("H200", 7373, 922))
        for kv in ("auto", "fp8", "")
    ]
    values, errors = predicted(rows, "ttft_mean_ms")
    full, room, unsaid, *others = values
    assert full > 5000 > 1000 > unsaid > room > 250
    assert errors[2] > max(errors[:2])
    assert others[2] == pytest.approx(39_807, rel=0.3)
    plain, _ = predicted([{**row, "quantization": "none", "tp": 4} for row in rows[:3]], "ttft_mean_ms")
    assert plain[0] == plain[2]


def test_a_release_that_nobody_has_read_is_doubted_and_said() -> None:
    rows = [{**LLAMA, "framework": "vLLM", "version": v} for v in ("0.20", "0.99", "nightly-5b8c", "0.20.1")]
    values, errors = predicted(rows)
    assert len(set(values)) == 1
    assert errors[1] == errors[2] > errors[0] == errors[3]
    columns, _ = columns_of_rows(rows)
    assert strange_releases(columns, 4).tolist() == [
        "",
        "vLLM 0.99 is newer than 0.20, its last known release, which is used",
        "release 'nightly-5b8c' of vLLM is not known; its newest known release, 0.20, is used",
        "",
    ]
