"""KFAC as in the released code of Bernacchia (ICML 2025), with its fault, to reproduce the published curve.

Legend: N  rows of the batch;  a [D]  input of a layer;  d [O]  derivative of a row's loss in the layer's output, at the
true target;  A [D, D], G [O, O]  running means;  V [O, D]  gradient of the mean loss.
"""

from typing import Any

import torch
from torch import Tensor, nn

from symlab.curvature.label_law import row_slopes
from symlab.curvature.mean_loss import Loss
from symlab.optim.checks import check_fraction, check_positive, check_rate
from symlab.optim.coverage import Coverage
from symlab.optim.damped_roots import damped_roots, solve
from symlab.optim.guarded import Guarded, named, named_parameters
from symlab.optim.kfac_layers import Factors, Layer, check_factors, factors_of, find_layers, recorded, renew


class KFACICML2025(Guarded):
    """W <- W - lr (G + damping I)^-1 V (A + damping I)^-1, with G of the mean loss, N^2 too small: see `kfac_icml2025`.

    Raises:
        ValueError, TypeError: a number out of range, or trainable tensors outside of linear and convolution layers.
        RuntimeError: from `step`, without `observe` since the last one.
        FloatingPointError: from `step`, a gradient or a factor that is not finite; nothing is changed then.
    """

    def __init__(self, model: nn.Module, inputs: Tensor, lr: float, *, damping: float, beta: float) -> None:
        check_rate("lr", lr)
        check_positive("damping", damping)
        check_fraction("beta", beta)
        parameters = named_parameters(model)
        self._model = model
        self._layers, reasons = find_layers(model, inputs)
        outside = [name for name, _ in parameters if name in reasons]
        if outside:
            why = f"{outside[0]} ({reasons[outside[0]]})"
            raise ValueError(f"kfac_icml2025 takes linear and convolution layers only, not {why}: take optimizer kfac")
        self._pending: dict[str, Factors] | None = None  # of the batch that the next step is for
        super().__init__([{"params": parameters}], {"lr": lr, "damping": damping, "beta": beta})

    def _bind(self) -> None:
        """Nothing to tie: layers hold the model's own parameters."""

    def observe(self, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
        """Take the factors of a batch for the step that follows, at its true targets."""
        work = torch.promote_types(self._layers[0].parameter.dtype, torch.float32)
        with torch.enable_grad(), recorded(self._layers, work) as calls:
            outputs = self._model(inputs)  # [N, C]
        with torch.enable_grad():
            slopes = row_slopes(loss, outputs.detach().to(work), targets) / len(outputs)  # of the mean loss: the fault
        self._pending = factors_of(self._layers, calls, outputs, [slopes], 1)

    def _update(self) -> None:
        if self._pending is None:
            raise RuntimeError("KFACICML2025 needs the batch: call observe(loss, inputs, targets) before each step")
        check_factors(self._pending)
        (group,) = self.param_groups
        ready = [layer for layer in self._layers if layer.weight in self._pending]
        ready = [layer for layer in ready if layer.parameter.grad is not None]
        for layer in ready:
            state = self.state[layer.parameter]
            renew(state, self._pending[layer.weight], group["beta"] if "input_factor" in state else 0.0)
        for layer, update in zip(ready, self._directions(ready, group["damping"]), strict=True):
            for p, part in layer.split(update).items():
                p.add_(part.to(p.dtype), alpha=-group["lr"])
        self._pending = None

    def _directions(self, layers: list[Layer], damping: float) -> list[Tensor]:
        """(G + damping I)^-1 V (A + damping I)^-1 [O, D] of each layer."""
        states = [self.state[layer.parameter] for layer in layers]
        matrices = [state[key] for state in states for key in ("input_factor", "output_factor")]
        roots = damped_roots(matrices, [matrix.new_tensor(damping) for matrix in matrices])
        pairs = zip(roots[::2], roots[1::2], strict=True)
        return [
            solve(of_inputs, solve(of_outputs, layer.gradient(of_inputs.dtype)).mT).mT
            for layer, (of_inputs, of_outputs) in zip(layers, pairs, strict=True)
        ]

    def coverage(self) -> list[Coverage]:
        """One row per tensor: the sizes of its factors."""
        sizes = {name: layer.sizes for layer in self._layers for name in (layer.weight, layer.bias) if name}
        return [
            Coverage(name, f"Kronecker factors {sizes[name][0]} and {sizes[name][1]}, the second mis-scaled", p.numel())
            for name, p, _ in named(self.param_groups)
        ]

    def __getstate__(self) -> dict[str, Any]:
        own = {key: vars(self)[key] for key in ("_model", "_layers", "_pending")}
        return {**super().__getstate__(), **own}


def kfac_icml2025(
    model: nn.Module, inputs: Tensor, *, lr: float, damping: float = 0.017, beta: float = 0.9
) -> KFACICML2025:
    """W <- W - lr (G + damping I)^-1 V (A + damping I)^-1, A of inputs, G of gradients of the mean loss (faulty).

    A = (1/N) sum a a^T, G = (1/N) sum (d/N) (d/N)^T, d of true targets; both are running means with decay `beta` that
    start at the first batch, and the whole `damping` is added to both, without pi. What is wrong: the derivatives that
    enter G are those of the loss's mean over N rows and not of single rows, so that G is N^2 too small. On the
    published problem (N = 5,000) it is about 4e-8 of its right size, against a damping of 0.017: (G + damping I)^-1 is
    1/damping to seven digits, and the method preconditions inputs alone, with the rate lr / damping (0.35).

    It retraces the published results. Test loss after 100 steps, 10 seeds, median [min, max], and the published band:
    tanh (lr 0.006, damping 0.017) 0.0090 [0.0079, 0.0104], published 0.0087 [0.0078, 0.0099]; linear (lr 1e-5, damping
    1.3e-4) 3.3e-5 [2.6e-5, 4.8e-5], published 3.8e-5 [2.7e-5, 4.9e-5]. For the method itself take `kfac`.

    `lr` in (0, 100], `damping` > 0, `beta` in [0, 1). Layers as in `kfac`, no other tensors.

    Raises ValueError or TypeError for a number out of range and for a model with other trainable tensors.
    """
    return KFACICML2025(model, inputs, lr, damping=damping, beta=beta)
