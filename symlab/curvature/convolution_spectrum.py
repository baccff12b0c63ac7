"""All singular values of a convolution with circular padding, exactly, by Fourier transforms.

Legend: K [O, I, h, w]  kernel;  H x W  pixels of the input;  r  stride;  F(p) [O, I]  the kernel's transfer at
frequency p.
"""

import torch
from torch import Tensor


def convolution_singular_values(kernel: Tensor, height: int, width: int, stride: int = 1) -> Tensor:
    """Singular values [N], float64, ascending, of x [I, H, W] -> y [O, H / r, W / r] with circular padding.

    Stride 1: the union over the H W frequencies p of the singular values of F(p) = sum_d K[:, :, d] exp(-2 pi i p . d)
    (Sedghi, Gupta and Long, "The singular values of convolutional layers", ICLR 2019). Stride r: every r-th pixel of
    the result is kept, so the r^2 frequencies p, p + H/r e_1, ... of the input end up at one of the output: singular
    values of the [O, r^2 I] matrices (F(p_1) ... F(p_{r^2})) / r. N = min(r^2 I, O) H W / r^2, the smaller side.

    Raises:
        ValueError: a kernel that is not [O, I, h, w] or is larger than the image, a stride below 1 or one that does not
            divide H and W.
    """
    _check(kernel, height, width, stride)
    outputs, inputs = kernel.shape[:2]
    transfer = torch.fft.fft2(kernel.detach().double(), (height, width)).permute(2, 3, 0, 1)  # [H, W, O, I]
    small_h, small_w = height // stride, width // stride
    folded = transfer.reshape(stride, small_h, stride, small_w, outputs, inputs)  # p = q + (H / r) j
    folded = folded.permute(1, 3, 4, 0, 2, 5).reshape(small_h * small_w, outputs, stride**2 * inputs) / stride
    return torch.linalg.svdvals(folded).flatten().sort().values


def _check(kernel: Tensor, height: int, width: int, stride: int) -> None:
    if kernel.ndim != 4:
        raise ValueError(f"the kernel must be [O, I, h, w], got {list(kernel.shape)}")
    if kernel.shape[2] > height or kernel.shape[3] > width:
        raise ValueError(f"the kernel {list(kernel.shape[2:])} is larger than the image {height} x {width}")
    if not stride >= 1 or height % stride or width % stride:
        raise ValueError(f"the stride must be at least 1 and divide {height} x {width}, got {stride}")
