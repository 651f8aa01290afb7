"""The C API of automap as ctypes: every struct and function of include/automap.h, in its order.

    library = ctypes.CDLL("libautomap.so")
    declare(library)                      # sets argtypes and restype of every function

A test compares this file with the header.
"""

from ctypes import (
    CDLL,
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_void_p,
)
from typing import Any

# AmStatus
AM_OK = 0
AM_ERROR_INTERNAL = 1
AM_ERROR_USAGE = 2
AM_ERROR_INPUT = 3
AM_ERROR_INFEASIBLE = 4
AM_ERROR_RUNTIME = 5
AM_INTERRUPTED = 130

# AmCommand
AM_COMMAND_SEARCH = 0
AM_COMMAND_SIMULATE = 1
AM_COMMAND_EXPLAIN = 2
AM_COMMAND_EXPORT = 3
AM_COMMAND_RUN = 4
AM_COMMAND_SWEEP = 5
AM_COMMAND_INFO = 6
AM_COMMAND_GROUPS = 7
AM_COMMAND_PROPAGATE = 8
AM_COMMAND_LOWER = 9
AM_COMMAND_CLUSTER = 10
AM_COMMAND_PUBLISHED = 11
AM_COMMAND_AGENT_TRAIN = 12
AM_COMMAND_AGENT_TRAIN_SEARCH = 13
AM_COMMAND_AGENT_EVALUATE = 14
AM_COMMAND_AGENT_GENERATE = 15
AM_COMMAND_COMPARE = 16
AM_COMMAND_CONVERT = 17

# AmMessage
AM_NOTE = 0
AM_WARNING = 1

# AmFormat
AM_FORMAT_TEXT = 0
AM_FORMAT_JSON = 1
AM_FORMAT_HTML = 2
AM_FORMAT_TERMINAL = 3


class AmModule(Structure):
    pass


class AmCluster(Structure):
    pass


class AmOptions(Structure):
    pass


class AmPlan(Structure):
    pass


class AmSimulation(Structure):
    pass


class AmExplanation(Structure):
    pass


class AmSweep(Structure):
    pass


class AmProcesses(Structure):
    pass


class AmError(Structure):
    _fields_ = [
        ("code", c_int),
        ("source", c_char * 512),
        ("line", c_int64),
        ("column", c_int64),
        ("text", c_char * 1024),
        ("excerpt", c_char * 256),
    ]


class AmParameter(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("number", c_int32),
        ("path", c_char_p),
        ("type", c_char_p),
        ("role", c_char_p),
        ("rank", c_int32),
        ("dimensions", POINTER(c_int64)),
        ("output", c_int32),
    ]


class AmOptionFacts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("key", c_char_p),
        ("value", c_char_p),
        ("help", c_char_p),
        ("is_repeatable", c_int),
    ]


class AmProgress(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("is_last", c_int),
        ("elapsed_seconds", c_double),
        ("phase", c_char_p),
        ("evaluations", c_int64),
        ("limit", c_int64),
        ("best_seconds", c_double),
        ("bound_seconds", c_double),
        ("seconds_left", c_double),
    ]


class AmOutput(Structure):
    _fields_ = [
        ("number", c_int32),
        ("is_loss", c_int),
        ("is_integer", c_int),
        ("count", c_int64),
        ("values", POINTER(c_double)),
    ]


class AmStep(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("step", c_int64),
        ("loss", c_double),
        ("seconds", c_double),
        ("examples", c_int64),
        ("tokens", c_int64),
        ("planned_bytes", c_int64),
        ("watched_count", c_int32),
        ("watched", POINTER(AmOutput)),
        ("validated_count", c_int32),
        ("validated", POINTER(AmOutput)),
        ("validated_batches", c_int64),
        ("validated_seconds", c_double),
    ]


class AmRunResult(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("steps", c_int64),
        ("seconds_per_step", c_double),
        ("first_loss", c_double),
        ("last_loss", c_double),
        ("peak_bytes", c_int64),
        ("predicted_seconds", c_double),
        ("not_finite_steps", c_int64),
        ("first_not_finite", c_int64),
        ("resident_bytes", c_int64),
        ("peak_resident_bytes", c_int64),
        ("early_resident_bytes", c_int64),
        ("channel_bytes", c_int64),
        ("compile_seconds", c_double),
        ("graphs", c_int64),
        ("graph_nodes", c_int64),
        ("device_count", c_int32),
        ("device_peak_bytes", POINTER(c_int64)),
        ("device_scratch_bytes", POINTER(c_int64)),
        ("device_predicted_bytes", POINTER(c_int64)),
        ("carried_module", c_char_p),
        ("carried_sha256", c_char_p),
    ]


OnProgress = CFUNCTYPE(c_int, c_void_p, POINTER(AmProgress))
OnStep = CFUNCTYPE(c_int, c_void_p, POINTER(AmStep))
OnMessage = CFUNCTYPE(None, c_void_p, c_int, c_char_p)
OnJson = CFUNCTYPE(None, c_void_p, c_char_p)
OnResult = CFUNCTYPE(None, c_void_p, POINTER(AmRunResult))


