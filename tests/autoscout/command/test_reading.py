"""Numbers out of a log while it is written."""

import re
import time
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscout.targets.command.preset import names, preset
from autoscout.targets.command.reading import GUESSED_STEP, MetricReader, Stream, Tail, literal, number_of
from kb.records import MetricSource

LINE = b" iteration %d/ 100 | elapsed time per iteration (ms): %d.5 | lm loss: 6.4E+00 |\n"
PATTERN = r"elapsed time per iteration \(ms\): ([\d.]+)"


def numbers(pattern: str = PATTERN) -> MetricReader:
    return MetricReader(MetricSource(pattern=pattern))


@given(st.lists(st.integers(1, 200), min_size=1, max_size=8))
def test_how_a_log_is_cut_into_pieces_does_not_matter(cuts):
    text = b"".join(LINE % (i, i) for i in range(5)) + b"12% | elapsed time per iteration (ms): 9.5\r"
    found = numbers()
    stream = Stream([found])
    place = 0
    while place < len(text):
        size = cuts[place % len(cuts)]
        stream.feed(text[place : place + size], 0.0)
        place += size
    stream.close(0.0)
    assert found.values == [0.5, 1.5, 2.5, 3.5, 4.5, 9.5]


def test_the_text_that_every_match_contains():
    assert literal(PATTERN) == "elapsed time per iteration (ms): "
    assert literal(r"(a|b)[\d.]+ it/s") == " it/s"
    assert literal(r"(?i)loss: (\d+)") == ""
    assert literal(r"x?\d*") == ""


def test_numbers_with_commas_colours_and_exponents():
    assert number_of(b"1,234.5") == 1234.5
    assert number_of(b"6.43E+00") == 6.43
    assert number_of(b"?") is None
    found = numbers(r"loss: +([\d.]+)")
    Stream([found]).feed(b"\x1b[31mstep: 1 \x1b[32mloss: \x1b[39m 8.25\x1b[0m\n", 0.0)
    assert found.values == [8.25]


def test_a_large_log_costs_seconds_not_minutes():
    """A log without a match is read in half the time that a compiled pattern takes to look at each line; without the
    literals it takes ten times that time."""
    piece = (b"some other line of a log, as most of them are, of a hundred bytes or so, all in all" * 12 + b"\n") * 1000
    stream = Stream([numbers(), numbers(r"lm loss: ([\dE.+-]+)")])
    pattern = re.compile(PATTERN.replace("elapsed", "[e]lapsed").encode())

    def least_s(reads: Callable[[], object]) -> float:
        took = []
        for _ in range(7):
            began = time.process_time()
            for _ in range(5):
                reads()
            took.append(time.process_time() - began)
        return min(took)

    plain_s = least_s(lambda: [pattern.search(line) for line in piece.split(b"\n")])
    assert least_s(lambda: stream.feed(piece, 0.0)) < 3 * plain_s


