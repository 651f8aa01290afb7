"""The Python package automap_hlo on the library of this build: its declarations beside include/automap.h,
every command, errors, options, callbacks, Ctrl-C, lifetimes and threads; the example of docs/python.md."""

# labels: cpu e2e
# python: plain
# timeout: 120

import ctypes
import gc
import json
import logging
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

if "AUTOMAP_SANITIZE" in os.environ:
    print("skipped: Python does not load a sanitized library")
    sys.exit(77)
SOURCE = pathlib.Path(os.environ["AUTOMAP_SOURCE"])
sys.path.insert(0, str(SOURCE / "python"))

import automap_hlo as automap
from automap_hlo import declarations

MODELS = SOURCE / "datasets/models"
MLP = MODELS / "mlp_tiny/model.hlo.pb"
RANDOM = {"state": "random"}

SCALARS = {
    "int": ctypes.c_int,
    "sig_atomic_t": ctypes.c_int,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "size_t": ctypes.c_size_t,
    "double": ctypes.c_double,
    "char": ctypes.c_char,
    "AmStatus": ctypes.c_int,
    "AmCommand": ctypes.c_int,
    "AmMessage": ctypes.c_int,
    "AmFormat": ctypes.c_int,
}


def ctypes_of(text):
    """The type of a declaration without its name: "const char *const *"."""
    words = re.sub(r"\b(const|volatile)\b", "", text).replace("*", " * ").split()
    base, stars = words[0], words.count("*")
    if base == "void" and stars == 0:
        return None
    if (base, stars) in (("char", 1), ("void", 1)):
        return ctypes.c_char_p if base == "char" else ctypes.c_void_p
    found = SCALARS.get(base) or getattr(declarations, base)
    if base == "char" and stars:
        found, stars = ctypes.c_char_p, stars - 1
    for _ in range(stars):
        found = ctypes.POINTER(found)
    return found


def parameters_of(text):
    """The types of a list of parameters, with names or without; a function has no comma in its own list."""
    if text == "void":
        return []
    items = [item.strip() for item in text.split(",")]
    return [function_of(item)[1] if "(*" in item else ctypes_of(re.sub(r"\w+$", "", item)) for item in items]


def function_of(text):
    """Name and type of a pointer to a function."""
    result, name, parameters = re.fullmatch(r"(.*)\(\*(\w+)\)\((.*)\)", text).groups()
    return name, ctypes.CFUNCTYPE(ctypes_of(result), *parameters_of(parameters))


def members_of(text):
    """Name and type of each member of a struct's body."""
    found = []
    for line in text.split(";"):
        line = " ".join(line.split())
        if "(*" in line:
            found.append(function_of(line))
        elif line:
            first, *others = line.split(",")
            kind, name, size = re.fullmatch(r"(.*?)(\w+)(?:\[(\d+)\])?", first).groups()
            base = re.sub(r"[ *]+$", "", kind)
            found.append((name, ctypes_of(kind) * int(size) if size else ctypes_of(kind)))
            for other in others:
                stars, name = re.fullmatch(r"\s*(\**)(\w+)", other).groups()
                found.append((name, ctypes_of(base + stars)))
    return found


