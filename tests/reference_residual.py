"""Residual nets from the mathematics, with loops: the rescaled pooling, and numbers of parameters by hand."""

import math

import torch

DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def rescaled_pooling_matrix(channels, out_channels, stride, height, width):
    """[out_channels H' W', channels H W]: 1 / sqrt(pixels of the window) at the pixels of the window."""
    high, wide = math.ceil(height / stride), math.ceil(width / stride)
    matrix = torch.zeros(out_channels, high, wide, channels, height, width, dtype=torch.float64)
    first = (out_channels - channels) // 2
    for c in range(channels):
        for i in range(high):
            for j in range(wide):
                pixels = [
                    (y, x)
                    for y in range(i * stride, min((i + 1) * stride, height))
                    for x in range(j * stride, min((j + 1) * stride, width))
                ]
                for y, x in pixels:
                    matrix[first + c, i, j, c, y, x] = 1 / math.sqrt(len(pixels))
    return matrix.reshape(out_channels * high * wide, channels * height * width)


def preact_parameters(depth, width, channels, classes, stem="cifar", final_norm=True):
    """Convolutions k k in out, batch norms 2 C, linear layer C classes + classes."""
    total, stream = (9 if stem == "cifar" else 49) * channels * width, width
    for stage, blocks in enumerate(DEPTHS[depth]):
        inner = width * 2**stage
        for position in range(blocks):
            out = inner if depth < 50 else 4 * inner
            if depth < 50:
                total += 2 * stream + 9 * stream * inner + 2 * inner + 9 * inner * inner
            else:
                total += 2 * stream + stream * inner + 2 * inner + 9 * inner**2 + 2 * inner + inner * out
            if position == 0 and (stage > 0 or stream != out):
                total += stream * out
            stream = out
    return total + (2 * stream if final_norm else 0) + stream * classes + classes


def wide_parameters(depth, widen, classes):
    """Of WRN-depth-widen for three colours, its stem 16 wide."""
    total, stream = 9 * 3 * 16, 16
    for stage in range(3):
        out = 16 * widen * 2**stage
        for _ in range((depth - 4) // 6):
            total += 2 * stream + 9 * stream * out + 2 * out + 9 * out * out
            total += stream * out if stream != out else 0
            stream = out
    return total + 2 * stream + stream * classes + classes
