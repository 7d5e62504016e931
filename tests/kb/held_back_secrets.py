"""Secrets and harmless strings that the rules were not made for: each is drawn from a seed, none was ever in use.

Marks of known forms are put together at run time, so that no scanner of repositories takes this file for a leak.
"""

import base64
import json
import random
import string
import uuid
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote

HEX = "0123456789abcdef"
LETTERS = string.ascii_letters + string.digits
URL_SAFE = LETTERS + "-_"


class Secret(NamedTuple):
    """A text with a secret in it, as somebody wrote it, and what must not be left of it."""

    kind: str
    text: str
    value: str


def _of(rng: random.Random, letters: str, n: int) -> str:
    return "".join(rng.choice(letters) for _ in range(n))


def _base64(rng: random.Random, n: int) -> str:
    return base64.b64encode(rng.randbytes(n)).decode()


def _part(rng: random.Random, n: int) -> str:
    return base64.urlsafe_b64encode(rng.randbytes(n)).decode().rstrip("=")


def _jwt(rng: random.Random) -> str:
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').decode().rstrip("=")
    body = base64.urlsafe_b64encode(json.dumps({"sub": _of(rng, HEX, 8)}).encode()).decode().rstrip("=")
    return f"{head}.{body}.{_part(rng, 32)}"


def _word(rng: random.Random) -> str:
    """A password as people choose them: a word, digits and a sign."""
    word = rng.choice(("harvest", "Blue-heron", "kitchen", "Winter", "gradient", "Monday"))
    return word + _of(rng, string.digits, 4) + rng.choice("!?+*~")


def _pem(rng: random.Random, label: str, lines: int = 4) -> tuple[str, str]:
    body = [_base64(rng, 48) for _ in range(lines)]
    dashes = "-" * 5
    text = "\n".join((f"{dashes}BEGIN {label}{dashes}", *body, f"{dashes}END {label}{dashes}"))
    return text, body[1]


