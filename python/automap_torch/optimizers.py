"""Updates of optimizers as functions: (parameters, gradients, state) -> (parameters, state), by name.

The formulas are those of torch.optim, and for Lion those of Chen et al. 2023 (https://arxiv.org/abs/2302.06675), as the
packages lion-pytorch and timm have them. One step count serves all parameters. Parameters that need no gradient, or
that no optimizer has, keep their values. Complex parameters are pairs of real ones, as in torch.optim. A model may have
several optimizers, such as Muon for its matrices and AdamW for other parameters.
"""

import math

import torch


def listed(optimizers):
    """An optimizer, or several of them, as a list."""
    return list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]


def settings_of(optimizers, model):
    """The rule and the settings of the group of each parameter that an optimizer changes, by the parameter's name."""
    names, found = {parameter: name for name, parameter in model.named_parameters()}, {}
    for optimizer in listed(optimizers):
        kind, own = type(optimizer).__name__, {}
        rule = rule_of(optimizer)
        if not rule:
            raise NotImplementedError(f"{kind} (expected {', '.join(map(name_of_kind, RULES))})")
        for settings in optimizer.param_groups:
            check_settings(kind, settings)
            for parameter in settings["params"]:
                if parameter not in names:
                    raise ValueError(f"{kind} has a parameter of shape {list(parameter.shape)} that the model lacks "
                                     "(expected an optimizer of this model's parameters)")
                if names[parameter] in found:
                    raise ValueError(f"{kind} has the parameter {names[parameter]}, which another optimizer has, too")
                if parameter.requires_grad:
                    own[names[parameter]] = rule, settings
        for name in SHARED.get(type(optimizer), ()):
            if len({settings[name] for _, settings in own.values()}) > 1:
                raise NotImplementedError(f"{kind} with groups of other {name} (expected one value)")
        found |= own
    return {name: found[name] for name in names.values() if name in found}  # in the order of the model


def check_settings(kind, settings):
    """Refuses settings that change the formulas."""
    for name, plain in REFUSED.items():
        if settings.get(name, plain) not in (plain, None):
            raise NotImplementedError(f"{kind} with {name} (expected {name}={plain})")


# Settings that change the formulas, and the values that keep them.
REFUSED = {"differentiable": False, "dampening": 0, "caution": False, "corrected_weight_decay": False,
           "cautious_factor": 1.0}
# Settings on which scalars of all parameters depend.
SHARED = {torch.optim.NAdam: ("betas", "momentum_decay")}
SCALARS = {"mu_product": 1.0, "step": 0.0}  # their values before the first step


def sgd(own, value, gradient, state):
    if not own["momentum"]:
        return value - own["lr"] * gradient, {}
    buffer = own["momentum"] * state["momentum_buffer"] + gradient
    gradient = gradient + own["momentum"] * buffer if own["nesterov"] else buffer
    return value - own["lr"] * gradient, {"momentum_buffer": buffer}


def moments(own, gradient, state):
    """Running means of the gradient and of its square."""
    beta1, beta2 = own["betas"]
    return {"exp_avg": beta1 * state["exp_avg"] + (1 - beta1) * gradient,
            "exp_avg_sq": beta2 * state["exp_avg_sq"] + (1 - beta2) * gradient * gradient}


def bias_correction(beta, step):
    """1 - beta^step. In double: float32 has 4 digits of it in the first step where beta is 0.999."""
    return (1 - torch.pow(beta, step.double())).float()


def adam(own, value, gradient, state):
    rate, (beta1, beta2), step = own["lr"], own["betas"], state["step"]
    correction1, correction2 = bias_correction(beta1, step), torch.sqrt(bias_correction(beta2, step))
    new = moments(own, gradient, state)
    largest = new["exp_avg_sq"]
    if own["amsgrad"]:
        largest = new["max_exp_avg_sq"] = torch.maximum(state["max_exp_avg_sq"], largest)
    divisor = torch.sqrt(largest) / correction2 + own["eps"]
    return value - (rate / correction1) * (new["exp_avg"] / divisor), new


def adamax(own, value, gradient, state):
    beta1, beta2 = own["betas"]
    mean = beta1 * state["exp_avg"] + (1 - beta1) * gradient
    largest = torch.maximum(beta2 * state["exp_inf"], gradient.abs() + own["eps"])
    rate = own["lr"] / bias_correction(beta1, state["step"])
    return value - rate * (mean / largest), {"exp_avg": mean, "exp_inf": largest}


