#!/usr/bin/env bash
# msgspec 0.23.0, omit_defaults: "fields whose value is the default" are those that hold the default object itself. A number
# or a text that was read or computed is another object: 0.5, 1000 or "usual name" from JSON is written out again, while the
# small integer 1 and an empty list are left out. Two records that are equal have two encodings, and two hashes.
#
# Guessed before: what equals its default is left out. Seen (2026-11-30, Python 3.11):
#   made without arguments {}, read from its own fields {"half":0.5,"many":1000,"name":"usual name"}; equal: True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet msgspec==0.23.0
cat > "$folder/run.py" <<'P'
import sys

import msgspec


class Job(msgspec.Struct, omit_defaults=True):
    half: float = 0.5
    many: int = 1000
    name: str = "usual name"
    one: int = 1
    several: list[int] = []


plain = Job()
read = msgspec.json.decode(b'{"half":0.5,"many":1000,"name":"usual name","one":1,"several":[]}', type=Job)
found = [msgspec.json.encode(each).decode() for each in (plain, read)]
print(f"msgspec {msgspec.__version__}: made {found[0]}, read {found[1]}; equal: {plain == read}")
sys.exit(found != ["{}", '{"half":0.5,"many":1000,"name":"usual name"}'] or plain != read)
P
"$folder/env/bin/python" "$folder/run.py"
