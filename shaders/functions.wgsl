// Functions that kernels may call; the joiner copies those that are called. Tests of NaN are by bits, because a driver
// may assume that there is none.

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn abs_nan(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) & 0x7fffffffu);
}

fn sign_nan(x: f32) -> f32 {
    return select(sign(x), x, is_nan(x));
}

// The larger one; a NaN wins.
fn max_nan(a: f32, b: f32) -> f32 {
    return select(select(max(a, b), b, is_nan(b)), a, is_nan(a));
}

// The smaller one; a NaN wins.
fn min_nan(a: f32, b: f32) -> f32 {
    return select(select(min(a, b), b, is_nan(b)), a, is_nan(a));
}

fn relu_nan(x: f32) -> f32 {
    return select(max(x, 0.0), x, is_nan(x));
}

// 1 / (1 + e^-x) that never overflows inside.
fn sigmoid_stable(x: f32) -> f32 {
    let tail = exp(-abs(x));
    return select(select(tail, 1.0, x >= 0.0) / (1.0 + tail), x, is_nan(x));
}

// |x| to a power; anything to the power 0 is 1.
fn pow_abs(x: f32, exponent: f32) -> f32 {
    return select(select(pow(abs(x), exponent), 1.0, exponent == 0.0), x, is_nan(x) && exponent != 0.0);
}

// x, but no compiler can know it: a constant 1.0 / 0.0 is an error, and x / 0.0 is 0 on some drivers.
fn at_run_time(x: f32) -> f32 {
    return select(x, 1.0, arrayLength(&out) == 0u);
}

// A row whose maximum is NaN or an infinity has no softmax: NaN, else `value`.
fn lost(highest: f32, value: f32) -> f32 {
    let bits = bitcast<u32>(highest);
    return bitcast<f32>(select(bitcast<u32>(value), 0x7fc00000u, (bits & 0x7f800000u) == 0x7f800000u));
}
