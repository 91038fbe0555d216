// A group computes 8 queries of one head, WIDE elements of each: of its row every invocation knows the largest score so
// far, and the sum of e^(score - largest) over its own columns.
var<workgroup> exchange: array<vec4<f32>, 32>;  // a number of each invocation, 16 of each row
var<workgroup> shrinks: array<vec4<f32>, 2>;

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
    let chunk = flat % CHUNKS * WIDE;
    let head = flat / CHUNKS % HEADS;
    let kv = head / (HEADS / KV_HEADS);
    let row = flat / (CHUNKS * HEADS) * 8u;
    let own = lane / 16u;
    let query = min(row + own, QUERIES - 1u);
    let end = end_key(min(row + 7u, QUERIES - 1u));
    var highest = -3e38;
    var total = 0.0;
    var sums = Sums();
    for (var column = first_key(row) / 4u * 4u; column < end; column += 64u) {
        let key = column + lane % 16u * 4u;
        let scores = masked(score4(lane, query, head, column, kv), query, key);
        exchange[lane / 4u][lane % 4u] = largest(scores);
        workgroupBarrier();
        var now = highest;
        for (var k = 0u; k < 4u; k++) {
            now = max_nan(now, largest(exchange[own * 4u + k]));
        }
        let p = powers(scores, now, query, key);
        weight[lane] = p;
        let shrink = exp(highest - now);
        total = total * shrink + dot(p, vec4<f32>(1.0));
        if (lane % 16u == 0u) {
            shrinks[own / 4u][own % 4u] = shrink;
        }
        highest = now;
        workgroupBarrier();
        sums = Sums(times(sums.low, shrinks[0]), times(sums.high, shrinks[1]));
        sums = add_short(lane, sums, row, column, end, kv, chunk, false);
    }
    exchange[lane / 4u][lane % 4u] = total;
    workgroupBarrier();
    if (lane % 16u == 0u) {
        let whole = total_of(own);
        shrinks[own / 4u][own % 4u] = lost(highest, 1.0 / whole);
        if (chunk == 0u && row + own < QUERIES) {
            store_logarithm(query * HEADS + head, lost(highest, highest + log(whole)));
        }
    }
    workgroupBarrier();
    write_parts(lane, sums.low, row, head, chunk, shrinks[0], false);
    write_parts(lane, sums.high, row + 4u, head, chunk, shrinks[1], false);
}

fn times(sums: mat4x4<f32>, by: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(sums[0] * by.x, sums[1] * by.y, sums[2] * by.z, sums[3] * by.w);
}

fn total_of(r: u32) -> f32 {
    let at = r * 4u;
    return dot(exchange[at] + exchange[at + 1u] + exchange[at + 2u] + exchange[at + 3u], vec4<f32>(1.0));
}

fn first_seen(query: u32) -> u32 {
    return first_key(query);
}

fn end_seen(query: u32) -> u32 {
    return end_key(query);
}
