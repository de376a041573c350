"""Convolutions of many lanes in Triton: products with patches that are gathered on the fly.

A lane is the place of one client in a stacked computation.

The patches of an image are a matrix: entry (m, k) is what the k-th weight of a filter sees at the m-th
pixel of the output. Its place in memory is a sum of one number for k and one for m, so that it costs an
addition to find; where it lies outside the image it is zero and is not read.

Filters with few weights have channels first in images: a program keeps to its pixels and goes over images,
so that places are found once. For others (deep) channels come last, where neighbouring weights see
neighbouring numbers. Results of convolutions, and so their gradients, always have channels last. Sizes of
images and filters are constants of a kernel: divisions by them cost next to nothing.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _halves(tile):
    """Two tiles of 16 bits whose sum is, up to the last bits, a tile of full floats.

    In the hardware's words, because the compiler would turn a tile before it halves it.
    """
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 first, second;
        cvt.rn.bf16x2.f32 $0, $3, $2;
        shl.b32 first, $0, 16;
        and.b32 second, $0, 0xffff0000;
        sub.f32 first, $2, first;
        sub.f32 second, $3, second;
        cvt.rn.bf16x2.f32 $1, second, first;
        }""",
        "=&r,=r,r,r",
        [tile],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=False,
        pack=2,
    )


@triton.jit
def _product(a, b, sums, PRECISION: tl.constexpr, TURN: tl.constexpr):
    """The sums with the product of two tiles added, of which TURN says that the first one is to be turned.

    Products of full floats want the summed axis contiguous in shared memory, those of 16 bits do not mind.
    So "turned" takes a full float as two halves before it is turned, which is faster and more exact than
    one product of "tf32".
    """
    if a.dtype != tl.float32:
        sums = tl.dot(tl.trans(a) if TURN else a, b, sums)
    elif PRECISION == "turned":
        high_a, low_a = _halves(a)
        high_b, low_b = _halves(b)
        if TURN:
            high_a, low_a = tl.trans(high_a), tl.trans(low_a)
        sums = tl.dot(low_a, high_b, sums)
        sums = tl.dot(high_a, low_b, sums)
        sums = tl.dot(high_a, high_b, sums)
    else:
        sums = tl.dot(tl.trans(a) if TURN else a, b, sums, input_precision=PRECISION)
    return sums


@triton.jit
def _inside(place, size):
    """Whether places along an axis are in the image: a negative one is a large number without a sign."""
    return place.to(tl.uint32) < size


