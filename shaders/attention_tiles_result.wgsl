// A group computes 64 queries of one head, WIDE elements of each: 64, or 128 as two halves.
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
    let row = first_row(flat);
    let end = end_key(min(row + 63u, QUERIES - 1u));
    var sums = Sums();
    var more = Sums();
    for (var column = first_key(row) / 64u * 64u; column < end; column += 64u) {
        let weights = weigh(lane, row, head, column, kv);
        sums.low = shrunk(sums.low, shrink_low);
        sums.high = shrunk(sums.high, shrink_high);
        sums = add_values(lane, sums, weights, row, column, kv, chunk);
        if (WIDE == 128u) {
            more.low = shrunk(more.low, shrink_low);
            more.high = shrunk(more.high, shrink_high);
            more = add_values(lane, more, weights, row, column, kv, chunk + 64u);
        }
    }
    add_up(lane);
    write(lane, row, head, chunk, mean(sums));
    if (WIDE == 128u) {
        write(lane, row, head, chunk + 64u, mean(more));
    }
    if (chunk == 0u && lane % 16u == 0u) {
        write_logarithms(row + lane / 16u * 4u, head);
    }
}

fn shrunk(sums: mat4x4<f32>, by: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(sums[0] * by.x, sums[1] * by.y, sums[2] * by.z, sums[3] * by.w);
}

fn mean(sums: Sums) -> Sums {
    return Sums(
        shrunk(sums.low, inverse(highest_low, total_low)),
        shrunk(sums.high, inverse(highest_high, total_high)),
    );
}

fn inverse(highest: vec4<f32>, total: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(
        lost(highest.x, 1.0 / total.x),
        lost(highest.y, 1.0 / total.y),
        lost(highest.z, 1.0 / total.z),
        lost(highest.w, 1.0 / total.w),
    );
}

fn first_seen(query: u32) -> u32 {
    return first_key(query);
}

fn end_seen(query: u32) -> u32 {
    return end_key(query);
}
