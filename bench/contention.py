"""How much of its speed does decoding keep beside a busy neighbour?

    python3 bench/contention.py build/heddle MODEL [--other build-before/heddle] [--rounds 5] [--threads 2] [-b 1] [-n 64]

A round runs `heddle bench` alone, then beside one process that never sleeps and is pinned nowhere.  With --other two builds
take turns in each round, so that whatever else the machine does meets both.  Printed: tokens a second of either, and their
ratio (beside / alone) as least, median and most of the rounds.  Only a machine that is otherwise quiet gives the ratio a
meaning: its cores should be as many as the threads.
"""
import argparse
import json
import statistics
import subprocess
import sys


def measure(binary, a):
    cmd = [binary, "bench", a.model, "-p", "0", "-b", str(a.rows), "-n", str(a.n), "--depth", str(a.depth),
           "--threads", str(a.threads), "--json"]
    out = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, timeout=300).stdout
    return json.loads(out)["decode"][0]["tok_s"]


def beside_busy_loop(binary, a):
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        return measure(binary, a)
    finally:
        loop.kill()
        loop.wait()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("heddle")
    p.add_argument("model")
    p.add_argument("--other")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("-b", "--rows", type=int, default=1)
    p.add_argument("-n", type=int, default=64)
    p.add_argument("--depth", type=int, default=64)
    a = p.parse_args()
    builds = [a.heddle] + ([a.other] if a.other else [])
    seen = {b: {"alone": [], "beside": [], "kept": []} for b in builds}
    for r in range(a.rounds):
        for b in builds if r % 2 == 0 else builds[::-1]:
            alone, beside = measure(b, a), beside_busy_loop(b, a)
            for key, value in (("alone", alone), ("beside", beside), ("kept", beside / alone)):
                seen[b][key].append(value)
    for b in builds:
        kept = seen[b]["kept"]
        print(f"{b}: alone {statistics.median(seen[b]['alone']):.1f} tok/s, beside a busy loop "
              f"{statistics.median(seen[b]['beside']):.1f}; kept {min(kept):.2f} {statistics.median(kept):.2f} {max(kept):.2f}")


if __name__ == "__main__":
    main()
