// Sums of an invocation lie in workgroup memory, which nobody else reads: an array of registers that is indexed in a loop
// takes a software adapter seconds to compile.
var<workgroup> sums: array<vec4<f32>, QUADS * 4u * (1u + STORES_VALUES) * LANES>;
var<private> own: u32;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    own = lane;
    let wanted = ((group.z * groups.y + group.y) * groups.x + group.x) * LANES + lane;
    if (wanted < PIECES) {
        unit(wanted);
    }
}

// Scores of 4 rows against 4 columns, straight from memory: row r of the result is its column r.
fn scores4(rows: vec4<u32>, head: u32, columns: vec4<u32>, other: u32) -> mat4x4<f32> {
    var s0 = vec4<f32>();
    var s1 = vec4<f32>();
    var s2 = vec4<f32>();
    var s3 = vec4<f32>();
    for (var c = 0u; c < D; c += 4u) {
        let four = mat4x4<f32>(
            column4(columns.x, other, c),
            column4(columns.y, other, c),
            column4(columns.z, other, c),
            column4(columns.w, other, c),
        );
        s0 += row4(rows.x, head, c) * four;
        s1 += row4(rows.y, head, c) * four;
        s2 += row4(rows.z, head, c) * four;
        s3 += row4(rows.w, head, c) * four;
    }
    return mat4x4<f32>(s0, s1, s2, s3);
}

// Which of 4 columns each of 4 rows sees.
struct Seeing {
    x: vec4<bool>,
    y: vec4<bool>,
    z: vec4<bool>,
    w: vec4<bool>,
}

fn sees_all(sees: Seeing) -> bool {
    return all(sees.x & sees.y & sees.z & sees.w);
}

fn of_seen(four: mat4x4<f32>, sees: vec4<bool>, weights: vec4<f32>) -> vec4<f32> {
    let none = vec4<f32>();
    return mat4x4<f32>(
        select(none, four[0], sees.x), select(none, four[1], sees.y),
        select(none, four[2], sees.z), select(none, four[3], sees.w),
    ) * weights;
}

// The values of 4 columns, weighted for each of 4 rows. What a row does not see is left out, not multiplied by 0: it may
// be a NaN. A loop, because a software adapter runs both sides of an `if`, but leaves a loop that nobody is in.
fn weighted(four: mat4x4<f32>, weights: mat4x4<f32>, sees: Seeing, whole: bool) -> mat4x4<f32> {
    var sums = mat4x4<f32>(four * weights[0], four * weights[1], four * weights[2], four * weights[3]);
    for (var again = !whole; again; again = false) {
        sums = mat4x4<f32>(
            of_seen(four, sees.x, weights[0]), of_seen(four, sees.y, weights[1]),
            of_seen(four, sees.z, weights[2]), of_seen(four, sees.w, weights[3]),
        );
    }
    return sums;
}
