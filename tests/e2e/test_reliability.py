# labels: cpu e2e
# timeout: 300
# cost: 20
"""Hostile folders, scarce resources, closed pipes and interrupts: documented exit codes, one line, nothing lost."""

import gzip
import json
import os
import random
import re
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("AUTOMAP_SOURCE", os.path.join(HERE, "..", ".."))
AUTOMAP = os.path.abspath(os.environ.get("AUTOMAP", os.path.join(SOURCE, "build", "automap")))
MODELS = os.path.abspath(os.path.join(SOURCE, "datasets", "models"))
MODEL = os.path.join(MODELS, "mlp_tiny", "model.hlo.pb")
PROFILE = os.path.join(os.path.dirname(MODELS), "profiles", "gnmt_like.txt")
AGENT = os.path.join(os.path.dirname(MODELS), "agents", "pipeline.safetensors")
STATE = os.path.join(MODELS, "mlp_tiny", "state.npz")
IS_SANITIZED = bool(os.environ.get("AUTOMAP_SANITIZE"))


def automap(*arguments, limits=(), timeout=120, **options):
    """Runs the program; `limits` are pairs of a resource and its limit."""
    def limit():
        for which, most in limits:
            resource.setrlimit(which, (most, most))
    return subprocess.run([AUTOMAP, *arguments], capture_output=True, timeout=timeout, preexec_fn=limit, **options)


def check(result, code, *words):
    """Asserts the exit code and that stderr is one line with the words."""
    text = result.stderr.decode()
    assert result.returncode == code, f"exit {result.returncode}, expected {code}: {text[-400:]}"
    for word in words:
        assert word in text, f"expected {word!r} in {text!r}"
    if code:
        assert text.count("\n") == 1, f"expected one line: {text!r}"


def train(*arguments, **options):
    return automap("run", MODEL, "--plan", "none", "--state", STATE, "--data", STATE.replace("state", "data"),
                   *arguments, **options)


def test_address_space():
    """OpenBLAS neither hangs nor raises a signal."""
    codes = set()
    for kilobytes in range(52_000, 160_000, 12_000):
        result = automap("info", MODEL, limits=[(resource.RLIMIT_AS, kilobytes << 10)], timeout=30)
        codes.add(result.returncode)
        assert result.returncode in (0, 1, 127), f"{kilobytes} kB: exit {result.returncode}"  # 127: the loader
    assert 0 in codes, codes


def test_threads_without_memory():
    """A thread whose stack has no room is a lack of memory."""
    limits = [(resource.RLIMIT_STACK, 4 << 30), (resource.RLIMIT_AS, 2 << 30)]
    check(automap("search", MODEL, "--cluster", "nominal:2", "--mesh", "data=2", "--evaluations", "3", "-o", "two.json",
                  "--quiet",
                  limits=limits), 0)
    check(automap("run", MODEL, "--plan", "two.json", "--state", "random", "--steps", "2", limits=limits), 1,
          "cannot start a thread")
    check(train("--steps", "2", "--checkpoint", "threads", limits=limits), 1, "cannot start a thread")


def test_memory_limit():
    """A limit is named before memory is used."""
    with open("iota.hlo.txt", "w") as file:
        file.write("HloModule big\n\nENTRY main {\n  ROOT i = f32[20000,20000]{1,0} iota(), iota_dimension=0\n}\n")
    result = automap("run", "iota.hlo.txt", "--inference", "--plan", "none", limits=[(resource.RLIMIT_AS, 1 << 30)])
    check(result, 5, "GB of memory and the limit on address space has 1.07 GB")


def test_links_in_checkpoint_folder():
    """Names that are links lose nothing where they lead."""
    os.makedirs("ck")
    os.makedirs("docs")
    for name in ("step-z.part", "step-00000009.part", "step-00000009.old", "step-00000002.part"):
        os.symlink("../docs", os.path.join("ck", name))
    with open("docs/a", "w") as file:
        file.write("a")
    check(train("--steps", "2", "--checkpoint", "ck"), 0)
    assert os.listdir("docs") == ["a"], os.listdir("docs")
    assert stat.S_ISDIR(os.lstat("ck/step-00000002").st_mode)
    assert os.path.islink("ck/step-z.part"), "a name that is not a checkpoint's was removed"
    assert not os.path.lexists("ck/step-00000009.part")


