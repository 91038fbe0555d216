// One invocation turns one pair (j, j + d/2) of one head by its position times the pair's rate. A rate is a fraction of a
// full turn, 32 bits and 16 more: the product of two u32 drops whole turns by itself, so far positions lose no digits.
fn unit(u: u32) {
    let row = u / (HEADS * HALF);
    let j = u % HALF;
    let low = row * HEADS * HALF * 2u + u / HALF % HEADS * HALF * 2u + j;
    let at = position(row);
    let more = (at >> 16u) * rests[j] + (((at & 0xffffu) * rests[j]) >> 16u);
    let turns = bitcast<i32>(at * rates[j] + more);
    let angle = f32(turns) * 1.4629180792671596e-9;  // 2 pi / 2^32
    let cosine = cos(angle);
    let sine = select(sin(angle), -sin(angle), BACK == 1u);
    let x = x_at(low);
    let y = x_at(low + HALF);
    store(low, x * cosine - y * sine);
    store(low + HALF, x * sine + y * cosine);
}
