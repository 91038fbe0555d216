// The values that the weights of the keys multiply.
fn value4(key: u32, head: u32, c: u32) -> vec4<f32> {
    let at = (key * KV_HEADS + head) * D + c;
    if (D % 4u == 0u) {
        return v_four(at);
    }
    return vec4<f32>(
        v_at(at),
        select(0.0, v_at(at + select(0u, 1u, c + 1u < D)), c + 1u < D),
        select(0.0, v_at(at + select(0u, 2u, c + 2u < D)), c + 2u < D),
        select(0.0, v_at(at + select(0u, 3u, c + 3u < D)), c + 3u < D),
    );
}

fn second_value4(key: u32, head: u32, c: u32) -> vec4<f32> {
    return vec4<f32>();
}
