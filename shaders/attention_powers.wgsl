// Scores of a query and 4 keys that a mask leaves, their largest, and e^(score - highest).
fn masked(scores: vec4<f32>, query: u32, key: u32) -> vec4<f32> {
    return select(vec4<f32>(-3e38), scores * SCALE, seen(query, key));
}

fn largest(scores: vec4<f32>) -> f32 {
    return max_nan(max_nan(scores.x, scores.y), max_nan(scores.z, scores.w));
}

fn powers(scores: vec4<f32>, highest: f32, query: u32, key: u32) -> vec4<f32> {
    return select(vec4<f32>(), exp(scores - highest), seen(query, key));
}
