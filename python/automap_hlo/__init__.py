"""Plans of distributed training from Python: the C API of automap, without a compiler or a framework.

    import automap_hlo as automap

    module = automap.Module("model.hlo.pb")
    plan = automap.search(module, "h100:8", seconds=60)
    print(plan.step_seconds, plan.gap, plan.stages)
    plan.write("plan.json")
    print(automap.simulate(plan).to_text())
    shardings = automap.export(plan, "jax")

Times are in seconds and memory is in bytes. Unknown numbers are None. Errors are subclasses of `Error`.
"""

from .calls import Option, OptionValue, Progress, Step, options
from .commands import compare, convert, diff, explain, export, report, run, search, simulate
from .errors import Error, InfeasibleError, InputError, InternalError, Interrupted, RunError, UsageError
from .inputs import Cluster, Module, Parameter
from .library import __version__
from .results import Baseline, Device, Explanation, Plan, PlanParameter, RunResult, Simulation, Stage

__all__ = [
    "Baseline",
    "Cluster",
    "Device",
    "Error",
    "Explanation",
    "InfeasibleError",
    "InputError",
    "InternalError",
    "Interrupted",
    "Module",
    "Option",
    "OptionValue",
    "Parameter",
    "Plan",
    "PlanParameter",
    "Progress",
    "RunError",
    "RunResult",
    "Simulation",
    "Stage",
    "Step",
    "UsageError",
    "__version__",
    "compare",
    "convert",
    "diff",
    "explain",
    "export",
    "options",
    "report",
    "run",
    "search",
    "simulate",
]
