"""Runs every comparison of docs/lab/search.md and docs/lab/bench-paper.md again and writes its output into the page.

    python tests/tools/bench_docs.py [--seeds 20] [--landscapes ../shared/data/landscapes] [--only NAME,NAME]

A block of the page begins with `<!-- bench NAME -->` and ends with `<!-- end -->`; what is between them is replaced by
the command and what it printed. Finished runs are kept in build/bench, so the program can be killed and restarted."""

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = Path("docs/lab/search.md")
PAPER = Path("docs/lab/bench-paper.md")
COLD = "--noise 0.02"
FEW = "autoscout,paper,gp-ei,optuna-tpe,deepspeed,cherrypick,udo,metis,random"

TABLES = {
    "storm": "--table $LANDSCAPES/moot_SS-J.csv.gz --metric Throughput+ --goal max",
    "postgres": "--table $LANDSCAPES/moot_PostgreSQL.csv.gz --metric Performance- --goal min",
    "convolution": "--table $LANDSCAPES/kt_convolution_milo_A100.csv.gz --metric time_ms --goal min --status status",
    "gemm": "--table $LANDSCAPES/kt_gemm_RTX_3060_laptop.csv.gz --metric time_ms --goal min --status status",
    "vtrain": "--table $LANDSCAPES/vtrain_a100_single_node.csv.gz --metric s_per_sample --goal min "
    "--knobs global_batch,micro_batch,tp,pp,dp --group-by layers,hidden,n_gpus",
}
JOBS = {
    "llama-3b": "--job fixtures/jobs/llama-3.2-3b.toml",
    "llama-8b": "--job fixtures/jobs/llama-3.1-nemotron-nano-8b.toml",
}
MIXTURE = "--job fixtures/jobs/qwen3-30b-a3b.toml"


def comparisons() -> dict[str, str]:
    """Block → the arguments of `autoscout bench`."""
    found = {name: f"{table} {COLD}" for name, table in TABLES.items()}
    found |= {name: f"{job} {COLD} --strategies {FEW}" for name, job in JOBS.items()}
    for simulator in ("good", "biased", "good+80"):
        found[f"llama-3b {simulator}"] = (
            f"{JOBS['llama-3b']} --simulator {simulator} {COLD} --strategies autoscout,paper,metis"
        )
    for name, job in {"llama-8b": JOBS["llama-8b"], "qwen3-30b": MIXTURE}.items():
        for simulator in ("good", "biased"):
            found[f"{name} {simulator}"] = f"{job} --simulator {simulator} {COLD} --strategies autoscout,paper,metis"
    found["vtrain cold"] = f"{TABLES['vtrain']} {COLD} --strategies autoscout"
    found["vtrain transfer"] = f"{TABLES['vtrain']} {COLD} --strategies autoscout --transfer"
    parts = ["autoscout", *(f"autoscout:{part}=false" for part in ("sparse", "dense", "effects"))]
    for name in ("convolution", "llama-3b"):
        where = {**TABLES, **JOBS}[name]
        found[f"{name} ablation"] = f"{where} {COLD} --strategies {','.join(parts)}"
    found["paper"] = f"--paper {COLD}"
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=20)
    options.add_argument("--landscapes", default="../shared/data/landscapes")
    options.add_argument("--only", default="")
    chosen = options.parse_args()
    only = [name for name in chosen.only.split(",") if name]
    for name, arguments in comparisons().items():
        if only and name not in only:
            continue
        if "$LANDSCAPES" in arguments and not Path(chosen.landscapes).is_dir():
            print(f"{name}: left as it is, {chosen.landscapes} is not there", file=sys.stderr)
            continue
        command = f"autoscout bench {arguments} --seeds {chosen.seeds}"
        print(command, file=sys.stderr)
        output = printed(arguments, chosen.seeds, chosen.landscapes)
        page = PAPER if name == "paper" else PAGE
        page.write_text(replaced(page.read_text(), name, block(name, command, output)))


def printed(arguments: str, seeds: int, landscapes: str) -> str:
    words = shlex.split(arguments.replace("$LANDSCAPES", landscapes))
    markdown = [] if "--paper" in words else ["--markdown"]
    command = [
        sys.executable,
        "-m",
        "tui.cli",
        "bench",
        *words,
        "--seeds",
        str(seeds),
        "--out",
        "build/bench",
        *markdown,
    ]
    environment = {**os.environ, "PYTHONPATH": ".", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return done.stdout.strip("\n")


def block(name: str, command: str, output: str) -> str:
    if name == "paper":
        return output
    return f"    {command}\n\n{output}"


def replaced(text: str, name: str, content: str) -> str:
    pattern = re.compile(rf"(<!-- bench {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"the page has no block '{name}'")
    return pattern.sub(lambda m: f"{m[1]}\n{content}\n\n{m[2]}", text)


if __name__ == "__main__":
    main()
