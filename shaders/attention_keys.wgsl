// Attention of few queries to many keys on hardware: a group of LANES invocations works on one query of one head, and
// on CHUNK of the keys of its cache. Of LANES keys at a time four neighbours share a key's score; then the invocations
// stand as PARTS of these keys beside four elements of the head each, and add up the weighted values. With several
// CHUNKS it stores for each of them the weighted sum, the largest score and the sum of weights, for
// attention_chunks.wgsl to add.
const PARTS = LANES / WIDE;
const FOLDERS = min(32u, LANES);

var<workgroup> weights: array<f32, LANES>;
var<workgroup> folded: array<f32, FOLDERS>;
var<workgroup> fours: array<f32, 4u * LANES>;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let flat = (group.z * groups.y + group.y) * groups.x + group.x;
    if (flat >= UNITS) {
        return;
    }
    let row = flat / CHUNKS;
    let head = row % HEADS;
    let kv = head / (HEADS / KV_HEADS);
    let query = row / HEADS;
    let begin = cache_begin(query) + flat % CHUNKS * CHUNK;
    let end = min(end_key(query), begin + CHUNK);
    let part = lane / WIDE;
    let c = lane % WIDE * 4u;
    var highest = -3e38;
    var total = 0.0;
    var sum = vec4<f32>();
    for (var first = max(first_key(query), begin); first < end; first += LANES) {
        let score = select(-3e38, score_of(first, end, query, head, kv, lane), first + lane < end);
        let now = max_nan(highest, largest(lane, score));
        let weight = select(0.0, exp(score - now), first + lane < end);
        let shrink = exp(highest - now);
        weights[lane] = weight;
        total = total * shrink + weight;
        highest = now;
        workgroupBarrier();
        sum = sum * shrink + values_of(first, end - 1u, part, kv, c);
        workgroupBarrier();
    }
    let whole = sum_of(lane, total);
    for (var e = 0u; e < 4u; e++) {
        fours[4u * lane + e] = sum[e];
    }
    workgroupBarrier();
    if (part > 0u || c >= 4u * QUADS) {
        return;
    }
    for (var other = 1u; other < PARTS; other++) {
        let at = 4u * (lane + other * WIDE);
        sum += vec4<f32>(fours[at], fours[at + 1u], fours[at + 2u], fours[at + 3u]);
    }
    let counts = stands(query);
    if (CHUNKS > 1u) {
        let at = flat * (4u * QUADS + 2u);
        for (var e = 0u; e < 4u; e++) {
            store(at + c + e, select(0.0, sum[e], counts));
        }
        if (lane == 0u) {
            store(at + 4u * QUADS, select(0.0, highest, counts));
            store(at + 4u * QUADS + 1u, select(1.0, whole, counts));
        }
        return;
    }
    for (var e = 0u; e < min(4u, D - c); e++) {
        let mean = lost(highest, sum[e] / whole);
        store(row * D + c + e, select(0.0, mean, counts));
    }
}

// The score of key first + lane; what is behind the last key means nothing.
fn score_of(first: u32, end: u32, query: u32, head: u32, kv: u32, lane: u32) -> f32 {
    var p0 = vec4<f32>();
    var p1 = vec4<f32>();
    var p2 = vec4<f32>();
    var p3 = vec4<f32>();
    let key = vec4<u32>(first + lane / 4u) + vec4<u32>(0u, 1u, 2u, 3u) * (LANES / 4u);
    let k = min(key, vec4<u32>(end - 1u));
    for (var c = lane % 4u * 4u; c < D; c += 16u) {
        let q = row4(query, head, c);
        p0 += q * column4(k.x, kv, c);
        p1 += q * column4(k.y, kv, c);
        p2 += q * column4(k.z, kv, c);
        p3 += q * column4(k.w, kv, c);
    }
    fours[lane] = dot(p0, vec4<f32>(1.0));
    fours[lane + LANES] = dot(p1, vec4<f32>(1.0));
    fours[lane + 2u * LANES] = dot(p2, vec4<f32>(1.0));
    fours[lane + 3u * LANES] = dot(p3, vec4<f32>(1.0));
    workgroupBarrier();
    let at = 4u * lane;
    let score = (fours[at] + fours[at + 1u] + (fours[at + 2u] + fours[at + 3u])) * SCALE;
    return select(tanh(score / max(SOFTCAP, 1e-30)) * SOFTCAP, score, SOFTCAP == 0.0);
}

// The weighted values of every PARTS-th of LANES keys, eight of them at a time.
fn values_of(first: u32, last: u32, part: u32, kv: u32, c: u32) -> vec4<f32> {
    var sum = vec4<f32>();
    for (var n = part; n < LANES && first + n <= last; n += 8u * PARTS) {
        let v0 = weighted(first, n, last, kv, c);
        let v1 = weighted(first, n + PARTS, last, kv, c);
        let v2 = weighted(first, n + 2u * PARTS, last, kv, c);
        let v3 = weighted(first, n + 3u * PARTS, last, kv, c);
        let v4 = weighted(first, n + 4u * PARTS, last, kv, c);
        let v5 = weighted(first, n + 5u * PARTS, last, kv, c);
        let v6 = weighted(first, n + 6u * PARTS, last, kv, c);
        let v7 = weighted(first, n + 7u * PARTS, last, kv, c);
        sum += v0 + v1 + v2 + v3 + (v4 + v5 + v6 + v7);
    }
    return sum;
}

// What lies behind the last key is not read; beyond the head the last elements are, and not stored.
fn weighted(first: u32, n: u32, last: u32, kv: u32, c: u32) -> vec4<f32> {
    let value = value4(min(first + n, last), kv, min(c, (QUADS - 1u) * 4u));
    return select(vec4<f32>(), value * weights[min(n, LANES - 1u)], n < LANES && first + n <= last);
}

fn largest(lane: u32, score: f32) -> f32 {
    weights[lane] = score;
    workgroupBarrier();
    if (lane < FOLDERS) {
        var most = weights[lane];
        for (var n = lane + FOLDERS; n < LANES; n += FOLDERS) {
            most = max_nan(most, weights[n]);
        }
        folded[lane] = most;
    }
    workgroupBarrier();
    var most = folded[0];
    for (var n = 1u; n < FOLDERS; n++) {
        most = max_nan(most, folded[n]);
    }
    return most;
}

fn sum_of(lane: u32, part: f32) -> f32 {
    weights[lane] = part;
    workgroupBarrier();
    if (lane < FOLDERS) {
        var whole = weights[lane];
        for (var n = lane + FOLDERS; n < LANES; n += FOLDERS) {
            whole += weights[n];
        }
        folded[lane] = whole;
    }
    workgroupBarrier();
    var whole = folded[0];
    for (var n = 1u; n < FOLDERS; n++) {
        whole += folded[n];
    }
    return whole;
}
