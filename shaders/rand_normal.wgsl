// Four numbers, those of two Philox blocks: sqrt(-2 ln u1) cos(2 pi u2) of each pair of words.
fn unit(quad: u32) {
    let now = u32(step_low()) | (u32(step_high()) << 16u);
    for (var half = 0u; half < 2u; half++) {
        let words = philox(vec4<u32>(2u * quad + half, 0u, CALL, now), KEY_LOW, KEY_HIGH) >> vec4<u32>(8u);
        for (var q = 0u; q < 2u; q++) {
            let i = quad * 4u + half * 2u + q;
            if (i < COUNT) {
                let u1 = f32(words[2u * q] + 1u) * 0x1p-24f;
                let u2 = f32(words[2u * q + 1u]) * 0x1p-24f;
                store(i, sqrt(-2.0 * log_of_fraction(u1)) * cos_of_turn(u2));
            }
        }
    }
}
