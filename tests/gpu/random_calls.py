"""Random calls of `hw.attention`, each compared with the formula in float64, until the time is up.

    python tests/gpu/random_calls.py --seconds 200 --seed 1             # on a GPU: a process for each core but two
    TRITON_INTERPRET=1 python tests/gpu/random_calls.py --device cpu    # the CPU backends, and Triton interpreted
    python tests/gpu/random_calls.py --fix width=24 --fix rank=70       # some options held, the rest drawn
    python tests/gpu/random_calls.py --replay '{"seed": 5, ...}'        # one call again, as a failure printed it

`call_drawing.py` draws the calls, `call_running.py` makes their tensors and runs them, `call_judging.py` judges them.

A call passes if
- no number is NaN or infinite, although free memory was filled with NaN before the call;
- the output and every gradient are within the error budget of `oracle.py`: as a norm, and more loosely each number;
- queries that may attend to nothing give exact zeros;
- a second run gives the same bits, where the backend promises it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import queue
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from typing import Any

import torch
from call_drawing import Spec, drawn_calls
from call_judging import attempt, simplified


def replay_command(spec: Spec, device: str) -> str:
    """The command that runs one call again."""
    interpreted = "TRITON_INTERPRET=1 " if os.environ.get("TRITON_INTERPRET") == "1" else ""
    return f"{interpreted}python tests/gpu/random_calls.py --device {device} --replay {shlex.quote(json.dumps(spec))}"


def work(arguments: argparse.Namespace) -> None:
    """Judge calls until the time is up; report each beginning and end to the parent, as a line of JSON."""
    torch.set_num_threads(1)
    deadline, device = time.monotonic() + arguments.seconds, arguments.device

    def report(**event: Any) -> None:
        print(json.dumps(event), file=sys.__stdout__, flush=True)

    number = arguments.first_family
    while time.monotonic() < deadline:
        simplify = True
        for spec in drawn_calls(arguments.seed, arguments.worker, number, arguments.fixed, device):
            if time.monotonic() > deadline:
                break
            report(begin=spec, family=number)
            verdict = attempt(spec, device)
            report(end=verdict.as_json())
            if verdict.failures and device == "cuda":
                try:
                    torch.cuda.synchronize()
                except RuntimeError:  # the context is lost: the parent starts another process
                    os._exit(3)
            if verdict.failures and simplify and arguments.simplify:
                simplify = False
                report(simplified=simplified(spec, device, arguments.simplify))
        number += 1
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


class Worker:
    """One process that judges calls, and what it last reported."""

    def __init__(self, index: int, arguments: argparse.Namespace, first_family: int, seconds: float) -> None:
        self.index, self.family, self.spec, self.since = index, first_family, None, time.monotonic()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, __file__, "--worker", str(index), "--first-family", str(first_family)]
        command += ["--seconds", str(seconds), "--seed", str(arguments.seed), "--device", arguments.device]
        command += ["--simplify", str(arguments.simplify)]
        for name, value in arguments.fixed.items():
            command += ["--fix", f"{name}={json.dumps(value)}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        if arguments.device == "cpu":
            environment["MALLOC_PERTURB_"] = "128"  # glibc fills new memory with bytes 127: large numbers, no zeros
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.errors, env=environment)

    def listen(self, events: queue.Queue) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(json.JSONDecodeError):
                events.put((self, json.loads(line)))
        self.process.stdout.close()
        self.process.wait()
        events.put((self, None))

    def last_words(self) -> str:
        with self.errors:
            self.errors.seek(0)
            return self.errors.read().decode(errors="replace").strip()[-1500:]


class Tally:
    """Counts of calls, and the failures with their commands."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device, self.began = arguments.device, time.monotonic()
        self.calls, self.failures, self.lucky = 0, 0, 0
        self.counts = {name: Counter() for name in ("dtype", "backend", "structure")}
        self.differing = {"promised": 0, "not promised": 0}
        self.closest: list[tuple[float, str]] = []

    def end(self, spec: Spec, verdict: Spec) -> None:
        self.calls += 1
        self.counts["dtype"][spec["dtype"]] += 1
        self.counts["backend"][verdict["backend"]] += 1
        kinds = {term["kind"] for term in (*spec["terms"], *spec["values"])}
        self.counts["structure"].update(kinds or {"none"})
        if not verdict["repeats"]:
            self.differing["promised" if verdict["promised"] else "not promised"] += 1
        if verdict["failures"]:
            self.fail(spec, verdict["failures"], f"{verdict['backend']}, ratio {verdict['ratio']:.3g}")
        else:
            self.lucky += verdict["ratio"] > 1
            label = f"{verdict['of']}, {spec['dtype']}, {verdict['backend']}"
            self.closest = sorted([*self.closest, (verdict["ratio"], label)], reverse=True)[:5]

    def fail(self, spec: Spec | None, failures: list[str], context: str) -> None:
        self.failures += 1
        print(f"\nFAILED ({context})")
        for failure in failures:
            print(f"  {failure}")
        if spec is not None:
            print(f"  {replay_command(spec, self.device)}", flush=True)

    def progress(self) -> None:
        elapsed = time.monotonic() - self.began
        print(f"{elapsed:4.0f} s: {self.calls} calls, {self.failures} failures", flush=True)

    def summary(self, seed: int) -> None:
        print(f"\n{self.calls} calls, {self.failures} failures, seed {seed}, {time.monotonic() - self.began:.0f} s")
        for name, counts in self.counts.items():
            print(f"  by {name}: " + ", ".join(f"{key} {count}" for key, count in counts.most_common()))
        print(f"  other bits in a second run: {self.differing['promised']} where the backend promises the same bits, "
              f"{self.differing['not promised']} where it does not")  # fmt: skip
        print(f"  over the budget once, but not with redrawn numbers: {self.lucky}")
        print("  closest to the budget: " + "; ".join(f"{ratio:.2f} {label}" for ratio, label in self.closest))


