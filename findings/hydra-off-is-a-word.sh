#!/usr/bin/env bash
# Hydra 1.3.8 (OmegaConf 2.3.1): a value moved from the YAML file to the command line changes its type. off, no, on and yes
# are booleans in the file and texts as overrides, and a text is true: `fp8=off` turns fp8 on in a script that asks `if
# cfg.fp8`. 010 is eight in the file and a text as an override. Jobs of verl and NeMo are started with such overrides.
# Nothing is said.
#
# Guessed before: the same values. Seen (2026-12-01, Python 3.11):
#   file: fp8 False, mbs 8, overlap True; overrides: fp8 'off', which is true, mbs '010', overlap 'yes'
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet hydra-core==1.3.8 omegaconf==2.3.1
mkdir "$folder/work" && cd "$folder/work"
printf 'fp8: off\noverlap: yes\nmbs: 010\n' > conf.yaml
cat > train.py <<'P'
import json

import hydra


@hydra.main(version_base=None, config_path=".", config_name="conf")
def main(cfg):
    print(json.dumps({"values": dict(cfg), "fp8 is on": bool(cfg.fp8)}))


main()
P
"$folder/env/bin/python" train.py | tee file.json
"$folder/env/bin/python" train.py fp8=off overlap=yes mbs=010 | tee overrides.json
"$folder/env/bin/python" - <<'P'
import json
import sys

file, overrides = (json.load(open(name)) for name in ("file.json", "overrides.json"))
same = file == {"values": {"fp8": False, "overlap": True, "mbs": 8}, "fp8 is on": False}
same = same and overrides == {"values": {"fp8": "off", "overlap": "yes", "mbs": "010"}, "fp8 is on": True}
sys.exit(0 if same else 1)
P
