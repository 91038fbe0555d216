// The logarithm of the sum of e^score, without values.
fn add_values(keys: vec4<u32>, kv: u32, shrink: vec4<f32>, weights: mat4x4<f32>, sees: Seeing) {
}

fn finish(first: u32, head: u32, highest: vec4<f32>, total: vec4<f32>) {
    for (var r = 0u; r < min(4u, QUERIES - first); r++) {
        store((first + r) * HEADS + head, lost(highest[r], highest[r] + log(total[r])));
    }
}
