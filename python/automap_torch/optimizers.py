"""Updates of optimizers as functions: (parameters, gradients, state) -> (parameters, state), by name.

The formulas are those of torch.optim; one step count serves all parameters.
"""

import torch


def settings_of(optimizer):
    """The settings of the only group."""
    if len(optimizer.param_groups) != 1:
        raise NotImplementedError("an optimizer of several groups of parameters (expected one group)")
    settings = optimizer.param_groups[0]
    for name in ("amsgrad", "maximize", "differentiable"):
        if settings.get(name):
            raise NotImplementedError(f"{type(optimizer).__name__} with {name} (expected {name}=False)")
    return settings


def initial_state(optimizer, parameters):
    """The state before the first step: {"exp_avg": {name: tensor}, "step": tensor}."""
    settings = settings_of(optimizer)

    def zeros():
        return {name: torch.zeros_like(value) for name, value in parameters.items()}

    if isinstance(optimizer, torch.optim.SGD):
        return {"momentum_buffer": zeros()} if settings["momentum"] else {}
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        return {"exp_avg": zeros(), "exp_avg_sq": zeros(), "step": torch.zeros(())}
    raise NotImplementedError(f"{type(optimizer).__name__} (expected SGD, Adam or AdamW)")


def sgd(settings, parameters, gradients, state):
    rate, momentum, decay = settings["lr"], settings["momentum"], settings["weight_decay"]
    if settings["dampening"]:
        raise NotImplementedError("SGD with dampening (expected dampening=0)")
    new, buffers = {}, {}
    for name, value in parameters.items():
        gradient = gradients[name] + decay * value if decay else gradients[name]
        if momentum:
            buffers[name] = momentum * state["momentum_buffer"][name] + gradient
            gradient = gradient + momentum * buffers[name] if settings["nesterov"] else buffers[name]
        new[name] = value - rate * gradient
    return new, {"momentum_buffer": buffers} if momentum else {}


def adam(settings, parameters, gradients, state, is_decoupled):
    rate, (beta1, beta2), decay = settings["lr"], settings["betas"], settings["weight_decay"]
    step = state["step"] + 1
    correction1, correction2 = 1 - torch.pow(beta1, step), torch.sqrt(1 - torch.pow(beta2, step))
    new, means, squares = {}, {}, {}
    for name, value in parameters.items():
        gradient = gradients[name]
        if decay and is_decoupled:
            value = value * (1 - rate * decay)
        elif decay:
            gradient = gradient + decay * value
        means[name] = beta1 * state["exp_avg"][name] + (1 - beta1) * gradient
        squares[name] = beta2 * state["exp_avg_sq"][name] + (1 - beta2) * gradient * gradient
        divisor = torch.sqrt(squares[name]) / correction2 + settings["eps"]
        new[name] = value - (rate / correction1) * (means[name] / divisor)
    return new, {"exp_avg": means, "exp_avg_sq": squares, "step": step}


def update(optimizer, parameters, gradients, state):
    settings = settings_of(optimizer)
    if isinstance(optimizer, torch.optim.SGD):
        return sgd(settings, parameters, gradients, state)
    is_decoupled = isinstance(optimizer, torch.optim.AdamW) or settings.get("decoupled_weight_decay", False)
    return adam(settings, parameters, gradients, state, is_decoupled)
