"""A second list that the rules were not made for: secrets as programs around a cluster are given them, and harmless
strings that look drawn. Each is drawn from a seed, none was ever in use; marks are put together at run time.
"""

import base64
import random
import string
import uuid
from collections.abc import Callable
from urllib.parse import quote

HEX = "0123456789abcdef"
LETTERS = string.ascii_letters + string.digits
URL_SAFE = LETTERS + "-_"
UPPER, LOWER = string.ascii_uppercase + string.digits, string.ascii_lowercase + string.digits
BASE32 = string.ascii_uppercase + "234567"

Make = Callable[[random.Random], str]


def of(letters: str, n: int) -> Make:
    return lambda r: "".join(r.choice(letters) for _ in range(n))


def in_base64(n: int) -> Make:
    return lambda r: base64.b64encode(r.randbytes(n)).decode()


def quoted(n: int) -> Make:
    return lambda r: quote(in_base64(n)(r), safe="")


def chosen(r: random.Random) -> str:
    """A password as people choose them."""
    return r.choice(("Kestrel", "tarpaulin", "Juniper-", "overcast")) + of(string.digits, 3)(r) + r.choice("!*+~")


def begun(first: str, rest: Make) -> Make:
    return lambda r: first + rest(r)


def unique(r: random.Random) -> str:
    return str(uuid.UUID(int=r.getrandbits(128), version=4))


def pem_in_base64(r: random.Random) -> str:
    dashes = "-" * 5
    return base64.b64encode(f"{dashes}BEGIN EC PRIVATE KEY{dashes}\n{in_base64(90)(r)}\n".encode()).decode()


