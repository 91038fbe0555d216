// Four numbers, those of one Philox block: the upper 24 bits of each word times 2^-24.
fn unit(block: u32) {
    let words = philox(vec4<u32>(block, 0u, CALL, u32(step_low()) | (u32(step_high()) << 16u)), KEY_LOW, KEY_HIGH);
    for (var q = 0u; q < 4u; q++) {
        if (block * 4u + q < COUNT) {
            store(block * 4u + q, f32(words[q] >> 8u) * 0x1p-24f);
        }
    }
}
