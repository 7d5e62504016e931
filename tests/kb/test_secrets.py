"""Keys, tokens and passwords: none is written, shown or shared, and what is no secret stays as it is.

The secrets are put together at run time, from what firms say of their forms and from what people write around them, so
that nothing in this file looks like one; nothing here reads the detector's rules.
"""

import base64
import json
import random
import shlex
import string
import time
import uuid
from pathlib import Path

import held_back_secrets
import later_secrets
import pytest

from kb import secrets

ROOT = Path(__file__).parents[2]
LETTERS, HEX = string.ascii_letters + string.digits, "0123456789abcdef"


def drawn(chance: random.Random, length: int, of: str = LETTERS) -> str:
    return "".join(chance.choice(of) for _ in range(length))


def token(chance: random.Random, kind: int) -> str:
    """What has a firm's form, wherever it stands."""
    upper = string.ascii_uppercase + string.digits
    header = base64.urlsafe_b64encode(b'{"alg":"HS256"}').decode().strip("=")
    body = base64.urlsafe_b64encode(json.dumps({"s": drawn(chance, 4)}).encode()).decode().strip("=")
    return [
        lambda: "h" + "f_" + drawn(chance, 34),
        lambda: "s" + "k-" + drawn(chance, 40),
        lambda: "sk" + "-ant-api03-" + drawn(chance, 80),
        lambda: "gh" + chance.choice("pousr") + "_" + drawn(chance, 36),
        lambda: "github" + "_pat_" + drawn(chance, 22) + "_" + drawn(chance, 59),
        lambda: "AK" + "IA" + drawn(chance, 16, upper),
        lambda: "AS" + "IA" + drawn(chance, 16, upper),
        lambda: "AI" + "za" + drawn(chance, 35),
        lambda: "xo" + "xb-" + drawn(chance, 12, string.digits) + "-" + drawn(chance, 24),
        lambda: "nv" + "api-" + drawn(chance, 64),
        lambda: "gl" + "pat-" + drawn(chance, 20),
        lambda: f"{header}.{body}.{drawn(chance, 20)}",
        lambda: "np" + "m_" + drawn(chance, 36),
        lambda: "sk" + "_live_" + drawn(chance, 24),
        lambda: drawn(chance, 40, LETTERS + "/+"),  # AWS's secret keys have no form but this
    ][kind % 15]()


def password(chance: random.Random) -> str:
    return chance.choice([
        drawn(chance, 12), drawn(chance, 40, HEX), drawn(chance, 9) + "!" + drawn(chance, 2),
        str(uuid.UUID(int=chance.getrandbits(128))),
        drawn(chance, 40), drawn(chance, 24) + "==",
    ])  # fmt: skip


FLAGS = (
    "--api-key", "--api_key", "--wandb_key", "--wandb-api-key", "--password", "--token", "--auth", "--hf-token",
    "--hf_token", "--access-token", "--secret-key", "--client-secret", "--db-password", "--auth-token",
    "--hub_token", "--aws-secret-access-key", "--passphrase",
)  # fmt: skip
VARIABLES = (
    "WANDB_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN", "DB_PASSWORD", "PGPASSWORD", "GITHUB_TOKEN", "MINIO_SECRET_KEY", "NGC_API_KEY",
    "COMET_API_KEY", "MLFLOW_TRACKING_PASSWORD", "SLACK_TOKEN", "AZURE_CLIENT_SECRET", "S3_SECRET_KEY",
    "NEPTUNE_API_TOKEN",
)  # fmt: skip
KEYS = (
    "password", "api_key", "apiKey", "token", "secret", "client_secret", "accessToken", "auth_token", "db_password",
    "private_key",
)  # fmt: skip


