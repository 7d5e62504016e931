#!/bin/sh
# megatron-core 0.19.2 (0.16.1, too) says another version of itself where its environment lies in a git repository, whatever
# that is of: it asks git for the commit there and calls itself by it. A wheel from the package index, installed in
# project/.venv, says 0.19.2+<the project's commit>, and another version after the project's next commit; its metadata
# says 0.19.2. So its own word is of no use to tell which release made a measurement.
#
#     sh megatron-core-version-of-another-repository.sh   needs git and a Python with pip; exits non-zero if that changed
set -eu
PYTHON=${PYTHON:-python3}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$PYTHON" -m pip install --quiet --no-deps --ignore-requires-python --only-binary :all: --python-version 3.12 \
    --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 --platform manylinux2014_x86_64 \
    --target "$folder/project/env" megatron-core==0.19.2
says() {
    "$PYTHON" -c 'import runpy, sys; print(runpy.run_path(sys.argv[1])["__version__"])' \
        "$folder/project/env/megatron/core/package_info.py"
}
plain=$(says)
git -C "$folder/project" init --quiet
git -C "$folder/project" -c user.name=a -c user.email=a@example.org commit --quiet --allow-empty --message first
commit=$(git -C "$folder/project" rev-parse --short HEAD)
inside=$(says)
grep '^Version' "$folder"/project/env/megatron_core-*.dist-info/METADATA
echo "outside of any repository: $plain; in a project at commit $commit: $inside"
[ "$plain" = 0.19.2 ]
[ "$inside" = "0.19.2+$commit" ]