def test_pipe_in_checkpoint():
    """A FIFO or a link in place of a file is damage, and is not waited for."""
    check(train("--steps", "2", "--checkpoint", "ck2"), 0)
    name = "ck2/step-00000002/rank-00000.safetensors"
    os.rename(name, "kept")
    os.mkfifo(name)
    check(train("--steps", "3", "--checkpoint", "ck2", "--resume", timeout=60), 3, name, "is not a regular file")
    os.remove(name)
    os.symlink("../../kept", name)
    check(train("--steps", "3", "--checkpoint", "ck2", "--resume", timeout=60), 3, name, "is a symbolic link")
    os.remove(name)
    os.rename("ck2/step-00000002/manifest.json", "manifest")
    os.mkfifo("ck2/step-00000002/manifest.json")
    check(train("--steps", "3", "--checkpoint", "ck2", "--resume", timeout=60), 3, "is not a regular file")


def test_pipe_as_input():
    """A FIFO is refused where arrays are read. Elsewhere it is read once, and not again for a hint."""
    os.mkfifo("arrays")
    os.mkfifo("plan")
    for state, data in (("arrays", STATE), (STATE, "arrays")):
        check(automap("run", MODEL, "--plan", "none", "--state", state, "--data", data, timeout=60), 3, "arrays",
              "is not a regular file")
    with subprocess.Popen(["sh", "-c", "echo nonsense >plan"]):
        check(automap("simulate", "plan", MODEL, timeout=60), 3, "plan")


def wait_for_sleep(process):
    """Waits until the process has used processor time and then sleeps for 0.2 s."""
    idle = 0
    while process.poll() is None and idle < 10:
        fields = open(f"/proc/{process.pid}/stat").read().rsplit(")", 1)[1].split()
        sleeps = fields[0] == "S" and os.readlink(f"/proc/{process.pid}/exe") == os.path.realpath(AUTOMAP)
        idle = idle + 1 if sleeps else 0
        time.sleep(0.02)


def test_pipe_without_writer():
    """A FIFO without a writer is waited for until the first interrupt, also by commands that save their state."""
    os.mkfifo("none")
    for command in (["search", MODEL, "--cluster", "none"], ["search", "none", "--cluster", "nominal:2"],
                    ["search", "-", "--cluster", "nominal:2"], ["info", "none"]):
        with subprocess.Popen([AUTOMAP, *command], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            wait_for_sleep(process)
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=10)  # its stdin stays open until then
            text = process.stderr.read()
            assert process.returncode == 130 and text.count(b"\n") == 1, (command, process.returncode, text)


def test_pipe_as_output():
    """A FIFO is written for a reader. Without one it is waited for a few seconds, also by the log of a training."""
    os.mkfifo("out")
    with subprocess.Popen(["cat", "out"], stdout=subprocess.PIPE) as reader:
        check(automap("cluster", "nominal:2", "--json", "-o", "out", timeout=60), 0)
        assert b"automap-cluster-1" in reader.stdout.read()
    for option in ("--log", "--profile"):
        check(train("--steps", "2", option, "out", timeout=60), 2, "out: cannot be written")


def test_mode_is_kept():
    """A replaced file keeps its mode, also where its name is a link; a new one follows the umask."""
    for name, arguments in (("m.plan.json", ["search", MODEL, "--cluster", "nominal:2", "--evaluations", "2", "-o"]),
                            ("c.json", ["cluster", "nominal:2", "--json", "-o"])):
        with open(name, "w"):
            pass
        os.chmod(name, 0o600)
        os.symlink(name, "link-" + name)
        for target in (name, "link-" + name):
            check(automap(*arguments, target), 0)
            assert stat.S_IMODE(os.stat(name).st_mode) == 0o600, oct(os.stat(name).st_mode)
            assert os.path.getsize(name) > 0 and os.path.islink("link-" + name)
    for name in ("state.npz", "state.safetensors"):
        with open(name, "w"):
            pass
        os.chmod(name, 0o640)
        check(train("--save", name), 0)
        assert stat.S_IMODE(os.stat(name).st_mode) == 0o640, name
    before = os.umask(0o027)
    check(automap("cluster", "nominal:2", "--json", "-o", "new.json"), 0)
    os.umask(before)
    assert stat.S_IMODE(os.stat("new.json").st_mode) == 0o640