# What a key of a kind looks like; the name is whose it is.
FORMS: dict[str, Callable[[random.Random], str]] = {
    "slack-bot": lambda r: f"xox{'b'}-{_of(r, string.digits, 12)}-{_of(r, string.digits, 12)}-{_of(r, LETTERS, 24)}",
    "slack-app": lambda r: f"xap{'p'}-1-A{_of(r, string.digits, 10)}-{_of(r, string.digits, 13)}-{_of(r, HEX, 64)}",
    "stripe": lambda r: f"sk_{'live'}_{_of(r, LETTERS, 24)}",
    "stripe-restricted": lambda r: f"rk_{'live'}_{_of(r, LETTERS, 24)}",
    "stripe-webhook": lambda r: f"whs{'ec'}_{_of(r, LETTERS, 32)}",
    "hugging-face": lambda r: f"hf{'_'}{_of(r, string.ascii_letters, 34)}",
    "openai-project": lambda r: f"sk-{'proj'}-{_of(r, URL_SAFE, 74)}T3Blbk{'FJ'}{_of(r, URL_SAFE, 74)}",
    "openai": lambda r: f"sk-{_of(r, LETTERS, 20)}T3Blbk{'FJ'}{_of(r, LETTERS, 20)}",
    "anthropic": lambda r: f"sk-{'ant'}-api03-{_of(r, URL_SAFE, 93)}AA",
    "openrouter": lambda r: f"sk-{'or'}-v1-{_of(r, HEX, 64)}",
    "npm": lambda r: f"npm{'_'}{_of(r, LETTERS, 36)}",
    "pypi": lambda r: f"pyp{'i'}-AgEIcHlwaS5vcmc{_of(r, URL_SAFE, 80)}",
    "gitlab": lambda r: f"gl{'pat'}-{_of(r, URL_SAFE, 20)}",
    "gitlab-runner": lambda r: f"gl{'rt'}-{_of(r, URL_SAFE, 20)}",
    "github-fine": lambda r: f"github_{'pat'}_{_of(r, LETTERS, 22)}_{_of(r, LETTERS, 59)}",
    "aws-temporary": lambda r: f"AS{'IA'}{_of(r, string.ascii_uppercase + '234567', 16)}",
    "google": lambda r: f"AI{'za'}{_of(r, URL_SAFE, 35)}",
    "google-oauth": lambda r: f"GOC{'SPX'}-{_of(r, URL_SAFE, 28)}",
    "sendgrid": lambda r: f"S{'G'}.{_of(r, URL_SAFE, 22)}.{_of(r, URL_SAFE, 43)}",
    "digitalocean": lambda r: f"dop{'_v1'}_{_of(r, HEX, 64)}",
    "databricks": lambda r: f"dap{'i'}{_of(r, HEX, 32)}",
    "shopify": lambda r: f"shp{'at'}_{_of(r, HEX, 32)}",
    "grafana": lambda r: f"gl{'sa'}_{_of(r, LETTERS, 32)}_{_of(r, HEX, 8)}",
    "vault": lambda r: f"hv{'s'}.{_of(r, URL_SAFE, 92)}",
    "terraform": lambda r: f"{_of(r, LETTERS, 14)}.atl{'asv1'}.{_of(r, URL_SAFE, 64)}",
    "nvidia": lambda r: f"nv{'api'}-{_of(r, URL_SAFE, 64)}",
    "replicate": lambda r: f"r8{'_'}{_of(r, LETTERS, 37)}",
    "groq": lambda r: f"gs{'k'}_{_of(r, LETTERS, 52)}",
    "perplexity": lambda r: f"pp{'lx'}-{_of(r, LETTERS, 48)}",
    "xai": lambda r: f"xa{'i'}-{_of(r, LETTERS, 80)}",
    "fireworks": lambda r: f"fw{'_'}{_of(r, LETTERS, 24)}",
    "newrelic": lambda r: f"NR{'AK'}-{_of(r, string.ascii_uppercase + string.digits, 27)}",
    "linear": lambda r: f"lin_{'api'}_{_of(r, LETTERS, 40)}",
    "notion": lambda r: f"nt{'n'}_{_of(r, LETTERS, 46)}",
    "age": lambda r: f"AGE-SECRET-{'KEY'}-1{_of(r, 'QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L', 58)}",
    "docker-hub": lambda r: f"dck{'r_pat'}_{_of(r, URL_SAFE, 27)}",
    "telegram": lambda r: f"{_of(r, '123456789', 10)}:A{'A'}{_of(r, URL_SAFE, 33)}",
    "doppler": lambda r: f"dp.{'pt'}.{_of(r, LETTERS, 43)}",
    "jwt": _jwt,
}

# Where such a key stands, without a name that gives it away, or with one.
PLACES: tuple[Callable[[str], str], ...] = (
    lambda v: f"python train.py --tp 2 {v} --lr 1e-4",
    lambda v: f"failed: 401 from https://api.example.org: invalid credentials {v}.",
    lambda v: json.dumps({"env": {"A": "1"}, "args": ["serve", v, "--port", "8000"]}),
    lambda v: f"[env]\nfirst = 1\nsecond = '{v}'\n",
    lambda v: f"env:\n  - name: SOMETHING\n    value: {v}\n",
    lambda v: f"docker run -e X={v} --gpus all vllm/vllm-openai:v0.11.0",
    lambda v: f'curl -H "X-Something: {v}" http://10.0.0.3:8000/v1/models',
    lambda v: f"export SOMETHING='{v}' && torchrun --nproc-per-node 8 train.py",
    lambda v: f"https://lake.example.org/rows?n=5&q={v}&page=2",
)