@triton.jit
def _planar(m, k, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
            KY: tl.constexpr, KX: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr):  # fmt: skip
    """The places of patches [k, m] in an image with channels first, and which of them there are."""
    y = (m // OW - PY)[None, :] + (k // KX % KY)[:, None]
    x = (m % OW - PX)[None, :] + (k % KX)[:, None]
    use = (m < OH * OW)[None, :] & (k < C * KY * KX)[:, None]
    if PY > 0:
        use = use & _inside(y, H)
    if PX > 0:
        use = use & _inside(x, W)
    return (k // (KY * KX) * (H * W))[:, None] + y * W + x, use


@triton.jit(do_not_specialize=["share"])
def convolve(
    x, weight, bias, out, batch, share,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, FILTERS: tl.constexpr, OH: tl.constexpr,
    OW: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr,
    F: tl.constexpr, K: tl.constexpr, M: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Some pixels of a share of images: out[m, f] = bias[f] + sum over k of patches[m, k] weight[f, k]."""
    lane = tl.program_id(2).to(tl.int64)
    tiles: tl.constexpr = (FILTERS + F - 1) // F
    depth: tl.constexpr = C * KY * KX
    m = (tl.program_id(0) // tiles) * M + tl.arange(0, M)
    f = (tl.program_id(0) % tiles) * F + tl.arange(0, F)
    k = tl.arange(0, K)
    places, use = _planar(m, k, C, H, W, OH, OW, KY, KX, PY, PX)
    some = (k < depth)[:, None] & (f < FILTERS)[None, :]
    weights = tl.load(weight + (lane * FILTERS + f)[None, :] * depth + k[:, None], mask=some, other=0.0)
    biases = tl.load(bias + lane * FILTERS + f, mask=f < FILTERS, other=0.0).to(tl.float32)
    ends = m[:, None] * FILTERS + f[None, :]
    write = (m < OH * OW)[:, None] & (f < FILTERS)[None, :]
    first = tl.program_id(1) * share
    for image in range(first, tl.minimum(first + share, batch)):
        row = lane * batch + image
        patches = tl.load(x + row * (C * H * W) + places, mask=use, other=0.0)
        products = tl.zeros((M, F), dtype=tl.float32)
        products = _product(patches, weights, products, PRECISION, True)
        tl.store(out + row * (OH * OW * FILTERS) + ends, products + biases[None, :], mask=write)


@triton.jit(do_not_specialize=["share"])
def correlate(
    x, grad, of_weight, of_bias, batch, share,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, FILTERS: tl.constexpr, OH: tl.constexpr,
    OW: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr,
    F: tl.constexpr, K: tl.constexpr, M: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A part is some pixels of a share of images: of_weight[part, f, k] = sum of grad[m, f] patches[m, k]."""
    lane = tl.program_id(2).to(tl.int64)
    tiles: tl.constexpr = (OH * OW + M - 1) // M
    depth: tl.constexpr = C * KY * KX
    part = tl.program_id(0)
    m = (part % tiles) * M + tl.arange(0, M)
    f = tl.program_id(1) * F + tl.arange(0, F)
    k = tl.arange(0, K)
    places, use = _planar(m, k, C, H, W, OH, OW, KY, KX, PY, PX)
    begins = m[:, None] * FILTERS + f[None, :]
    read = (m < OH * OW)[:, None] & (f < FILTERS)[None, :]
    sums = tl.zeros((K, F), dtype=tl.float32)
    biases = tl.zeros((M, F), dtype=tl.float32)
    first = (part // tiles) * share
    for image in range(first, tl.minimum(first + share, batch)):
        row = lane * batch + image
        patches = tl.load(x + row * (C * H * W) + places, mask=use, other=0.0)
        grads = tl.load(grad + row * (OH * OW * FILTERS) + begins, mask=read, other=0.0)
        sums = _product(patches, grads, sums, PRECISION, False)
        biases += grads.to(tl.float32)
    row = ((lane * tl.num_programs(0) + part) * FILTERS + f).to(tl.int64)
    use = (k < depth)[:, None] & (f < FILTERS)[None, :]
    tl.store(of_weight + row[None, :] * depth + k[:, None], sums, mask=use)
    tl.store(of_bias + row, tl.sum(biases, 0), mask=f < FILTERS)


@triton.jit
def _taps(first, C: tl.constexpr, KX: tl.constexpr, K: tl.constexpr):
    """Row, column and channel that weights of a filter see, from the first one on, as [1, k]."""
    if C % K == 0:  # all of them look at one pixel
        tap, channel = first // C, (first % C + tl.arange(0, K))[None, :]
    else:
        tap, channel = ((first + tl.arange(0, K)) // C)[None, :], ((first + tl.arange(0, K)) % C)[None, :]
    return tap // KX, tap % KX, channel


@triton.jit
def _patches(
    x, y, left, use, first, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KY: tl.constexpr,
    KX: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """Patches [m, k] of images with channels last, from the first of some weights on.

    x points at the corners of the patches, [m, 1], which are at row y and at column left and need not be
    within an image; V neighbouring channels surely lie in one aligned piece.
    """
    row, column, channel = _taps(first, C, KX, K)
    if (KY * KX * C) % K != 0:
        use = use & (first + tl.arange(0, K) < KY * KX * C)[None, :]
    if PY > 0:
        use = use & _inside(y + row, H)
    if PX > 0:
        use = use & _inside(left + column, W)
    places = tl.max_contiguous(tl.multiple_of((row * W + column) * C + channel, [1, V]), [1, V])
    use = tl.max_constancy(tl.broadcast_to(use, (x.shape[0], K)), [1, V])
    return tl.load(x + places, mask=use, other=0.0)


@triton.jit
def _corners(m, OH: tl.constexpr, OW: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr):
    """The image, the row and the column at which patches [m, 1] begin; m counts over all images."""
    pixel = (m % (OH * OW))[:, None]
    return (m // (OH * OW))[:, None], pixel // OW - PY, pixel % OW - PX


@triton.jit
def convolve_deep(
    x, weight, bias, out, batch,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, FILTERS: tl.constexpr, OH: tl.constexpr,
    OW: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr,
    F: tl.constexpr, K: tl.constexpr, M: tl.constexpr, V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What `convolve` computes, with channels last in images and filters; m counts over all images."""
    lane = tl.program_id(2).to(tl.int64)
    depth: tl.constexpr = KY * KX * C
    total = batch * (OH * OW)
    m = tl.program_id(0) * M + tl.arange(0, M)
    f = tl.program_id(1) * F + tl.arange(0, F)
    image, y, left = _corners(m, OH, OW, PY, PX)
    begin = x + lane * batch * (H * W * C) + ((image * H + y) * W + left) * C
    weights = weight + (lane * FILTERS + f)[:, None] * depth
    products = tl.zeros((M, F), dtype=tl.float32)
    for first in range(0, depth, K):
        patches = _patches(begin, y, left, (m < total)[:, None], first, C, H, W, KY, KX, PY, PX, K, V)
        k = (first + tl.arange(0, K))[None, :]
        filtering = tl.load(weights + k, mask=(f < FILTERS)[:, None] & (k < depth), other=0.0)
        products = tl.dot(patches, tl.trans(filtering), products, input_precision=PRECISION)
    products += tl.load(bias + lane * FILTERS + f, mask=f < FILTERS, other=0.0).to(tl.float32)[None, :]
    place = out + lane * total * FILTERS + m[:, None] * FILTERS + f[None, :]
    tl.store(place, products, mask=(m < total)[:, None] & (f < FILTERS)[None, :])


@triton.jit
def _sums(
    x, grad, f, first_k, begin, end, sums,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, FILTERS: tl.constexpr, OH: tl.constexpr,
    OW: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr,
    F: tl.constexpr, K: tl.constexpr, M: tl.constexpr, V: tl.constexpr, PRECISION: tl.constexpr,
    BIAS: tl.constexpr,
):  # fmt: skip
    """The sum over a range of m of grad[m, f] patches[m, k], and with BIAS of grad[m, f] alone."""
    biases = tl.zeros((M, F), dtype=tl.float32)
    for first in range(begin, end, M):
        m = first + tl.arange(0, M)
        image, y, left = _corners(m, OH, OW, PY, PX)
        corners = x + ((image * H + y) * W + left) * C
        patches = _patches(corners, y, left, (m < end)[:, None], first_k, C, H, W, KY, KX, PY, PX, K, V)
        use = (m < end)[:, None] & (f < FILTERS)[None, :]
        grads = tl.load(grad + m[:, None] * FILTERS + f[None, :], mask=use, other=0.0)
        if F < 64:  # the hardware's large products have 64 rows
            sums = _product(patches, grads, sums, PRECISION, True)
        else:
            sums = _product(grads, patches, sums, PRECISION, True)
        if BIAS:
            biases += grads.to(tl.float32)
    return sums, tl.sum(biases, 0)


@triton.jit
def correlate_deep(
    x, grad, of_weight, of_bias, batch, share,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, FILTERS: tl.constexpr, OH: tl.constexpr,
    OW: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr,
    F: tl.constexpr, K: tl.constexpr, M: tl.constexpr, V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What `correlate` computes, with channels last in images and filters, for a share of all pixels."""
    lane = tl.program_id(2).to(tl.int64)
    part = tl.program_id(0)
    depth: tl.constexpr = KY * KX * C
    tiles: tl.constexpr = (depth + K - 1) // K
    total = batch * (OH * OW)
    tile = tl.program_id(1) % tiles
    f = (tl.program_id(1) // tiles) * F + tl.arange(0, F)
    begin, end = part * share, tl.minimum((part + 1) * share, total)
    images, grads = x + lane * batch * (H * W * C), grad + lane * total * FILTERS
    sums = tl.zeros((K, F) if F < 64 else (F, K), dtype=tl.float32)
    row = ((lane * tl.num_programs(0) + part) * FILTERS + f).to(tl.int64)
    if tile == 0:
        sums, biases = _sums(
            images, grads, f, 0, begin, end, sums,
            C, H, W, FILTERS, OH, OW, KY, KX, PY, PX, F, K, M, V, PRECISION, True,
        )  # fmt: skip
        tl.store(of_bias + row, biases, mask=f < FILTERS)
    else:
        sums, _ = _sums(
            images, grads, f, tile * K, begin, end, sums,
            C, H, W, FILTERS, OH, OW, KY, KX, PY, PX, F, K, M, V, PRECISION, False,
        )  # fmt: skip
    k = tile * K + tl.arange(0, K)
    if F < 64:
        place, use = row[None, :] * depth + k[:, None], (f < FILTERS)[None, :] & (k < depth)[:, None]
    else:
        place, use = row[:, None] * depth + k[None, :], (f < FILTERS)[:, None] & (k < depth)[None, :]
    tl.store(of_weight + place, sums, mask=use)


@triton.jit(do_not_specialize=["share"])
def square_deep(
    x, grad, weight, of_weight, of_bias, batch, share,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, FILTERS: tl.constexpr, OH: tl.constexpr,
    OW: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr,
    F: tl.constexpr, K: tl.constexpr, M: tl.constexpr, V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The squares of what `correlate_deep` finds for one image, times its weight, summed over a share."""
    lane = tl.program_id(2).to(tl.int64)
    part = tl.program_id(0)
    depth: tl.constexpr = KY * KX * C
    tiles: tl.constexpr = (depth + K - 1) // K
    tile = tl.program_id(1) % tiles
    f = (tl.program_id(1) // tiles) * F + tl.arange(0, F)
    images, grads = x + lane * batch * (H * W * C), grad + lane * batch * (OH * OW * FILTERS)
    squares = tl.zeros((K, F) if F < 64 else (F, K), dtype=tl.float32)
    bias_squares = tl.zeros((F,), dtype=tl.float32)
    for image in range(part * share, tl.minimum((part + 1) * share, batch)):
        sums, biases = _sums(
            images, grads, f, tile * K, image * (OH * OW), (image + 1) * (OH * OW),
            tl.zeros((K, F) if F < 64 else (F, K), dtype=tl.float32),
            C, H, W, FILTERS, OH, OW, KY, KX, PY, PX, F, K, M, V, PRECISION, True,
        )  # fmt: skip
        counts = tl.load(weight + lane * batch + image)
        squares += counts * sums * sums
        bias_squares += counts * biases * biases
    row = ((lane * tl.num_programs(0) + part) * FILTERS + f).to(tl.int64)
    if tile == 0:
        tl.store(of_bias + row, bias_squares, mask=f < FILTERS)
    k = tile * K + tl.arange(0, K)
    if F < 64:
        place, use = row[None, :] * depth + k[:, None], (f < FILTERS)[None, :] & (k < depth)[:, None]
    else:
        place, use = row[:, None] * depth + k[None, :], (f < FILTERS)[:, None] & (k < depth)[None, :]
    tl.store(of_weight + place, squares, mask=use)


@triton.jit(do_not_specialize=["parts"])
def total(some, out, parts, size, N: tl.constexpr):
    """out[n] = sum over parts of some[part, n], for every lane."""
    lane = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * N + tl.arange(0, N)
    total = tl.zeros((N,), dtype=tl.float32)
    for part in range(parts):
        total += tl.load(some + (lane * parts + part) * size + n, mask=n < size, other=0.0)
    tl.store(out + lane * size + n, total, mask=n < size)
