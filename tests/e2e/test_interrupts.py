# labels: cpu e2e
# timeout: 300
"""A search that is interrupted at any moment ends with exit 130 and the best plan so far.

Random moments for each small model, from the start on: the plan that was written reads back and
simulates, and the search ends soon after the interrupt; a hybrid search on 32 devices, too, in the processor time of a
few plans. AUTOMAP_FULL=1 takes every model of datasets/models.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_interrupts.py [MODEL ...]`.
"""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import AUTOMAP, FULL, MODELS

SAMPLE = ["gpt2_tiny", "moe_tiny"]
MOMENTS = 10 if FULL else 4
SOON = [("bert48", "C")]
SOON_FULL = [("resnet50_batch16", "C"), ("llama3_8b", "h100:4")]
SOON_MOMENTS = [0.5, 1, 1.4, 2, 3, 4, 6, 8, 10, 12] if FULL else [1.3, 3]  # processor seconds after the start
SOON_PLANS = 2.5  # prices of one plan by `simulate`: two plans are in work at once, and one is written
TARGET = ["--for", "megatron", "--evaluations", "100000000"]
PATIENCE_SECONDS = 20  # on a crowded machine; a search that takes no notice has evaluations for hours


def processor_seconds(process):
    """Returns the processor seconds so far, all threads together."""
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def seconds_of_simulation(plan, model):
    """Returns the processor seconds of reading a model and of pricing a plan on this machine."""
    simulation = subprocess.Popen([AUTOMAP, "simulate", plan, model], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(simulation.pid, 0)
    simulation.returncode = os.waitstatus_to_exitcode(status)
    assert simulation.returncode == 0, plan
    return used.ru_utime + used.ru_stime


def check_soon(name, cluster, work):
    """A hybrid search on 32 devices ends soon, whatever it is at. Seconds are the processors': others use them, too."""
    model, plan = next((MODELS / name).glob("model.hlo.pb*")), work / "soon.json"
    failures, longest, allowed = [], 0, 0
    words = [AUTOMAP, "search", model, "--cluster", cluster, "-o", plan]
    for moment in SOON_MOMENTS:
        search = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while search.poll() is None and processor_seconds(search.pid) < moment:
            time.sleep(0.01)
        if search.poll() is not None:
            continue  # it was done
        before = processor_seconds(search.pid)
        search.send_signal(signal.SIGINT)
        _, status, used = os.wait4(search.pid, 0)
        search.returncode = os.waitstatus_to_exitcode(status)
        after = used.ru_utime + used.ru_stime - before
        longest = max(longest, after)
        allowed = allowed or SOON_PLANS * seconds_of_simulation(plan, model)
        if search.returncode not in (0, 130) or after > allowed:
            failures.append(f"{name}, after {moment:.2f} s: exit {search.returncode}, {after:.2f} processor seconds "
                            f"later")
    print(f"{name} on 32 devices: at most {longest:.2f} of {allowed:.2f} processor seconds until the end")
    return failures


def catches_interrupts(process):
    """Returns whether the program has got as far as to catch SIGINT: some milliseconds after its start."""
    try:
        status = pathlib.Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGINT - 1) & 1)


def interrupt(model, cluster, plan, moment):
    """Returns the exit code, the seconds from the interrupt to the end, and the output; no code where the search had
    ended."""
    words = [AUTOMAP, "search", model, "--cluster", cluster, "--evaluations", "100000000", "-o", plan]
    search = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while search.poll() is None and not catches_interrupts(search.pid):
        time.sleep(0.001)
    time.sleep(moment)
    begin = time.monotonic()
    if search.poll() is not None:
        return (search.returncode or None), 0, search.communicate()[1]
    search.send_signal(signal.SIGINT)
    try:
        _, said = search.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        search.kill()
        search.communicate()
        return None, PATIENCE_SECONDS, "it went on"
    return search.returncode, time.monotonic() - begin, said


def check_target(work):
    """The plans of a trainer are searched first, so that an interrupt of the search without the target leaves one."""
    model, plan = MODELS / "gpt2_tiny" / "model.hlo.pb", work / "target.json"
    search = subprocess.Popen([AUTOMAP, "search", model, "--cluster", "h100:4", *TARGET, "-o", plan],
                              stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True)
    while search.poll() is None and processor_seconds(search.pid) < 1.5:  # the strategies take 0.4
        time.sleep(0.01)
    search.send_signal(signal.SIGTERM)
    _, said = search.communicate(timeout=PATIENCE_SECONDS)
    is_right = search.returncode == 130 and plan.exists()
    return [] if is_right else [f"search {' '.join(TARGET)}: exit {search.returncode}: {said.strip()}"]


def check_model(name, chance, work, cluster="C", most=1):
    """Interrupts a search at moments of up to so many seconds."""
    files = sorted((MODELS / name).glob("model.hlo.pb*"))
    plan, failures, longest = work / f"{name}.json", [], 0
    for k in range(MOMENTS):
        moment = chance.random() * (0.1 if k < 3 else most)
        plan.unlink(missing_ok=True)
        code, seconds, said = interrupt(files[0], cluster, plan, moment)
        longest = max(longest, seconds)
        if code is None and seconds == 0:
            continue  # a small space is searched through
        if code == 130 and k < 3 and said.endswith("automap: interrupted\n") and not plan.exists():
            continue  # so early that the search had not begun
        if code != 130:
            failures.append(f"{name}, interrupted after {moment:.3f} s: exit {code}: {said.strip()[-200:]}")
            continue
        result = subprocess.run([AUTOMAP, "simulate", plan, files[0], "--json"], capture_output=True, text=True)
        if result.returncode != 0:
            failures.append(f"{name}, interrupted after {moment:.3f} s: the plan does not simulate: {result.stderr}")
        elif json.loads(result.stdout)["step_seconds"] != json.load(plan.open())["predicted"]["step_seconds"]:
            failures.append(f"{name}: the plan's step is not what it simulates to")
    print(f"{name}: {MOMENTS} interrupts, at most {longest:.2f} s until the end")
    return failures


def main():
    names = sys.argv[1:] or (sorted(p.name for p in MODELS.iterdir()) if FULL else SAMPLE)
    chance = random.Random(9)
    failures = []
    with tempfile.TemporaryDirectory() as work:
        for name in names:
            failures += check_model(name, chance, pathlib.Path(work))
        if FULL:  # phases of mixed clusters, of which some do not look for interrupts
            failures += check_model("gpt2_tiny", chance, pathlib.Path(work), "whale-pp", 6)
        if not sys.argv[1:]:
            failures += check_target(pathlib.Path(work))
            for row in SOON + (SOON_FULL if FULL else []):
                failures += check_soon(*row, pathlib.Path(work))
    for failure in failures:
        print("FAIL", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