class Header(unittest.TestCase):
    """Every enum, struct and function of the header is declared, with the same types in the same order."""

    def setUp(self):
        text = "".join((SOURCE / "include" / name).read_text() for name in ("automap_status.h", "automap.h"))
        self.text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        self.maxDiff = None

    def test_enums(self):
        wanted = {}
        for body in re.findall(r"typedef enum \w+ \{(.*?)\}", self.text, re.DOTALL):
            number = 0
            for item in body.split(","):
                name, _, value = item.partition("=")
                number = int(value) if value else number
                wanted[name.strip()] = number
                number += 1
        found = {name: value for name, value in vars(declarations).items() if re.match("AM_[A-Z]", name)}
        self.assertGreater(len(wanted), 15)
        self.assertEqual(found, wanted)

    def test_structs(self):
        wanted = dict(re.findall(r"\bstruct (\w+) \{(.*?)\}", self.text, re.DOTALL))
        opaque = [name for name in re.findall(r"typedef struct (\w+) \w+;", self.text) if name not in wanted]
        found = {
            name: getattr(kind, "_fields_", None)
            for name, kind in vars(declarations).items()
            if isinstance(kind, type) and issubclass(kind, ctypes.Structure) and kind is not ctypes.Structure
        }
        self.assertGreater(len(wanted), 8)
        self.assertEqual(sorted(found), sorted([*wanted, *opaque]))
        for name, body in wanted.items():
            self.assertEqual(found[name], members_of(body), name)
        for name in opaque:
            self.assertIsNone(found[name], name)

    def test_functions(self):
        wanted = {}
        for result, name, parameters in re.findall(r"AM_API ([\w \*]+?)(am_\w+)\((.*?)\);", self.text, re.DOTALL):
            wanted[name] = (ctypes_of(result), parameters_of(" ".join(parameters.split())))
        self.assertEqual(len(wanted), len(re.findall(r"^AM_API ", self.text, re.MULTILINE)))
        self.assertEqual(list(declarations.FUNCTIONS), list(wanted))
        for name, types in wanted.items():
            self.assertEqual(declarations.FUNCTIONS[name], types, name)

    def test_version(self):
        version = re.search(r'AM_VERSION "(.*)"', self.text).group(1)
        self.assertEqual(automap.__version__, version)
        self.assertIn(f'version = "{version}"', (SOURCE / "python/pyproject.toml").read_text())


