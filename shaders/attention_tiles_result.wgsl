// A group computes 64 queries of one head, WIDE elements of each: 64, or 128 as two halves.
@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let flat = (group.z * groups.y + group.y) * groups.x + group.x;
    if (flat >= UNITS) {
        return;
    }
    let chunk = flat % CHUNKS * WIDE;
    let head = flat / CHUNKS % HEADS;
    let kv = head / (HEADS / KV_HEADS);
    let row = first_row(flat);
    let lane = index % 128u;
    if (PARTS > 1u) {
        part = index / 128u;
    }
    let end = end_key(min(row + 63u, QUERIES - 1u));
    var sums = Sums();
    var more = Sums();
    for (var first = first_key(row) / 64u * 64u; first < end; first += 64u * PARTS) {
        let column = first + part * 64u;
        if (PARTS > 1u) {
            busy = column < end;
        }
        let weights = weigh(lane, row, head, column, kv);
        sums = add_values(lane, shrunk(sums), weights, row, column, kv, chunk, false);
        if (WIDE == 128u) {
            more = add_values(lane, shrunk(more), weights, row, column, kv, chunk + 64u, false);
        }
    }
    add_up(lane);
    if (PARTS > 1u) {
        join_parts(lane);
        sums = shrunk(sums);
        more = shrunk(more);
    }
    write(lane, row, head, chunk, mean(sums), false);
    if (WIDE == 128u) {
        write(lane, row, head, chunk + 64u, mean(more), false);
    }
    if (chunk == 0u && part == 0u && lane % 16u == 0u) {
        write_logarithms(row + lane / 16u * 4u, head);
    }
}

fn shrunk(sums: Sums) -> Sums {
    return Sums(times(sums.low, shrink_low), times(sums.high, shrink_high));
}

fn times(sums: mat4x4<f32>, by: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(sums[0] * by.x, sums[1] * by.y, sums[2] * by.z, sums[3] * by.w);
}

fn mean(sums: Sums) -> Sums {
    return Sums(
        times(sums.low, inverse(highest_low, total_low)),
        times(sums.high, inverse(highest_high, total_high)),
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