class AmCallbacks(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("user", c_void_p),
        ("on_progress", OnProgress),
        ("on_step", OnStep),
        ("on_message", OnMessage),
        ("on_episode", OnJson),
        ("on_infeasible", OnJson),
        ("cancel", POINTER(c_int)),
        ("on_result", OnResult),
    ]


class AmStage(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("first", c_int32),
        ("device_count", c_int32),
        ("devices", POINTER(c_int32)),
        ("axis_count", c_int32),
        ("axis_names", POINTER(c_char_p)),
        ("axis_sizes", POINTER(c_int32)),
    ]


class AmDevice(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("device", c_int32),
        ("stage", c_int32),
        ("peak_bytes", c_int64),
        ("weights_bytes", c_int64),
        ("gradients_bytes", c_int64),
        ("optimizer_bytes", c_int64),
        ("activation_bytes", c_int64),
        ("slot_bytes", c_int64),
        ("compute_seconds", c_double),
        ("communication_seconds", c_double),
        ("idle_seconds", c_double),
        ("host_bytes", c_int64),
    ]


class AmPlanParameter(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("number", c_int32),
        ("path", c_char_p),
        ("type", c_char_p),
        ("role", c_char_p),
        ("rank", c_int32),
        ("dimensions", POINTER(c_int64)),
        ("stage", c_int32),
        ("sharding", c_char_p),
        ("axes", POINTER(c_char_p)),
    ]


class AmBaseline(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("seconds", c_double),
        ("reason", c_char_p),
    ]


class AmStrategy(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("data", c_int32),
        ("tensor", c_int32),
        ("stages", c_int32),
        ("micro_batches", c_int32),
        ("schedule", c_char_p),
        ("reason", c_char_p),
        ("step_seconds", c_double),
        ("examples_per_second", c_double),
        ("peak_bytes", c_int64),
        ("fits", c_int),
    ]


_module = POINTER(AmModule)
_cluster = POINTER(AmCluster)
_options = POINTER(AmOptions)
_plan = POINTER(AmPlan)
_simulation = POINTER(AmSimulation)
_explanation = POINTER(AmExplanation)
_sweep = POINTER(AmSweep)
_processes = POINTER(AmProcesses)
_callbacks = POINTER(AmCallbacks)
_error = POINTER(AmError)

