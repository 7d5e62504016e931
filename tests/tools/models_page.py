"""Prints the page of supported models by config.json's model_type: docs/lab/models.md.

PYTHONPATH=. python tests/tools/models_page.py > docs/lab/models.md
"""

from autoscout.job.hf_config import architectures

_HEAD = """# Models by their config.json

Made by `tests/tools/models_page.py`. `[model] from = "config.json"` and `autoscout init` read the architectures below
by their `model_type`; each of the others is refused with the sentence of its row. The KV cache of a served token has
the keys and values of every layer, or the latent of latent attention; layers with windows or chunks (GPT-OSS, Gemma,
OLMo 3, Llama 4) keep the last tokens alone. Where dense layers and layers with experts alternate, a server's steps have
as many of each. Of models that read images, a served job is the language part.

| model_type | training | serving |
|---|---|---|"""


def page() -> str:
    rows = (f"| {kind} | {_cell(training)} | {_cell(serving)} |" for kind, training, serving in architectures())
    return "\n".join([_HEAD, *rows, ""])


def _cell(lacking: str) -> str:
    return f"refused: {lacking}" if lacking else "yes"


if __name__ == "__main__":
    print(page(), end="")
