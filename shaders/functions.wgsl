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

// What a / b leaves, with the sign of a: exact, by division of the 24 bits of the numbers, 8 bits of the quotient a turn.
fn remainder(a: f32, b: f32) -> f32 {
    let size_a = bitcast<u32>(a) & 0x7fffffffu;
    let size_b = bitcast<u32>(b) & 0x7fffffffu;
    let lost = size_a >= 0x7f800000u || size_b > 0x7f800000u || size_b == 0u;
    if (lost || size_a < size_b) {
        return bitcast<f32>(select(bitcast<u32>(a), 0x7fc00000u, lost));
    }
    let power = max(size_b >> 23u, 1u);
    let divisor = (size_b & 0x7fffffu) | select(0u, 0x800000u, size_b >= 0x800000u);
    var left = ((size_a & 0x7fffffu) | select(0u, 0x800000u, size_a >= 0x800000u)) % divisor;
    for (var bits = max(size_a >> 23u, 1u) - power; bits > 0u; bits -= min(bits, 8u)) {
        left = (left << min(bits, 8u)) % divisor;
    }
    let up = min(countLeadingZeros(left) - 8u, power - 1u); // to the leading bit, or to the smallest power
    let exponent = select(0u, power - up, (left << up) >= 0x800000u);
    return bitcast<f32>((exponent << 23u) | ((left << up) & 0x7fffffu) | (bitcast<u32>(a) & 0x80000000u));
}

// The same with the sign of b.
fn modulus(a: f32, b: f32) -> f32 {
    let left = remainder(a, b);
    return select(left, left + b, (left < 0.0 && b > 0.0) || (left > 0.0 && b < 0.0));
}

// ln(1 + x) with all digits of a small x: 2 artanh(x / (2 + x)) by its series.
fn log1p(x: f32) -> f32 {
    let s = x / (2.0 + x);
    let t = s * s;
    let near = 2.0 * s * (1.0 + t * (1.0 / 3.0 + t * (0.2 + t * (1.0 / 7.0 + t * (1.0 / 9.0 + t / 11.0)))));
    return select(log(1.0 + x), near, abs(x) < 0.5);
}

// e^x - 1 with all digits of a small x, by its series.
fn expm1(x: f32) -> f32 {
    let inner = 1.0 / 6.0 + x * (1.0 / 24.0 + x * (1.0 / 120.0 + x * (1.0 / 720.0 + x * (1.0 / 5040.0 + x / 40320.0))));
    return select(exp(x) - 1.0, x + x * x * (0.5 + x * inner), abs(x) < 0.5);
}

// A driver's tanh is good to 1e-7 of 1, which a small x is not: there by its series.
fn tanh_precise(x: f32) -> f32 {
    let t = x * x;
    let inner = t * (2.0 / 15.0 - t * (17.0 / 315.0 - t * (62.0 / 2835.0 - t * (1382.0 / 155925.0))));
    return select(tanh(x), x - x * (t / 3.0 - t * inner), abs(x) < 0.35);
}

// x less whole turns, with the sign of x. The remainder is exact; each turn that was taken was too long by the error of
// 2 pi as a number of 32 bits.
fn less_turns(x: f32) -> f32 {
    let left = remainder(x, 6.2831855);
    return remainder(left + round((x - left) / 6.2831855) * 1.7484555e-7, 6.2831855);
}

// sin x for |x| <= pi / 2: the series of Maclaurin, error 6e-8.
fn sin_of_quarter(x: f32) -> f32 {
    let t = x * x;
    return x * (1.0 - t * (1.0 / 6.0 - t * (1.0 / 120.0 - t * (1.0 / 5040.0 - t * (1.0 / 362880.0 - t / 39916800.0)))));
}

// WGSL's own sine promises an error of 2^-11, and only up to pi.
fn sin_precise(x: f32) -> f32 {
    if (abs(x) < 1.5707964) {
        return sin_of_quarter(x);
    }
    let turned = less_turns(x);
    let size = abs(turned);
    let half = size - 3.1415927;
    return sign(turned) * -sign(half) * sin_of_quarter(1.5707964 - abs(abs(half) - 1.5707964));
}

fn cos_precise(x: f32) -> f32 {
    return sin_of_quarter(abs(abs(less_turns(x)) - 3.1415927) - 1.5707964);
}

// x, but no compiler can know it: a constant 1.0 / 0.0 is an error, x / 0.0 is 0 on some drivers, and what two ops make
// of a finite number is folded into one. (With floats, select(x, 1.0, never) is multiplied through.)
fn at_run_time(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) | u32(arrayLength(&out) == 0u));
}