# Name: result, arguments. Every enum is an int.
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "am_version": (c_char_p, []),
    "am_features": (c_int, [POINTER(c_char_p), POINTER(c_size_t), _error]),
    "am_free": (None, [c_void_p]),
    "am_options_new": (c_int, [POINTER(_options), c_int, _error]),
    "am_options_free": (None, [_options]),
    "am_options_set": (c_int, [_options, c_char_p, c_char_p, _error]),
    "am_options_check": (c_int, [_options, _error]),
    "am_options_get": (c_char_p, [_options, c_char_p]),
    "am_option_count": (c_int32, [c_int]),
    "am_option": (c_int, [c_int, c_int32, POINTER(AmOptionFacts), _error]),
    "am_module_read": (c_int, [POINTER(_module), c_char_p, c_char_p, _error]),
    "am_module_parse": (c_int, [POINTER(_module), c_void_p, c_size_t, c_char_p, _error]),
    "am_module_free": (None, [_module]),
    "am_module_name": (c_char_p, [_module]),
    "am_module_sha256": (c_char_p, [_module]),
    "am_module_instruction_count": (c_int32, [_module]),
    "am_module_parameter_count": (c_int32, [_module]),
    "am_module_output_count": (c_int32, [_module]),
    "am_module_loss": (c_int32, [_module]),
    "am_module_warning_count": (c_int32, [_module]),
    "am_module_warning": (c_char_p, [_module, c_int32]),
    "am_module_parameter": (c_int, [_module, c_int32, POINTER(AmParameter), _error]),
    "am_module_check_target": (c_int, [_module, c_char_p, _error]),
    "am_cluster_read": (c_int, [POINTER(_cluster), c_char_p, _error]),
    "am_cluster_parse": (c_int, [POINTER(_cluster), c_void_p, c_size_t, c_char_p, _error]),
    "am_cluster_open": (c_int, [POINTER(_cluster), c_char_p, _options, _callbacks, _error]),
    "am_cluster_print": (c_int, [_cluster, c_int, POINTER(c_char_p), POINTER(c_size_t), _error]),
    "am_cluster_free": (None, [_cluster]),
    "am_cluster_name": (c_char_p, [_cluster]),
    "am_cluster_device_count": (c_int32, [_cluster]),
    "am_search": (c_int, [POINTER(_plan), _module, _cluster, _options, _callbacks, _error]),
    "am_plan_read": (c_int, [POINTER(_plan), _module, c_char_p, _error]),
    "am_plan_parse": (c_int, [POINTER(_plan), _module, c_void_p, c_size_t, c_char_p, _error]),
    "am_plan_write": (c_int, [_plan, c_char_p, _error]),
    "am_plan_to_json": (c_int, [_plan, POINTER(c_char_p), POINTER(c_size_t), _error]),
    "am_plan_free": (None, [_plan]),
    "am_plan_write_for": (c_int, [_plan, c_char_p, c_char_p, _error]),
    "am_plan_print": (c_int, [_plan, c_int, c_int, POINTER(c_char_p), POINTER(c_size_t), _error]),
    "am_plan_step_seconds": (c_double, [_plan]),
    "am_plan_bound_seconds": (c_double, [_plan]),
    "am_plan_gap": (c_double, [_plan]),
    "am_plan_peak_bytes": (c_int64, [_plan]),
    "am_plan_evaluations": (c_int64, [_plan]),
    "am_plan_micro_batches": (c_int32, [_plan]),
    "am_plan_schedule": (c_char_p, [_plan]),
    "am_plan_searcher": (c_char_p, [_plan]),
    "am_plan_space": (c_char_p, [_plan]),
    "am_plan_stage_count": (c_int32, [_plan]),
    "am_plan_device_count": (c_int32, [_plan]),
    "am_plan_parameter_count": (c_int32, [_plan]),
    "am_plan_stage": (c_int, [_plan, c_int32, POINTER(AmStage), _error]),
    "am_plan_device": (c_int, [_plan, c_int32, POINTER(AmDevice), _error]),
    "am_plan_parameter": (c_int, [_plan, c_int32, POINTER(AmPlanParameter), _error]),
    "am_plan_baseline_count": (c_int32, [_plan]),
    "am_plan_baseline": (c_int, [_plan, c_int32, POINTER(AmBaseline), _error]),
    "am_report": (
        c_int,
        [c_int, POINTER(c_char_p), c_int32, c_int, _options, _callbacks, POINTER(c_char_p), POINTER(c_size_t), _error],
    ),
    "am_agent_write": (c_int, [POINTER(c_char_p), c_int32, c_char_p, _options, _callbacks, _error]),
    "am_roles_path": (c_int, [c_char_p, POINTER(c_char_p), _error]),
    "am_convert": (c_int, [c_char_p, c_char_p, _options, _callbacks, _error]),
    "am_simulate": (c_int, [POINTER(_simulation), _plan, _cluster, _options, _callbacks, _error]),
    "am_simulation_free": (None, [_simulation]),
    "am_simulation_step_seconds": (c_double, [_simulation]),
    "am_simulation_fits": (c_int, [_simulation]),
    "am_simulation_device_count": (c_int32, [_simulation]),
    "am_simulation_device": (c_int, [_simulation, c_int32, POINTER(AmDevice), _error]),
    "am_simulation_print": (c_int, [_simulation, c_int, POINTER(c_char_p), POINTER(c_size_t), _error]),
    "am_sweep": (c_int, [POINTER(_sweep), _module, _cluster, _options, _callbacks, _error]),
    "am_sweep_free": (None, [_sweep]),
    "am_sweep_count": (c_int32, [_sweep]),
    "am_sweep_strategy": (c_int, [_sweep, c_int32, POINTER(AmStrategy), _error]),
    "am_sweep_plan": (c_int, [POINTER(_plan), _sweep, c_int32, _error]),
    "am_sweep_print": (c_int, [_sweep, c_int, POINTER(c_char_p), POINTER(c_size_t), _error]),
    "am_explain": (c_int, [POINTER(_explanation), _plan, _options, _callbacks, _error]),
    "am_explanation_free": (None, [_explanation]),
    "am_explanation_print": (c_int, [_explanation, c_int, POINTER(c_char_p), POINTER(c_size_t), _error]),
    "am_diff": (c_int, [_plan, _plan, c_int, _callbacks, POINTER(c_char_p), POINTER(c_size_t), _error]),
    "am_compare": (
        c_int,
        [_plan, _cluster, c_int, _options, _callbacks, POINTER(c_char_p), POINTER(c_size_t), _error],
    ),
    "am_export": (c_int, [_plan, c_char_p, _options, _callbacks, POINTER(c_char_p), POINTER(c_size_t), _error]),
    "am_run": (c_int, [_module, _plan, _options, _callbacks, POINTER(AmRunResult), _error]),
    "am_processes_join": (c_int, [POINTER(_processes), c_double, _error]),
    "am_processes_index": (c_int32, [_processes]),
    "am_processes_count": (c_int32, [_processes]),
    "am_processes_run": (
        c_int,
        [_processes, _module, _plan, _options, _callbacks, POINTER(AmRunResult), _error],
    ),
    "am_processes_leave": (None, [_processes, _error]),
    "am_processes_end": (c_int, [c_int, c_double, CFUNCTYPE(None)]),
}


def declare(library: CDLL) -> None:
    """Sets the types of every function of a loaded library. AttributeError: the library lacks one."""
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
