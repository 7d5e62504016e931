"""How often the space and the target agree on whether a configuration is valid, and each class of disagreement.

PYTHONPATH=. python tests/tools/oracle_rate.py [megatron] [vllm]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "autoscout" / "oracle"))

import megatron_oracle
import vllm_oracle
from agreement import report


def main() -> None:
    asked = sys.argv[1:] or ["megatron", "vllm"]
    if "megatron" in asked:
        early, deep = megatron_oracle.verdicts()
        print(report("Megatron-core, configuration classes and groups", early, megatron_oracle.EARLY))
        print(report("Megatron-core, model and first step", deep, megatron_oracle.DEEP))
    if "vllm" in asked and vllm_oracle.PYTHON.exists():
        print(report("vLLM, configuration of an engine", vllm_oracle.verdicts(), vllm_oracle.LISTED))
    elif "vllm" in asked:
        print(f"vLLM: not asked, there is no {vllm_oracle.PYTHON} (`make .venv-vllm/ready` installs it)")


if __name__ == "__main__":
    main()
