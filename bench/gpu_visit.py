"""Programs within time limits, and their results: the frame of the stages of bench/gpu.sh.

A Visit runs programs and collects rows of results. It ends each program at the program's own limit, at the
end of the stage or at the end of the visit. None of the three is a failure. A stage has a note on programs that
reached their own limit, since they may hang. table.txt and results.json are replaced after each stage and every
few seconds, so that an end at any time leaves results.
"""

import concurrent.futures
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field

SKIPPED = 77  # exit status of a test that cannot run here
PARALLEL = max(2, min(12, (os.cpu_count() or 2) * 3 // 4))
MOST_LOGGED = 200_000  # characters of one program
NO_TIME = "no time"
NO_MEMORY = re.compile(r"out of memory on GPU|no plan .*fits: device")  # of automap, where a model is too large
RESULTS = ("table.txt", "results.json", "programs.log")


@dataclass
class Done:
    """The end of a program: status (None: ended by a limit), output, seconds."""

    status: int | None
    output: str
    seconds: float
    limit: float
    is_at_own_limit: bool = False  # ended by its own limit, and not by the end of the stage or the visit

    @property
    def is_out_of_time(self):
        return self.status is None

    @property
    def lacks_memory(self):
        """Returns whether the model does not fit on this card, which may be a part of one or have other users."""
        return self.status not in (0, None) and NO_MEMORY.search(self.output) is not None

    @property
    def reason(self):
        """One line on the failure."""
        if self.is_at_own_limit:
            return f"did not end in {self.limit:.0f} s"
        if self.status is None:
            return f"ended after {self.seconds:.0f} s" if self.seconds else "not started"
        if self.status < 0:
            return f"ended by {signal.Signals(-self.status).name}"
        message = re.search(r'"message":"((?:[^"\\]|\\.)*)"', self.output)  # of an error under --json
        if message:
            return message[1][:160]
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        told = [line for line in lines if re.search(r"^automap:|error|FAILED|skipped", line, re.IGNORECASE)]
        return (told or lines or [f"exit status {self.status}"])[-1][:160]

    def json_lines(self):
        """The objects among the lines of the output; a line that was cut short is left out."""
        rows = []
        for line in self.output.splitlines():
            try:
                rows += [json.loads(line)] if line.startswith("{") else []
            except ValueError:
                pass
        return rows


@dataclass
class Row:
    """One line of the table. A row with no result is text; figures are for results.json alone."""

    name: str
    result: str = ""
    detail: str = ""
    figures: dict = field(default_factory=dict)


@dataclass
class StageResult:
    name: str
    title: str
    seconds: float = 0
    limit: float = 0
    is_over: bool = False
    own_limits: int = 0  # programs that reached their own limit
    rows: list = field(default_factory=list)

    @property
    def status(self):
        results = {row.result for row in self.rows}
        if "FAILED" in results:
            return "FAILED"
        return NO_TIME if NO_TIME in results else "done" if self.is_over else "running"

    @property
    def note(self):
        if not self.own_limits:
            return ""
        programs = "1 program" if self.own_limits == 1 else f"{self.own_limits} programs"
        return f"{programs} did not end within their own limit: hung, or slow"


def kill_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Visit:
    """The stages' common state: time limits, results, folder of results, running programs."""

    def __init__(self, is_dry_run, folder, begin, end):
        self.is_dry_run = is_dry_run
        self.folder = pathlib.Path(folder).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = self.folder / "programs.log"
        self.keep_earlier()
        self.begin, self.end = begin, end  # of time.monotonic()
        self.parallel = PARALLEL  # programs at once
        self.head, self.versions, self.stages = [], {}, []
        self.stage = StageResult("start", "")  # of the programs before the first stage
        self.stage_end = end
        self.lock = threading.RLock()
        self.processes = set()
        self.is_stopped = False
        self.written = 0

    def keep_earlier(self):
        """Renames the results of an earlier run: table.txt to table.1.txt or the next number that is free."""
        results = [self.folder / name for name in RESULTS]

        def renamed(path, number):
            return path.with_suffix(f".{number}{path.suffix}")

        number = next(number for number in itertools.count(1)
                      if not any(renamed(path, number).exists() for path in results))
        for path in results:
            if path.exists():
                path.rename(renamed(path, number))
        self.log.touch()

    @property
    def device(self):
        return "cpu" if self.is_dry_run else "cuda"

    @property
    def cluster(self):
        """The file of the probed cluster: that of a dry run is never taken for a card's."""
        return self.folder / f"cluster.{self.device}.json"

    @property
    def has_failed(self):
        return any(stage.status == "FAILED" for stage in self.stages)

    def environment(self, stand_ins=True, first=(), **variables):
        """For automap's programs: the folders `first`, the stand-ins of a dry run, the inherited folders and those of
        CUDA's libraries that gpu.sh found, in this order."""
        folders = list(first) + ([os.path.abspath("stand_in")] if self.is_dry_run and stand_ins else [])
        folders += filter(None, (os.environ.get("LD_LIBRARY_PATH"), os.environ.get("GPU_LIBRARY_PATH")))
        return dict(os.environ, LD_LIBRARY_PATH=":".join(folders), XDG_CACHE_HOME=os.path.abspath("cache"),
                    OPENBLAS_NUM_THREADS=os.environ.get("OPENBLAS_NUM_THREADS", "1"), **variables)

    def left(self):
        return max(0.0, min(self.stage_end, self.end) - time.monotonic())

    def stop(self, *_):
        """Ends the visit now; a signal handler. Programs that run are killed, the stages drain."""
        self.is_stopped, self.end = True, time.monotonic()
        for process in list(self.processes):
            kill_group(process)

    def run(self, command, limit=60, environment=None):
        """Runs a program and its children until it ends or a limit is reached."""
        command = [str(part) for part in command]
        begin, allowed = time.monotonic(), min(limit, self.left())
        if allowed < 1:
            return Done(None, "", 0, limit)
        with tempfile.TemporaryFile("w+", errors="replace") as stream:
            process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                       env=environment or self.environment(), start_new_session=True)
            self.processes.add(process)
            if self.is_stopped:
                kill_group(process)
            try:
                status = process.wait(timeout=allowed)
            except subprocess.TimeoutExpired:
                status = None
            kill_group(process)  # and children that it left
            process.wait()
            self.processes.discard(process)
            stream.seek(0)
            output = stream.read()
        if self.is_stopped and status is not None and status < 0:
            status = None
        done = Done(status, output, time.monotonic() - begin, limit,
                    status is None and allowed == limit and not self.is_stopped)
        with self.lock, open(self.log, "a") as log:
            self.stage.own_limits += done.is_at_own_limit
            log.write(f"$ {' '.join(command)}\n{output[-MOST_LOGGED:]}[{status}, {done.seconds:.1f} s]\n\n")
        return done

    def add(self, name, result="", detail="", **figures):
        """Adds a row to the stage; the result FAILED fails the visit."""
        with self.lock:
            self.stage.rows.append(Row(name, result, detail, figures))
            print(f"  {name}{f': {result}' if result else ''}{f' ({detail})' if detail else ''}", flush=True)
            if time.monotonic() > self.written + 2:
                self.write()

    def add_test(self, name, done, detail="", **figures):
        """Adds a test's result by its exit status."""
        if done.status == 0:
            self.add(name, "passed", detail or f"{done.seconds:.1f} s", **figures)
        elif done.status == SKIPPED:
            self.add(name, "skipped", done.reason.removeprefix("skipped: "), **figures)
        else:
            self.add(name, NO_TIME if done.is_out_of_time else "FAILED", done.reason, **figures)

    def add_model(self, name, done):
        """Adds the result of a program that runs a large model, which is no failure if the card has no room."""
        if done.lacks_memory:
            self.add(name, "not run", done.reason)
        else:
            self.add_test(name, done)

    def add_lines(self, command, limit, environment=None):
        """Adds the output lines of a benchmark; a failure or an end by time is one more row."""
        done = self.run(["stdbuf", "-oL", *command], limit, environment)
        for line in filter(str.strip, done.output.splitlines()):
            self.add(line.rstrip())
        if done.status != 0:
            self.add_test(pathlib.Path(command[0]).name, done)

    def each(self, work, items):
        """Runs work(item) for several items at once."""
        with concurrent.futures.ThreadPoolExecutor(self.parallel) as pool:
            list(pool.map(work, items))

    def run_stage(self, stage, limit):
        """Runs a stage within `limit` seconds and writes the results."""
        self.stage = StageResult(stage.name, stage.title, limit=limit)
        with self.lock:
            self.stages.append(self.stage)
        begin = time.monotonic()
        self.stage_end = begin + limit
        print(f"== {stage.name}: {stage.title} (at {begin - self.begin:.0f} s, {limit:.0f} s)", flush=True)
        if self.left() < 1:
            self.add("all", NO_TIME, "not started")
        else:
            try:
                stage.run(self)
            except Exception as failure:  # the other stages are still of use
                self.add(stage.name, "FAILED", f"{type(failure).__name__}: {failure}")
        self.stage.seconds, self.stage.is_over = time.monotonic() - begin, True
        self.write()

    def write(self):
        """Replaces table.txt and results.json."""
        with self.lock:
            results = {"dry_run": self.is_dry_run, "failed": self.has_failed, "stopped": self.is_stopped,
                       "seconds": round(time.monotonic() - self.begin, 1), **self.versions,
                       "stages": [{"name": stage.name, "title": stage.title, "status": stage.status,
                                   "seconds": round(stage.seconds, 1), "limit": round(stage.limit, 1),
                                   "own_limits": stage.own_limits, "rows": [vars(row) for row in stage.rows]}
                                  for stage in self.stages]}
            for name, text in (("table.txt", self.table()), ("results.json", json.dumps(results, indent=1) + "\n")):
                part = self.folder / f"{name}.part"
                part.write_text(text)
                os.replace(part, self.folder / name)
            self.written = time.monotonic()

    def table(self):
        lines = list(self.head)
        width = max((len(row.name) for stage in self.stages for row in stage.rows if row.result), default=0)
        for stage in self.stages:
            rows = list(stage.rows)
            if all(row.result for row in rows):  # in order of their ends; the lines of a benchmark keep their order
                rows.sort(key=lambda row: row.name)
            note = ", without a card" if self.is_dry_run else ""
            lines += ["", f"== {stage.name}: {stage.title}{note}; {stage.status}, {stage.seconds:.0f} s"]
            lines += [f"{row.name:{width}}  {row.result:12}  {row.detail}".rstrip() if row.result else row.name
                      for row in rows]
            lines += [f"note: {stage.note}"] if stage.note else []
        rows = [row for stage in self.stages for row in stage.rows]
        counts = {result: sum(row.result == result for row in rows)
                  for result in ("passed", "FAILED", "skipped", NO_TIME, "not run")}
        lines += ["", ", ".join(f"{count} {result}" for result, count in counts.items() if count) or "no results",
                  f"{time.monotonic() - self.begin:.0f} s"]
        return "\n".join(lines) + "\n"
