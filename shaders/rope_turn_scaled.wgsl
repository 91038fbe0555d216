// One invocation turns one pair (j, j + d/2) of one head by its position times the pair's rate, divided by its factor.
// Where the factor is 1 whole turns drop out of a product of integers (as in rope_turn.wgsl), and far positions lose no
// digits.
fn angle(at: u32, j: u32, factor: f32) -> f32 {
    if (factor == 1.0) {
        let more = (at >> 16u) * rests[j] + (((at & 0xffffu) * rests[j]) >> 16u);
        return f32(bitcast<i32>(at * rates[j] + more)) * 1.4629180792671596e-9;  // 2 pi / 2^32
    }
    let whole = f32(at) * (bitcast<f32>(speeds[j]) / factor);
    return whole - floor(whole * 0.15915494309189535) * 6.283185307179586;
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
