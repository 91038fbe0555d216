// The result of attention: the mean of the values by their weights.
fn add_values(keys: vec4<u32>, kv: u32, shrink: vec4<f32>, weights: mat4x4<f32>, sees: Seeing) {
    let whole = sees_all(sees);
    for (var c = 0u; c < D; c += 4u) {
        let four = mat4x4<f32>(
            value4(keys.x, kv, c), value4(keys.y, kv, c), value4(keys.z, kv, c), value4(keys.w, kv, c)
        );
        let more = weighted(four, weights, sees, whole);
        sums[c * LANES + own] = sums[c * LANES + own] * shrink.x + more[0];
        sums[(c + 1u) * LANES + own] = sums[(c + 1u) * LANES + own] * shrink.y + more[1];
        sums[(c + 2u) * LANES + own] = sums[(c + 2u) * LANES + own] * shrink.z + more[2];
        sums[(c + 3u) * LANES + own] = sums[(c + 3u) * LANES + own] * shrink.w + more[3];
    }
}

fn finish(first: u32, head: u32, highest: vec4<f32>, total: vec4<f32>) {
    for (var r = 0u; r < min(4u, QUERIES - first); r++) {
        for (var c = 0u; c < D; c++) {
            let sum = sums[(c / 4u * 4u + r) * LANES + own][c % 4u];
            store(((first + r) * HEADS + head) * D + c, lost(highest[r], sum / total[r]));
        }
        store_logarithm((first + r) * HEADS + head, lost(highest[r], highest[r] + log(total[r])));
    }
}