def nadam(own, value, gradient, state):
    rate, (beta1, beta2), step = own["lr"], own["betas"], state["step"]
    weight, following = (beta1 * (1 - 0.5 * torch.pow(0.96, at * own["momentum_decay"])) for at in (step, step + 1))
    product = state["mu_product"] * weight
    new = moments(own, gradient, state)
    divisor = torch.sqrt(new["exp_avg_sq"] / bias_correction(beta2, step)) + own["eps"]
    value = value - (rate * (1 - weight) / (1 - product)) * (gradient / divisor)
    value = value - (rate * following / (1 - product * following)) * (new["exp_avg"] / divisor)
    return value, {**new, "mu_product": product}


def radam(own, value, gradient, state):
    """The length of the average, `length`, is a difference of large numbers: in double."""
    (beta1, beta2), step = own["betas"], state["step"].double()
    power = torch.pow(beta2, step)
    most = 2 / (1 - beta2) - 1
    length = most - 2 * step * power / (1 - power)
    new = moments(own, gradient, state)
    mean = new["exp_avg"] / bias_correction(beta1, step)
    ratio = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
    scale = torch.sqrt(torch.clamp(ratio, min=0) * (1 - power)).to(value.dtype)
    adaptive = scale / (torch.sqrt(new["exp_avg_sq"]) + own["eps"])
    return value - own["lr"] * mean * torch.where(length > 5, adaptive, torch.ones_like(adaptive)), new


def adadelta(own, value, gradient, state):
    rho, eps = own["rho"], own["eps"]
    square = rho * state["square_avg"] + (1 - rho) * gradient * gradient
    change = torch.sqrt(state["acc_delta"] + eps) / torch.sqrt(square + eps) * gradient
    total = rho * state["acc_delta"] + (1 - rho) * change * change
    return value - own["lr"] * change, {"square_avg": square, "acc_delta": total}


def adagrad(own, value, gradient, state):
    total, step = state["sum"] + gradient * gradient, state["step"]
    rate = own["lr"] / (1 + (step - 1) * own["lr_decay"]) if own["lr_decay"] else own["lr"]
    return value - rate * gradient / (torch.sqrt(total) + own["eps"]), {"sum": total}


def rmsprop(own, value, gradient, state):
    square = own["alpha"] * state["square_avg"] + (1 - own["alpha"]) * gradient * gradient
    new, spread = {"square_avg": square}, square
    if own["centered"]:
        new["grad_avg"] = own["alpha"] * state["grad_avg"] + (1 - own["alpha"]) * gradient
        spread = square - new["grad_avg"] * new["grad_avg"]
    change = gradient / (torch.sqrt(spread) + own["eps"])
    if own["momentum"]:
        change = new["momentum_buffer"] = own["momentum"] * state["momentum_buffer"] + change
    return value - own["lr"] * change, new


def lion(own, value, gradient, state):
    beta1, beta2 = own["betas"]
    direction = torch.sign(beta1 * state["exp_avg"] + (1 - beta1) * gradient)
    return value - own["lr"] * direction, {"exp_avg": beta2 * state["exp_avg"] + (1 - beta2) * gradient}


def orthogonal(own, x):
    """x with its singular values near 1, by Newton and Schulz's iteration in bf16 (Jordan 2024,
    https://kellerjordan.github.io/posts/muon)."""
    a, b, c = own["ns_coefficients"]
    is_tall = x.shape[0] > x.shape[1]
    x = x.to(torch.bfloat16)
    x = x.T if is_tall else x
    x = x / torch.clamp(torch.sqrt((x.float() * x.float()).sum()).to(x.dtype), min=own["eps"])
    for _ in range(own["ns_steps"]):  # sums in f32, as PyTorch's products with an addend have them
        square = x @ x.T
        square = (b * square.float() + c * (square @ square).float()).to(x.dtype)
        x = (a * x.float() + (square @ x).float()).to(x.dtype)
    return x.T if is_tall else x