# A line of each tool's log, as it prints them, and what has to be read from it.
# Of the load tools of SGLang and TensorRT-LLM, which both come of vLLM's.
LOADED = (
    b"Request throughput (req/s):              5.50\nOutput token throughput (tok/s):         1000.00\n"
    b"P99 TTFT (ms):                           63.00\nMean TPOT (ms):                          8.00\n",
    {"requests_per_s": [5.5], "output_tokens_per_s": [1000.0], "ttft_p99_ms": [63.0], "tpot_mean_ms": [8.0]},
)
SAID = {
    "megatron-lm": (
        b" [2026-11-22 11:10:31.420336] iteration        6/       6 | consumed samples: 96 | elapsed time per "
        b"iteration (ms): 271.3 | learning rate: 0.000000E+00 | global batch size:    16 | lm loss: 6.433661E+00 | "
        b"loss scale: 1.0 | grad norm: 0.961 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        b"[Rank 0] (after 1 iterations) memory (MB) | allocated: 10.00 | max allocated: 20.00 | reserved: 30.00\n",
        {"step_time_ms": [271.3], "loss": [6.433661], "grad_norm": [0.961], "peak_memory_mib": [20.0]},
    ),
    "megatron-bridge": (
        b" [2026-01-02] iteration       10/     100 | elapsed time per iteration (ms): 1234.5 | lm loss: 1.1E+01 |"
        b" grad norm: 2.5 |\n",
        {"step_time_ms": [1234.5], "loss": [11.0], "grad_norm": [2.5]},
    ),
    "torchtitan": (
        b"[titan] INFO - \x1b[31mstep:  2  \x1b[32mloss:  7.92104  \x1b[38;2;180;60;0mgrad_norm:  1.6032  "
        b"\x1b[36mmemory:  1.25GiB(1.58%)  \x1b[34mtps: 12,345  \x1b[36mtflops: 1.00  \x1b[35mmfu: 1%\x1b[39m\n",
        {"loss": [7.92104], "grad_norm": [1.6032], "peak_memory_gib": [1.25], "tokens_per_s_per_gpu": [12345.0]},
    ),
    "hf-trainer": (
        b"{'loss': '6.25', 'grad_norm': '0.08194', 'learning_rate': '5e-05', 'epoch': '0.001953'}\n",
        {"loss": [6.25], "grad_norm": [0.08194]},
    ),
    "trl": (
        b"{'loss': 2.5, 'grad_norm': 1.5, 'learning_rate': 2e-05, 'mean_token_accuracy': 0.5, 'epoch': 0.1}\n",
        {"loss": [2.5], "grad_norm": [1.5]},
    ),
    "grpo": (
        b"{'loss': '-1.2e-08', 'grad_norm': '1.5', 'rewards/f/mean': '0.7', 'reward': '-0.25', 'reward_std': '0.1'}\n"
        b'{"step_time_s": 2.5, "rollout_s": 1.5, "update_s": 1e-05, "lag_updates": 0.0, "samples_per_s": 6.4}\n',
        {"loss": [-1.2e-08], "reward": [-0.25], "reward_std": [0.1], "step_time_s": [2.5], "update_s": [1e-05]},
    ),
    "vllm-bench": (
        b"Request throughput (req/s):              3.21\nOutput token throughput (tok/s):         410.55\n"
        b"Total token throughput (tok/s):          900.10\nMean TTFT (ms):                          45.60\n"
        b"P99 TTFT (ms):                           90.10\nMean TPOT (ms):                          12.30\n"
        b"P99 TPOT (ms):                           20.20\n",
        {"requests_per_s": [3.21], "output_tokens_per_s": [410.55], "ttft_p99_ms": [90.1], "tpot_mean_ms": [12.3]},
    ),
    "sglang-bench": (
        b"Request throughput (req/s):              5.50\nOutput token throughput (tok/s):         1000.00\n"
        b"Mean TTFT (ms):                          33.00\nMean ITL (ms):                           8.00\n",
        {"requests_per_s": [5.5], "output_tokens_per_s": [1000.0], "ttft_mean_ms": [33.0], "itl_mean_ms": [8.0]},
    ),
    "axolotl": (
        b" 17%|#7 | 1/6 {'loss': '5.551', 'grad_norm': '0.3047', 'learning_rate': '0.0001', 'ppl': '257.5', "
        b"'memory/max_allocated (GiB)': '1.5', 'tokens/trainable': 361, 'tokens/total': 1024}\n",
        {"loss": [5.551], "grad_norm": [0.3047], "peak_memory_gib": [1.5]},
    ),
    "llamafactory": (
        b" 17%|#7 | 1/6 [00:00<00:01, 3.77it/s] {'loss': '7.605', 'grad_norm': '6.532', 'learning_rate': '0.0001'}\n",
        {"loss": [7.605], "grad_norm": [6.532]},
    ),
    "sglang": LOADED,
    "tensorrt-llm": LOADED,
    "tensorrt-llm-bench": (
        b"Request Throughput (req/sec):                     12.5000\n"
        b"Total Output Throughput (tokens/sec):             1600.0000\n",
        {"requests_per_s": [12.5], "output_tokens_per_s": [1600.0]},
    ),
    "torchtune": (
        b"1|2|Loss: 6.43: 33%|###  | 2/6 [00:29<00:14, 7.40s/it]\nStep 2 | loss:6.427908 lr:6e-06 "
        b"tokens_per_second_per_gpu:1721.54 peak_memory_active:15.5 peak_memory_alloc:15.25 grad_norm:0.108 \n",
        {"loss": [6.427908], "grad_norm": [0.108], "tokens_per_s_per_gpu": [1721.54], "peak_memory_gib": [15.25]},
    ),
    "verl": (
        b"(TaskRunner pid=7) step:1 - actor/grad_norm:0.25 - actor/perf/max_memory_allocated_gb:np.float64(41.5) - "
        b"perf/total_num_tokens:812345 - perf/time_per_step:81.25 - perf/throughput:1249.76 - "
        b"timing_s/gen:43.5 - timing_s/reward:np.float64(1.25e-05) - timing_s/ref:6.5 - timing_s/update_actor:20.5 - "
        b"timing_per_token_ms/gen:0.05 - critic/rewards/mean:-0.125 - critic/rewards/max:1.0\n",
        {
            "tokens_per_s_per_gpu": [1249.76],
            "step_time_s": [81.25],
            "grad_norm": [0.25],
            "peak_memory_gib": [41.5],
            "rollout_s": [43.5],
            "reward_s": [1.25e-05],
            "reference_s": [6.5],
            "update_s": [20.5],
            "reward": [-0.125],
        },
    ),
    "deepspeed": (
        b"[INFO] steps: 10 loss: 2.5000 iter time (s): 0.512 samples/sec: 62.500\n",
        {"loss": [2.5], "step_time_s": [0.512]},
    ),
    "swift": (
        b"{'loss': 1.5, 'grad_norm': 0.25, 'learning_rate': 2e-06, 'token_acc': 0.65, 'epoch': 0.01, "
        b"'global_step/max_steps': '1/94', 'memory(GiB)': 4.87, 'train_speed(iter/s)': 0.35}\n",
        {"loss": [1.5], "grad_norm": [0.25], "peak_memory_gib": [4.87]},
    ),
    "swift-megatron": (
        b"{'loss': '1.5', 'grad_norm': '0.25', 'iteration': '2/94', 'memory(GiB)': '4.87'}\n",
        {"loss": [1.5], "grad_norm": [0.25], "peak_memory_gib": [4.87]},
    ),
    "nanotron": (
        b"01/02/2026 [INFO|DP=0]: After train_batch_iter\n Memory usage: 10.00MiB. Peak allocated 2048.50MiB. Peak "
        b"reserved: 3000.00MiB\n01/02/2026 [INFO|DP=0]: iteration: 2 / 100 | consumed_tokens: 98.3K | "
        b"time_per_iteration_ms: 1.23K | tokens_per_sec: 40K | lm_loss: 11.2 | lr: 0.0003 | model_tflops_per_gpu: 80\n",
        {"loss": [11.2], "peak_memory_mib": [2048.5]},
    ),
    "gpt-neox": (
        b"after 2 iterations memory (MB) | allocated: 900.5 | max allocated: 2048.5 | reserved: 3000.0\n"
        b" samples/sec: 12.345 | iteration        2/  320000 | elapsed time per iteration (ms): 1234.5 |"
        b" learning rate: 1.000E-05 | approx flops per GPU: 80.1TFLOPS | lm_loss: 1.098523E+01 | loss scale: 1.0 |\n",
        {"loss": [10.98523], "step_time_ms": [1234.5], "peak_memory_mib": [2048.5]},
    ),
    "olmo": (
        b"INFO [train:979, rank=0] [step=2/500,epoch=0]\n    optim/total_grad_norm=2.625\n"
        b"    train/CrossEntropyLoss=11.25\n    train/Perplexity=76,880\n    System/Peak GPU Memory (MB)=12,345\n",
        {"loss": [11.25], "grad_norm": [2.625], "peak_memory_mb": [12345.0]},
    ),
    "nemo": (
        b"Epoch 0: :   4%|4         | 4/100 [00:16<06:29, v_num=0, reduced_train_loss=10.50, global_step=3.000, "
        b"consumed_samples=32.00, train_step_timing in s=3.750]\n",
        {"loss": [10.5], "step_time_s": [3.75]},
    ),
    "llm-foundry": (
        b"[batch=2/100]:\n\t Train time/batch: 1\n\t Train loss/train/total: 10.9736\n",
        {"loss": [10.9736]},
    ),
    "openrlhf": (
        "(PPOTrainer pid=9) ✨ Global step 2: {'policy_loss': -0.0012, 'actor_lr': 5e-07, 'actor_grad_norm': 0.53, "
        "'kl': 1.2e-05, 'timing/make_experience': 12.5, 'timing/ppo_train': 30.25, 'timing/broadcast': 1.5, "
        "'rollout/reward_mean': 0.25, 'rollout/response_length_mean': 811.0, 'timing/generation': 40.75, "
        "'timing/step_total': 85.0}\n".encode(),
        {"step_time_s": [85.0], "rollout_s": [40.75], "update_s": [30.25], "reward": [0.25], "grad_norm": [0.53]},
    ),
    "slime": (
        b"[2026-08-21 09:00:00] train_metric_utils.py:401 - perf 2: {'perf/sleep_time': 1.2, 'perf/wake_up_time': 0.8, "
        b"'perf/update_weights_time': 2.5, 'perf/train_wait_time': 60.5, 'perf/ref_log_probs_time': 3.5, "
        b"'perf/log_probs_time': 3.25, 'perf/actor_train_time': 12.0, 'perf/step_time': 81.0}\n"
        b"[2026-08-21 09:00:01] model.py:918 - step 4: {'train/loss': 0.0, 'train/grad_norm': 0.125}\n",
        {"step_time_s": [81.0], "logprobs_s": [3.25], "update_s": [12.0], "weights_s": [2.5], "grad_norm": [0.125]},
    ),
    "litgpt": (
        b"Epoch 1 | iter 3 step 1 | loss train: 2.125, val: n/a | iter time: 100.50 ms\n"
        b"Epoch 1 | iter 4 step 2 | loss train: 2.250, val: n/a | iter time: 100.50 ms (step)\n",
        {"loss": [2.25]},
    ),
    "deepspeed-engine": (
        b"epoch=0/micro_step=6/global_step=3, RunningAvgSamplesPerSec=71.5, CurrSamplesPerSec=73.25, "
        b"MemAllocated=0.41GB, MaxMemAllocated=0.52GB\n",
        {"samples_per_s": [73.25], "peak_memory_gib": [0.52]},
    ),
}