def lines(chance: random.Random) -> list[tuple[str, str]]:
    """(text, the secret in it): in flags, variables, URLs, headers, YAML and JSON."""
    found = []

    def add(form: str, secret: str) -> None:
        found.append((form.replace("@@", secret), secret))

    for flag in FLAGS:
        add(f"python train.py {flag} @@ --lr 3e-4 --tp 2", password(chance))
        add(f"vllm serve org/model {flag}=@@ --port 8000", password(chance))
        add(json.dumps(["bash", "-c", f"run {flag} '@@' --bf16"]), password(chance))
        add(json.dumps(["python", "train.py", flag, "@@", "--lr", "1"]), password(chance))
    for name in VARIABLES:
        add(f"{name}=@@ torchrun --nproc-per-node 8 train.py", password(chance))
        add(f'export {name}="@@"\npython train.py', password(chance))
        add(f"docker run -e {name}=@@ -e NCCL_DEBUG=INFO image", password(chance))
        add(f"sbatch --export=ALL,{name}=@@,OMP_NUM_THREADS=8 job.sh", password(chance))
        add(f"env:\n  - name: {name}\n    value: @@\n  - name: X\n    value: y\n", password(chance))
        add(json.dumps({"env": [{"name": name, "value": "@@"}]}), password(chance))
        add(json.dumps({"environment": {name: "@@", "NCCL_DEBUG": "INFO"}}), password(chance))
    for key in KEYS:
        add(f"database:\n  {key}: @@\n  port: 5432\n", password(chance))
        add(f'{key}: "@@"', password(chance))
        add(json.dumps({"config": {key: "@@", "layers": 2}}), password(chance))
        add(json.dumps(json.dumps({key: "@@"})), password(chance))  # a text of JSON in JSON
        add(f"ValueError: Config(name='x', {key}='@@', layers=2)", password(chance))
    for scheme, host in (
        ("postgres", "db:5432/runs"),
        ("http", "proxy.corp:3128"),
        ("redis", "10.0.0.1:6379/0"),
        ("https", "git.corp/x.git"),
    ):
        add(f"MY_DB_URL={scheme}://me:@@@{host}", drawn(chance, 12))
        add(f"cannot reach {scheme}://me:@@@{host}: timed out", drawn(chance, 16))
    add("http_proxy=me:@@@proxy.corp:3128", drawn(chance, 12))
    for query in ("sig", "X-Amz-Signature", "token", "access_token", "api_key", "password"):
        add(f"wget 'https://store.corp/model.bin?sv=2024-01-01&{query}=@@&se=2030'", drawn(chance, 44))
    for header in ("Authorization: Bearer @@", "Authorization: Basic @@", "Authorization: @@", "X-Api-Key: @@",
                   "Proxy-Authorization: Basic @@",
                   "api-key: @@", "X-Auth-Token: @@", "Authorization: token @@"):  # fmt: skip
        for quote in ("'", '"'):
            add(f"curl -H {quote}{header}{quote} https://api.corp/v1", password(chance))
        add(f"> {header}\n> Accept: */*", password(chance))
        add(json.dumps({"line": f'curl -H "{header}" https://api.corp'}), password(chance))
    add("curl -u me:@@ https://api.corp", password(chance))
    add("wandb login @@", drawn(chance, 40, HEX))
    add("-----BEGIN RSA " + "PRIVATE KEY-----\n@@\n-----END RSA " + "PRIVATE KEY-----", drawn(chance, 200))
    for kind in range(60):
        secret = token(chance, kind)
        form = [
            "@@",
            "python x.py @@ --lr 1",
            "RuntimeError: 401 for @@.",
            "see '@@', line 3",
            json.dumps({"a": ["@@"]}),
            "value: @@",
        ]
        add(form[kind % len(form)], secret)
    return found


def kept_of(secret: str, text: str) -> str:
    """The longest piece of a secret that a text still holds, if it is of six characters or more."""
    pieces = (secret[i : i + 6] for i in range(len(secret) - 5))
    return next((piece for piece in pieces if piece in text), "")


@pytest.mark.parametrize("seed", range(3))
def test_no_secret_is_left_and_all_else_is(seed: int):
    corpus = lines(random.Random(seed))
    assert len(corpus) >= 300
    leaked = [(text, left) for text, secret in corpus if (left := kept_of(secret, secrets.redacted(text)))]
    assert leaked == []
    around = [(text, secrets.redacted(text)) for text, _ in corpus if "--lr 3e-4 --tp 2" in text]
    assert all(after.endswith(" ‹secret› --lr 3e-4 --tp 2") for _, after in around), "its structure stays"
    for text, _ in corpus:
        again = secrets.redacted(secrets.redacted(text))
        assert again == secrets.redacted(text)
        if text[0] in "[{":
            json.loads(again)