def test_expansion():
    """Expansion is bounded; honest files of ratio 100 pass."""
    with gzip.open("bomb.gz", "wb") as file:
        for _ in range(100):
            file.write(bytes(1 << 20))
    stored = os.path.getsize("bomb.gz")
    check(automap("info", "bomb.gz"), 3, "bomb.gz: expands beyond 67108864 bytes", "200 times", "AUTOMAP_EXPANSION_MB")
    assert stored < 1 << 20
    text = subprocess.run([AUTOMAP, "convert", MODEL, "big.hlo.txt"], check=True) and open("big.hlo.txt").read()
    with gzip.open("honest.hlo.txt.gz", "wt") as file:
        file.write(text + "// " + "comment " * 100_000 + "\n")
    result = automap("info", "honest.hlo.txt.gz")
    assert result.returncode == 0, result.stderr
    # An honest file of ratio 100 beyond 64 MiB.
    with gzip.open("large.hlo.txt.gz", "wb", 1) as file:
        file.write(text.encode())
        for k in range(80):
            file.write(b"// " + os.urandom(5000).hex().encode() + b"a" * (1 << 20) + b"\n")
    ratio = (80 << 20) / os.path.getsize("large.hlo.txt.gz")
    assert 80 < ratio < 190, ratio
    assert automap("info", "large.hlo.txt.gz").returncode == 0


def zstd_frame(content, repeats=0):
    """A frame that names a window of 128 MB: `repeats` blocks of 128 KiB of one byte, then the content."""
    def block(kind, length, data, is_last=False):
        return (is_last | kind << 1 | length << 3).to_bytes(3, "little") + data
    frame = b"\x28\xb5\x2f\xfd\x00" + bytes([(27 - 10) << 3]) + repeats * block(1, 128 << 10, b"/")
    for start in range(0, len(content), 128 << 10):
        part = content[start:start + (128 << 10)]
        frame += block(0, len(part), part)
    return frame + block(0, 0, b"", True)


def test_window():
    """The window of a frame takes no memory; a small honest file may have one of 128 MB."""
    with open("honest.hlo.pb.zst", "wb") as file:
        content = open(MODEL, "rb").read()
        file.write(zstd_frame(content[:5000]) + zstd_frame(content[5000:]))
    check(automap("convert", "honest.hlo.pb.zst", "one.hlo.txt"), 0)
    check(automap("convert", MODEL, "other.hlo.txt"), 0)
    assert open("one.hlo.txt").read() == open("other.hlo.txt").read()
    with open("empty.zst", "wb") as file:  # a single segment that states size 0 before a block of 34 bytes
        file.write(bytes.fromhex("28b52ffd2000" + "110100") + b"x" * 34)
    process = subprocess.run([AUTOMAP, "info", "empty.zst"], capture_output=True, timeout=60)
    assert process.returncode == 3, process.stderr
    for repeats, words in ((400, "expected an HLO module"), (5000, "expands beyond 67108864 bytes")):
        with open("window.zst", "wb") as file:
            file.write(zstd_frame(b"x" * 10000, repeats))
        process = subprocess.Popen([AUTOMAP, "info", "window.zst"], stderr=subprocess.PIPE)
        errors = process.stderr.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 3 and words in errors, errors[:200]
        assert IS_SANITIZED or usage.ru_maxrss < 110 << 10, f"{repeats}: {usage.ru_maxrss} kB"
    with open("cut.zst", "wb") as file:
        file.write(zstd_frame(content)[:-10])
    check(automap("info", "cut.zst"), 3, "truncated zstd data")


def test_descriptors():
    """Too few file descriptors are not the input's fault."""
    for count in range(3, 12):
        for arguments in (["info", MODEL], ["run", MODEL, "--plan", "none", "--state", STATE, "--data",
                                           STATE.replace("state", "data")]):
            result = automap(*arguments, limits=[(resource.RLIMIT_NOFILE, count)])
            assert result.returncode in (0, 1, 5, 127), f"{count}: exit {result.returncode}: {result.stderr}"


