// Sums of outer products by number, on hardware: a group of 256 invocations computes 64 x 64 of one matrix of the result
// [EXPERTS, K, N], 4 x 4 each. It looks for its number in 256 rows at a time, then copies the rows found, 16 at a time and
// in order, to workgroup memory.
var<workgroup> found: array<u32, 256>;
var<workgroup> rows: array<u32, 256>;
var<workgroup> tile_x: array<vec4<f32>, 256>;
var<workgroup> tile_g: array<vec4<f32>, 256>;

fn four_of_x(row: u32, k: u32) -> vec4<f32> {
    var four = vec4<f32>();
    for (var q = 0u; q < 4u; q++) { if (k + q < K) { four[q] = x_at(row * K + k + q); } }
    return four;
}

fn four_of_g(row: u32, n: u32) -> vec4<f32> {
    var four = vec4<f32>();
    for (var q = 0u; q < 4u; q++) { if (n + q < N) { four[q] = g_at(row * N + n + q); } }
    return four;
}

// Put the rows from `start` on that bear the number in `rows`, in order; the answer is how many.
fn look(start: u32, expert: u32, lane: u32) -> u32 {
    let row = start + lane;
    var bears = 0u;
    if (row < ROWS) {
        bears = select(0u, 1u, idx_at(row) == expert);
    }
    found[lane] = bears;
    workgroupBarrier();
    for (var distance = 1u; distance < 256u; distance *= 2u) {
        var total = found[lane];
        if (lane >= distance) {
            total += found[lane - distance];
        }
        workgroupBarrier();
        found[lane] = total;
        workgroupBarrier();
    }
    if (bears == 1u) {
        rows[found[lane] - 1u] = row;
    }
    workgroupBarrier();
    return workgroupUniformLoad(&found[255]);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let across = (N + 63u) / 64u;
    let tiles = across * ((K + 63u) / 64u);
    let flat = (group.z * groups.y + group.y) * groups.x + group.x;
    if (flat >= UNITS) {
        return;
    }
    let expert = flat / tiles;
    let k = flat % tiles / across * 64u;
    let n = flat % tiles % across * 64u;
    let down = lane / 16u;
    let right = lane % 16u;
    var total = mat4x4<f32>();
    for (var start = 0u; start < ROWS; start += 256u) {
        let count = look(start, expert, lane);
        for (var s = 0u; s < count; s += 16u) {
            var x = vec4<f32>();
            var g = vec4<f32>();
            if (s + down < count) {
                x = four_of_x(rows[s + down], k + right * 4u);
                g = four_of_g(rows[s + down], n + right * 4u);
            }
            tile_x[lane] = x;
            tile_g[lane] = g;
            workgroupBarrier();
            for (var step = 0u; step < min(16u, count - s); step++) {
                let a = tile_x[step * 16u + down];
                let b = tile_g[step * 16u + right];
                total += mat4x4<f32>(a.x * b, a.y * b, a.z * b, a.w * b);
            }
            workgroupBarrier();
        }
        workgroupBarrier();
    }
    for (var r = 0u; r < 4u; r++) {
        for (var q = 0u; q < 4u; q++) {
            if (k + down * 4u + r < K && n + right * 4u + q < N) {
                store((expert * K + k + down * 4u + r) * N + n + right * 4u + q, total[r][q]);
            }
        }
    }
}