# (kind, a text with {v} for the secret, how it is drawn)
SECRETS: tuple[tuple[str, str, Make], ...] = (
    ("docker login", "docker login nvcr.io -u '$oauthtoken' -p {v}", of(LETTERS, 40)),
    ("docker stdin", "echo {v} | docker login --username ann --password-stdin reg.example.org", chosen),
    ("podman here", 'podman login -u ann --password-stdin reg.example.org <<< "{v}"', chosen),
    ("docker auths", '{{"auths":{{"https://index.docker.io/v1/":{{"auth":"{v}"}}}}}}', in_base64(24)),
    ("docker auths here", "DOCKER_AUTH_CONFIG='{{\"auths\":{{\"g.io\":{{\"auth\":\"{v}\"}}}}}}' sh x", in_base64(30)),
    ("mysql", "mysqldump -h db.example.org -u root -p'{v}' kb", of(LETTERS, 12)),
    ("mongo", "mongosh db.example.org -u ann -p {v} --authenticationDatabase admin", of(LETTERS, 14)),
    ("jdbc query", "--jdbc jdbc:postgresql://db:5432/lake?user=ann&password={v}&ssl=true", of(LETTERS, 12)),
    ("jdbc semicolons", "jdbc:sqlserver://db:1433;databaseName=x;user=ann;password={v};encrypt=true", chosen),
    ("jdbc oracle", "jdbc:oracle:thin:ann/{v}@db.example.org:1521/lake", of(LETTERS, 12)),
    ("sqlplus", "sqlplus ann/{v}@db.example.org:1521/lake @load.sql", of(LETTERS, 12)),
    ("pgpassword", "PGPASSWORD='{v}' psql -h db -U ann lake -c 'select 1'", chosen),
    ("pgpass", "echo 'db.example.org:5432:lake:ann:{v}' > ~/.pgpass", of(LETTERS, 16)),
    ("netrc lines", "machine api.wandb.ai\n  login user\n  password {v}\n", of(HEX, 40)),
    ("netrc here", "cat > ~/.netrc <<EOF\nmachine h.example.org\nlogin ann\npassword {v}\nEOF", chosen),
    ("kubeconfig token", "users:\n- name: ann\n  user:\n    token: {v}\n", of(LETTERS, 48)),
    ("kubeconfig key", "users:\n- name: ann\n  user:\n    client-key-data: {v}\n", pem_in_base64),
    ("eks token", "kubectl --token={v} get pods", begun("k8s-aws-v1." + "aHR0cHM6", of(URL_SAFE, 80))),
    ("oc login", "oc login --token={v} --server=https://api.example.org:6443", begun("sha256" + "~", of(URL_SAFE, 43))),
    ("gcp variable", "GCP='{{\"private_key\":\"-----BEGIN PRIVATE " "KEY-----\\\\n{v}\\\\n\"}}'", in_base64(48)),
    ("ssh key here", "cat > ~/.ssh/id <<'K'\n-----BEGIN OPENSSH PRIVATE " "KEY-----\n{v}\n"
     "-----END OPENSSH PRIVATE " "KEY-----\nK", in_base64(50)),
    ("ssh key, no end", "RUN echo '-----BEGIN RSA PRIVATE " "KEY-----\n{v}", in_base64(48)),
    ("git header", "git -c http.extraheader='AUTHORIZATION: basic {v}' clone https://g.example.org/r", in_base64(30)),
    ("git oauth", "git clone https://oauth2:{v}@git.example.org/team/repo", of(LETTERS, 26)),
    ("azure header", "curl -H 'Ocp-Apim-Subscription-Key: {v}' https://x.cognitive.example.org", of(HEX, 32)),
    ("azure functions", "curl 'https://f.example.org/api/run?code={v}&name=x'", quoted(40)),
    ("azure login", "az login --service-principal -u {u} -p {v}", begun("x" + "Q18Q~", of(LETTERS, 34))),
    ("azure storage", "az storage blob upload --account-name a --account-key {v} -f x", in_base64(64)),
    ("sas token", "azcopy copy x 'https://a.blob.core.windows.net/c?sp=racw&spr=https&sig={v}'", quoted(32)),
    ("sas alone", "AZCOPY_SAS='?sv=2024-11-04&ss=b&srt=co&sp=rwd&sig={v}'", quoted(32)),
    ("minio client", "mc alias set lake https://s3.example.org ann {v}", of(LETTERS, 40)),
    ("s3 url", "aws_url: s3://AKIAQ3EXAMPLEKEY0001:{v}@bucket/models", of(LETTERS, 40)),
    ("boto call", "boto3.client('s3', aws_access_key_id=a, aws_secret_access_key='{v}')", of(LETTERS + "+/", 40)),
    ("rclone", "rclone config create lake s3 access_key_id ann secret_access_key {v}", of(LETTERS, 40)),
    ("cifs", "mount -t cifs //nas/x /mnt -o username=ann,password={v},vers=3.0", of(LETTERS, 12)),
    ("smbclient", "smbclient //nas/x -U 'ann%{v}' -c ls", of(LETTERS, 12)),
    ("lftp", "lftp -u ann,{v} sftp://h.example.org", of(LETTERS, 12)),
    ("ldap", "ldapsearch -x -D cn=ann -w {v} -b dc=example", of(LETTERS, 12)),
    ("ipmi", "ipmitool -I lanplus -H bmc7 -U admin -P {v} power status", of(LETTERS, 12)),
    ("sudo", "echo '{v}' | sudo -S nvidia-smi -pm 1", chosen),
    ("ssh-keygen", "ssh-keygen -t ed25519 -f k -N '{v}'", chosen),
    ("gpg", "gpg --batch --passphrase {v} -d w.gpg", chosen),
    ("zip", "unzip -P {v} weights.zip", of(LETTERS, 12)),
    ("7z", "7z x -p{v} weights.7z", of(LETTERS, 12)),
    ("openssl", "openssl enc -d -aes-256-cbc -in w -k {v}", of(LETTERS, 14)),
    ("openssl pass", "openssl pkcs12 -in a.p12 -passout pass:{v}", of(LETTERS, 12)),
    ("etcd", "etcdctl --user root:{v} get x", of(LETTERS, 12)),
    ("kafka", 'sasl.jaas.config=PlainLoginModule required username="ann" password="{v}";', of(LETTERS, 14)),
    ("kafka -X", "kcat -X sasl.username=ann -X sasl.password={v} -L", of(LETTERS, 14)),
    ("vault", "vault login {v}", begun("s" + ".", of(LETTERS, 24))),
    ("vault header", "curl -H 'X-Vault-Token: {v}' http://v:8200/v1/x", begun("s" + ".", of(LETTERS, 24))),
    ("consul", "consul members -token={v}", unique),
    ("wandb call", 'wandb.login(key="{v}", relogin=True)', of(HEX, 40)),
    ("hub login", "hf auth login --token {v} --add-to-git-credential", begun("hf" + "_", of(LETTERS, 34))),
    ("hub url", "git clone https://user:{v}@huggingface.co/org/m", begun("hf" + "_", of(LETTERS, 34))),
    ("npmrc", "//registry.npmjs.org/:_authToken={v}", unique),
    ("npmrc auth", "//reg.example.org/:_auth={v}", in_base64(24)),
    ("poetry", "poetry config http-basic.team ann {v}", of(LETTERS, 20)),
    ("pypirc", "[pypi]\nusername = __token__\npassword = {v}\n", begun("pyp" + "i-AgEI", of(URL_SAFE, 80))),
    ("conda", "conda install -c https://conda.example.org/t/{v}/team x", lambda r: "an-" + unique(r)),
    ("jupyter", "jupyter lab --ServerApp.token='{v}' --port 8888", of(HEX, 48)),
    ("jupyter url", "http://node7:8888/lab?token={v}", of(HEX, 48)),
    ("ray", "ray start --head --redis-password={v}", of(LETTERS, 16)),
    ("slurm", "SLURM_JWT={v} scontrol ping", begun("ey" + "JhbGciOiJIUzI1NiJ9.", of(URL_SAFE, 80))),
    ("slurm header", "curl -H 'X-SLURM-USER-TOKEN: {v}' http://c:6820/slurm", of(URL_SAFE, 90)),
    ("tailscale", "tailscale up --authkey {v}", begun("tsk" + "ey-auth-k", of(LETTERS, 48))),
    ("ngrok", "ngrok config add-authtoken {v}", lambda r: "2" + of(LETTERS, 26)(r) + "_" + of(LETTERS, 21)(r)),
    ("cloudflare", "cloudflared tunnel run --token {v}", lambda r: "ey" + "JhIjoi" + of(LETTERS, 120)(r)),
    ("wireguard", "[Interface]\nPrivateKey = {v}\n", in_base64(32)),
    ("modal", "MODAL_TOKEN_SECRET={v} modal run x.py", begun("a" + "s-", of(LETTERS, 22))),
    ("runpod", "curl https://api.example.org --oauth2-bearer {v}", begun("rpa" + "_", of(UPPER, 44))),
    ("together", "python x.py {v}", begun("tgp" + "_v1_", of(URL_SAFE, 43))),
    ("cerebras", "client = Cerebras('{v}')", begun("cs" + "k-", of(LOWER, 48))),
    ("langsmith", "tracer: {v}", begun("lsv2" + "_pt_", lambda r: of(HEX, 32)(r) + "_" + of(HEX, 10)(r))),
    ("jina", "reader {v} done", begun("jina" + "_", of(LETTERS + "_-", 60))),
    ("tavily", "search={v}", begun("tvly" + "-dev-", of(LETTERS, 32))),
    ("atlassian", "curl -u ann@example.org:{v} https://x.atlassian.net", begun("ATA" + "TT3xFfGF0", of(URL_SAFE, 100))),
    ("bitbucket", "git remote add o https://ann:{v}@bitbucket.org/t/r", begun("ATB" + "B", of(LETTERS, 32))),
    ("figma", "assets {v}", begun("fig" + "d_", of(URL_SAFE, 40))),
    ("supabase", "supabase link {v}", begun("sb" + "p_", of(HEX, 40))),
    ("planetscale", "use {v}", begun("psca" + "le_pw_", of(URL_SAFE, 43))),
    ("sentry", "sentry-cli {v}", begun("sntr" + "ys_", of(LETTERS, 90))),
    ("dynatrace", "oneagent {v}", lambda r: "dt0" + "c01." + of(BASE32, 24)(r) + "." + of(BASE32, 64)(r)),
    ("circle", "circleci {v}", lambda r: "CCI" + "PAT_" + of(LETTERS, 22)(r) + "_" + of(HEX, 40)(r)),
    ("buildkite", "bk {v}", begun("bk" + "ua_", of(HEX, 40))),
    ("pulumi", "pulumi login {v}", begun("pul" + "-", of(HEX, 40))),
    ("postman", "newman {v}", lambda r: "PM" + "AK-" + of(HEX, 24)(r) + "-" + of(HEX, 34)(r)),
    ("jfrog", "jf c add --access-token={v}", begun("cmVmdGtu" + "OjAxOj", of(LETTERS, 50))),
    ("airtable", "sync {v}", lambda r: "pa" + "t" + of(LETTERS, 14)(r) + "." + of(HEX, 64)(r)),
    ("teams webhook", "https://x.webhook.office.com/webhookb2/{u}@{u}/IncomingWebhook/{v}/{u}", of(HEX, 32)),
    ("logic app", "https://x.logic.azure.com/workflows/x/invoke?sp=%2Ftriggers&sv=1.0&sig={v}", of(URL_SAFE, 43)),
    ("slack webhook", 'curl -d x "https://hooks.slack.com/triggers/E0123/456/{v}"', of(HEX, 32)),
    ("yaml anchor", "x: &pw\n  db_password: &p {v}\n  again: *p\n", of(LETTERS, 16)),
    ("yaml folded", "api_key: |\n  {v}\n", of(LETTERS, 32)),
    ("dotted", "spark.hadoop.fs.s3a.secret.key={v}", of(LETTERS, 40)),
    ("conf java", "-Djavax.net.ssl.keyStorePassword={v} -jar x.jar", of(LETTERS, 12)),
    ("powershell", "$env:HF_TOKEN = '{v}'", of(LETTERS, 34)),
    ("ansible", "ansible-playbook x.yml -e ansible_become_pass={v}", of(LETTERS, 12)),
    ("terraform", "terraform apply -var db_password={v} -auto-approve", chosen),
    ("make", "make deploy TOKEN={v} HOST=h", of(LETTERS, 24)),
    ("prompt echo", "Password for 'https://ann@git.example.org': {v}", chosen),
    ("log of a call", "DEBUG:urllib3: headers={{'x-api-key': '{v}', 'accept': '*/*'}}", of(LETTERS, 30)),
    ("proxy flag", "curl -x http://proxy:3128 -U ann:{v} https://h", of(LETTERS, 12)),
    ("at sign in it", "postgres://ann:{v}@db.example.org/lake", lambda r: of(LETTERS, 5)(r) + "@" + of(LETTERS, 5)(r)),
    ("slash in it", "redis://default:{v}@cache:6379/0", lambda r: of(LETTERS, 6)(r) + "/" + of(LETTERS, 6)(r)),
)  # fmt: skip