def test_closed_pipes():
    """`| head` ends a command quietly and a training with its state saved."""
    for command, code in ((["info", MODEL], 0), (["cluster", "nominal:4", "--json"], 0)):
        reader, writer = os.pipe()
        os.close(reader)
        result = subprocess.run([AUTOMAP, *command], stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        assert result.returncode == code, (command, result)
        assert code or not result.stderr, result.stderr
    reader, writer = os.pipe()
    process = subprocess.Popen([AUTOMAP, "run", MODEL, "--plan", "none", "--state", "random", "--data",
                                STATE.replace("state", "data"), "--steps", "1000000", "--checkpoint", "ck3"],
                               stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    os.read(reader, 10)
    os.close(reader)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 130, (process.returncode, errors)
    assert any(name.startswith("step-") for name in os.listdir("ck3")), os.listdir("ck3")


def wait_for_handler(process, number):
    """Returns when the process catches the signal, or has ended."""
    while process.poll() is None:
        with open(f"/proc/{process.pid}/status") as status:
            caught = next(line for line in status if line.startswith("SigCgt:"))
        if int(caught.split()[1], 16) >> (number - 1) & 1:
            return
        time.sleep(0.01)


def test_interrupts():
    """Commands without a state of their own end with 130, one line, and no temporary file."""
    bert = os.path.join(MODELS, "bert_tiny", "model.hlo.pb")
    check(automap("search", bert, "--cluster", "nominal:4", "--baseline", "even_pipeline", "-o", "bert.plan.json",
                  "--quiet"), 0)
    os.makedirs("work")
    struck = set()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        for command in (["simulate", "--sweep", bert, "--cluster", "nominal:64", "-o", "work/o"],
                        ["agent", "generate", "-o", "work/a.safetensors", "--count", "1000000"],
                        ["agent", "evaluate", AGENT, "--count", "1000000", "-o", "work/e"],
                        ["explain", "bert.plan.json", bert, "--evaluations", "100000", "-o", "work/x"],
                        ["search", MODEL, "--cluster", "host:2", "--evaluations", "2", "-o", "work/s"],
                        ["cluster", "--probe", "--device", "cpu", "-o", "work/c"]):
            process = subprocess.Popen([AUTOMAP, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                       env=dict(os.environ, XDG_CACHE_HOME=os.path.abspath("cache")))
            wait_for_handler(process, number)
            time.sleep(0.15)
            process.send_signal(number)
            errors = process.communicate(timeout=60)[1].decode()
            if process.returncode in (0, 2, 3):  # it ended before the signal
                for name in os.listdir("work"):
                    os.remove(os.path.join("work", name))
                continue
            assert process.returncode == 130, (command, number, process.returncode, errors)
            assert errors.endswith("automap: interrupted\n"), errors
            assert not os.listdir("work"), os.listdir("work")
            struck.add(command[0] + command[1])
    assert len(struck) >= 4, f"these commands alone were interrupted: {struck}"


def processor_seconds(process):
    fields = open(f"/proc/{process.pid}/stat").read().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def test_interrupted_training():
    """A training ends soon, also while its agent is graded, and writes the agent."""
    bert = os.path.join(MODELS, "bert_tiny", "model.hlo.pb")
    for command in (["agent", "train", "--report", "64"], ["agent", "train-search", bert]):
        path = "-".join(command[:2]).replace(" ", "-") + ".safetensors"
        process = subprocess.Popen([AUTOMAP, *command, "-o", path], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        while process.poll() is None and processor_seconds(process) < 0.7:
            time.sleep(0.01)
        before = processor_seconds(process)
        process.send_signal(signal.SIGTERM)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        after = used.ru_utime + used.ru_stime - before
        assert process.returncode == 130 and os.path.exists(path), (command, process.returncode)
        assert after < 0.8, f"{command}: {after:.2f} processor seconds after the signal"


def is_writing(process):
    """Returns true while the process has more than 1 MiB of a file of the folder work, with or without a name."""
    folder = f"/proc/{process.pid}/fd"
    try:
        files = [f"{folder}/{number}" for number in os.listdir(folder)]
        return any(os.readlink(file).startswith(os.path.abspath("work") + "/") and os.stat(file).st_size > 1 << 20
                   for file in files)
    except OSError:
        return False


def test_interrupted_archive():
    """A signal while an archive is written leaves no part of it."""
    os.makedirs("work")
    struck = 0
    for _ in range(20):
        process = subprocess.Popen([AUTOMAP, "agent", "generate", "-o", "work/a.npz", "--count", "10000"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not is_writing(process):
            continue
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        if process.wait(timeout=60) == 130:
            struck += 1
            assert not os.listdir("work"), os.listdir("work")
        for name in os.listdir("work"):
            os.remove(os.path.join("work", name))
        if struck == 2:
            break
    assert struck, "no signal came while the archive was written"


def damaged(document, chance):
    """A text with a word replaced, or a JSON document with a value replaced or removed, as text."""
    if isinstance(document, str):
        words = list(re.finditer(r"[\w.]+|\S", document))
        word = chance.choice(words)
        return document[:word.start()] + chance.choice(["-1", "x", "{", "1e999", "nan"]) + document[word.end():]
    document = json.loads(json.dumps(document))
    parent = document
    while True:
        key = chance.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
        if not isinstance(parent[key], (dict, list)) or not parent[key] or chance.random() < 0.1:
            break
        parent = parent[key]
    value = chance.choice([None, -1, 128, "x", [], {}, 1e300, "remove"])
    if value == "remove":
        del parent[key]
    else:
        parent[key] = value
    return json.dumps(document)


def test_names_in_errors():
    """Every error about an input names its file, on the terminal and in JSON."""
    check(automap("search", MODEL, "--cluster", "nominal:4", "--baseline", "zero3", "-o", "p.json", "--quiet"), 0)
    check(automap("cluster", "nominal:4", "--json", "-o", "cl.json"), 0)
    check(automap("convert", MODEL, "m.hlo.json"), 0)
    check(train("--steps", "2", "--profile", "times.json"), 0)
    plan = json.load(open("p.json"))
    agent = ["agent", "evaluate", AGENT, "bad.json"]
    search = ["search", MODEL, "--cluster", "nominal:2", "--evaluations", "2", "--quiet", "-o", "o.json"]
    rows = [("p.json", json.load, ["simulate", "bad.json", MODEL]),
            ("cl.json", json.load, ["cluster", "bad.json"]),
            ("m.hlo.json", json.load, ["info", "bad.json"]),
            ("m.hlo.json", json.load, ["run", "bad.json", "--plan", "none", "--state", "random", "--quiet"]),
            ("m.hlo.json", json.load, [*search[:1], "bad.json", *search[2:]]),
            (MODEL.replace("hlo.pb", "roles.json"), json.load, ["info", MODEL, "--roles", "bad.json"]),
            (MODEL.replace("hlo.pb", "roles.json"), json.load, [*search, "--roles", "bad.json"]),
            ("times.json", json.load, ["simulate", "p.json", MODEL, "--profile", "bad.json"]),
            (PROFILE, lambda file: file.read(), agent)]
    chance = random.Random(5)
    trials = 400 if os.environ.get("AUTOMAP_LONG") == "1" else 16
    for source, read, command in rows:
        with open(source) as file:
            document = read(file)
        refused = 0
        for _ in range(trials):
            with open("bad.json", "w") as file:
                file.write(damaged(document, chance))
            result = automap(*command)
            assert result.returncode in (0, 2, 3, 4), (command, result.returncode, result.stderr)
            if result.returncode == 3:
                refused += 1
                assert result.stderr.startswith(b"automap: bad.json"), (command, result.stderr)
                error = json.loads(automap(*command, "--json").stderr.splitlines()[-1])["error"]
                assert error["source"] == "bad.json", (command, error)
        assert refused > 2, (command, refused)
    check(automap("search", MODEL, "--cluster", "nominal:4", "--keep-shardings", "--quiet", "-o", "k.json"), 3, MODEL)
    plan["stages"][0]["devices"] = [d + 124 for d in plan["stages"][0]["devices"]]
    with open("far.json", "w") as file:
        json.dump(plan, file)
    for command in (["simulate", "far.json", MODEL], ["export", "far.json", MODEL, "--format", "jax"],
                    ["lower", MODEL, "--plan", "far.json"]):
        check(automap(*command), 3, "far.json", "is not a device of cluster")


def main():
    tests = [value for name, value in globals().items() if name.startswith("test_")]
    for test in tests:
        if len(sys.argv) > 1 and test.__name__ not in sys.argv[1:]:
            continue
        if IS_SANITIZED and test in (test_address_space, test_memory_limit, test_interrupted_training):
            continue
        before = os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                test()
            finally:
                os.chdir(before)
        print(f"{test.__name__}: as expected", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
