#!/bin/sh
# Installs AutoScout from this folder, without a network, into a new environment: sh install.sh ENVIRONMENT
set -eu
environment=${1:?give a folder for the environment, such as ./autoscout}
here=$(cd "$(dirname "$0")" && pwd)
(cd "$here" && sha256sum --quiet --check SHA256SUMS)
"${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/python" -m pip install --quiet --no-index --find-links "$here" \
    autoscout duckdb-extensions duckdb-extension-ducklake duckdb-extension-postgres-scanner
"$environment/bin/autoscout" --version
