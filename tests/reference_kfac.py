"""Kronecker factors and blocks of the Gauss-Newton matrix written out with loops. Imports nothing from symlab.

Everything in float64. A block's weights are those of one layer, as a matrix [O, D] flattened row by row, the bias as
last column; so it is G (x) A, with A [D, D] of inputs and G [O, O] of outputs.
"""

import torch
from torch.nn import functional


def layer_blocks(model, layers, inputs, kind):
    """The Gauss-Newton block of each layer in `layers`, from derivatives of single outputs of single rows.

    kind "mse": loss ||f - y||^2 / 2, H = I; "nll": H = diag(p) - p p^T.
    """
    blocks = [0] * len(layers)
    for x in inputs:
        f = model(x[None])[0]
        H = torch.eye(len(f), dtype=f.dtype)
        if kind == "nll":
            p = torch.softmax(f, 0).detach()
            H = torch.diag(p) - torch.outer(p, p)
        parameters = [p for layer in layers for p in layer.parameters()]
        rows = [torch.autograd.grad(output, parameters, retain_graph=True) for output in f]
        for i, layer in enumerate(layers):
            mine = [j for j, p in enumerate(parameters) if any(p is q for q in layer.parameters())]
            jacobian = torch.stack(
                [torch.cat([row[j].reshape(len(row[j]), -1) for j in mine], dim=1).flatten() for row in rows]
            )
            blocks[i] = blocks[i] + jacobian.T @ H @ jacobian / len(inputs)
    return blocks


def conv_positions(layer, image):
    """Inputs [T, D] that each output position of a convolution sees, picked pixel by pixel from [C, H, W]."""
    (kh, kw), (sh, sw), (dh, dw) = layer.kernel_size, layer.stride, layer.dilation
    if layer.padding == "same":
        top, left = dh * (kh - 1) // 2, dw * (kw - 1) // 2
        bottom, right = dh * (kh - 1) - top, dw * (kw - 1) - left
    else:
        top, left = (0, 0) if layer.padding == "valid" else layer.padding
        bottom, right = top, left
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    image = functional.pad(image[None], (left, right, top, bottom), mode=mode)[0]
    channels, height, width = image.shape
    rows = []
    for i in range(0, height - dh * (kh - 1), sh):
        for j in range(0, width - dw * (kw - 1), sw):
            seen = [image[c, i + a * dh, j + b * dw] for c in range(channels) for a in range(kh) for b in range(kw)]
            rows.append(torch.stack(seen + ([torch.ones_like(seen[0])] if layer.bias is not None else [])))
    return torch.stack(rows)


def damped_step(A, G, gradient, input_damping, output_damping):
    """((G + d I) (x) (A + e I))^-1 vec(gradient) by a dense solve; gradient [O, D]."""
    eye = torch.eye
    left = G + output_damping * eye(len(G), dtype=G.dtype)
    right = A + input_damping * eye(len(A), dtype=A.dtype)
    return torch.linalg.solve(torch.kron(left, right), gradient.flatten()).reshape(gradient.shape)