def muon(own, value, gradient, state):
    mean = own["momentum"] * state["momentum_buffer"] + (1 - own["momentum"]) * gradient
    gradient = gradient + own["momentum"] * (mean - gradient) if own["nesterov"] else mean
    rows, columns = value.shape
    scale = {"match_rms_adamw": 0.2 * math.sqrt(max(rows, columns)), "spectral_unclamped": math.sqrt(rows / columns)}
    rate = own["lr"] * scale.get(own["adjust_lr_fn"], math.sqrt(max(1, rows / columns)))
    return value - rate * orthogonal(own, gradient).to(value.dtype), {"momentum_buffer": mean}


class Rule:
    """The formulas of an optimizer. change(settings, value, gradient, state) gives the new value and state of one
    parameter. `rows` has the tensors of the state: {name: value before the first step}, where that is a function of
    the settings; None: without the tensor. `scalars` are names of SCALARS."""

    def __init__(self, change, rows, scalars=()):
        self.change, self.rows, self.scalars = change, rows, scalars


def if_set(name):
    return lambda own: 0.0 if own[name] else None


def zero(own):
    return 0.0


MOMENTS = {"exp_avg": zero, "exp_avg_sq": zero}
RULES = {torch.optim.SGD: Rule(sgd, {"momentum_buffer": if_set("momentum")}),
         torch.optim.Adam: Rule(adam, MOMENTS | {"max_exp_avg_sq": if_set("amsgrad")}, ("step",)),
         torch.optim.AdamW: Rule(adam, MOMENTS | {"max_exp_avg_sq": if_set("amsgrad")}, ("step",)),
         torch.optim.Adamax: Rule(adamax, {"exp_avg": zero, "exp_inf": zero}, ("step",)),
         torch.optim.NAdam: Rule(nadam, MOMENTS, ("mu_product", "step")),
         torch.optim.RAdam: Rule(radam, MOMENTS, ("step",)),
         torch.optim.Adadelta: Rule(adadelta, {"square_avg": zero, "acc_delta": zero}),
         torch.optim.Adagrad: Rule(adagrad, {"sum": lambda own: own["initial_accumulator_value"]}, ("step",)),
         torch.optim.RMSprop: Rule(rmsprop, {"square_avg": zero, "grad_avg": if_set("centered"),
                                             "momentum_buffer": if_set("momentum")}),
         torch.optim.Muon: Rule(muon, {"momentum_buffer": zero}),
         "Lion": Rule(lion, {"exp_avg": zero})}  # of several packages


def rule_of(optimizer):
    kind = type(optimizer)
    return RULES.get(kind) or RULES.get(kind.__name__)


def name_of_kind(kind):
    return kind if isinstance(kind, str) else kind.__name__


def initial_state(settings, parameters):
    """The state before the first step: {"exp_avg": {name: tensor}, "step": tensor}. `settings` are settings_of()."""
    found, scalars = {}, {}
    for name, (rule, own) in settings.items():
        for kind, value_of in rule.rows.items():
            value = value_of(own)
            if value is not None:
                found.setdefault(kind, {})[name] = torch.full_like(parameters[name], value)
        scalars |= {kind: torch.tensor(SCALARS[kind]) for kind in rule.scalars}
    return found | scalars


def as_real(value):
    return torch.view_as_real(value) if value.is_complex() else value


def as_before(value, before):
    """A new value in the type of the one before."""
    return torch.view_as_complex(value) if before.is_complex() else value.to(before.dtype)


def update(settings, parameters, gradients, state):
    """The parameters and the state after a step. `settings` are settings_of()."""
    new = dict(parameters)
    scalars = {kind: values for kind, values in state.items() if not isinstance(values, dict)}
    if "step" in scalars:
        scalars["step"] = scalars["step"] + 1
    new_state = {kind: {} if isinstance(values, dict) else scalars[kind] for kind, values in state.items()}
    for name, (rule, own) in settings.items():
        before = {kind: as_real(values[name]) for kind, values in state.items()
                  if isinstance(values, dict) and name in values} | scalars
        value, gradient, decay = as_real(parameters[name]), as_real(gradients[name]), own["weight_decay"]
        gradient = -gradient if own.get("maximize") else gradient
        if decay and own.get("decoupled_weight_decay", rule.change in (lion, muon)):
            value = value * (1 - own["lr"] * decay)
        elif decay:
            gradient = gradient + decay * value
        value, after = rule.change(own, value, gradient, before)
        new[name] = as_before(value, parameters[name])
        for kind, value in after.items():
            if kind in scalars:
                new_state[kind] = value
            else:
                new_state[kind][name] = as_before(value, state[kind][name])
    return new, new_state