// A row whose maximum is NaN or an infinity has no softmax: NaN, else `value`.
fn lost(highest: f32, value: f32) -> f32 {
    let bits = bitcast<u32>(highest);
    return bitcast<f32>(select(bitcast<u32>(value), 0x7fc00000u, (bits & 0x7f800000u) == 0x7f800000u));
}

// No literal has it, and a constant expression must not.
fn infinity() -> f32 {
    return bitcast<f32>(select(0x7f800000u, 0u, arrayLength(&out) == 0u));
}

// The upper 32 bits of a product, by halves of 16.
fn high_of_product(a: u32, b: u32) -> u32 {
    let low_high = (a & 0xffffu) * (b >> 16u);
    let high_low = (a >> 16u) * (b & 0xffffu);
    let middle = (((a & 0xffffu) * (b & 0xffffu)) >> 16u) + (low_high & 0xffffu) + (high_low & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (low_high >> 16u) + (high_low >> 16u) + (middle >> 16u);
}

// Four random words of a counter and a key: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, 2011).
fn philox(counter: vec4<u32>, key_low: u32, key_high: u32) -> vec4<u32> {
    var c = counter;
    var k0 = key_low;
    var k1 = key_high;
    for (var round = 0u; round < 10u; round++) {
        let high0 = high_of_product(c.x, 0xd2511f53u);
        let high1 = high_of_product(c.z, 0xcd9e8d57u);
        c = vec4<u32>(high1 ^ c.y ^ k0, c.z * 0xcd9e8d57u, high0 ^ c.w ^ k1, c.x * 0xd2511f53u);
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return c;
}

// ln x of a normal number above 0, good to 2e-7 next to 1 as well, where a driver's logarithm may not be.
fn log_of_fraction(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    var power = f32(bits >> 23u) - 127.0;
    var m = bitcast<f32>((bits & 0x7fffffu) | 0x3f800000u);
    if (m > 1.4142135) {
        m *= 0.5;
        power += 1.0;
    }
    let s = (m - 1.0) / (m + 1.0);
    let t = s * s;
    return power * 0.6931472 + 2.0 * s * (1.0 + t * (1.0 / 3.0 + t * (0.2 + t * (1.0 / 7.0 + t / 9.0))));
}

// cos 2 pi u for u in [0, 1), good to 2e-7 of 1: an eighth of a turn is all that a polynomial has to cover.
fn cos_of_turn(u: f32) -> f32 {
    let folded = min(u, 1.0 - u);
    let quarter = min(folded, 0.5 - folded);
    let a = 6.2831855 * min(quarter, 0.25 - quarter);
    let t = a * a;
    let near = 1.0 - t * (0.5 - t * (1.0 / 24.0 - t * (1.0 / 720.0 - t / 40320.0)));
    let far = a * (1.0 - t * (1.0 / 6.0 - t * (1.0 / 120.0 - t * (1.0 / 5040.0 - t / 362880.0))));
    let size = select(far, near, quarter <= 0.125);
    return select(size, -size, folded > 0.25);
}

// 2 sqrt(2 / pi) (x + 0.044715 x^3): gelu is x times the logistic function of it.
fn gelu_inner(x: f32) -> f32 {
    return 1.5957691216057308 * (x + 0.044715 * x * x * x);
}

// The largest of four running maxima; NaN where `bits`, the largest |bits| that went into them, are those of one.
fn highest_of(found: vec4<f32>, bits: vec4<u32>) -> f32 {
    let most = max(max(bits.x, bits.y), max(bits.z, bits.w));
    let highest = max(max(found.x, found.y), max(found.z, found.w));
    return bitcast<f32>(select(bitcast<u32>(highest), 0x7fc00000u, most > 0x7f800000u));
}

fn sum_of_four(x: vec4<f32>) -> f32 {
    return (x.x + x.y) + (x.z + x.w);
}

// The nearest bfloat16, ties to even: the upper half of the bits. A NaN gets the quiet bit, so that it stays one without
// the lower half.
fn round_bf16(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let near = (bits + 0x7fffu + ((bits >> 16u) & 1u)) & 0xffff0000u;
    return bitcast<f32>(select(near, (bits | 0x400000u) & 0xffff0000u, is_nan(x)));
}

// The nearest float16, ties to even: 11 bits, below 2^-14 a multiple of 2^-24, from 65520 on an infinity.
// A NaN as above.
fn round_f16(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let size = bits & 0x7fffffffu;
    let near = (size + 0xfffu + ((size >> 13u) & 1u)) & 0xffffe000u;
    let small = bitcast<u32>(round(bitcast<f32>(size) * 16777216.0) * 5.9604644775390625e-08);
    let wide = select(near, 0x7f800000u, near >= 0x47800000u);
    let number = select(wide, small, size < 0x38800000u) | (bits & 0x80000000u);
    return bitcast<f32>(select(number, (bits | 0x400000u) & 0xffffe000u, is_nan(x)));
}
