// A group adds up 8 rows of one head, WIDE elements of each: the values of every column, weighted anew. STORES_VALUES: and
// second values, weighted by P alone.
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
    let head = flat / CHUNKS % OWN_HEADS;
    let row = flat / (CHUNKS * OWN_HEADS) * 8u;
    let own = min(row + lane / 16u, OWN_ROWS - 1u);
    let end = end_column(min(row + 7u, OWN_ROWS - 1u));
    var sums = Sums();
    var second_sums = Sums();
    for (var other = first_head(head); other < end_head(head); other++) {
        for (var column = first_column(row) / 4u * 4u; column < end; column += 64u) {
            let scores = score4(lane, own, head, column, other);
            var seconds = vec4<f32>();
            if (SECOND == 1u) {
                seconds = second4(lane, own, head, column, other);
            }
            let n = column + lane % 16u * 4u;
            let p = shares(own, head, n, other, scores);
            if (STORES_VALUES == 1u) {
                weight[lane] = p;
                workgroupBarrier();
                second_sums = add_short(lane, second_sums, row, column, end, other, chunk, true);
                workgroupBarrier();
            }
            weight[lane] = weights(own, head, n, other, p, seconds);
            workgroupBarrier();
            sums = add_short(lane, sums, row, column, end, other, chunk, false);
        }
    }
    if (STORES_VALUES == 1u) {
        write_parts(lane, second_sums.low, row, head, chunk, vec4<f32>(1.0), true);
        write_parts(lane, second_sums.high, row + 4u, head, chunk, vec4<f32>(1.0), true);
    }
    write_parts(lane, sums.low, row, head, chunk, vec4<f32>(FINAL), false);
    write_parts(lane, sums.high, row + 4u, head, chunk, vec4<f32>(FINAL), false);
}

// As `score4`, of the second pair of factors.
fn second4(lane: u32, row: u32, head: u32, column: u32, other: u32) -> vec4<f32> {
    var sums = vec4<f32>();
    for (var first = 0u; first < D; first += 32u) {
        workgroupBarrier();
        for (var k = 0u; k < 4u; k++) {
            let n = k * 16u + lane / 8u;
            stage[staged(n, lane % 8u)] = second_column_or_zero(column + n, other, first + lane % 8u * 4u);
        }
        workgroupBarrier();
        for (var step = 0u; step < 8u; step++) {
            sums += second_row_or_zero(row, head, first + step * 4u) * four_of(lane, step);
        }
    }
    return sums;
}

fn first_seen(row: u32) -> u32 {
    return first_column(row);
}

fn end_seen(row: u32) -> u32 {
    return end_column(row);
}
