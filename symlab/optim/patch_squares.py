"""Second moments of the patches that a convolution sees, without all patches in memory.

Legend: B rows;  C  channels;  kh, kw  kernel;  Hp, Wp  height and width with padding;  H, W  of the output;  T = H W;
n = C kw  features of a patch's row;  m = B W.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


def patch_squares(module: nn.Conv2d, x: Tensor) -> tuple[Tensor, Tensor, int]:
    """(sum of u u^T [D, D], sum of u [D], number of terms B T) over the patches u of inputs x [B, C, height, width].

    D = C kh kw, in the order of the kernel's weights. Where the vertical stride is 1, products of two kernel rows
    depend on their distance alone, up to the rows at the edge: kh products of features in place of kh^2.
    """
    padding = padding_of(module)
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    padded = functional.pad(x, padding, mode=mode) if any(padding) else x
    if module.stride[0] != 1:
        u = functional.unfold(padded, module.kernel_size, dilation=module.dilation, stride=module.stride)
        flat = u.transpose(0, 1).reshape(u.shape[1], -1)  # [D, B T]
        return flat @ flat.mT, flat.sum(1), flat.shape[1]
    return _by_rows(padded, module)


def padding_of(module: nn.Conv2d) -> list[int]:
    """[left, right, top, bottom] as numbers."""
    if isinstance(module.padding, str):
        sizes = zip(module.dilation, module.kernel_size, strict=True)
        totals = [d * (k - 1) if module.padding == "same" else 0 for d, k in sizes]
        pairs = [(total // 2, total - total // 2) for total in totals]
    else:
        pairs = [(int(p), int(p)) for p in module.padding]
    return [*pairs[1], *pairs[0]]


def _by_rows(padded: Tensor, module: nn.Conv2d) -> tuple[Tensor, Tensor, int]:
    kh, kw = module.kernel_size
    step, dw = module.dilation
    B, C, Hp, Wp = padded.shape
    H, W = Hp - step * (kh - 1), (Wp - dw * (kw - 1) - 1) // module.stride[1] + 1
    columns = [padded[..., b * dw : b * dw + (W - 1) * module.stride[1] + 1 : module.stride[1]] for b in range(kw)]
    rows = torch.stack(columns).permute(2, 0, 3, 1, 4).reshape(C * kw, Hp, B * W)  # [n, Hp, m]
    squares = padded.new_empty(C, kh, kw, C, kh, kw)
    for lag in range(kh):
        for a, block in enumerate(_products(rows, H, step, kh - lag, lag * step)):
            block = block.reshape(C, kw, C, kw)
            squares[:, a, :, :, a + lag] = block
            squares[:, a + lag, :, :, a] = block.permute(2, 3, 0, 1)
    sums = torch.stack([rows[:, a * step : a * step + H].sum((1, 2)) for a in range(kh)], dim=1)  # [n, kh]
    D = C * kh * kw
    return squares.reshape(D, D), sums.reshape(C, kw, kh).transpose(1, 2).reshape(D), B * H * W


def _products(rows: Tensor, H: int, step: int, windows: int, lag: int) -> list[Tensor]:
    """Sum of rows[:, i] rows[:, i + lag]^T [n, n] over i in [a step, a step + H), for each a < windows.

    What all windows share is computed once, and every row outside of it once.
    """
    last = (windows - 1) * step  # start of the last window

    def product(start: int, stop: int) -> Tensor:
        return rows[:, start:stop].flatten(1) @ rows[:, start + lag : stop + lag].flatten(1).mT

    core = [product(last, H)] if last < H else []  # none where the windows are far apart
    edge = {i: product(i, i + 1) for i in range(last + H) if not last <= i < H}
    windows_of_rows = [range(a * step, a * step + H) for a in range(windows)]
    return [torch.stack([edge[i] for i in window if i in edge] + core).sum(0) for window in windows_of_rows]
