// Whether a query sees a key: any, those up to its own row (CAUSAL), or of those the last WINDOW.
fn first_key(query: u32) -> u32 {
    if (WINDOW > 0u && query + 1u > WINDOW) {
        return query + 1u - WINDOW;
    }
    return 0u;
}

fn end_key(query: u32) -> u32 {
    if (CAUSAL == 1u) {
        return min(query + 1u, KEYS);
    }
    return KEYS;
}

// The queries that see a key lie between these.
fn first_query(key: u32) -> u32 {
    return key * CAUSAL;
}

fn end_query(key: u32) -> u32 {
    if (WINDOW > 0u) {
        return min(key + WINDOW, QUERIES);
    }
    return QUERIES;
}

// e to x; a NaN stays one.
fn power4(x: vec4<f32>) -> vec4<f32> {
    return select(exp(x), x, (bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u));
}