def secrets(seed: int = 0) -> list[tuple[str, str, str]]:
    """(kind, text, what must not be left of it)."""
    rng = random.Random(seed)
    found = []
    for kind, text, make in SECRETS:
        value = make(rng)
        found.append((kind, text.format(v=value, u=unique(rng)), value))
    return found


HARMLESS: tuple[Make, ...] = (
    lambda r: f"Merge pull request #{r.randrange(9999)} ({of(HEX, 40)(r)}) from ann/fix-{of(HEX, 7)(r)}",
    lambda r: f"git checkout {of(HEX, 40)(r)} && pip install -e .",
    lambda r: f"vllm/vllm-openai:nightly-{of(HEX, 40)(r)}",
    lambda r: f"docker pull nvcr.io/nvidia/nemo@sha256:{of(HEX, 64)(r)}",
    lambda r: f"image: ghcr.io/org/x:sha-{of(HEX, 12)(r)}",
    lambda r: f"job uuid {unique(r)} on GPU-{unique(r)}",
    lambda r: f"--run-id {unique(r)} --resume-from /ckpt/{of(HEX, 16)(r)}/step_{r.randrange(10**6)}",
    lambda r: f"/lustre/users/ann/models--Qwen--Qwen3-32B/snapshots/{of(HEX, 40)(r)}",
    lambda r: f"--model RedHatAI/Meta-Llama-3.1-{r.choice((8, 70))}B-Instruct-quantized.w{r.choice((4, 8))}a16",
    lambda r: f"--model nvidia/Llama-3_1-Nemotron-Ultra-253B-v1-FP8 --revision {of(HEX, 40)(r)}",
    lambda r: f"--tokenizer hf-internal-testing/llama-tokenizer-{of(HEX, 6)(r)}",
    lambda r: f"--tokenizer Xenova/gpt-4o_o200k_base-{r.randrange(99)}",
    lambda r: f"tokenizer.model sha256={of(HEX, 64)(r)}",
    lambda r: f"--tiktoken-file /data/cl100k_base-{of(LETTERS, 8)(r)}.tiktoken --tokenizer-type TikTokenizer",
    lambda r: f"TORCH_EXTENSIONS_DIR=/tmp/torch_ext_{of(LETTERS, 8)(r)} TRITON_CACHE_DIR=/tmp/{of(LETTERS, 12)(r)}",
    lambda r: f"triton_poi_fused_add_mul_{r.randrange(99)} /tmp/torchinductor_ann/{of(BASE32, 52)(r).lower()}.py",
    lambda r: f"cache key: {of(HEX, 10)(r)}/rank_0_0/backbone",
    lambda r: f"[rank0]:W1128 compile_fx graph {of(BASE32, 52)(r).lower()}",
    lambda r: f"NCCL_COMM_ID=10.0.{r.randrange(99)}.{r.randrange(99)}:{r.randrange(10**4, 6 * 10**4)}",
    lambda r: f"MASTER_ADDR=ip-10-0-{r.randrange(99)}-7.ec2.internal MASTER_PORT={r.randrange(10**4, 6 * 10**4)}",
    lambda r: f"arn:aws:sagemaker:us-east-1:{of(string.digits, 12)(r)}:training-job/x-{of(LOWER, 12)(r)}",
    lambda r: f"i-0{of(HEX, 16)(r)} subnet-0{of(HEX, 16)(r)} ami-0{of(HEX, 16)(r)}",
    lambda r: f"projects/p/locations/l/endpoints/{of(string.digits, 19)(r)}",
    lambda r: f"wandb: Run data is saved in /w/run-20261128_1{of(string.digits, 5)(r)}-{of(LOWER, 8)(r)}",
    lambda r: f"https://wandb.ai/team/proj/runs/{of(LOWER, 8)(r)}",
    lambda r: f"request cmpl-{of(HEX, 32)(r)} finished; call_{of(LETTERS, 24)(r)}",
    lambda r: f"msg_{of(LETTERS, 24)(r)} resp_{of(HEX, 48)(r)}",
    lambda r: f"pod vllm-7d9f{of(HEX, 6)(r)}-x{of(LOWER, 4)(r)} node gke-gpu-pool-{of(HEX, 8)(r)}-{of(LOWER, 4)(r)}",
    lambda r: f"etag: \"{of(HEX, 32)(r)}-{r.randrange(99)}\"",
    lambda r: f"md5sum {of(HEX, 32)(r)}  train.bin; crc32c={in_base64(4)(r)}",
    lambda r: f"--hash=sha256:{of(HEX, 64)(r)}",
    lambda r: f"numpy-2.3.5-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl#sha256={of(HEX, 64)(r)}",
    lambda r: f"nvidia-cudnn-cu12==9.{r.randrange(20)}.0.{r.randrange(99)} nvidia_nccl_cu12-2.2{r.randrange(9)}.5",
    lambda r: f"libtorch.so: undefined symbol: _ZN3c10{of(string.digits, 2)(r)}ExchangeDeviceEa{of(LETTERS, 9)(r)}",
    lambda r: f"_ZN7cutlass6KernelINS_4gemm6kernel{of(LETTERS, 40)(r)}EvNT_6ParamsE",
    lambda r: f"ampere_bf16_s16816gemm_bf16_{r.choice((64, 128))}x256_ldg8_f2f_stages_64x{r.randrange(2, 6)}_tn",
    lambda r: f"mlx5_{r.randrange(8)} GUID 0x{of(HEX, 16)(r)} LID {r.randrange(999)}",
    lambda r: f"pci 0000:{of(HEX, 2)(r)}:00.0 serial {of(string.digits, 13)(r)} vbios 96.00.{r.randrange(99)}.00.01",
    lambda r: f"-p {r.randrange(1024, 9999)}:80 -u {r.randrange(1000, 2000)}:{r.randrange(1000, 2000)} --user 1000:100",
    lambda r: f"srun -p gpu-{of(LOWER, 6)(r)} -A proj{r.randrange(9999)} -w node[3-17] -N 2 -k",
    lambda r: f"rsync -avP ann@dtn{r.randrange(9)}:/scratch/{of(LETTERS, 10)(r)} /data",
    lambda r: f"ssh -p {r.randrange(1024, 9999)} -N -k -w 0:0 ann@login{r.randrange(9)}.example.org",
    lambda r: f"zip -r out.zip runs/{of(HEX, 8)(r)}; 7z x weights.7z -o/data/{of(LETTERS, 8)(r)}; unzip -P",
    lambda r: f"mkdir -p /data/{of(LETTERS, 12)(r)} && cp -p a b && python -p {r.randrange(99)}",
    lambda r: f"curl -x http://proxy:3128 -U \"$PROXY_USER:$PROXY_PW\" http://h{r.randrange(9)}/v1/models",
    lambda r: f"echo {of(HEX, 12)(r)} | tee /proc/x; echo y | sudo -S true",
    lambda r: f"select password, token from users where id = {r.randrange(9999)}",
    lambda r: f"passwords are read from /run/secrets/{of(LOWER, 8)(r)}; tokens in flight {r.randrange(999)}",
    lambda r: f"code=ResourceExhausted error_code={r.randrange(999)} exit_code: 137 ?code={r.randrange(999)}",
    lambda r: f"sig=SIGTERM signal={r.randrange(30)} key=layers.{r.randrange(99)}.self_attn.k_proj.weight",
    lambda r: f"state_dict key model.layers.{r.randrange(99)}.mlp.experts.{r.randrange(256)}.up_proj.weight_scale_inv",
    lambda r: f"api_server_count={r.randrange(9)} api-key-required: false auth: none",
    lambda r: f"--served-model-name team/m-{of(HEX, 8)(r)} --chat-template /t/{of(LETTERS, 10)(r)}.jinja",
    lambda r: f"HF_HOME=/mnt/{of(LETTERS, 10)(r)} HF_HUB_OFFLINE=1 HF_TOKEN_PATH=/run/hf HF_HUB_ENABLE_HF_TRANSFER=1",
    lambda r: f"machine node{r.randrange(99)} slots={r.randrange(1, 9)} login node is login{r.randrange(9)}",
    lambda r: f"cat <<EOF > hosts\nnode{r.randrange(99)} slots=8\nEOF\nmpirun --hostfile hosts -x PATH",
    lambda r: f'{{"architectures": ["Qwen3MoeForCausalLM"], "_commit_hash": "{of(HEX, 40)(r)}", "sep_token": "[SEP]"}}',
    lambda r: f"flops {r.random():.17g} loss {r.random():.16e} tok/s/gpu {r.randrange(10**5)}",
    lambda r: f"seed {r.getrandbits(64)} rng state {of(HEX, 128)(r)}",
    lambda r: f"ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQ{of(LETTERS + '+/', 200)(r)}= ann@host",
    lambda r: f"-----BEGIN CERTIFICATE-----\n{in_base64(48)(r)}\n-----END CERTIFICATE-----",
)  # fmt: skip


def harmless(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [HARMLESS[i % len(HARMLESS)](rng) for i in range(count)]