def test_every_preset_reads_its_tools_log():
    assert SAID.keys() == set(names()) - {"openrlhf-underscored"}, "which has openrlhf's log"
    for name, (log, expected) in SAID.items():
        sources = {
            metric: MetricSource(pattern=source) if isinstance(source, str) else source
            for metric, source in preset(name).metrics.items()
        }
        read = {metric: MetricReader(source) for metric, source in sources.items()}
        Stream(list(read.values())).feed(log, 0.0)
        assert {metric: read[metric].values for metric in expected} == expected, name
        for metric, source in sources.items():  # times come from two lines
            if source.between:
                later = re.sub(
                    rb"(step:  |\||iteration: |'iteration': '|step=|batch=|step )2(?=[ |/])", rb"\g<1>3", log
                )
                Stream([read[metric]]).feed(later.replace(b"step:  2", b"step:  3"), 1.5)
                assert read[metric].values == [1.5], name


def test_lines_of_one_step_by_several_ranks_are_one():
    numbers = MetricReader(MetricSource(between=r"step: (\d+)"))
    for at, line in enumerate(["step: 1", "step: 1", "step: 2", "step: 2", "step: 3"]):
        numbers.read(line.encode(), float(at))
    assert numbers.values == [2.0, 2.0]


BARS = """\
  0%|          | 0/5 [00:00<?, ?it/s]\r 20%|##        | 1/5 [00:01<00:05,  1.45s/it]\r
 40%|####      | 2/5 [00:02<00:03,  1.10s/it]\r 60%|######    | 3/5 [00:03<00:01,  1.02it/s]\r
 80%|########  | 4/5 [00:04<00:00,  1.07it/s]\r100%|##########| 5/5 [00:04<00:00,  1.11it/s]\r
100%|##########| 5/5 [00:04<00:00,  1.03it/s]
"""


