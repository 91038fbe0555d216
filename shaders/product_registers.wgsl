// Products of left[ROWS, STEPS] and right[STEPS, COLUMNS], one for each group, that exist only as functions. A unit of
// work is a tile of TALL (1, 4 or 8) x BROAD (4 or 8) sums: four steps at a time it multiplies blocks of 4 x 4, straight
// from memory. Beyond the edge it repeats the last row and column, and does not store them.
fn unit(u: u32, part: u32, live: bool) {
    let group = u / (DOWN * WIDE);
    let row = u / WIDE % DOWN * TALL;
    let column = u % WIDE * BROAD;
    var tall0 = mat4x4<f32>();
    var tall1 = mat4x4<f32>();
    var tall2 = mat4x4<f32>();
    var tall3 = mat4x4<f32>();
    var flat0 = vec4<f32>();
    var flat1 = vec4<f32>();
    let a0 = rows_of(group, row);
    let a1 = rows_of(group, row + 4u);
    let b0 = columns_of(group, column);
    let b1 = columns_of(group, column + 4u);
    for (var k = part * 4u; k + 3u < STEPS; k += LANES * 4u) {
        let right0 = right_block(b0, k);
        var right1 = mat4x4<f32>();
        if (BROAD > 4u) {
            right1 = right_block(b1, k);
        }
        if (TALL == 1u) {
            flat0 += left4(a0.x, k) * right0;
            if (BROAD > 4u) { flat1 += left4(a0.x, k) * right1; }
        }
        if (TALL > 1u) {
            let left0 = left_block(a0, k);
            tall0 += left0 * right0;
            if (BROAD > 4u) { tall1 += left0 * right1; }
        }
        if (TALL > 4u) {
            let left1 = left_block(a1, k);
            tall2 += left1 * right0;
            if (BROAD > 4u) { tall3 += left1 * right1; }
        }
    }
    for (var k = STEPS / 4u * 4u + part; k < STEPS; k += LANES) {
        let right0 = vec4<f32>(right(b0.x, k), right(b0.y, k), right(b0.z, k), right(b0.w, k));
        var right1 = vec4<f32>();
        if (BROAD > 4u) {
            right1 = vec4<f32>(right(b1.x, k), right(b1.y, k), right(b1.z, k), right(b1.w, k));
        }
        if (TALL == 1u) {
            flat0 += left(a0.x, k) * right0;
            if (BROAD > 4u) { flat1 += left(a0.x, k) * right1; }
        }
        if (TALL > 1u) {
            let left0 = vec4<f32>(left(a0.x, k), left(a0.y, k), left(a0.z, k), left(a0.w, k));
            tall0 += outer(left0, right0);
            if (BROAD > 4u) { tall1 += outer(left0, right1); }
        }
        if (TALL > 4u) {
            let left1 = vec4<f32>(left(a1.x, k), left(a1.y, k), left(a1.z, k), left(a1.w, k));
            tall2 += outer(left1, right0);
            if (BROAD > 4u) { tall3 += outer(left1, right1); }
        }
    }
    // one place where sums are added up over those that share: barriers written out 64 times take drivers seconds
    let left_half = transpose(tall0);
    let right_half = transpose(tall1);
    let left_low = transpose(tall2);
    let right_low = transpose(tall3);
    var sums = array<vec4<f32>, 16>(
        left_half[0], right_half[0], left_half[1], right_half[1], left_half[2], right_half[2], left_half[3], right_half[3],
        left_low[0], right_low[0], left_low[1], right_low[1], left_low[2], right_low[2], left_low[3], right_low[3],
    );
    if (TALL == 1u) {
        sums[0] = flat0;
        sums[1] = flat1;
    }
    for (var i = 0u; i < TALL * 2u; i += 8u / BROAD) {
        let found = sums_of_unit(sums[i]);
        for (var q = 0u; q < 4u; q++) {
            let at = column + i % 2u * 4u + q;
            if (live && (i * 4u + q) % LANES == part && row + i / 2u < ROWS && at < COLUMNS) {
                store(place(group, row + i / 2u, at), found[q]);
            }
        }
    }
}

// Four rows of four steps, and four steps of four columns.
fn left_block(rows: vec4<u32>, k: u32) -> mat4x4<f32> {
    return transpose(mat4x4<f32>(left4(rows.x, k), left4(rows.y, k), left4(rows.z, k), left4(rows.w, k)));
}

fn right_block(columns: Columns, k: u32) -> mat4x4<f32> {
    return mat4x4<f32>(right4(columns.x, k), right4(columns.y, k), right4(columns.z, k), right4(columns.w, k));
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

fn outer(a: vec4<f32>, b: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(a * b.x, a * b.y, a * b.z, a * b.w);
}