def harmless(chance: random.Random) -> list[str]:
    """Lines of our pages, job files and recorded logs, and what looks random and is no secret."""
    files = [
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("fixtures/**/*.toml"),
        *ROOT.glob("autoscout/**/catalog.toml"),
        *ROOT.glob("tests/**/*.log"),
    ]
    every = [line for path in sorted(files) for line in path.read_text(errors="replace").splitlines() if len(line) > 20]
    made = [
        form()
        for _ in range(100)
        for form in (
            lambda: f"commit {drawn(chance, 40, HEX)}",
            lambda: f"image@sha256:{drawn(chance, 64, HEX)}",
            lambda: f"run {uuid.UUID(int=chance.getrandbits(128))} took {chance.random():.3f} s",
            lambda: f"--max-num-batched-tokens {chance.randrange(9999)} --tokenizer org/model-7b --pad_token '<pad>'",
            lambda: f"/home/ann/runs/2026-11-{chance.randrange(10, 28)}/checkpoint-{chance.randrange(10**6)}/model.bin",
            lambda: f"tokens_per_s: {chance.random() * 9e4:.1f}, key: layer_{chance.randrange(99)}, hidden 4096",
            lambda: f"TypeError: unexpected token: expected {chance.choice(['str', 'int'])}, password file is missing",
            lambda: f"[rank{chance.randrange(8)}]: torch.OutOfMemoryError: Tried to allocate 2.00 GiB",
            lambda: f"examples/hf_to_megatron.py --hf_model_path meta-llama/Llama-3.1-{chance.randrange(9)}B",
        )
    ]  # fmt: skip
    return [*chance.sample(every, 1100), *made]


def test_what_is_no_secret_stays():
    texts = harmless(random.Random(0))
    assert len(texts) == 2000
    changed = [(text, secrets.redacted(text)) for text in texts if secrets.redacted(text) != text]
    assert len(changed) <= 20, changed


def test_no_secret_of_the_held_back_list_is_left_and_what_is_harmless_stays():
    """Written before the rules were looked at: 29 of its 186 were left then, and 30 of 1,000 harmless ones taken."""
    found = held_back_secrets.secrets()
    assert [(s.kind, secrets.redacted(s.text)) for s in found if s.value in secrets.redacted(s.text)] == []
    texts = held_back_secrets.harmless(1000)
    changed = [text for text in texts if secrets.redacted(text) != text]
    assert len(changed) <= 10, changed


def test_no_secret_of_programs_around_a_cluster_is_left_and_what_looks_drawn_stays():
    """Written before the rules for them, which were then tuned on them: 42 of its 105 were left, and 20 of 600 harmless
    ones taken, among them the group in `docker run -u 1000:1000`."""
    found = [(kind, text, secrets.redacted(text)) for kind, text, value in later_secrets.secrets() if value in text]
    values = {kind: value for kind, _, value in later_secrets.secrets()}
    assert len(found) >= 100
    assert [(kind, after) for kind, _, after in found if kept_of(values[kind], after)] == []
    texts = later_secrets.harmless(600)
    changed = [(text, after) for text in texts if (after := secrets.redacted(text)) != text]
    assert len(changed) <= 6, changed


@pytest.mark.parametrize(
    "piece", ["a", "eyJ", "key ", "x@", "ab:", "mysql ", "redis-cli -", "a-", "echo a|", "://a:", "docker login -"]
)
def test_long_lines_take_time_in_proportion_to_their_length(piece: str):
    """A line of 200,000 characters, such as a file in base64, took minutes."""

    def least_s(length: int) -> float:
        took = []
        for _ in range(3):
            began = time.process_time()
            secrets.redacted(piece * (length // len(piece)))
            took.append(time.process_time() - began)
        return min(took)

    assert least_s(80_000) < 10 * least_s(20_000), "in proportion: 4; each with each: 16"


def test_a_command_of_words_keeps_its_words():
    words = ["python", "x.py", "--api-key", "‹" * 0 + "abcDEF123456", "--tp", "2", "--verbose", "--password=hunter2x"]
    assert secrets.words(words) == [
        "python",
        "x.py",
        "--api-key",
        "‹secret›",
        "--tp",
        "2",
        "--verbose",
        "--password=‹secret›",
    ]
    assert shlex.split(secrets.redacted(shlex.join(words))) == secrets.words(words)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("docker login -u ann -p Pw9xx7yy reg", "docker login -u ann -p ‹secret› reg"),
        ("mysql -uroot -pPw9xx7yy kb", "mysql -uroot -p‹secret› kb"),
        ("curl -u ann:Pw9xx7yy http://h", "curl -u ann:‹secret› http://h"),
        ("docker run -p 8000:8000 -u 1000:1000 x", "docker run -p 8000:8000 -u 1000:1000 x"),
    ],
)
def test_what_a_program_is_given_is_known_among_words_too(line: str, kept: str):
    """A list of words was looked at word by word, so that only the line held none."""
    assert secrets.redacted(line) == kept
    assert secrets.without({"argv": line.split()}) == {"argv": kept.split()}