@pytest.mark.parametrize("guess", [GUESSED_STEP, r"(\d+)/\d+ \["])
def test_a_progress_bar_is_read_by_its_step_number_not_by_its_redraws(guess):
    """tqdm 4.67: seconds a step below one step a second, and a last redraw that is no step. Sleeps of 1.45, 0.85 … s:
    the steps that said s/it were lost, and 1.45 s became the time of every step."""
    numbers, at = MetricReader(MetricSource(between=guess)), 0.0
    for line, took in zip(re.split(r"[\r\n]+", BARS.strip()), [0.0, 1.45, 0.85, 0.85, 0.85, 0.85, 0.01], strict=True):
        at += took
        numbers.read(line.encode(), at)
    assert numbers.values == pytest.approx([1.45, 0.85, 0.85, 0.85, 0.85])


def test_a_progress_bar_is_read_when_it_is_drawn_not_when_it_is_drawn_over():
    """A bar begins with \\r, so its line ends only with the next redraw: the last step seemed to take no time."""
    numbers, at = MetricReader(MetricSource(between=GUESSED_STEP)), 0.0
    stream = Stream([numbers])
    for line, took in zip(re.split(r"[\r\n]+", BARS.strip()), [0.0, 1.45, 0.85, 0.85, 0.85, 0.85, 0.01], strict=True):
        at += took
        stream.feed(f"\r{line}".encode(), at)
    stream.feed(b"\n", at + 0.01)
    assert numbers.values == pytest.approx([1.45, 0.85, 0.85, 0.85, 0.85])