class Commands(unittest.TestCase):
    """One plan, and every command on it."""

    @classmethod
    def setUpClass(cls):
        cls.module = automap.Module(MLP)
        cls.progress = []
        cls.plan = automap.search(cls.module, "nominal:4", evaluations=40, on_progress=cls.progress.append)

    def test_module(self):
        self.assertEqual(self.module.output_count, 7)
        self.assertEqual(self.module.loss, 6)
        self.assertRegex(self.module.sha256, "^[0-9a-f]{64}$")
        self.assertGreater(self.module.instruction_count, 50)
        weights = [parameter for parameter in self.module.parameters if parameter.role == "weight"]
        self.assertEqual(len(weights), 6)
        self.assertIn((64, 32), [parameter.shape for parameter in weights])
        self.assertEqual([parameter.output for parameter in weights], list(range(6)))
        data = automap.Module.from_bytes(MLP.read_bytes(), "mine")
        self.assertEqual(data.sha256, self.module.sha256)

    def test_cluster(self):
        cluster = automap.Cluster("h100:2")
        self.assertEqual(cluster.device_count, 16)
        self.assertIn("h100", repr(cluster).lower())

    def test_plan(self):
        plan = self.plan
        document = json.loads(plan.to_json())
        self.assertEqual(document["predicted"]["step_seconds"], plan.step_seconds)
        self.assertGreaterEqual(plan.step_seconds, plan.bound_seconds)
        self.assertAlmostEqual(plan.gap, plan.step_seconds / plan.bound_seconds - 1)
        self.assertEqual(sorted(d for stage in plan.stages for d in stage.devices), [0, 1, 2, 3])
        for stage in plan.stages:
            size = 1
            for axis in stage.mesh.values():
                size *= axis
            self.assertEqual(size, len(stage.devices))
        self.assertEqual(max(device.peak_bytes for device in plan.devices), plan.peak_bytes)
        self.assertEqual([p.path for p in plan.parameters], [p.path for p in self.module.parameters])
        for parameter in plan.parameters:
            self.assertEqual(parameter.sharding, "[" + ",".join(axes or "-" for axes in parameter.axes) + "]")
            self.assertEqual(len(parameter.shape), len(parameter.axes))
        baselines = {baseline.name: baseline for baseline in plan.baselines}
        self.assertGreaterEqual(baselines["data_parallel"].seconds, plan.step_seconds)
        self.assertFalse(plan.is_interrupted)
        self.assertTrue(self.progress[-1].is_last)
        self.assertEqual(self.progress[-1].evaluations, plan.evaluations)

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "plan.json"
            self.plan.write(path)
            text = path.read_text()
            plan = automap.Plan(path, self.module)
        self.assertEqual(text.strip(), self.plan.to_json().strip())
        self.assertEqual(plan.step_seconds, self.plan.step_seconds)
        self.assertEqual(plan.baselines, ())
        again = automap.Plan.from_json(text, self.module)
        self.assertEqual(again.parameters, self.plan.parameters)

    def test_simulate(self):
        simulation = automap.simulate(self.plan)
        self.assertEqual(simulation.step_seconds, self.plan.step_seconds)
        self.assertTrue(simulation.fits)
        self.assertEqual(simulation.devices, self.plan.devices)
        self.assertEqual(json.loads(simulation.to_json())["step_seconds"], simulation.step_seconds)
        slow = automap.simulate(self.plan, slow="0=2")
        self.assertGreater(slow.step_seconds, simulation.step_seconds)
        self.assertNotEqual(automap.simulate(self.plan, "h100:1").step_seconds, simulation.step_seconds)

    def test_explain(self):
        explanation = automap.explain(self.plan, evaluations=3)
        self.assertIn("nominal:4", explanation.to_text())
        self.assertIn("<html", explanation.to_html())
        json.loads(explanation.to_json())

    def test_reports(self):
        """Reports and conversions equal those of the program."""
        for words, options in [
            (["info", MLP], {}),
            (["groups", MLP], {"strict": True}),
            (["cluster"], {}),
            (["propagate", MLP], {"mesh": "data=2", "pin": "*kernel*=-,data"}),
        ]:
            flags = [f"--{key}" if value is True else f"--{key}={value}" for key, value in options.items()]
            printed = subprocess.run([os.environ["AUTOMAP"], *map(str, words), *flags], capture_output=True, text=True,
                                     check=True).stdout
            self.assertEqual(automap.report(*words, **options).strip(), printed.strip(), words)
        self.assertIn("instructions", json.loads(automap.report("info", MLP, as_json=True)))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.hlo.txt"
            automap.convert(MLP, path)
            self.assertEqual(automap.Module(path).sha256, self.module.sha256)
            automap.convert(MLP, path, mixed_precision="bf16")
            self.assertIn("bf16", path.read_text())
            self.assertNotEqual(automap.Module(path).sha256, self.module.sha256)
            with self.assertRaisesRegex(automap.InputError, "nothing to do"):
                automap.convert(path, pathlib.Path(folder) / "model.hlo.pb", mixed_precision="bf16")
        with self.assertRaisesRegex(ValueError, "'search': no report .expected one of info, groups"):
            automap.report("search", MLP)
        with self.assertRaises(automap.UsageError):
            automap.report("info", MLP, fly=1)
        with self.assertRaises(automap.InputError):
            automap.report("info", __file__)

    def test_option_types(self):
        import decimal
        import fractions

        for value in (decimal.Decimal("0.8"), fractions.Fraction(4, 5)):
            automap.simulate(self.plan, memory_fraction=value)
        automap.search(MLP, "nominal:2", evaluations=b"5")
        with self.assertRaisesRegex(TypeError, "option evaluations: .* not complex"):
            automap.search(MLP, "nominal:2", evaluations=1j)

    def test_arguments(self):
        """Modules and clusters may be paths; plans may not. Values of the wrong type are named."""
        text = self.plan.to_json()
        self.assertEqual(automap.Plan.from_json(text, MLP).step_seconds, self.plan.step_seconds)
        calls = (automap.simulate, automap.explain, lambda plan: automap.export(plan, "jax"),
                 lambda plan: automap.diff(self.plan, plan), lambda plan: automap.run(MLP, plan, **RANDOM))  # fmt: skip
        for call in calls:
            with self.assertRaisesRegex(TypeError, "expected a Plan, such as .* not str"):
                call("plan.json")
        with self.assertRaisesRegex(TypeError, "expected the text of a file, .* not dict"):
            automap.Cluster.from_json({})
        with self.assertRaisesRegex(TypeError, "expected the text of a file, .* not dict"):
            automap.Plan.from_json({}, MLP)
        with self.assertRaisesRegex(ValueError, "option memory_fraction: expected one value, got 2"):
            automap.simulate(self.plan, memory_fraction=[0.5, 0.6])

    def test_diff(self):
        module = automap.Module(MLP)
        plans = [automap.search(module, "nominal:4", baseline=name) for name in ("data_parallel", "zero1")]
        self.assertIn("axis priorities", automap.diff(*plans))
        figures = json.loads(automap.diff(*plans, as_json=True))["figures"]
        self.assertEqual(figures[0]["values"], [plan.step_seconds for plan in plans])
        with self.assertRaises(automap.UsageError):
            automap.diff(plans[0], automap.search(MLP, "nominal:4", baseline="zero1"))

    def test_compare(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "trace.json"
            automap.simulate(self.plan, trace=trace)
            with self.assertRaisesRegex(automap.InputError, "a simulated trace"):
                automap.compare(self.plan, trace)
            trace.write_text(trace.read_text().replace("automap simulate", "automap run", 1))
            self.assertIn("0.00 % of the step", automap.compare(self.plan, trace))
            found = json.loads(automap.compare(self.plan, trace, "nominal:4", as_json=True, slow="0=2"))
            self.assertGreater(found["clock_error"], 0.01)
            with self.assertRaisesRegex(automap.InputError, "no.json"):
                automap.compare(self.plan, trace.with_name("no.json"))

    def test_export_and_run(self):
        plan = automap.search(MLP, "nominal:4", even=True, evaluations=20)
        document = json.loads(automap.export(plan, "jax"))
        self.assertEqual(len(document["parameters"]), len(plan.parameters))
        named = automap.export(plan, "hlo", spelling="named")
        self.assertIn("HloModule", named)
        self.assertNotEqual(named, automap.export(plan, "hlo"))
        folder, losses = MODELS / "mlp_tiny", []
        wanted = json.loads((folder / "losses.json").read_text())
        wanted = next(value for value in wanted.values() if isinstance(value, list))[:3]
        files = {"state": folder / "state.npz", "data": [folder / "data.npz"], "steps": 3}
        result = automap.run(plan.module, plan, on_step=lambda step: losses.append(step.loss) and None, **files)
        self.assertEqual((result.steps, result.is_interrupted), (3, False))
        self.assertEqual((result.first_loss, result.last_loss), (losses[0], losses[-1]))
        for loss, reference in zip(losses, wanted, strict=True):
            self.assertAlmostEqual(loss, reference, delta=5e-6 * reference)
        stopped = automap.run(plan.module, plan, on_step=lambda step: step.step == 1, **files)
        self.assertEqual((stopped.steps, stopped.is_interrupted), (2, True))


class Errors(unittest.TestCase):
    def test_places(self):
        with self.assertRaises(automap.InputError) as caught:
            automap.Module.from_bytes(b"HloModule m\n\nENTRY e {\n  ROOT a = f32[2] nonsense(\n}\n", "mine.txt")
        error = caught.exception
        self.assertEqual((error.code, error.source), (3, "mine.txt"))
        self.assertGreater(error.line, 0)
        self.assertTrue(str(error).startswith(f"mine.txt:{error.line}:"))
        self.assertIn(error.text, str(error))
        with self.assertRaises(automap.InputError):
            automap.Module("no/such/file")
        with self.assertRaises(automap.Error):
            automap.Cluster("no_such_cluster")

    def test_options(self):
        module = automap.Module(MLP)
        with self.assertRaisesRegex(automap.UsageError, "evaluations"):
            automap.search(module, "nominal:4", evaluation=3)
        with self.assertRaisesRegex(automap.UsageError, "memory-fraction|memory_fraction"):
            automap.search(module, "nominal:4", memory_fraction=7)
        with self.assertRaises(automap.UsageError):
            automap.search(module, "nominal:4", mesh=True)
        with self.assertRaises(ValueError):
            automap.search(module, "nominal:4", mesh="data=4\0")
        for command in ("search", "simulate", "explain", "export", "run"):
            self.assertTrue(automap.options(command), command)
        facts = {option.key: option for option in automap.options("search")}
        self.assertTrue(facts["pin"].is_repeatable)
        self.assertIsNone(facts["even"].value)
        with self.assertRaises(ValueError):
            automap.options("fly")

    def test_values(self):
        """Switches, lists, defaults and a '_' at the end reach the library."""
        paths = [p.path for p in automap.Module(MLP).parameters if len(p.shape) == 2 and p.role == "weight"][:2]
        pins = [f"{path}={sharding}" for path, sharding in zip(paths, ("data,-", "-,data"))]
        plan = automap.search(
            MLP, "nominal:4", mesh_="data=4", pin=pins, even=False, no_seeds=True, seed=3, searcher=None, evaluations=5
        )
        found = {parameter.path: parameter.sharding for parameter in plan.parameters}
        self.assertEqual([found[path] for path in paths], ["[data,-]", "[-,data]"])
        self.assertEqual(plan.stages, (automap.Stage((0, 1, 2, 3), {"data": 4}),))

    def test_infeasible(self):
        text = subprocess.run([os.environ["AUTOMAP"], "cluster", "nominal:2", "--json"], capture_output=True, text=True)
        cluster = re.sub(r'("memory\w*": *)[0-9.e+]+', r"\g<1>4096", text.stdout)
        with self.assertRaises(automap.InfeasibleError) as caught:
            automap.search(MLP, automap.Cluster.from_json(cluster), evaluations=20)
        self.assertIsInstance(caught.exception.report, dict)
        self.assertEqual(caught.exception.code, 4)

    def test_closed(self):
        with automap.Module(MLP) as module:
            plan = automap.search(module, "nominal:2", evaluations=5)
        with self.assertRaisesRegex(ValueError, "Module: closed"):
            automap.search(module, "nominal:2")
        self.assertEqual(automap.simulate(plan).step_seconds, plan.step_seconds)  # the plan keeps it
        plan.close()
        plan.close()
        with self.assertRaisesRegex(ValueError, "Plan: closed"):
            plan.to_json()


class Callbacks(unittest.TestCase):
    ENDLESS = {"evaluations": 10**9, "space": "single_stage"}

    def setUp(self):
        self.module = automap.Module(MODELS / "gpt2_tiny/model.hlo.pb")

    def test_stop(self):
        plan = automap.search(self.module, "nominal:4", on_progress=lambda now: now.best_seconds, **self.ENDLESS)
        self.assertTrue(plan.is_interrupted)
        self.assertGreater(plan.step_seconds, 0)

    def test_exception(self):
        class Mine(Exception):
            pass

        def fail(*_):
            raise Mine

        with self.assertRaises(Mine):
            automap.search(self.module, "nominal:4", on_progress=fail, **self.ENDLESS)
        with self.assertRaises(Mine):
            automap.search(self.module, "nominal:4", searcher="dqn", mesh="data=4", on_episode=fail, **self.ENDLESS)
        with self.assertRaises(Mine):
            automap.run(MLP, on_step=fail, steps=10**9, **RANDOM)

    def test_same_call(self):
        def use(_):
            self.module.parameters

        with self.assertRaisesRegex(RuntimeError, "own call"):
            automap.search(self.module, "nominal:4", on_progress=use, **self.ENDLESS)

    def test_interrupt(self):
        """Ctrl-C while the library works returns the best plan; the handler of Python is back afterwards."""
        is_sent = []

        def interrupt(now):
            if now.best_seconds and not is_sent:
                is_sent.append(True)
                os.kill(os.getpid(), signal.SIGINT)

        before = signal.getsignal(signal.SIGINT)
        with self.assertLogs("automap_hlo", logging.WARNING) as logged:
            plan = automap.search(self.module, "nominal:4", on_progress=interrupt, **self.ENDLESS)
        self.assertTrue(plan.is_interrupted)
        self.assertIn("the plan is the best so far", logged.output[0])
        self.assertIs(signal.getsignal(signal.SIGINT), before)
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        plan = automap.search(self.module, "nominal:4", **self.ENDLESS)  # no callback of the caller
        self.assertTrue(plan.is_interrupted)
        result = automap.run(
            MLP, on_step=lambda step: step.step == 2 and os.kill(os.getpid(), signal.SIGINT), steps=10**9, **RANDOM
        )
        self.assertTrue(result.is_interrupted)
        self.assertLess(result.steps, 10**6)
        plan = automap.search(self.module, "nominal:4", evaluations=3)
        with self.assertRaises(KeyboardInterrupt):
            automap.explain(plan, on_progress=lambda _: os.kill(os.getpid(), signal.SIGINT))

    def test_messages(self):
        found, settings = [], {"mesh": "data=2", "evaluations": 3}
        automap.search(MLP, "nominal:2", on_message=lambda kind, text: found.append((kind, text)), **settings)
        self.assertEqual(found[0][0], "note")
        self.assertIn("pipelines are not searched", found[0][1])
        with self.assertLogs("automap_hlo", logging.INFO) as logged:
            automap.search(MLP, "nominal:2", **settings)
        self.assertEqual([record.getMessage() for record in logged.records], [text for _, text in found])


class Lifetimes(unittest.TestCase):
    def test_order(self):
        """A plan outlives its names for the module and the cluster; cycles are collected."""
        plan = automap.search(automap.Module(MLP), automap.Cluster("nominal:2"), evaluations=5)
        explanation = automap.explain(plan, evaluations=2)
        module = plan.module
        module.cycle, plan.cycle = plan, module
        del plan, module
        gc.collect()
        self.assertIn("nominal:2", explanation.to_text())

    def test_threads(self):
        """Threads share a module: calls that need it alone wait."""
        module, found = automap.Module(MLP), []

        def work():
            plan = automap.search(module, "nominal:4", evaluations=10)
            found.append((plan.step_seconds, automap.simulate(plan).step_seconds, len(module.parameters)))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(found), 4)
        self.assertEqual(len(set(found)), 1)

    def test_missing_library(self):
        environment = dict(os.environ, AUTOMAP_LIBRARY="/no/such/library.so", PYTHONPATH=str(SOURCE / "python"))
        done = subprocess.run(
            [sys.executable, "-c", "import automap_hlo"], env=environment, capture_output=True, text=True
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("ImportError: /no/such/library.so", done.stderr)
        self.assertIn("AUTOMAP_LIBRARY names its file", done.stderr)


class Documents(unittest.TestCase):
    def test_example(self):
        """The Python of docs/python.md runs as it stands, in a folder with model.hlo.pb."""
        text = (SOURCE / "docs/python.md").read_text()
        blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        self.assertGreater(len(blocks), 1)
        here = os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            for name in ("model.hlo.pb", "model.roles.json", "state.npz", "data.npz"):
                (pathlib.Path(folder) / name).write_bytes((MODELS / "mlp_tiny" / name).read_bytes())
            os.chdir(folder)
            try:
                exec(compile("\n".join(blocks), "docs/python.md", "exec"), {"print": lambda *_: None})
                self.assertEqual(json.loads(pathlib.Path("plan.json").read_text())["format"][:7], "automap")
            finally:
                os.chdir(here)


if __name__ == "__main__":
    unittest.main()
