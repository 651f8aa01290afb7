"""Updates of optimizers as functions: (parameters, gradients, state) -> (parameters, state), by name.

The formulas are those of torch.optim; one step count serves all parameters. Parameters that need no gradient, or that
the optimizer does not have, keep their values.
"""

import torch

KINDS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop)


def settings_of(optimizer, model):
    """The settings of the group of each parameter that the optimizer changes, by the parameter's name."""
    kind = type(optimizer).__name__
    if type(optimizer) not in KINDS:
        raise NotImplementedError(f"{kind} (expected SGD, Adam, AdamW, Adagrad or RMSprop)")
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = {}
    for settings in optimizer.param_groups:
        for name in ("differentiable", "dampening"):
            if settings.get(name):
                raise NotImplementedError(f"{kind} with {name} (expected {name}={type(settings[name])()})")
        for parameter in settings["params"]:
            if parameter not in names:
                raise ValueError(f"{kind} has a parameter of shape {list(parameter.shape)} that the model lacks "
                                 "(expected an optimizer of this model's parameters)")
            if parameter.requires_grad:
                found[names[parameter]] = settings
    return {name: found[name] for name in names.values() if name in found}  # in the order of the model


def initial_state(optimizer, settings, parameters):
    """The state before the first step: {"exp_avg": {name: tensor}, "step": tensor}. `settings` are settings_of()."""
    def filled(is_there=lambda own: True, value=lambda own: 0.0):
        return {name: torch.full_like(parameters[name], value(own)) for name, own in settings.items() if is_there(own)}

    if isinstance(optimizer, torch.optim.SGD):
        rows = {"momentum_buffer": filled(lambda own: own["momentum"])}
    elif isinstance(optimizer, torch.optim.Adagrad):
        rows = {"sum": filled(value=lambda own: own["initial_accumulator_value"])}
    elif isinstance(optimizer, torch.optim.RMSprop):
        rows = {"square_avg": filled(), "grad_avg": filled(lambda own: own["centered"]),
                "momentum_buffer": filled(lambda own: own["momentum"])}
    else:
        rows = {"exp_avg": filled(), "exp_avg_sq": filled(),
                "max_exp_avg_sq": filled(lambda own: own["amsgrad"])}
    has_step = not isinstance(optimizer, (torch.optim.SGD, torch.optim.RMSprop))
    return {kind: values for kind, values in rows.items() if values} | ({"step": torch.zeros(())} if has_step else {})


def sgd(own, value, gradient, state, step):
    if not own["momentum"]:
        return value - own["lr"] * gradient, {}
    buffer = own["momentum"] * state["momentum_buffer"] + gradient
    gradient = gradient + own["momentum"] * buffer if own["nesterov"] else buffer
    return value - own["lr"] * gradient, {"momentum_buffer": buffer}


def adam(own, value, gradient, state, step):
    rate, (beta1, beta2) = own["lr"], own["betas"]
    correction1, correction2 = 1 - torch.pow(beta1, step), torch.sqrt(1 - torch.pow(beta2, step))
    mean = beta1 * state["exp_avg"] + (1 - beta1) * gradient
    square = beta2 * state["exp_avg_sq"] + (1 - beta2) * gradient * gradient
    new, largest = {"exp_avg": mean, "exp_avg_sq": square}, square
    if own["amsgrad"]:
        largest = new["max_exp_avg_sq"] = torch.maximum(state["max_exp_avg_sq"], square)
    divisor = torch.sqrt(largest) / correction2 + own["eps"]
    return value - (rate / correction1) * (mean / divisor), new


def adagrad(own, value, gradient, state, step):
    total = state["sum"] + gradient * gradient
    rate = own["lr"] / (1 + (step - 1) * own["lr_decay"]) if own["lr_decay"] else own["lr"]
    return value - rate * gradient / (torch.sqrt(total) + own["eps"]), {"sum": total}


def rmsprop(own, value, gradient, state, step):
    square = own["alpha"] * state["square_avg"] + (1 - own["alpha"]) * gradient * gradient
    new, spread = {"square_avg": square}, square
    if own["centered"]:
        new["grad_avg"] = own["alpha"] * state["grad_avg"] + (1 - own["alpha"]) * gradient
        spread = square - new["grad_avg"] * new["grad_avg"]
    change = gradient / (torch.sqrt(spread) + own["eps"])
    if own["momentum"]:
        change = new["momentum_buffer"] = own["momentum"] * state["momentum_buffer"] + change
    return value - own["lr"] * change, new


RULES = {torch.optim.SGD: sgd, torch.optim.Adam: adam, torch.optim.AdamW: adam, torch.optim.Adagrad: adagrad,
         torch.optim.RMSprop: rmsprop}


def update(optimizer, settings, parameters, gradients, state):
    """The parameters and the state after a step. `settings` are settings_of()."""
    rule, new = RULES[type(optimizer)], dict(parameters)
    step = state["step"] + 1 if "step" in state else None
    new_state = {kind: {} if isinstance(values, dict) else step for kind, values in state.items()}
    for name, own in settings.items():
        before = {kind: values[name] for kind, values in state.items() if isinstance(values, dict) and name in values}
        value, gradient, decay = parameters[name], gradients[name], own["weight_decay"]
        gradient = -gradient if own["maximize"] else gradient
        if decay and own.get("decoupled_weight_decay", False):
            value = value * (1 - own["lr"] * decay)
        elif decay:
            gradient = gradient + decay * value
        new[name], after = rule(own, value, gradient, before, step)
        for kind, value in after.items():
            new_state[kind][name] = value
    return new, new_state
