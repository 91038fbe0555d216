// One word: two neighbours in bfloat16, the first in the lower half; behind an odd last one 0.
fn bits_of(x: f32) -> u32 {
    return bitcast<u32>(round_bf16(x)) >> 16u;
}

fn unit(i: u32) {
    var word = bits_of(x_at(2u * i));
    if (2u * i + 1u < COUNT) {
        word |= bits_of(x_at(2u * i + 1u)) << 16u;
    }
    store(i, word);
}
