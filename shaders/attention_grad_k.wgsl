// Gradient of the keys: rows are keys, columns are queries; dK = (P (dP - delta)) transposed Q. And, where the dispatch
// stores it, that of the values: dV = P transposed dO.
fn row4(key: u32, head: u32, c: u32) -> vec4<f32> {
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

fn column4(query: u32, head: u32, c: u32) -> vec4<f32> {
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

fn second_row4(key: u32, head: u32, c: u32) -> vec4<f32> {
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

fn second_column4(query: u32, head: u32, c: u32) -> vec4<f32> {
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

fn value4(query: u32, head: u32, c: u32) -> vec4<f32> {
    return column4(query, head, c);
}

fn second_value4(query: u32, head: u32, c: u32) -> vec4<f32> {
    return second_column4(query, head, c);
}

fn first_column(key: u32) -> u32 {
    return first_query(key);
}

fn end_column(key: u32) -> u32 {
    return end_query(key);
}

// Which of 4 queries see a key.
fn seeing(key: u32, query: u32) -> vec4<bool> {
    let queries = query + vec4<u32>(0u, 1u, 2u, 3u);
    return (queries >= vec4<u32>(first_query(key))) & (queries < vec4<u32>(end_query(key))) & vec4<bool>(key < KEYS);
}

fn lse4(query: u32, head: u32) -> vec4<f32> {
    return vec4<f32>(
        lse_at(min(query, QUERIES - 1u) * HEADS + head),
        lse_at(min(query + 1u, QUERIES - 1u) * HEADS + head),
        lse_at(min(query + 2u, QUERIES - 1u) * HEADS + head),
        lse_at(min(query + 3u, QUERIES - 1u) * HEADS + head),
    );
}

fn delta4(query: u32, head: u32) -> vec4<f32> {
    return vec4<f32>(
        delta_at(min(query, QUERIES - 1u) * HEADS + head),
        delta_at(min(query + 1u, QUERIES - 1u) * HEADS + head),
        delta_at(min(query + 2u, QUERIES - 1u) * HEADS + head),
        delta_at(min(query + 3u, QUERIES - 1u) * HEADS + head),
    );
}

// The weights of attention P, of one key and 4 queries.
fn shares(key: u32, kv: u32, query: u32, head: u32, scores: vec4<f32>) -> vec4<f32> {
    return select(vec4<f32>(), power4(scores * SCALE - lse4(query, head)), seeing(key, query));
}

// By what the values are multiplied, from P.
fn weights(key: u32, kv: u32, query: u32, head: u32, p: vec4<f32>, seconds: vec4<f32>) -> vec4<f32> {
    return select(vec4<f32>(), p * (seconds - delta4(query, head)), seeing(key, query));
}

// The query heads that read a key head.
fn first_head(head: u32) -> u32 {
    return head * (HEADS / KV_HEADS);
}

fn end_head(head: u32) -> u32 {
    return (head + 1u) * (HEADS / KV_HEADS);
}
