// Products of left[ROWS, STEPS] and right[STEPS, COLUMNS], one for each group, that exist only as functions. A workgroup of
// 128 computes a tile of 64 x 128 sums, 8 x 8 each: 16 steps at a time of left and right meet in workgroup memory, and the
// next ones are loaded meanwhile. Beyond the edge it repeats the last row and column, and does not store them.
var<workgroup> lefts: array<vec4<f32>, 256>;  // 16 steps, 64 rows
var<workgroup> rights: array<vec4<f32>, 512>;  // 16 steps, 128 columns

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let u = min((id.z * groups.y + id.y) * groups.x + id.x, UNITS - 1u);
    let group = u / (DOWN * WIDE);
    let row = u / WIDE % DOWN * 64u;
    let column = u % WIDE * 128u;
    // what this invocation loads: four columns of four steps, and of the first half four rows too
    let b = columns_of(group, column + lane % 32u * 4u);
    let b_step = lane / 32u * 4u;
    let a = rows_of(group, row + lane / 4u % 16u * 4u);
    let a_step = lane % 4u * 4u;
    let a_place = a_step * 16u + lane / 4u % 16u;
    let b_place = b_step * 32u + lane % 32u;
    let down = lane / 16u;
    let across = lane % 16u;
    var s0 = mat4x4<f32>();
    var s1 = mat4x4<f32>();
    var s2 = mat4x4<f32>();
    var s3 = mat4x4<f32>();
    var next_a = mat4x4<f32>();
    if (lane < 64u) {
        next_a = left_block(a, a_step);
    }
    var next_b = right_block(b, b_step);
    for (var k = 0u; k < STEPS; k += 16u) {
        workgroupBarrier();
        if (lane < 64u) {
            for (var q = 0u; q < 4u; q++) {
                lefts[a_place + q * 16u] = next_a[q];
            }
        }
        for (var q = 0u; q < 4u; q++) {
            rights[b_place + q * 32u] = next_b[q];
        }
        workgroupBarrier();
        if (k + 16u < STEPS) {
            if (lane < 64u) {
                next_a = left_block(a, k + 16u + a_step);
            }
            next_b = right_block(b, k + 16u + b_step);
        }
        for (var q = 0u; q < 16u; q++) {
            let a0 = lefts[q * 16u + down];
            let a1 = lefts[q * 16u + down + 8u];
            let b0 = rights[q * 32u + across];
            let b1 = rights[q * 32u + across + 16u];
            s0 += mat4x4<f32>(b0 * a0.x, b0 * a0.y, b0 * a0.z, b0 * a0.w);
            s1 += mat4x4<f32>(b1 * a0.x, b1 * a0.y, b1 * a0.z, b1 * a0.w);
            s2 += mat4x4<f32>(b0 * a1.x, b0 * a1.y, b0 * a1.z, b0 * a1.w);
            s3 += mat4x4<f32>(b1 * a1.x, b1 * a1.y, b1 * a1.z, b1 * a1.w);
        }
    }
    for (var q = 0u; q < 4u; q++) {
        keep(group, row + down * 4u + q, column + across * 4u, s0[q]);
        keep(group, row + down * 4u + q, column + across * 4u + 64u, s1[q]);
        keep(group, row + down * 4u + q + 32u, column + across * 4u, s2[q]);
        keep(group, row + down * 4u + q + 32u, column + across * 4u + 64u, s3[q]);
    }
}

struct Columns { x: Column, y: Column, z: Column, w: Column }

fn columns_of(group: u32, first: u32) -> Columns {
    return Columns(
        column_of(group, min(first, COLUMNS - 1u)),
        column_of(group, min(first + 1u, COLUMNS - 1u)),
        column_of(group, min(first + 2u, COLUMNS - 1u)),
        column_of(group, min(first + 3u, COLUMNS - 1u)),
    );
}

fn rows_of(group: u32, first: u32) -> vec4<u32> {
    let at = min(first + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(ROWS - 1u));
    return vec4<u32>(row_of(group, at.x), row_of(group, at.y), row_of(group, at.z), row_of(group, at.w));
}

// Four rows of each of four steps; zero beyond the last step.
fn left_block(rows: vec4<u32>, k: u32) -> mat4x4<f32> {
    if (k + 3u < STEPS) {
        return transpose(mat4x4<f32>(left4(rows.x, k), left4(rows.y, k), left4(rows.z, k), left4(rows.w, k)));
    }
    var block = mat4x4<f32>();
    for (var q = 0u; q < 4u && k + q < STEPS; q++) {
        block[q] = vec4<f32>(left(rows.x, k + q), left(rows.y, k + q), left(rows.z, k + q), left(rows.w, k + q));
    }
    return block;
}

// Four columns of each of four steps; zero beyond the last step.
fn right_block(c: Columns, k: u32) -> mat4x4<f32> {
    if (k + 3u < STEPS) {
        return transpose(mat4x4<f32>(right4(c.x, k), right4(c.y, k), right4(c.z, k), right4(c.w, k)));
    }
    var block = mat4x4<f32>();
    for (var q = 0u; q < 4u && k + q < STEPS; q++) {
        block[q] = vec4<f32>(right(c.x, k + q), right(c.y, k + q), right(c.z, k + q), right(c.w, k + q));
    }
    return block;
}

fn keep(group: u32, row: u32, column: u32, sum: vec4<f32>) {
    if (row < ROWS) {
        if (column < COLUMNS) { store(place(group, row, column), sum.x); }
        if (column + 1u < COLUMNS) { store(place(group, row, column + 1u), sum.y); }
        if (column + 2u < COLUMNS) { store(place(group, row, column + 2u), sum.z); }
        if (column + 3u < COLUMNS) { store(place(group, row, column + 3u), sum.w); }
    }
}
