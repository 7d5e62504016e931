#!/bin/sh
# megatron-core 0.18.0 (and 0.18.2, 0.19.2) cannot be imported without triton, not even what runs on CPUs: its pipeline
# schedules import the paged stash of experts, and that imports triton without a guard. Its metadata requires torch,
# numpy and packaging, and builds of torch for CPUs bring no triton. 0.17.1 is imported without it. Seen with torch 2.13.0.
#
#     sh megatron-core-imports-triton.sh        needs a Python 3.11 with pip; exits non-zero if that has changed
set -eu
PYTHON=${PYTHON:-python3.11}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$PYTHON" -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet torch==2.13.0 numpy packaging
"$folder/env/bin/python" -m pip uninstall --quiet --yes triton || true # a build of torch for GPUs brings it
for version in 0.17.1 0.18.0; do # these wheels ask for Python 3.12, and what is imported here runs on 3.11
    "$folder/env/bin/python" -m pip install --quiet --no-deps --ignore-requires-python --only-binary :all: --python-version 3.12 \
        --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 \
        --platform manylinux2014_x86_64 --target "$folder/$version" "megatron-core==$version"
    grep '^Requires-Dist' "$folder/$version"/megatron_core-*.dist-info/METADATA | grep -v extra | tr '\n' ' '
    PYTHONPATH="$folder/$version" "$folder/env/bin/python" -W ignore -c \
        'import megatron.core; print(megatron.core.__version__, "is imported")' > "$folder/$version.txt" 2>&1 || true
    echo "megatron-core $version: $(tail -n 1 "$folder/$version.txt")"
done
grep -q '0.17.1 is imported' "$folder/0.17.1.txt"
grep -q "No module named 'triton'" "$folder/0.18.0.txt"
! grep '^Requires-Dist' "$folder/0.18.0"/megatron_core-*.dist-info/METADATA | grep -v extra | grep -q triton
