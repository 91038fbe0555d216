// The factors of scores: rows are queries, columns are keys. Reads of four elements of a head, 0 beyond its end.
fn row4(query: u32, head: u32, c: u32) -> vec4<f32> {
    let at = (query * HEADS + head) * D + c;
    if (D % 4u == 0u) {
        return q_four(at);
    }
    return vec4<f32>(
        q_at(at),
        select(0.0, q_at(at + select(0u, 1u, c + 1u < D)), c + 1u < D),
        select(0.0, q_at(at + select(0u, 2u, c + 2u < D)), c + 2u < D),
        select(0.0, q_at(at + select(0u, 3u, c + 3u < D)), c + 3u < D),
    );
}

fn column4(key: u32, head: u32, c: u32) -> vec4<f32> {
    let at = (key * KV_HEADS + head) * D + c;
    if (D % 4u == 0u) {
        return k_four(at);
    }
    return vec4<f32>(
        k_at(at),
        select(0.0, k_at(at + select(0u, 1u, c + 1u < D)), c + 1u < D),
        select(0.0, k_at(at + select(0u, 2u, c + 2u < D)), c + 2u < D),
        select(0.0, k_at(at + select(0u, 3u, c + 3u < D)), c + 3u < D),
    );
}

fn seen(query: u32, key: u32) -> vec4<bool> {
    let keys = key + vec4<u32>(0u, 1u, 2u, 3u);
    return (keys >= vec4<u32>(first_key(query))) & (keys < vec4<u32>(end_key(query)));
}
