// Element k of row n of a matrix of codes: BITS bits of the row's stream, which begins at a whole byte. Times the step of its
// group of GROUP elements, plus the minimum.
fn weight(n: u32, k: u32) -> f32 {
    let bit = k * BITS;
    let byte = n * ROW_BYTES + bit / 8u;
    let shift = byte % 4u * 8u + bit % 8u;
    var code = codes_at(byte / 4u) >> shift;
    if (shift + BITS > 32u) {
        code |= codes_at(byte / 4u + 1u) << (32u - shift);
    }
    let group = n * GROUPS + k / GROUP;
    return scales_at(group) * f32(code & ((1u << BITS) - 1u)) + biases_at(group);
}
