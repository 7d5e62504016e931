#!/usr/bin/env bash
# megatron-core 0.19.2 (its wheel contains megatron/training): the theoretical memory that a run's log states knows neither
# what is recomputed nor context parallelism. With --recompute-granularity full, which keeps one input a layer, activations
# are those of a model that keeps everything, 3.1 times what selective recomputation has: the report ranks the two the wrong
# way round. --context-parallel-size 8, which leaves each rank an eighth of the tokens, changes nothing.
#
# Expected: full less than selective, and an eighth with 8 context parallel ranks. Seen (2026-11-30, Python 3.12):
#   MB of activations with tp 8 and sequence parallelism: selective 2248, full 7072, none 7072, selective with cp 8 2248
set -euo pipefail
python=${PYTHON:-python3.12}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/env"
# --no-deps: the estimate is arithmetic. Of its neighbour utils.py, which asks for torch, it takes two names.
"$folder/env/bin/pip" install --quiet --no-deps --only-binary :all: megatron-core==0.19.2
cat > "$folder/run.py" <<'P'
import contextlib
import importlib.util
import io
import re
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace

package, utils = ModuleType("training"), ModuleType("training.utils")
package.__path__ = []
utils.is_hybrid_model, utils.print_rank_0 = (lambda args: False), print
sys.modules |= {"training": package, "training.utils": utils}
file = next(Path(sys.prefix).glob("lib/*/site-packages/megatron/training/theoretical_memory_usage.py"))
spec = importlib.util.spec_from_file_location("training.theoretical_memory_usage", file)
estimate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(estimate)


def activations(recomputed, cp=1):
    args = SimpleNamespace(
        num_layers=32, hidden_size=4096, ffn_hidden_size=16384, num_attention_heads=32, kv_channels=128, seq_length=4096,
        micro_batch_size=1, padded_vocab_size=32000, num_experts=None, swiglu=False, group_query_attention=False,
        moe_shared_expert_intermediate_size=None, mtp_num_layers=None, multi_latent_attention=False, moe_latent_size=None,
        normalization="LayerNorm", add_bias_linear=True, untie_embeddings_and_output_weights=True, moe_router_topk=2,
        tensor_model_parallel_size=8, pipeline_model_parallel_size=1, virtual_pipeline_model_parallel_size=None,
        expert_tensor_parallel_size=1, expert_model_parallel_size=1, context_parallel_size=cp, data_parallel_size=1,
        world_size=8 * cp, use_distributed_optimizer=True, sequence_parallel=True, recompute_granularity=recomputed,
        recompute_method="uniform" if recomputed == "full" else None, recompute_num_layers=1,
    )
    with contextlib.redirect_stdout(io.StringIO()) as said:
        estimate.report_theoretical_memory(args, num_microbatches=8)
    return float(re.search(r"activation=([\d.]+)", said.getvalue())[1])


found = [activations("selective"), activations("full"), activations(None), activations("selective", cp=8)]
print(f"megatron-core {version('megatron-core')}: selective {found[0]:.0f} MB, full {found[1]:.0f}, none {found[2]:.0f},"
      f" selective with cp 8 {found[3]:.0f}")
sys.exit(not (found[1] == found[2] > 3 * found[0] and found[3] == found[0]))
P
"$folder/env/bin/python" "$folder/run.py"
