// One invocation: four elements of one head of one query, from the weighted sums of CHUNKS chunks of its keys. Each
// chunk has 4 · QUADS sums, its largest score, and the sum of its weights e^(score - largest).
fn unit(u: u32) {
    let row = u / QUADS;
    let c = u % QUADS * 4u;
    let first = row * CHUNKS * (4u * QUADS + 2u);
    var highest = -3e38;
    for (var n = 0u; n < CHUNKS; n++) {
        highest = max_nan(highest, chunks_at(first + n * (4u * QUADS + 2u) + 4u * QUADS));
    }
    var total = 0.0;
    var sum = vec4<f32>();
    for (var n = 0u; n < CHUNKS; n++) {
        let at = first + n * (4u * QUADS + 2u);
        let weight = exp(chunks_at(at + 4u * QUADS) - highest);
        let part = vec4<f32>(
            chunks_at(at + c), chunks_at(at + c + 1u), chunks_at(at + c + 2u), chunks_at(at + c + 3u),
        );
        total += weight * chunks_at(at + 4u * QUADS + 1u);
        sum += weight * part;
    }
    for (var e = 0u; e < min(4u, D - c); e++) {
        store(row * D + c + e, lost(highest, sum[e] / total));
    }
}
