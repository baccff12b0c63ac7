"""Teacher-student regression: a random net labels Gaussian inputs with a steep spectrum.

Shapes: N rows, d = input_size, C = output_size. Everything is drawn and computed in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from symlab.data.dataset import Dataset
from symlab.data.ranges import finite_number, whole_number

TEACHER_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "sin": torch.sin,
    "erf": torch.erf,
    "identity": lambda hidden: hidden,
}
TEACHER_EXPONENTS = {"normal": -0.5, "narrow_normal": -1.0}  # of fan_in, in the standard deviation of the weights
Layer = tuple[Tensor, Tensor]  # weight [out, in], bias [out]


def teacher_student(
    *,
    seed: int = 0,
    num_train: int = 5000,
    num_test: int = 5000,
    input_size: int = 100,
    hidden: Sequence[int] = (70,),
    output_size: int = 40,
    activation: str = "tanh",
    init: str = "normal",
    bias_std: float = 0.0,
    noise_std: float = 0.0,
    spectrum_start: float = 0.0,
    spectrum_stop: float = -5.0,
) -> Dataset:
    """Y = f*(X) + noise_std * E, with x ~ N(0, Q diag(lambda) Q^T) (Bernacchia, ICML 2025, experiments).

    lambda = logspace(spectrum_start, spectrum_stop, input_size) in powers of 10 are the eigenvalues of
    the input *covariance* (variances, so standard deviations are their square roots), Q a uniformly
    random orthogonal matrix. The teacher f* has sizes input_size, *hidden, output_size, weights N(0,
    1/fan_in) (`init` normal) or N(0, 1/fan_in^2) (narrow_normal), biases N(0, bias_std^2) (0: no biases),
    `activation` between the layers and none at the output; E is standard normal, on both splits. Train and
    test rows share teacher and Q.

    All draws come from `seed` alone, in separate streams: another `num_train` leaves teacher and test
    rows as they were. float64, inputs [N, input_size], targets [N, output_size].

    `references["linear least squares"]` is the test loss ||X W - Y||_F^2 / (2n) of the linear
    least-squares fit to the training rows; the fit has an intercept exactly when bias_std > 0.

    Raises ValueError or TypeError for a number out of range or an unknown activation or init.
    """
    sizes = [input_size, *hidden, output_size]
    _check_counts(seed=seed, num_train=num_train, num_test=num_test, sizes=sizes)
    finite_number("bias_std", bias_std, least=0.0)
    finite_number("noise_std", noise_std, least=0.0)
    if activation not in TEACHER_ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(TEACHER_ACTIVATIONS)}, got {activation!r}")
    if init not in TEACHER_EXPONENTS:
        raise ValueError(f"init must be one of {', '.join(TEACHER_EXPONENTS)}, got {init!r}")

    teacher_stream, train_stream, test_stream = _streams(seed, 3)
    root = _covariance_root(input_size, spectrum_start, spectrum_stop, teacher_stream)  # [d, d]
    layers = _teacher(sizes, TEACHER_EXPONENTS[init], bias_std, teacher_stream)

    def draw(rows: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(rows, input_size, generator=stream, dtype=torch.float64) @ root  # [N, d]
        outputs = _forward(layers, TEACHER_ACTIVATIONS[activation], inputs)  # [N, C]
        noise = torch.randn(outputs.shape, generator=stream, dtype=torch.float64)  # [N, C]
        return inputs, outputs + noise_std * noise

    train_inputs, train_targets = draw(num_train, train_stream)
    test_inputs, test_targets = draw(num_test, test_stream)
    reference = least_squares_test_loss(train_inputs, train_targets, test_inputs, test_targets, intercept=bias_std > 0)
    return Dataset(
        name="teacher_student",
        train_inputs=train_inputs,
        train_targets=train_targets,
        test_inputs=test_inputs,
        test_targets=test_targets,
        num_classes=None,
        references={"linear least squares": reference},
    )


def least_squares_test_loss(
    train_inputs: Tensor, train_targets: Tensor, test_inputs: Tensor, test_targets: Tensor, *, intercept: bool
) -> float:
    """||X' W - Y'||_F^2 / (2 n') with W = argmin ||X W - Y||_F (least norm where it is not unique).

    X, Y: train [N, d], [N, C]; X', Y': test. `intercept` appends a column of ones to X and X'.
    """
    if intercept:
        train_inputs = torch.cat([train_inputs, torch.ones_like(train_inputs[:, :1])], dim=1)  # [N, d + 1]
        test_inputs = torch.cat([test_inputs, torch.ones_like(test_inputs[:, :1])], dim=1)
    weights = torch.linalg.lstsq(train_inputs, train_targets, driver="gelsd").solution  # [d, C]
    residual = test_inputs @ weights - test_targets  # [N', C]
    return float(residual.square().sum() / (2 * residual.shape[0]))


def _check_counts(*, seed: int, num_train: int, num_test: int, sizes: Sequence[int]) -> None:
    whole_number("seed", seed, least=0)
    whole_number("num_train", num_train, least=1)
    whole_number("num_test", num_test, least=1)
    whole_number("input_size", sizes[0], least=1)
    whole_number("output_size", sizes[-1], least=1)
    for width in sizes[1:-1]:
        whole_number("hidden", width, least=1)


def _streams(seed: int, count: int) -> list[torch.Generator]:
    root = torch.Generator().manual_seed(seed)
    seeds = torch.randint(2**62, (count,), generator=root)
    return [torch.Generator().manual_seed(int(stream_seed)) for stream_seed in seeds]


def _covariance_root(size: int, start: float, stop: float, generator: torch.Generator) -> Tensor:
    """diag(sqrt(lambda)) Q^T: rows of standard normals times it have covariance Q diag(lambda) Q^T."""
    gaussian = torch.randn(size, size, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)  # [d, d], [d, d]
    q = q * r.diagonal().sign()  # Haar measure: makes the factorisation unique
    finite_number("spectrum_start", start)
    finite_number("spectrum_stop", stop)
    eigenvalues = torch.logspace(start, stop, size, dtype=torch.float64)  # [d]
    return eigenvalues.sqrt()[:, None] * q.T  # [d, d]


def _teacher(sizes: Sequence[int], exponent: float, bias_std: float, generator: torch.Generator) -> list[Layer]:
    layers = []
    for fan_in, fan_out in pairwise(sizes):
        weight = torch.randn(fan_out, fan_in, generator=generator, dtype=torch.float64) * fan_in**exponent
        bias = bias_std * torch.randn(fan_out, generator=generator, dtype=torch.float64)
        layers.append((weight, bias))
    return layers


def _forward(layers: Sequence[Layer], activation: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    hidden = inputs  # [N, d]
    for index, (weight, bias) in enumerate(layers):
        hidden = hidden @ weight.T + bias  # [N, out]
        if index < len(layers) - 1:
            hidden = activation(hidden)
    return hidden
