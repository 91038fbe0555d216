// One invocation: 4 queries of one head, of the BLOCK that see the same keys. It walks the keys 4 at a time and keeps the
// largest score so far, the sum of e^(score - largest), and the values weighted so; all shrink when a larger score comes.
// It reads every key once.
fn unit(u: u32) {
    let head = u % HEADS;
    let kv = head / (HEADS / KV_HEADS);
    let fours = (BLOCK + 3u) / 4u;
    let block = u / HEADS / fours * BLOCK;
    let first = block + u / HEADS % fours * 4u;
    let rows = min(first + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(block + BLOCK - 1u));
    var highest = vec4<f32>(-3e38);
    var total = vec4<f32>();
    for (var i = 0u; i < QUADS * 4u; i++) {
        sums[i * LANES + own] = vec4<f32>();
    }
    let end = end_key(rows.w);
    for (var key = first_key(rows.x); key < end; key += 4u) {
        let keys = min(key + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(KEYS - 1u));
        let scores = capped(scores4(rows, head, keys, kv) * SCALE);
        let lowest = vec4<f32>(-3e38);
        let sees = Seeing(seen(rows.x, key), seen(rows.y, key), seen(rows.z, key), seen(rows.w, key));
        let s0 = select(lowest, scores[0], sees.x);
        let s1 = select(lowest, scores[1], sees.y);
        let s2 = select(lowest, scores[2], sees.z);
        let s3 = select(lowest, scores[3], sees.w);
        let now = vec4<f32>(
            highest4(highest.x, s0),
            highest4(highest.y, s1),
            highest4(highest.z, s2),
            highest4(highest.w, s3),
        );
        let shrink = exp(highest - now);
        highest = now;
        let p0 = select(vec4<f32>(), exp(s0 - now.x), sees.x);
        let p1 = select(vec4<f32>(), exp(s1 - now.y), sees.y);
        let p2 = select(vec4<f32>(), exp(s2 - now.z), sees.z);
        let p3 = select(vec4<f32>(), exp(s3 - now.w), sees.w);
        let ones = vec4<f32>(1.0);
        total = total * shrink + vec4<f32>(dot(p0, ones), dot(p1, ones), dot(p2, ones), dot(p3, ones));
        add_values(keys, kv, shrink, mat4x4<f32>(p0, p1, p2, p3), sees);
    }
    finish(first, head, highest, total);
}

fn highest4(before: f32, scores: vec4<f32>) -> f32 {
    return max_nan(before, max_nan(max_nan(scores.x, scores.y), max_nan(scores.z, scores.w)));
}
