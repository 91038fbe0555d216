// A group computes the logarithms of 64 queries of one head.
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
    let row = first_row(flat);
    let end = end_key(min(row + 63u, QUERIES - 1u));
    for (var column = first_key(row) / 64u * 64u; column < end; column += 64u) {
        _ = weigh(lane, row, head, column, head / (HEADS / KV_HEADS));
    }
    add_up(lane);
    if (lane % 16u == 0u) {
        write_logarithms(row + lane / 16u * 4u, head);
    }
}

fn store_logarithm(i: u32, value: f32) {
    store(i, value);
}
