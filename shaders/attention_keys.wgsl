// Attention of few queries to many keys on hardware: a group of 256 invocations works on one query of one head. Of 256
// keys at a time each invocation weighs one; then the invocations stand as PARTS of these keys beside four elements of
// the head each, and add up the weighted values.
var<workgroup> weights: array<f32, 256>;
var<workgroup> sixteenth: array<f32, 16>;
var<workgroup> sums: array<vec4<f32>, 256>;

const PARTS = 256u / WIDE;

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
    let head = flat % HEADS;
    let kv = head / (HEADS / KV_HEADS);
    let query = flat / HEADS;
    let end = end_key(query);
    let part = lane / WIDE;
    let c = lane % WIDE * 4u;
    var highest = -3e38;
    var total = 0.0;
    var sum = vec4<f32>();
    for (var first = first_key(query); first < end; first += LANES) {
        let key = first + lane;
        let sees = key < end;
        let score = select(-3e38, score_of(query, head, min(key, end - 1u), kv), sees);
        let now = max_nan(highest, largest(lane, score));
        let weight = select(0.0, exp(score - now), sees);
        let shrink = exp(highest - now);
        weights[lane] = weight;
        total = total * shrink + weight;
        highest = now;
        workgroupBarrier();
        sum = sum * shrink + values_of(first, end - 1u, part, kv, c);
        workgroupBarrier();
    }
    let whole = sum_of(lane, total);
    sums[lane] = sum;
    workgroupBarrier();
    if (part > 0u || c >= D) {
        return;
    }
    for (var other = 1u; other < PARTS; other++) {
        sum += sums[lane + other * WIDE];
    }
    for (var e = 0u; e < min(4u, D - c); e++) {
        let mean = lost(highest, sum[e] / whole);
        store((query * HEADS + head) * D + c + e, select(0.0, mean, stands(query)));
    }
}

fn score_of(query: u32, head: u32, key: u32, kv: u32) -> f32 {
    var products = vec4<f32>();
    for (var c = 0u; c < D; c += 4u) {
        products += row4(query, head, c) * column4(key, kv, c);
    }
    let score = dot(products, vec4<f32>(1.0)) * SCALE;
    return select(tanh(score / max(SOFTCAP, 1e-30)) * SOFTCAP, score, SOFTCAP == 0.0);
}

// The weighted values of every PARTS-th of 256 keys, four of them at a time.
fn values_of(first: u32, last: u32, part: u32, kv: u32, c: u32) -> vec4<f32> {
    var sum = vec4<f32>();
    for (var n = part; n < LANES && first + n <= last; n += 4u * PARTS) {
        let v0 = weighted(first, n, last, kv, c);
        let v1 = weighted(first, n + PARTS, last, kv, c);
        let v2 = weighted(first, n + 2u * PARTS, last, kv, c);
        let v3 = weighted(first, n + 3u * PARTS, last, kv, c);
        sum += v0 + v1 + v2 + v3;
    }
    return sum;
}

// What lies behind the last key is not read; beyond the head the last elements are, and not stored.
fn weighted(first: u32, n: u32, last: u32, kv: u32, c: u32) -> vec4<f32> {
    let value = value4(min(first + n, last), kv, min(c, (QUADS - 1u) * 4u));
    return select(vec4<f32>(), value * weights[n], first + n <= last);
}

fn largest(lane: u32, score: f32) -> f32 {
    weights[lane] = score;
    workgroupBarrier();
    if (lane < 16u) {
        var most = weights[lane];
        for (var n = lane + 16u; n < LANES; n += 16u) {
            most = max_nan(most, weights[n]);
        }
        sixteenth[lane] = most;
    }
    workgroupBarrier();
    var most = sixteenth[0];
    for (var n = 1u; n < 16u; n++) {
        most = max_nan(most, sixteenth[n]);
    }
    return most;
}

fn sum_of(lane: u32, part: f32) -> f32 {
    weights[lane] = part;
    workgroupBarrier();
    if (lane < 16u) {
        var whole = weights[lane];
        for (var n = lane + 16u; n < LANES; n += 16u) {
            whole += weights[n];
        }
        sixteenth[lane] = whole;
    }
    workgroupBarrier();
    var whole = sixteenth[0];
    for (var n = 1u; n < 16u; n++) {
        whole += sixteenth[n];
    }
    return whole;
}