# A value of no form, known by the name before it or by its place. `{v}` is the value.
NAMED: tuple[tuple[str, str, Callable[[random.Random], str]], ...] = (
    ("yaml password", "auth:\n  user: ann\n  password: {v}\n", _word),
    ("yaml quoted", 'minio:\n  secretKey: "{v}"\n', lambda r: _of(r, LETTERS, 40)),
    ("yaml camel", "openai:\n  apiKey: {v}\n  model: small\n", lambda r: _of(r, HEX, 32)),
    ("yaml block", "registry:\n  auth_token: >-\n    {v}\n", lambda r: _of(r, LETTERS, 40)),
    ("k8s env list", "env:\n- name: DB_PASSWORD\n  value: {v}\n- name: PORT\n  value: '80'\n", _word),
    ("k8s env list, quoted", "- name: WANDB_API_KEY\n  value: '{v}'\n", lambda r: _of(r, HEX, 40)),
    ("k8s env, one line", "- {{name: HF_TOKEN, value: {v}}}", lambda r: _of(r, LETTERS, 34)),
    ("k8s env, json", '{{"name": "S3_SECRET_ACCESS_KEY", "value": "{v}"}}', lambda r: _of(r, LETTERS + "+/", 40)),
    ("k8s secret data", "kind: Secret\ndata:\n  password: {v}\n", lambda r: _base64(r, 16)),
    ("json", '{{"user": "ann", "api_key": "{v}", "n": 3}}', lambda r: _of(r, LETTERS, 32)),
    ("json camel", '{{"clientSecret":"{v}"}}', lambda r: _of(r, LETTERS, 32)),
    ("json in shell", 'serve --config \'{{"auth": {{"token": "{v}"}}}}\' --tp 2', lambda r: _of(r, LETTERS, 32)),
    ("json escaped", '"{{\\"password\\": \\"{v}\\"}}"', _word),
    ("docker config", '{{"auths": {{"nvcr.io": {{"auth": "{v}"}}}}}}', lambda r: _base64(r, 40)),
    ("toml", '[registry]\ntoken = "{v}"\n', lambda r: _of(r, LETTERS, 40)),
    ("toml dashes", "[s3]\nsecret-access-key = '{v}'\n", lambda r: _of(r, LETTERS, 40)),
    ("toml inline", 'store = {{ url = "s3://b", secret_key = "{v}" }}', lambda r: _of(r, LETTERS, 40)),
    ("ini", "[default]\naws_secret_access_key = {v}\nregion = eu-west-1\n", lambda r: _of(r, LETTERS + "+/", 40)),
    ("ini session", "aws_session_token={v}\n", lambda r: _base64(r, 90)),
    ("rclone", "[box]\ntype = sftp\npass = {v}\n", lambda r: _of(r, URL_SAFE, 30)),
    ("netrc", "machine lake.example.org login ann password {v}", _word),
    ("header bearer", "Authorization: Bearer {v}", lambda r: _of(r, LETTERS, 30)),
    ("header basic", "authorization: Basic {v}", lambda r: _base64(r, 18)),
    ("header proxy", "Proxy-Authorization: Basic {v}", lambda r: _base64(r, 18)),
    ("header key", "curl -H 'X-API-Key: {v}' http://h/v1", lambda r: _of(r, LETTERS, 20)),
    ("header token", 'curl --header "PRIVATE-TOKEN: {v}" http://h/api', lambda r: _of(r, LETTERS, 20)),
    ("header json", '{{"headers": {{"Authorization": "Bearer {v}"}}}}', lambda r: _of(r, LETTERS, 30)),
    ("header token scheme", "Authorization: token {v}", lambda r: _of(r, HEX, 40)),
    ("cookie", "Cookie: lang=en; session={v}", lambda r: _of(r, HEX, 48)),
    ("postgres url", "postgres://ann:{v}@db.example.org:5432/lake", lambda r: _of(r, LETTERS, 12)),
    ("postgres driver", "postgresql+psycopg2://ann:{v}@db/lake?sslmode=require", lambda r: _of(r, LETTERS, 12)),
    ("mysql url", "mysql://root:{v}@10.0.0.7/kb", lambda r: _of(r, LETTERS, 6)),
    ("mongodb url", "mongodb+srv://ann:{v}@c0.example.net/?retryWrites=true", lambda r: _of(r, LETTERS, 16)),
    ("redis url", "redis://:{v}@cache:6379/0", lambda r: _of(r, LETTERS, 16)),
    ("amqp url", "amqps://u:{v}@mq.example.org/vhost", lambda r: _of(r, LETTERS, 16)),
    ("quoted url password", "postgres://ann:{v}@db/lake", lambda r: quote(_word(r) + "@/", safe="")),
    ("dsn words", "host=db port=5432 user=ann password={v} dbname=lake", _word),
    ("odbc", "Server=db;Uid=ann;Pwd={v};Database=kb;", lambda r: _of(r, LETTERS, 12)),
    ("proxy", "https_proxy=http://ann:{v}@proxy.example.org:3128", lambda r: _of(r, LETTERS, 10)),
    ("git url", "git clone https://x-access-token:{v}@github.com/org/repo.git", lambda r: _of(r, LETTERS, 36)),
    ("pip url", "pip install -i https://__token__:{v}@pypi.example.org/simple x", lambda r: _of(r, LETTERS, 30)),
    ("url token", "https://api.example.org/v1?n=3&token={v}&x=1", lambda r: _of(r, LETTERS, 24)),
    ("url api_key", "http://h:8000/v1/models?api_key={v}", lambda r: _of(r, LETTERS, 24)),
    ("url access_token", "https://h/x#access_token={v}", lambda r: _of(r, LETTERS, 24)),
    (
        "azure sas",
        "https://acct.blob.core.windows.net/c/w.bin?sv=2022-11-02&sp=rl&se=2026-01-01T00:00:00Z&sig={v}",
        lambda r: quote(_base64(r, 32), safe=""),
    ),
    (
        "azure account",
        "DefaultEndpointsProtocol=https;AccountName=acct;AccountKey={v};EndpointSuffix=core.windows.net",
        lambda r: _base64(r, 64),
    ),
    ("azure client", "AZURE_CLIENT_SECRET={v}", lambda r: f"{_of(r, LETTERS, 3)}8Q~{_of(r, LETTERS, 34)}"),
    ("aws presigned", "https://b.s3.amazonaws.com/k?X-Amz-Expires=60&X-Amz-Signature={v}", lambda r: _of(r, HEX, 64)),
    (
        "aws presigned session",
        "https://b.s3.amazonaws.com/k?X-Amz-Security-Token={v}&X-Amz-Date=20260101T000000Z",
        lambda r: quote(_base64(r, 90), safe=""),
    ),
    ("gcs signed", "https://storage.googleapis.com/b/k?X-Goog-Signature={v}", lambda r: _of(r, HEX, 512)),
    ("slack webhook", "https://hooks.slack.com/services/T0AB1CD2E/B0AB1CD2E/{v}", lambda r: _of(r, LETTERS, 24)),
    ("discord webhook", "https://discord.com/api/webhooks/123456789012345678/{v}", lambda r: _of(r, URL_SAFE, 68)),
    ("sentry dsn", "SENTRY_DSN=https://{v}@o12345.ingest.sentry.io/678", lambda r: _of(r, HEX, 32)),
    ("env file", "# keys\nMLFLOW_TRACKING_PASSWORD={v}\nMLFLOW_TRACKING_USERNAME=ann\n", _word),
    ("env export", 'export COMET_API_KEY="{v}"', lambda r: _of(r, LETTERS, 25)),
    ("env neptune", "NEPTUNE_API_TOKEN={v}", lambda r: _base64(r, 120)),
    ("env datadog", "DD_API_KEY={v} python serve.py", lambda r: _of(r, HEX, 32)),
    ("env clearml", "CLEARML_API_SECRET_KEY={v}", lambda r: _of(r, LETTERS, 50)),
    ("env pg", "PGPASSWORD={v} psql -h db lake", _word),
    ("env passphrase", "BORG_PASSPHRASE='{v}' borg create x", lambda r: "four plain words " + _of(r, HEX, 4)),
    ("fish", "set -x HF_TOKEN {v}", lambda r: _of(r, LETTERS, 30)),
    ("setenv", "setenv WANDB_API_KEY {v}", lambda r: _of(r, HEX, 40)),
    ("docker -e", "docker run -e REDIS_PASSWORD={v} -p 6379:6379 redis", _word),
    ("docker --env", "docker run --env=API_TOKEN={v} image", lambda r: _of(r, LETTERS, 20)),
    ("docker build arg", "docker build --build-arg NPM_TOKEN={v} .", lambda r: _of(r, LETTERS, 20)),
    ("docker login", "docker login -u ann --password {v} nvcr.io", _word),
    ("flag", "vllm serve m --api-key {v} --port 8000", lambda r: _of(r, LETTERS, 16)),
    ("flag short word", "vllm serve m --api-key {v}", lambda r: "bird" + _of(r, string.digits, 2)),
    ("flag equals", "python x.py --hf-token={v}", lambda r: _of(r, LETTERS, 34)),
    ("flag underscore", "python x.py --wandb_key {v}", lambda r: _of(r, HEX, 40)),
    ("flag nested", "serve --ssl-keyfile-password {v}", _word),
    ("flag quoted", "serve --admin-password '{v}'", lambda r: f"two words {_of(r, HEX, 4)}"),
    ("flag list", "['vllm', 'serve', '--api-key', '{v}', '--port', '80']", lambda r: _of(r, LETTERS, 16)),
    ("flag yaml list", "args:\n- --api-key\n- {v}\n- --port\n", lambda r: _of(r, LETTERS, 16)),
    ("hydra", "python train.py ++logger.api_key={v} trainer.devices=8", lambda r: _of(r, HEX, 40)),
    ("hydra wandb", "python train.py wandb.key={v}", lambda r: _of(r, HEX, 40)),
    ("helm", "helm install x --set auth.password={v},replicas=2", lambda r: _of(r, LETTERS, 14)),
    ("kubectl", "kubectl create secret generic s --from-literal=password={v}", lambda r: _of(r, LETTERS, 14)),
    ("curl user", "curl -u ann:{v} https://lake.example.org", lambda r: _of(r, LETTERS, 12)),
    ("curl --user", "curl --user ann:{v} https://lake.example.org", _word),
    ("wget", "wget --http-user=ann --http-password={v} https://h/w", _word),
    ("sshpass", "sshpass -p {v} ssh node7 hostname", lambda r: _of(r, LETTERS, 10)),
    ("redis-cli", "redis-cli -h cache -a {v} ping", lambda r: _of(r, LETTERS, 14)),
    ("mysql", "mysql -uroot -p{v} kb", lambda r: _of(r, LETTERS, 12)),
    ("openssl", "openssl rsa -in k.pem -passin pass:{v}", lambda r: _of(r, LETTERS, 12)),
    ("aws configure", "aws configure set aws_secret_access_key {v}", lambda r: _of(r, LETTERS + "+/", 40)),
    ("huggingface-cli", "huggingface-cli login --token {v}", lambda r: _of(r, LETTERS, 34)),
    ("wandb login", "wandb login {v}", lambda r: _of(r, HEX, 40)),
    ("python call", "login(token='{v}')", lambda r: _of(r, LETTERS, 34)),
    ("python environ", 'os.environ["OPENAI_API_KEY"] = "{v}"', lambda r: _of(r, LETTERS, 40)),
    ("python repr", "{{'env': {{'SECRET': '{v}'}}}}", lambda r: _of(r, LETTERS, 20)),
    ("xml", "<add key='x' password='{v}' />", lambda r: _of(r, LETTERS, 14)),
    ("xml element", "<password>{v}</password>", lambda r: _of(r, LETTERS, 14)),
)