def test_steps_between_two_redraws_share_their_time():
    numbers = MetricReader(MetricSource(between=GUESSED_STEP))
    for at, step in ((0.0, 0), (0.4, 4), (0.8, 8), (1.0, 10), (1.1, 0), (1.5, 4)):  # the last two of the next epoch
        numbers.read(f" 10%|#  | {step}/10 [00:00<00:01, 33.17it/s]".encode(), at)
    assert numbers.values == pytest.approx([0.1] * 10 + [0.125] * 4)


def test_a_log_of_every_tenth_step_gives_seconds_a_step():
    numbers = MetricReader(MetricSource(between=GUESSED_STEP))
    for at, step in ((0.0, 10), (5.0, 20), (5.1, 19), (10.0, 30)):  # the third by a rank that is behind
        numbers.read(f"step {step} loss 3.1".encode(), at)
    assert numbers.values == pytest.approx([0.5] * 20)


def test_a_file_that_is_one_endless_line_is_read_in_little_memory(tmp_path):
    """Sparse: its zeros are one line, longer than any that is looked at."""
    path = tmp_path / "train.log"
    with open(path, "wb") as file:
        file.write(LINE % (1, 1))
        file.truncate(2**27)
        file.seek(0, 2)
        file.write(b"\n" + LINE % (2, 2))
    found = numbers()
    tail = Tail(path, Stream([found]))
    tracemalloc.start()
    tail.close()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.values == [1.5, 2.5]
    assert peak < 2**24
