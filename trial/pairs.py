"""Two checkouts measured alternately on one GPU: ``pairs.py OLD NEW PAGE TOKENS PAIRS [ROWS]``.

Each has half of the cores, and its process stays, so that nothing is compiled within the pairs.
"""

import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

old, new, page, tokens, pairs = sys.argv[1:6]
rows = sys.argv[6] if len(sys.argv) > 6 else "1"
cores = sorted(os.sched_getaffinity(0))
half = len(cores) // 2


def start(tree, own_cores):
    environment = {**os.environ, "PYTHONPATH": tree, "PYTHONHASHSEED": "0"}
    listed = ",".join(map(str, own_cores))
    worker = Path(__file__).with_name("worker.py")
    command = ["taskset", "-c", listed, sys.executable, str(worker), page]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def ask(process):
    process.stdin.write(f"{tokens} {rows}\n")
    process.stdin.flush()


def answer_of(process):
    return json.loads(process.stdout.readline())


workers = {"old": start(old, cores[:half]), "new": start(new, cores[half:])}
for worker in workers.values():  # both compile at once
    ask(worker)
for name, worker in workers.items():
    print(name, answer_of(worker), flush=True)
times = {"old": [], "new": []}
ids = {"old": set(), "new": set()}
for number in range(int(pairs)):
    for name in ("old", "new") if number % 2 else ("new", "old"):
        ask(workers[name])
        answer = answer_of(workers[name])
        times[name].append(answer["decode_ms"])
        ids[name].add(answer["ids"])
ratios = [b / a for a, b in zip(times["old"], times["new"], strict=True)]
draws = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(10_000))
for name in times:
    spread = f"{min(times[name]):.4f} to {max(times[name]):.4f}"
    median = statistics.median(times[name])
    print(name, f"{median:.4f} ms a token ({spread})", len(ids[name]), "texts")
print(f"ratio {statistics.median(ratios):.4f} [{draws[250]:.4f}..{draws[9750]:.4f}]")