PEMS = ("PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "OPENSSH PRIVATE KEY", "PGP PRIVATE KEY BLOCK")


def secrets(seed: int = 0) -> list[Secret]:
    """Every known form in a place drawn anew, every named one, and private keys as files and within JSON and YAML."""
    rng = random.Random(seed)
    found = []
    for kind, form in FORMS.items():
        for place in rng.sample(PLACES, 2):
            value = form(rng)
            found.append(Secret(kind, place(value), value))
    for kind, text, make in NAMED:
        value = make(rng)
        found.append(Secret(kind, text.format(v=value), value))
    for label in PEMS:
        text, line = _pem(rng, label)
        found.append(Secret(label, text, line))
        text, line = _pem(rng, label)
        found.append(Secret(f"{label} in json", json.dumps({"type": "service_account", "key_data": text}), line))
        text, line = _pem(rng, label)
        indented = "\n".join("    " + one for one in text.splitlines())
        found.append(Secret(f"{label} in yaml", f"data:\n  id: |\n{indented}\n  port: 22\n", line))
    return found


HARMLESS: tuple[Callable[[random.Random], str], ...] = (
    lambda r: f"sha256:{_of(r, HEX, 64)}",
    lambda r: f"commit {_of(r, HEX, 40)}",
    lambda r: _of(r, HEX, 40),
    lambda r: _of(r, HEX, 64),
    lambda r: _of(r, HEX, 32),
    lambda r: f"git+https://github.com/org/repo@{_of(r, HEX, 40)}",
    lambda r: f"vllm/vllm-openai@sha256:{_of(r, HEX, 64)}",
    lambda r: f"nvcr.io/nvidia/pytorch:25.{r.randrange(10, 13)}-py3",
    lambda r: f"image: registry.example.org:5000/team/train:{_of(r, HEX, 12)}",
    lambda r: f"config_hash={_of(r, HEX, 32)}",
    lambda r: f"measurement {_of(r, HEX, 16)} of session s-{_of(r, HEX, 8)}",
    lambda r: f"checksum: {_base64(r, 32)}",
    lambda r: f"integrity sha512-{_base64(r, 64)}",
    lambda r: f"batch_{_of(r, HEX, 32)}",
    lambda r: f"req_{_of(r, LETTERS, 24)}",
    lambda r: f"chatcmpl-{_of(r, HEX, 32)}",
    lambda r: f"run_id: {_of(r, string.ascii_lowercase + string.digits, 8)}",
    lambda r: str(uuid.UUID(int=r.getrandbits(128), version=4)),
    lambda r: f"GPU-{uuid.UUID(int=r.getrandbits(128), version=4)}",
    lambda r: f"MIG-{uuid.UUID(int=r.getrandbits(128), version=4)}",
    lambda r: f"job_id={r.randrange(10**6, 10**8)}",
    lambda r: f"data:image/png;base64,{_base64(r, 60)}",
    lambda r: f"payload {_base64(r, r.randrange(6, 40))}",
    lambda r: base64.b64encode(json.dumps({"tp": r.randrange(1, 9), "pp": 2}).encode()).decode(),
    lambda r: f"--model meta-llama/Llama-3.1-{r.choice((8, 70, 405))}B-Instruct",
    lambda r: f"--model Qwen/Qwen3-{r.choice((30, 235))}B-A{r.choice((3, 22))}B-Instruct-2507-FP8",
    lambda r: f"/mnt/lustre/models--org--name/snapshots/{_of(r, HEX, 40)}/model-00001-of-00030.safetensors",
    lambda r: f"s3://bucket/checkpoints/global_step{r.randrange(10**5)}/mp_rank_00_model_states.pt",
    lambda r: f"/home/ann/.cache/huggingface/hub/blobs/{_of(r, HEX, 64)}",
    lambda r: f"--tokenizer meta-llama/Llama-3.1-8B --max-num-batched-tokens {r.randrange(1, 64) * 1024}",
    lambda r: f"--tokenizer-mode auto --seed {r.randrange(10**6)}",
    lambda r: f"max_tokens: {r.randrange(1, 4096)}",
    lambda r: f'{{"eos_token_id": {r.randrange(10**5)}, "pad_token": "<pad>", "bos_token": "<s>"}}',
    lambda r: f"tokens_per_second={r.uniform(10, 9000):.2f}",
    lambda r: f"token_budget = {r.randrange(10**5)}",
    lambda r: f"Avg generation throughput: {r.uniform(1, 9000):.1f} tokens/s, Running: {r.randrange(99)} reqs",
    lambda r: f"--num-key-value-heads {r.choice((1, 2, 4, 8))} --kv-cache-dtype fp8_e4m3",
    lambda r: f"sort_key=latency cache_key={_of(r, HEX, 16)}",
    lambda r: f"primary key: {r.randrange(10**6)}",
    lambda r: f"KeyError: 'tp_{r.randrange(99)}'",
    lambda r: f"passes={r.randrange(9)} bypass=true compass=north-{r.randrange(9)}",
    lambda r: f"author=ann{r.randrange(99)} authority=zone-{r.randrange(9)}",
    lambda r: f"pass_rate: 0.{r.randrange(10**4)}",
    lambda r: "HF_TOKEN=$HF_TOKEN vllm serve m",
    lambda r: f'docker run -e WANDB_API_KEY -e HF_TOKEN="${{HF_TOKEN}}" image:{r.randrange(99)}',
    lambda r: "api_key: null\npassword: ''\n",
    lambda r: "--api-key-file /run/secrets/api --ssl-keyfile /etc/ssl/node.pem",
    lambda r: f"valueFrom:\n  secretKeyRef:\n    name: db-{r.randrange(99)}\n    key: password\n",
    lambda r: f"http://10.0.{r.randrange(256)}.{r.randrange(256)}:8000/v1/completions",
    lambda r: f"ann@node{r.randrange(99)}:/scratch/run",
    lambda r: f"git@github.com:org/repo-{_of(r, string.ascii_lowercase, 5)}.git",
    lambda r: f"torchrun --rdzv-id={_of(r, string.digits, 6)} --rdzv-endpoint=node{r.randrange(99)}:29500 train.py",
    lambda r: f"NCCL_IB_HCA=mlx5_{r.randrange(8)} NCCL_SOCKET_IFNAME=eth{r.randrange(4)}",
    lambda r: f"torch=={r.randrange(2, 3)}.{r.randrange(10)}.0+cu12{r.randrange(9)}.git{_of(r, HEX, 7)}",
    lambda r: f"[2026-11-{r.randrange(1, 29):02d} 10:{r.randrange(60):02d}:07,{r.randrange(1000):03d}] rank 3",
    lambda r: f"0000:{_of(r, HEX, 2)}:00.0 {_of(r, HEX, 2)}:{_of(r, HEX, 2)}:{_of(r, HEX, 2)}:{_of(r, HEX, 2)}",
    lambda r: f"fe80::{_of(r, HEX, 4)}:{_of(r, HEX, 4)}:{_of(r, HEX, 4)}:{_of(r, HEX, 4)}%eth0",
    lambda r: f'--rope-scaling \'{{"rope_type":"yarn","factor":{r.randrange(2, 9)}.0}}\'',
    lambda r: f"SLURM_JOB_ID={r.randrange(10**6)} SLURM_NODELIST=gpu[{r.randrange(99)}-{r.randrange(100, 199)}]",
    lambda r: f"wandb: Syncing run misty-{_of(r, string.ascii_lowercase, 6)}-{r.randrange(99)}",
    lambda r: f"python -m pkg.tokenize --in /data/{_of(r, HEX, 8)}.jsonl --workers {r.randrange(1, 64)}",
    lambda r: f"lr={r.uniform(0, 1e-3):.3e} betas=(0.9,0.95) seed={r.randrange(10**9)}",
    lambda r: f"secret sharing scheme {r.randrange(9)} of the paper",
    lambda r: f"access: read; auth_mode=none; password_policy=off-{r.randrange(9)}",
    lambda r: f"?page={r.randrange(99)}&key=value{r.randrange(9)}&sort=desc",
    lambda r: f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{_of(r, LETTERS + '+/', 43)} ann@laptop",
)


def harmless(count: int, seed: int = 0) -> list[str]:
    """Hashes, digests, names, paths, numbers and words of this field: no secret in any."""
    rng = random.Random(seed)
    return [HARMLESS[i % len(HARMLESS)](rng) for i in range(count)]
