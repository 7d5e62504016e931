#!/usr/bin/env bash
# torch 2.13.0, torch.distributed.checkpoint: a load that does not fit (a tensor that the checkpoint lacks, another shape)
# raises a CheckpointException, which is no Exception but a BaseException, as Ctrl-C is: `except Exception`, by which a
# script goes on without the checkpoint or writes down why it failed, does not see it. The RuntimeError or ValueError
# inside is only in its text.
#
# Guessed before: a RuntimeError or ValueError, which `except Exception` takes. Seen (2026-11-29, Python 3.11):
#   a missing tensor, another shape: CheckpointException, passed by `except Exception`, a BaseException
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy
cat > "$folder/run.py" <<'P'
import sys

import torch
import torch.distributed.checkpoint as dcp

dcp.save({"a": torch.zeros(4)}, checkpoint_id=sys.argv[1])
found = []
for name, wanted in (("a missing tensor", {"a": torch.zeros(4), "b": torch.zeros(4)}), ("another shape", {"a": torch.zeros(2, 2)})):
    try:
        try:
            dcp.load(wanted, checkpoint_id=sys.argv[1])
            found.append("loaded")
        except Exception as error:
            found.append(f"taken by except Exception: {type(error).__name__}")
    except BaseException as error:
        found.append(f"passed by except Exception: {type(error).__name__}, {type(error).__mro__[1].__name__}")
    print(f"torch {torch.__version__}, {name}: {found[-1]}")
sys.exit(found != ["passed by except Exception: CheckpointException, BaseException"] * 2)
P
CUDA_VISIBLE_DEVICES= "$folder/env/bin/python" -W ignore "$folder/run.py" "$folder/checkpoint" 2> "$folder/log" || { tail -5 "$folder/log"; exit 1; }
