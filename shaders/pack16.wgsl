// One word: two neighbours in 16 bits, the first in the lower half; behind an odd last one 0. BRAIN: of bfloat16, else of
// float16. By bits, because packing of the driver may flush what is small.
fn bits_of_half(x: f32) -> u32 {
    let bits = bitcast<u32>(round_f16(x));
    let size = bits & 0x7fffffffu;
    let small = u32(bitcast<f32>(size) * 16777216.0);
    let normal = select((size - 0x38000000u) >> 13u, small, size < 0x38800000u);
    let beyond = 0x7c00u | ((size >> 13u) & 0x3ffu);
    return ((bits >> 16u) & 0x8000u) | select(normal, beyond, size >= 0x7f800000u);
}

fn bits_of(x: f32) -> u32 {
    if (BRAIN == 1u) {
        return bitcast<u32>(round_bf16(x)) >> 16u;
    }
    return bits_of_half(x);
}

fn unit(i: u32) {
    var word = bits_of(x_at(2u * i));
    if (2u * i + 1u < COUNT) {
        word |= bits_of(x_at(2u * i + 1u)) << 16u;
    }
    store(i, word);
}
