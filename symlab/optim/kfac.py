"""KFAC: natural gradient with one Kronecker product per layer.

Legend: B  rows;  T  positions per row (see `kfac_layers`);  a [D]  input of a layer at one position, with a last entry
1 for the bias;  g [O]  derivative of a row's loss in the layer's output there;  A [D, D], G [O, O]  factors;
V [O, D]  gradient of the mean loss in (weight, bias).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from symlab.curvature.ensemble import mixed_seed
from symlab.curvature.mean_loss import Loss
from symlab.optim.checks import check_count, check_fraction, check_not_negative, check_positive, check_rate
from symlab.optim.coverage import Coverage
from symlab.optim.damped_roots import damped_roots, factored_damping, solve
from symlab.optim.guarded import Guarded, named, named_parameters
from symlab.optim.kfac_layers import Factors, Layer, check_factors, factors_of, find_layers, recorded, renew
from symlab.optim.label_scores import LabelScores

Solver = Callable[[Tensor], Tensor]
"""right [n, m] -> M^-1 right."""


class KFAC(Guarded):
    """(W, b) <- (W, b) - lr (G + sqrt(damping)/pi I)^-1 V (A + pi sqrt(damping) I)^-1  (Martens and Grosse, 2015).

    A and G are running means of A = (1/B) sum a a^T and G = (1/(B T)) sum g g^T, both sums over rows and positions, g
    the derivative of single rows' losses at labels drawn from the model's own law: A (x) G stands for the layer's block
    of the Fisher (here the Gauss-Newton matrix) of the mean loss, in its scale, whatever the size of the batch. For a
    convolution this is KFC (Grosse and Martens, 2016): A summed over positions, G averaged over them. It is exact for a
    deep linear net with half the squared error (without a batch's sampling noise: samples=None). pi^2 = (tr A / D) /
    (tr G / O), section 6.3; running means are divided by 1 - beta^t.

    Call `observe` with the batch before every `step`. Outside of symlab's loop `observe` makes a forward pass that
    moves running statistics of batch norm like any other.

    Args:
        model, inputs: the net, and a few rows to see which of its layers a forward pass calls.
        lr: > 0; 1 is a full step of the damped natural gradient.
        damping: > 0, added to the curvature, in the units of the mean loss per squared weight.
        beta: decay of A and G, in [0, 1).
        momentum: on the preconditioned gradient, in [0, 1): m <- momentum m + update.
        pi: False: sqrt(damping) on both factors.
        samples: labels drawn per row; None: the exact expectation, with one backward pass per output.
        factors_every, inverses_every: steps between renewals of A and G, and of their roots.
        kl_clip: None, or the most that lr^2 u^T (G (x) A) u of the updates u may be, summed over layers and taken as
            lr^2 <u, V>: they are scaled by the root of the ratio where that is below 1 (Ba et al., 2017, section 5).
        weight_decay: decoupled, >= 0.
        other_lr: rate of plain gradient descent (with the same momentum) for all other tensors: norms, embeddings,
            grouped and transposed convolutions, weights that several layers share. `coverage` names them. None: lr.
        seed: of the sampled labels, which depend on it and on the number of the step alone.

    A layer called several times in a forward pass has as many more positions T. A tensor without a gradient, and a
    layer that no `observe` has seen in use yet, take no step. Factors are kept and solved in float32, in float64 for a
    float64 weight. A gradient or factor that is not finite raises and changes nothing.

    Raises:
        ValueError, TypeError: an argument out of range (named, with its value).
        RuntimeError: from `step`, without `observe` since the last one.
        FloatingPointError: from `step`, a gradient or a factor that is not finite, naming it.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        lr: float,
        *,
        damping: float,
        beta: float = 0.95,
        momentum: float = 0.0,
        pi: bool = True,
        samples: int | None = 1,
        factors_every: int = 1,
        inverses_every: int = 1,
        kl_clip: float | None = None,
        weight_decay: float = 0.0,
        other_lr: float | None = None,
        seed: int = 0,
    ) -> None:
        defaults = {
            **{"rule": "gradient", "lr": lr, "damping": damping, "beta": beta, "momentum": momentum, "pi": pi},
            **{"samples": samples, "factors_every": factors_every, "inverses_every": inverses_every},
            **{"kl_clip": kl_clip, "weight_decay": weight_decay, "seed": seed},
        }
        _check(defaults, other_lr)
        parameters = named_parameters(model)
        self._model = model
        self._layers, self._reasons = find_layers(model, inputs)
        self._pending: dict[str, Factors] | None = None  # of the batch that the next step is for
        covered = {name for layer in self._layers for name in (layer.weight, layer.bias)}
        inside = [pair for pair in parameters if pair[0] in covered]
        outside = [pair for pair in parameters if pair[0] not in covered]
        groups: list[dict[str, Any]] = [{"params": inside, "rule": "kronecker"}] if inside else []
        groups += [{"params": outside, "lr": other_lr or lr}] if outside else []
        super().__init__(groups, defaults)

    def _bind(self) -> None:
        self._scores: tuple[Loss, int, LabelScores] | None = None  # found at the first batch, for its loss
        for layer in self._layers:
            state = self.state.get(layer.parameter, {})
            if "input_factor" in state:
                found = (len(state["input_factor"]), len(state["output_factor"]))
                if found != layer.sizes:
                    raise ValueError(
                        f"saved factors of {layer.weight} are of sizes {found}, this layer's {layer.sizes}"
                    )

    def observe(self, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
        """Take the factors of a batch for the step that follows: a forward pass, and a backward pass per sample.

        `loss` is a mean over rows whose law of labels is known (cross-entropy, multiples of half the squared error).
        """
        self._pending = {}
        settings = self.param_groups[0]
        if not self._layers or self._steps % settings["factors_every"]:
            return
        with torch.enable_grad(), recorded(self._layers, self._work_dtype) as calls:
            outputs = self._model(inputs)  # [B, C]
        f = outputs.detach().to(self._work_dtype)
        scores, samples = self._scores_for(loss, f, targets), settings["samples"]
        if samples is None:
            self._pending = factors_of(self._layers, calls, outputs, scores.exact(f), f.shape[1])
        else:
            generator = torch.Generator().manual_seed(mixed_seed(settings["seed"], self._steps))
            draws = (scores.sampled(f, generator) / samples**0.5 for _ in range(samples))
            self._pending = factors_of(self._layers, calls, outputs, draws, samples)

    def _scores_for(self, loss: Loss, outputs: Tensor, targets: Tensor) -> LabelScores:
        if outputs.ndim != 2:
            raise ValueError(f"the model's outputs must be [rows, outputs], got {list(outputs.shape)}")
        C = outputs.shape[1]
        if self._scores is None or self._scores[0] is not loss or self._scores[1] != C:
            self._scores = (loss, C, LabelScores.of(loss, outputs, targets))
        return self._scores[2]

    @property
    def _work_dtype(self) -> torch.dtype:
        return torch.promote_types(self._layers[0].parameter.dtype, torch.float32)

    @property
    def _steps(self) -> int:
        """Updates done."""
        first = self.param_groups[0]["params"][0]
        return self.state[first].get("step", 0) if first in self.state else 0

    def _update(self) -> None:
        if self._pending is None:
            raise RuntimeError("KFAC needs the batch: call observe(loss, inputs, targets) before each step")
        check_factors(self._pending)
        settings, step = self.param_groups[0], self._steps
        for layer in self._layers:
            if layer.weight in self._pending:
                state = self.state[layer.parameter]
                renew(state, self._pending[layer.weight], settings["beta"])
                state["observations"] = state.get("observations", 0) + 1
        ready = [layer for layer in self._layers if layer.parameter.grad is not None]
        ready = [layer for layer in ready if "input_factor" in self.state.get(layer.parameter, {})]
        directions = self._directions(ready, self._solvers(ready, step))
        untouched = {p for layer in self._layers if layer not in ready for p in layer.parameters}
        for group in self.param_groups:
            self._move(group, directions, untouched)
        self.state[self.param_groups[0]["params"][0]]["step"] = step + 1
        self._pending = None

    def _solvers(self, layers: Sequence[Layer], step: int) -> dict[Layer, tuple[Solver, Solver]]:
        """Products with (A + d I)^-1 and (G + d I)^-1 of each layer; inverses are kept where that saves renewals."""
        settings, fresh = self.param_groups[0], self._pending or {}
        keep = settings["inverses_every"] > 1 or settings["factors_every"] > 1
        due = [
            layer
            for layer in layers
            if "input_inverse" not in self.state[layer.parameter]
            or (layer.weight in fresh and step % settings["inverses_every"] == 0)
        ]
        roots = damped_roots(*self._damped(due))
        solvers: dict[Layer, tuple[Solver, Solver]] = {}
        for layer, pair in zip(due, zip(roots[::2], roots[1::2], strict=True), strict=True):
            solvers[layer] = (partial(solve, pair[0]), partial(solve, pair[1]))
            if keep:
                inverses = [torch.cholesky_inverse(root) for root in pair]
                self.state[layer.parameter].update(input_inverse=inverses[0], output_inverse=inverses[1])
        if keep:
            states = {layer: self.state[layer.parameter] for layer in layers}
            return {layer: (state["input_inverse"].mm, state["output_inverse"].mm) for layer, state in states.items()}
        return solvers

    def _damped(self, layers: Sequence[Layer]) -> tuple[list[Tensor], list[Tensor]]:
        """A, G of each layer, with their bias correction, and their dampings."""
        settings = self.param_groups[0]
        matrices: list[Tensor] = []
        dampings: list[Tensor] = []
        for layer in layers:
            state = self.state[layer.parameter]
            scale = 1 - settings["beta"] ** state["observations"]
            inputs, outputs = state["input_factor"] / scale, state["output_factor"] / scale
            matrices += [inputs, outputs]
            dampings += factored_damping(inputs, outputs, settings["damping"], settings["pi"])
        return matrices, dampings

    def _directions(self, layers: Sequence[Layer], solvers: dict[Layer, tuple[Solver, Solver]]) -> dict[Tensor, Tensor]:
        """The preconditioned gradient of each weight and bias, clipped."""
        settings = self.param_groups[0]
        gradients = {layer: layer.gradient(self._work_dtype) for layer in layers}  # [O, D]
        updates = {}
        for layer, v in gradients.items():
            of_inputs, of_outputs = solvers[layer]
            updates[layer] = of_inputs(of_outputs(v).mT).mT  # [O, D]
        if settings["kl_clip"] is not None and updates:
            size = torch.stack([(updates[layer] * v).sum() for layer, v in gradients.items()]).sum()
            most = settings["kl_clip"] / max(settings["lr"], 1e-30) ** 2
            factor = (most / size.clamp(min=torch.finfo(size.dtype).tiny)).sqrt().clamp(max=1.0)
            updates = {layer: factor * u for layer, u in updates.items()}
        found: dict[Tensor, Tensor] = {}
        for layer, u in updates.items():
            found.update(layer.split(u))
        return found

    def _move(self, group: dict[str, Any], directions: dict[Tensor, Tensor], untouched: set[Tensor]) -> None:
        """Momentum, decay and the step itself, for one group."""
        for p in group["params"]:
            if p.grad is None or p in untouched:
                continue
            work = torch.promote_types(p.dtype, torch.float32)
            direction = directions[p] if p in directions else p.grad.to(work)
            if group["momentum"]:
                buffer = self.state[p].get("momentum_buffer")
                direction = direction.clone() if buffer is None else buffer.mul_(group["momentum"]).add_(direction)
                self.state[p]["momentum_buffer"] = direction
            if group["weight_decay"]:
                p.mul_(1 - group["lr"] * group["weight_decay"])
            p.add_(direction.to(p.dtype), alpha=-group["lr"])

    def coverage(self) -> list[Coverage]:
        """One row per tensor: the sizes of its factors, or gradient descent with the reason."""
        sizes = {name: layer.sizes for layer in self._layers for name in (layer.weight, layer.bias) if name}
        rows = []
        for name, p, _ in named(self.param_groups):
            reason = self._reasons.get(name, "added later")
            rule = f"Kronecker factors {sizes[name][0]} and {sizes[name][1]}" if name in sizes else ""
            rows.append(Coverage(name, rule or f"gradient descent: {reason}", p.numel()))
        return rows

    def __getstate__(self) -> dict[str, Any]:
        own = {key: vars(self)[key] for key in ("_model", "_layers", "_reasons", "_pending")}
        return {**super().__getstate__(), **own}


def _check(settings: dict[str, Any], other_lr: float | None) -> None:
    check_rate("lr", settings["lr"])
    check_positive("damping", settings["damping"])
    for name in ("beta", "momentum"):
        check_fraction(name, settings[name])
    for name in ("factors_every", "inverses_every", *(["samples"] if settings["samples"] is not None else [])):
        check_count(name, settings[name])
    check_not_negative("weight_decay", settings["weight_decay"])
    if settings["kl_clip"] is not None:
        check_positive("kl_clip", settings["kl_clip"])
    if other_lr is not None:
        check_rate("other_lr", other_lr)


def kfac(
    model: nn.Module,
    inputs: Tensor,
    *,
    lr: float,
    damping: float = 1e-3,
    beta: float = 0.95,
    momentum: float = 0.0,
    pi: bool = True,
    samples: int | None = 1,
    factors_every: int = 1,
    inverses_every: int = 1,
    kl_clip: float | None = None,
    weight_decay: float = 0.0,
    other_lr: float | None = None,
    seed: int = 0,
) -> KFAC:
    """`KFAC` on all trainable parameters of a model: see the class for the formula and each argument.

    `lr` and `other_lr` in (0, 100]; the rest as in `KFAC`. Raises ValueError or TypeError for a number out of range.
    """
    return KFAC(
        model,
        inputs,
        lr,
        damping=damping,
        beta=beta,
        momentum=momentum,
        pi=pi,
        samples=samples,
        factors_every=factors_every,
        inverses_every=inverses_every,
        kl_clip=kl_clip,
        weight_decay=weight_decay,
        other_lr=other_lr,
        seed=seed,
    )
