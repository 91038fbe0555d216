// A group adds up 64 rows of one head, WIDE elements of each (64, or 128 as two halves): the values of every column,
// weighted anew. STORES_VALUES: and second values, weighted by P alone, of heads of one half.
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
    let head = flat / CHUNKS % OWN_HEADS;
    let row = first_row(flat);
    let lane = index % 128u;
    if (PARTS > 1u) {
        part = index / 128u;
    }
    let start = first_column(row) / 64u * 64u;
    let end = end_column(min(row + 63u, OWN_ROWS - 1u));
    let blocks = (max(end, start) - start + 63u) / 64u;
    let count = (end_head(head) - first_head(head)) * blocks;
    var sums = Sums();
    var more = Sums();
    var second_sums = Sums();
    for (var first = 0u; first < count; first += PARTS) {
        let block = first + part;
        if (PARTS > 1u) {
            busy = block < count;
        }
        let other = first_head(head) + block / blocks;
        let column = start + block % blocks * 64u;
        let scores = score_tile(lane, row, head, column, other);
        var seconds = Sums();
        if (SECOND == 1u) {
            seconds = second_tile(lane, row, head, column, other);
        }
        var p = Sums();
        var weighed = Sums();
        if (busy) {
            let m = row + lane / 16u * 4u;
            let n = column + lane % 16u * 4u;
            p.low = shares4(m, head, n, other, scores.low);
            p.high = shares4(m + 32u, head, n, other, scores.high);
            weighed.low = weights4(m, head, n, other, p.low, seconds.low);
            weighed.high = weights4(m + 32u, head, n, other, p.high, seconds.high);
        }
        if (STORES_VALUES == 1u) {
            second_sums = add_values(lane, second_sums, p, row, column, other, chunk, true);
        }
        sums = add_values(lane, sums, weighed, row, column, other, chunk, false);
        if (WIDE == 128u) {
            more = add_values(lane, more, weighed, row, column, other, chunk + 64u, false);
        }
    }
    if (STORES_VALUES == 1u) {
        write(lane, row, head, chunk, second_sums, true);
    }
    write(lane, row, head, chunk, Sums(sums.low * FINAL, sums.high * FINAL), false);
    if (WIDE == 128u) {
        write(lane, row, head, chunk + 64u, Sums(more.low * FINAL, more.high * FINAL), false);
    }
}

fn shares4(row: u32, head: u32, column: u32, other: u32, s: mat4x4<f32>) -> mat4x4<f32> {
    let last = OWN_ROWS - 1u;
    return mat4x4<f32>(
        shares(min(row, last), head, column, other, s[0]),
        shares(min(row + 1u, last), head, column, other, s[1]),
        shares(min(row + 2u, last), head, column, other, s[2]),
        shares(min(row + 3u, last), head, column, other, s[3]),
    );
}

fn weights4(row: u32, head: u32, column: u32, other: u32, p: mat4x4<f32>, t: mat4x4<f32>) -> mat4x4<f32> {
    let last = OWN_ROWS - 1u;
    return mat4x4<f32>(
        weights(min(row, last), head, column, other, p[0], t[0]),
        weights(min(row + 1u, last), head, column, other, p[1], t[1]),
        weights(min(row + 2u, last), head, column, other, p[2], t[2]),
        weights(min(row + 3u, last), head, column, other, p[3], t[3]),
    );
}

// As `score_tile`, of the second pair of factors.
fn second_tile(lane: u32, row: u32, head: u32, column: u32, other: u32) -> Sums {
    var sums = Sums();
    let m = row + quad_of(lane);
    let n = column + quad_of(lane);
    for (var first = 0u; first < D; first += 32u) {
        let c = first + step_of(lane);
        var rows = mat4x4<f32>();
        var columns = mat4x4<f32>();
        if (busy) {
            rows = mat4x4<f32>(
                second_row_or_zero(m, head, c),
                second_row_or_zero(m + 1u, head, c),
                second_row_or_zero(m + 2u, head, c),
                second_row_or_zero(m + 3u, head, c),
            );
            columns = mat4x4<f32>(
                second_column_or_zero(n, other, c),
                second_column_or_zero(n + 1u, other, c),
                second_column_or_zero(n + 2u, other, c),
                second_column_or_zero(n + 3u, other, c),
            );
        }
        workgroupBarrier();
        keep(lane, rows, columns);
        workgroupBarrier();
        sums = multiply_steps(lane, sums, first);
    }
    return sums;
}

fn first_seen(row: u32) -> u32 {
    return first_column(row);
}

fn end_seen(row: u32) -> u32 {
    return end_column(row);
}
