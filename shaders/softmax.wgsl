// LANES invocations compute one row of WIDTH elements: its maximum, the sum of e^(x - maximum), then every element. The
// row is read three times. A group computes ACROSS rows.
@compute @workgroup_size(LANES * ACROSS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let wanted = ((group.z * groups.y + group.y) * groups.x + group.x) * ACROSS + lane / LANES;
    let first = min(wanted, ROWS - 1u) * WIDTH;
    var highest = element(first);
    for (var c = lane % LANES; c < WIDTH; c += LANES) {
        highest = max_nan(highest, element(first + c));
    }
    highest = max_of_row(lane, highest);
    var total = 0.0;
    for (var c = lane % LANES; c < WIDTH; c += LANES) {
        total += exp(element(first + c) - highest);
    }
    total = sum_of_row(lane, total);
    if (wanted < ROWS) {
        for (var c = lane % LANES; c < WIDTH; c += LANES) {
            store(first + c, lost(highest, exp(element(first + c) - highest) / total));
        }
    }
}