def search(arguments: argparse.Namespace) -> int:
    """Run workers until the time is up, and replace those that die; the number of failures."""
    events: queue.Queue = queue.Queue()
    tally, running = Tally(arguments), set()
    deadline = time.monotonic() + arguments.seconds

    def start(index: int, first_family: int) -> None:
        worker = Worker(index, arguments, first_family, deadline - time.monotonic())
        running.add(worker)
        threading.Thread(target=worker.listen, args=(events,), daemon=True).start()

    for index in range(arguments.workers):
        start(index, 0)
    shown = time.monotonic()
    while running:
        with contextlib.suppress(queue.Empty):
            worker, event = events.get(timeout=1)
            if event is None:
                running.discard(worker)
                words = worker.last_words()
                died = worker.process.returncode != 0 and not getattr(worker, "stopped", False)
                if died and worker.spec is not None:
                    died_with = f"the process died with code {worker.process.returncode}: {words}"
                    tally.fail(worker.spec, [died_with], "no result")
                elif died and worker.process.returncode != 3:
                    tally.fail(None, [f"worker {worker.index} died: {words}"], "between calls")
                if died and time.monotonic() < deadline - 5:
                    start(worker.index, worker.family + 1)
            elif "begin" in event:
                worker.spec, worker.family, worker.since = event["begin"], event["family"], time.monotonic()
            elif "end" in event:
                tally.end(worker.spec, event["end"])
                worker.spec = None
            elif "simplified" in event:
                print(f"  simplified: {replay_command(event['simplified'], arguments.device)}", flush=True)
        now = time.monotonic()
        for worker in list(running):
            late, stuck = (
                now > deadline + arguments.grace,
                worker.spec is not None and now - worker.since > arguments.limit,
            )
            if (late or stuck) and worker.process.poll() is None and not getattr(worker, "stopped", False):
                if stuck:
                    tally.fail(worker.spec, [f"no result after {arguments.limit} s"], "no result")
                worker.stopped = True
                worker.process.kill()
                if stuck and not late:
                    start(worker.index, worker.family + 1)
        if now - shown > 20:
            shown = now
            tally.progress()
    tally.summary(arguments.seed)
    return tally.failures


FIXABLE = [
    "dtype", "parameters", "width", "v_width", "terms", "values", "rank", "segments", "reach", "causal", "lengths",
    "documents", "mask", "dropout", "grads", "backend", "q_len", "k_len", "batch", "heads", "key_heads", "scale",
    "upstream", "upstream_scale", "layout",
]  # fmt: skip


def fixed_options(pairs: list[str]) -> Spec:
    """Of --fix NAME=VALUE, where the value is JSON or, if it is none, a string."""
    fixed = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        if name not in FIXABLE:
            raise ValueError(f"--fix: expected one of {', '.join(FIXABLE)}, got {name!r}.")
        try:
            fixed[name] = json.loads(text)
        except json.JSONDecodeError:
            fixed[name] = text
    return fixed


def parsed(argv: list[str] | None) -> argparse.Namespace:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=["cuda", "cpu"], default=device)
    parser.add_argument("--workers", type=int, help="processes; by default the cores less two on a GPU, else one")
    parser.add_argument("--fix", action="append", default=[], metavar="NAME=VALUE", help="hold one drawn option")
    parser.add_argument("--replay", metavar="JSON", help="run the call of this description and nothing else")
    parser.add_argument("--simplify", type=float, default=15, help="seconds for simplifying a failure of a family")
    parser.add_argument("--limit", type=float, default=200, help="seconds after which a call counts as stuck")
    parser.add_argument("--grace", type=float, default=30, help="seconds for the last calls once the time is up")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--first-family", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    arguments.fixed = fixed_options(arguments.fix)
    if arguments.workers is None:
        arguments.workers = max(1, (os.cpu_count() or 1) - 2) if arguments.device == "cuda" else 1
    return arguments


def main(argv: list[str] | None = None) -> int:
    arguments = parsed(argv)
    if arguments.worker is not None:
        work(arguments)
        return 0
    if arguments.replay is not None:
        verdict = attempt(json.loads(arguments.replay), arguments.device)
        print(f"{verdict.backend}: " + ("; ".join(verdict.failures) or "passed"))
        print(f"  closest to the budget: {verdict.ratio:.3g}, {verdict.of}; repeats: {verdict.repeats}")
        return int(bool(verdict.failures))
    return int(search(arguments) > 0)


if __name__ == "__main__":
    sys.exit(main())
