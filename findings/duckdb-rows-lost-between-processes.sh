#!/usr/bin/env bash
# DuckDB 2.0.1 (and 2.0.0), two processes one after the other on one file: the second reads the file's headers before it
# takes the lock on the file, and not again once it has it. What the first committed, and closed, in between is not seen
# and then overwritten: rows are gone without an error. 1.5.6 reads the headers under the lock.
#
# Guessed before: 2.0.1 reads them again. Seen (2026-11-28, Python 3.11, Linux):
#   2.0.1: the second saw 1 rows, in the file are [0, 100]
#   1.5.6: the second saw 6 rows, in the file are [0, 1, 2, 3, 4, 5, 100]
# Needs a C compiler: a preloaded fcntl makes the second process wait just before it asks for its first lock, as a busy
# machine may.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/wait.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int asked(int fd, int command, void *argument, const char *name) {
    static int once;
    if (!once && command == F_SETLK && getenv("GO")) {
        once = 1;
        fclose(fopen(getenv("WAITS"), "w"));
        while (access(getenv("GO"), F_OK)) usleep(1000);
    }
    return ((int (*)(int, int, ...))dlsym(RTLD_NEXT, name))(fd, command, argument);
}
#define INSTEAD(NAME) int NAME(int fd, int command, ...) { va_list rest; va_start(rest, command); \
    void *argument = va_arg(rest, void *); va_end(rest); return asked(fd, command, argument, #NAME); }
INSTEAD(fcntl)
INSTEAD(fcntl64)
C
cc -shared -fPIC -o "$folder/wait.so" "$folder/wait.c" -ldl
cat > "$folder/two.py" <<'P'
import os
import subprocess
import sys
import time

import duckdb

base, waits, go = (os.path.join(sys.argv[1], f"{duckdb.__version__}.{name}") for name in ("duckdb", "waits", "go"))
second = f"import duckdb; c = duckdb.connect('{base}'); print(len(c.execute('FROM t').fetchall())); " \
    "c.execute('INSERT INTO t VALUES (100)'); c.close()"
with duckdb.connect(base) as con:
    con.execute("CREATE TABLE t (i INTEGER)")
    con.execute("INSERT INTO t VALUES (0)")
hold = {**os.environ, "LD_PRELOAD": os.path.join(sys.argv[1], "wait.so"), "WAITS": waits, "GO": go}
other = subprocess.Popen([sys.executable, "-c", second], env=hold, stdout=subprocess.PIPE, text=True)
while not os.path.exists(waits):
    assert other.poll() is None
    time.sleep(0.01)
with duckdb.connect(base) as con:
    con.execute("INSERT INTO t FROM range(1, 6)")
open(go, "w").close()
saw = int(other.communicate()[0])
with duckdb.connect(base, read_only=True) as con:
    found = [i for (i,) in con.execute("FROM t ORDER BY i").fetchall()]
print(f"{duckdb.__version__}: the second saw {saw} rows, in the file are {found}")
sys.exit((saw, found) != ((1, [0, 100]) if duckdb.__version__ >= "2" else (6, [0, 1, 2, 3, 4, 5, 100])))
P
for version in 2.0.1 1.5.6; do
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/pip" install --quiet "duckdb==$version"
  "$folder/$version/bin/python" "$folder/two.py" "$folder"
done
