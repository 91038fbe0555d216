// One invocation turns one pair (j, j + d/2) of one head by its position times the pair's rate, divided by its factor.
// A rate is a fraction of a turn in 48 bits (as in rope_turn.wgsl); its quotient by a factor m * 2^s is a long division
// in digits of 8 bits, so that whole turns drop out of the product and far positions lose no digits.
fn digit(j: u32, at: i32) -> u32 {  // bits at ... at + 7 of rate j
    if (at >= 16) {
        return (rates[j] >> u32(min(at - 16, 31))) & select(0u, 0xffu, at < 48);
    }
    if (at >= 0) {
        return ((rates[j] << u32(16 - at)) | (rests[j] >> u32(at))) & 0xffu;
    }
    return (rests[j] << u32(min(-at, 31))) & 0xffu;
}

fn angle(at: u32, j: u32, factor: f32) -> f32 {
    let exponent = (bitcast<u32>(factor) >> 23u) & 0xffu;
    let speed = bitcast<f32>(speeds[j]);
    if (exponent == 0u || exponent == 255u || speed >= 6.283185307179586) {  // 0, inf, NaN; more than a turn
        let whole = f32(at) * (speed / factor);
        return whole - floor(whole * 0.15915494309189535) * 6.283185307179586;
    }
    let m = (bitcast<u32>(factor) & 0x7fffffu) | 0x800000u;
    let s = i32(exponent) - 150;
    var left = 0u;
    var high = 0u;
    var low = 0u;
    for (var k = (55 - s) / 8 - 1; k >= 0; k--) {
        let part = (left << 8u) | digit(j, 8 * k + s);
        let q = part / m;
        left = part - q * m;
        high = (high << 8u) | (low >> 24u);
        low = (low << 8u) | q;
    }
    let rate = (high << 16u) | (low >> 16u);
    let rest = low & 0xffffu;
    let more = (at >> 16u) * rest + (((at & 0xffffu) * rest) >> 16u);
    let by = f32(bitcast<i32>(at * rate + more)) * 1.4629180792671596e-9;  // 2 pi / 2^32
    return select(by, -by, factor < 0.0);
}

fn unit(u: u32) {
    let row = u / (HEADS * HALF);
    let j = u % HALF;
    let low = row * HEADS * HALF * 2u + u / HALF % HEADS * HALF * 2u + j;
    let by = angle(position(row), j, freq_factors_at(j));
    let cosine = cos(by);
    let sine = select(sin(by), -sin(by), BACK == 1u);
    let x = x_at(low);
    let y = x_at(low + HALF);
    store(low, x * cosine - y * sine);
    store(low + HALF, x * sine + y * cosine);
}
