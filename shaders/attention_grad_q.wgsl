// Gradient of the queries: rows are queries, columns are keys; dQ = P (dP - delta) K.
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

fn second_row4(query: u32, head: u32, c: u32) -> vec4<f32> {
    let at = (query * HEADS + head) * D + c;
    if (D % 4u == 0u) {
        return g_four(at);
    }
    return vec4<f32>(
        g_at(at),
        select(0.0, g_at(at + select(0u, 1u, c + 1u < D)), c + 1u < D),
        select(0.0, g_at(at + select(0u, 2u, c + 2u < D)), c + 2u < D),
        select(0.0, g_at(at + select(0u, 3u, c + 3u < D)), c + 3u < D),
    );
}

fn second_column4(key: u32, head: u32, c: u32) -> vec4<f32> {
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

fn value4(key: u32, head: u32, c: u32) -> vec4<f32> {
    return column4(key, head, c);
}

fn second_value4(column: u32, head: u32, c: u32) -> vec4<f32> {
    return vec4<f32>();
}

fn first_column(query: u32) -> u32 {
    return first_key(query);
}

fn end_column(query: u32) -> u32 {
    return end_key(query);
}

// Which of 4 keys a query sees.
fn seeing(query: u32, key: u32) -> vec4<bool> {
    let keys = key + vec4<u32>(0u, 1u, 2u, 3u);
    return (keys >= vec4<u32>(first_key(query))) & (keys < vec4<u32>(end_key(query)));
}

// The weights of attention P, of one query and 4 keys.
fn shares(query: u32, head: u32, key: u32, kv: u32, scores: vec4<f32>) -> vec4<f32> {
    return select(vec4<f32>(), power4(scores * SCALE - lse_at(query * HEADS + head)), seeing(query, key));
}

// By what the values are multiplied, from P.
fn weights(query: u32, head: u32, key: u32, kv: u32, p: vec4<f32>, seconds: vec4<f32>) -> vec4<f32> {
    return select(vec4<f32>(), p * (seconds - delta_at(query * HEADS + head)), seeing(query, key));
}

// The one key head that a query head reads.
fn first_head(head: u32) -> u32 {
    return head / (HEADS / KV_HEADS);
}

fn end_head(head: u32) -> u32 {
    return head / (HEADS / KV_HEADS) + 1u;
}
